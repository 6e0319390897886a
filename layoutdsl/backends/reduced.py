"""What a reduction over all experts finds in some of them, so that the others' scales need not be at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from layoutdsl import recodes
from layoutdsl.backends import buffers
from layoutdsl.backends.places import ratios
from layoutdsl.backends.torch_recodes import decode
from layoutdsl.backends.torch_sources import Sources, data
from layoutdsl.codes import code_named
from layoutdsl.plan import Plan, Reduction

FLOAT32 = code_named("float32")


@dataclass(frozen=True)
class Top:
    """The largest scale of one expert; `folded` says that its parts have different global scales, whose ratios are
    folded into the scales."""

    value: float
    folded: bool = False


def tops(plan: Plan, reduction: Reduction, tensors: buffers.Given) -> list[Top]:
    """The top of each expert of a plan. LayoutError where the ratio of two global scales is no power of two."""
    program = next(program for program in plan.programs if program.output == reduction.output)
    code = code_named(program.recode.source)
    signs = reduction.kind == "largest" and plan.habits.int16 == "stepwise"
    sources = Sources(plan, buffers.inputs(plan, tensors), buffers.device_of(tensors))
    found: list[Top] = []
    for expert in range(plan.experts[2] or 1):
        beside = [float(decode(FLOAT32, sources.codes(name, expert)[at])) for name, at in reduction.globals]
        powers = ratios(plan, reduction, beside, expert)
        values: list[float] = []
        for move, box, name in data(program.sources, program.moves):
            scales = decode(code, sources.box(move, box, name, expert))
            scales = scales[~scales.isnan()]  # refused, with its place, when it is recoded
            if scales.numel():
                power = powers[box.part] if powers else 0
                values.append(float((scales if signs else scales.abs()).amax()) * 2.0**power)
        found.append(Top(max(values, default=0.0), any(powers)))
    return found


def reduced(plan: Plan, reduction: Reduction, found: Mapping[int, Top]) -> tuple[float, ...]:
    """What the programs are told of these experts: the largest scale, or the shift of each, in their order."""
    if reduction.kind == "largest":
        return (recodes.largest([top.value for top in found.values()], plan.habits.int16 == "stepwise"),)
    recode = next(program.recode for program in plan.programs if program.output == reduction.output)
    largest = max(top.value for top in found.values())
    return tuple(recodes.nvfp4_shift(largest, recode.target, recode.power, found[at].folded) for at in sorted(found))
