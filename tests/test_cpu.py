"""The cpu backend: its kernels' text, which programs share them, and what it leaves to torch. That it gives the
reference's bytes is said here for the listed plans, and in test_backends.py for drawn ones."""

import pytest
import torch
from plans import NAMES, inputs_of, plan_named

from layoutdsl import compile_plan
from layoutdsl.backends import cpu, cpu_lower, cpu_source
from layoutdsl.cli import main

GPTQ = ("gptq", "marlin_int4_a16", "linear")


def raw(tensors: dict) -> dict[str, bytes]:
    return {name: bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) for name, tensor in tensors.items()}


def made_by_kernels(plan) -> set[str]:
    return {program.output for program in plan.programs if cpu_lower.launches(plan, program) is not None}


@pytest.mark.parametrize("name", NAMES)
def test_listed_plans_give_the_reference_bytes(name):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    out = {info.name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    wanted = raw(plan.run(tensors, backend="reference"))
    assert raw(plan.run(tensors, backend="cpu")) == wanted
    plan.run(tensors, backend="cpu", out=out)
    assert raw(out) == wanted
