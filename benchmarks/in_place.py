"""One expert of many given anew into the outputs of a run, its tensors at once or one by one: its time over its share
of the run's.

The cpu backend on two threads, all into the same storage, in turns. What is over 1 is what every update takes whatever
its size, and that a tensor of a few MiB is not shared between threads as a run is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from benchmarks import Figure, Scale
from benchmarks.timing import THREADS, Conversion, against_copy
from layoutdsl import compile_plan

PROCESSES = 3
LIMIT = 3.0
"""Times 1/experts of a full run."""

SIZES: dict[Scale, Mapping[str, int]] = {
    "full": {"e": 256, "i": 1536, "h": 4096},
    "quick": {"e": 4, "i": 128, "h": 128},
}


def measure(scale: Scale) -> Iterator[Figure]:
    torch.set_num_threads(THREADS)
    sizes = SIZES[scale]
    experts = sizes["e"]
    params = {"group": 128, "qzeros": False, "g_idx": False}
    conversion = Conversion(compile_plan("gptq", "marlin_int4_a16", "moe_gated", sizes, params=params))
    ((plan, given, out),) = conversion.jobs
    updates = plan.updates(out, backend="cpu")
    at = 0

    def tensors() -> tuple[int, dict[str, torch.Tensor]]:
        nonlocal at
        at = (at + 37) % experts  # one that is in no cache
        return at, {name: tensor[at] for name, tensor in given.items()}

    def at_once() -> None:
        expert, some = tensors()
        updates.update_all(some, expert=expert)

    def one_by_one() -> None:
        expert, some = tensors()
        for name, tensor in some.items():
            updates.update(name, tensor, expert=expert)

    works = {"at_once": at_once, "one_by_one": one_by_one}
    for work in (*works.values(), *works.values()):
        work()
    taken = against_copy(scale, lambda: None, run=conversion.run, **works)
    run = taken["run"].seconds
    for name, limit in (("at_once", LIMIT), ("one_by_one", None)):
        seconds = taken[name].seconds
        note = f"{conversion.mebibytes:.0f} MiB, run {run * 1e3:.0f} ms, update {seconds * 1e3:.1f} ms"
        shown = name.replace("_", " ")
        yield Figure(f"update, {shown}", seconds * experts / run, f"times 1/{experts} of a run", limit, note)
