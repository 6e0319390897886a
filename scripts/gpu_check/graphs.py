"""Conversions captured in a CUDA graph: replayed with other weights in place they give the reference's bytes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from reference import NAMES, inputs_of, outcome, plan_named, raw
from rows import ABSENT, FAILED, PASSED, Row


def check(backend: str) -> Iterator[Row]:
    if backend == "host":
        yield Row("graphs", "capture and replay", ABSENT, "needs a GPU")
        return
    for name in NAMES:
        yield Row("graphs", name, *replayed(name))


def replayed(name: str) -> tuple[str, str]:
    plan = plan_named(name)
    given = {key: tensor.cuda() for key, tensor in inputs_of(plan).items()}
    out = plan.run(given, backend="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(given, backend="cuda", out=out)
    others = inputs_of(plan, seed=1)
    for key, tensor in others.items():
        given[key].copy_(tensor)
    graph.replay()
    torch.cuda.synchronize()
    wanted = outcome(plan.run, others, backend="reference")
    same = wanted == {key: raw(tensor) for key, tensor in out.items()}
    return (PASSED, f"{len(out)} tensors") if same else (FAILED, "differs from the reference after a replay")
