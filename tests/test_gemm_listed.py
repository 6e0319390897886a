"""Each listed kernel on the host, against float64 products of the checkpoint, and what its main loop asks of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gemm_cases import Case, draw
from gemm_listed import EXPERTS, FORMS, LISTED, ROWS, SIZES, STORED, TOP_K, Listed, kernels, tiles
from gemm_runs import Launch, mixed, multiplied

from layoutdsl.gemm.table import FAMILIES, shipped

LOOP = ("rows.cuh", "weights.cuh", "scales.cuh", "products8.cuh")
"""Where the main loop reads and writes shared memory."""

BITS = {"u4b8": 4, "u4": 4, "u8b128": 8, "u8": 8, "e4m3": 8, "e2m1": 4}
INTEGERS = ("u4b8", "u4", "u8b128", "u8", "u4b8_s8", "u4_s8", "u8b128_s8", "u4b8_e4m3", "u4_e4m3")
DENSE = [entry for entry in LISTED if not entry.by_experts]
MIXED = [entry for entry in LISTED if entry.by_experts]


def case_of(entry: Listed) -> Case:
    group = entry.group if entry.name in INTEGERS or entry.name == "e4m3_blocks" else None
    if not entry.by_experts:
        return draw(entry.name, entry.dtype, "linear", SIZES, group=group, params={"bias": True})
    options = {"stored": ("alternating", "alternating")} if entry.alternating else {}
    return draw(entry.name, entry.dtype, entry.module, EXPERTS, group=group, **options)


def test_the_list_uses_everything_at_least_once():
    gemms = [entry.kernel for entry in LISTED]
    assert len(kernels()) <= 60 and len(set(gemms)) == len(gemms) == len(FORMS)
    for classed in shipped().tiles:
        used = {entry.tile for entry in LISTED if entry.classed == classed}
        assert {tile.m for tile in used} == {tile.m for tile in tiles(classed)}
    for of in ({"f16", "bf16"}, {"s8", "e4m3"}):
        assert {(one.n, one.k) for one in gemms if one.kind in of} >= set(FAMILIES)
    assert {entry.name for entry in LISTED} == set(STORED)
    assert {(of.code, of.scale) for of in gemms} == {
        *((code, scale) for code in ("u4b8", "u4", "u8b128", "u8", "e4m3") for scale in ("channel", "group")),
        ("e4m3", "e8m0"), ("e2m1", "e8m0"), ("e2m1", "s0e5m3"),
    }  # fmt: skip
    for kind in ({"f16", "bf16"}, {"s8"}, {"e4m3"}):
        assert {of.group for of in gemms if of.kind in kind and of.scale in ("channel", "group")} == {0, 32, 64, 128}
    assert {(of.kind, of.result) for of in gemms} == {
        ("f16", ""), ("bf16", ""), *((kind, result) for kind in ("s8", "e4m3") for result in ("f16", "bf16"))
    }  # fmt: skip
    assert {entry.rows for entry in LISTED} == set(ROWS)
    assert {entry.activation for entry in LISTED} == {"", "silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai"}


@pytest.mark.parametrize("entry", DENSE, ids=str)
def test_dense(entry):
    """With a bias, and with padded inputs and outputs."""
    case = case_of(entry)
    made = multiplied(case, entry.tile, case.x(entry.rows), splits=entry.splits)
    made.wanted.check(made.found)
    check_launch(entry, made.launch, *case.padded(), tiles=-(-entry.rows // entry.tile.m))


@pytest.mark.parametrize("entry", MIXED, ids=str)
def test_mixed(entry):
    case = case_of(entry)
    mixture = mixed(case, entry.rows, TOP_K, entry.activation)
    mixture.check(entry.tile)
    in_use = sum(-(-int(np.sum(mixture.ids == expert)) // entry.tile.m) for expert in range(EXPERTS["e"]))
    for name in ("w13", "w2"):
        check_launch(entry, mixture.launches[name], *case.padded(name), tiles=in_use)


def check_launch(entry: Listed, launch: Launch, n: int, k: int, tiles: int) -> None:
    """The kernel is the listed one. Weights are loaded once for each tile of rows. What is copied in the main loop is
    copied 16 bytes a lane and in whole sectors; no access to shared memory there is for two words of one bank."""
    of, counters = entry.kernel, launch.counters
    assert launch.kernel == of
    shared = [(line, traffic) for line, traffic in counters.lines if line.space == "shared"]
    written = {(line.file, line.line) for line, _ in shared if line.way == "store"}
    copies = {
        Path(line.file).name: traffic for line, traffic in counters.lines
        if line.space == "global" and (line.file, line.line) in written and Path(line.file).name in LOOP
    }  # fmt: skip
    assert set(copies) == {"rows.cuh", "weights.cuh"} | ({"scales.cuh"} if of.scale != "channel" else set())
    assert copies["weights.cuh"].bytes == tiles * n * k * BITS[of.code] // 8
    assert all(one.wide == one.accesses and one.sectors * 32 <= one.bytes for one in copies.values())
    assert not [line for line, traffic in shared if Path(line.file).name in LOOP and traffic.conflicts]
