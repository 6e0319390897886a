"""Recodes of vectors in the cpu backend: the short way that usual codes take gives what the definition says."""

import numpy as np
import pytest
from numba import njit

from layoutdsl import recodes
from layoutdsl.backends.cpu.recoding import recoding
from layoutdsl.backends.cpu.rules import FILL, LAST, MASK, PLUS, REST, SAFE, rule, table
from layoutdsl.backends.cpu.vectors import writing
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.recodes import Recode

RULED = [
    Recode("rescale", "e8m0", "e8m0z", 0), Recode("rescale", "e8m0", "e8m0z", 6),
    Recode("rescale", "e8m0", "e8m0z", -9), Recode("rescale", "e8m0", "bfloat16", 120),
    Recode("rescale", "e4m3", "bfloat16", 0),
    Recode("reciprocal", "e8m0", "e8m0", 0), Recode("offset", "u8", "u8", 0), Recode("offset", "u8", "u8", 1),
    Recode("nvfp4_scale", "e4m3", "s0e5m3b", 7),
]  # fmt: skip


@pytest.mark.parametrize("recode", RULED, ids=str)
@pytest.mark.parametrize("shift", [0, 3, -5])
def test_usual_codes_of_a_rule(recode, shift):
    numbers, made = rule(recode, shift).tolist(), table(recode, shift)
    a, b = code_named(recode.source), code_named(recode.target)
    for code in range(256):
        size = code & numbers[MASK]
        below = size < numbers[SAFE]
        if size > numbers[LAST] or (below and size != numbers[REST]):
            continue
        line = (size << max(b.mantissa - a.mantissa, 0)) + numbers[PLUS]
        assert (numbers[FILL] if below else line) % (1 << b.bits) == made[code], code


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("power", [-9, 3, 200])
def test_every_code_of_16_bits_rescaled(name, power):
    recode, sides = Recode("rescale", name, name, power), {"vectors": 1, "pieces": 0, "rows": (), "columns": ()}
    read, write = recoding("rescale", name, name, **sides), writing(**sides)

    @njit
    def rescaled(source, target, factor, refused):
        for at in range(len(refused)):
            block, refused[at], _ = read((source,), (32 * at,), factor, 0, 0)
            write((target,), (32 * at,), block)

    codes = np.arange(1 << 16, dtype=np.uint16).repeat(16)
    made, refused = np.zeros_like(codes), np.zeros(1 << 16, dtype=np.int64)
    rescaled(codes.ctypes.data, made.ctypes.data, 2.0**power, refused)
    for code, (found, no) in enumerate(zip(made.reshape(-1, 16).tolist(), refused.tolist())):
        try:
            assert (found, no) == ([recodes.apply(recode, code)] * 16, 0), code
        except Unrepresentable:
            assert no, code
