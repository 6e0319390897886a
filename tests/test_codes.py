"""Element codes against torch's own conversions and against values worked out by hand."""

import math
import struct
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layoutdsl.codes import CODE_OF_DTYPE, DTYPE_BITS, Code, Unrepresentable, code_named, samples
from layoutdsl.errors import LayoutError

TORCH = {
    "float16": (torch.float16, torch.int16),
    "bfloat16": (torch.bfloat16, torch.int16),
    "e4m3": (torch.float8_e4m3fn, torch.uint8),
    "e8m0": (torch.float8_e8m0fnu, torch.uint8),
}
NAMES = [
    "u4", "u8", "u4b8", "u8b128", "n4", "n4b8", "int16", "e2m1", "e4m3", "e8m0", "e8m0z", "s0e5m3", "s0e5m3b",
    "float16", "bfloat16",
]


def by_torch(name: str) -> list[float]:
    """The values of all codes, as torch reads them."""
    dtype, stored = TORCH[name]
    codes = torch.arange(1 << code_named(name).bits, dtype=torch.int32).to(stored)
    return codes.view(dtype).to(torch.float64).tolist()


def torch_codes(name: str, values: list[float]) -> list[int | None]:
    """What torch makes of float32 numbers; None where that is no finite number, or is one only because torch stops at
    the largest (FP8, above 464)."""
    dtype, stored = TORCH[name]
    numbers = torch.tensor(values, dtype=torch.float32)
    made = numbers.to(dtype)
    fits = torch.isfinite(made.float()) & torch.isfinite(numbers)
    if name == "e4m3":
        fits &= numbers.abs() <= 464
    codes = made.view(stored).to(torch.int64) & ((1 << code_named(name).bits) - 1)
    return [code if fit else None for code, fit in zip(codes.tolist(), fits.tolist(), strict=True)]


def same(first: float, second: float) -> bool:
    """Equal to the bit, but that all NaN are one."""
    return (math.isnan(first) and math.isnan(second)) or struct.pack("d", first) == struct.pack("d", second)


def encoded(code: Code, value: float) -> int | None:
    try:
        return code.encode(value)
    except Unrepresentable:
        return None


# --- decode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TORCH)
def test_decode_is_torch_s(name: str) -> None:
    code = code_named(name)
    wrong = [at for at, value in enumerate(by_torch(name)) if not same(code.decode(at), value)]
    assert not wrong


def test_float32_is_torch_s() -> None:
    code = code_named("float32")
    for pattern in [*samples(code), 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x807FFFFF, 0x3F800001]:
        (value,) = struct.unpack("f", struct.pack("I", pattern))
        assert same(code.decode(pattern), value)


def test_s0e5m3_is_the_upper_part_of_a_half() -> None:
    halves = (torch.arange(256, dtype=torch.int16) << 7).view(torch.float16).to(torch.float64).tolist()
    for at, value in enumerate(halves):
        assert same(code_named("s0e5m3").decode(at), value)
        assert same(code_named("s0e5m3b").decode(at), value if not value < 2.0 else 0.0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("e2m1", [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]),
        ("u4", list(range(16))),
        ("u4b8", [c - 8 for c in range(16)]),
        ("n4b8", [0, 1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4, -5, -6, -7, -8]),
        ("u2b1", [-1, 0, 1, 2]),
    ],
)
def test_decode_by_hand(name: str, values: list[float]) -> None:
    assert all(same(code_named(name).decode(at), float(value)) for at, value in enumerate(values))


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("u8b128", 0, -128), ("u8b128", 255, 127), ("u8", 255, 255), ("int16", 0x8000, -32768),
        ("int16", 0x7FFF, 32767), ("int32", 0xFFFFFFFF, -1), ("int64", 1 << 63, -(2**63)), ("e8m0", 127, 1),
        ("e8m0", 0, 2.0**-127),
        ("e8m0", 255, math.nan), ("e8m0z", 0, 0), ("e8m0z", 255, 2.0**128), ("e4m3", 0x7E, 448), ("e4m3", 1, 2.0**-9),
        ("s0e5m3b", 0x80, 2.0), ("s0e5m3b", 0x7F, 0), ("float16", 0x7C00, math.inf), ("float16", 1, 2.0**-24),
    ],
)
def test_single_values(name: str, code: int, value: float) -> None:
    assert same(code_named(name).decode(code), float(value))


@pytest.mark.parametrize("zero", range(16))
def test_zero_points(zero: int) -> None:
    assert [code_named("u4").decode(q, zero) for q in range(16)] == [q - zero for q in range(16)]
    # A nibble is the integer q turned around its zero point: both stand for q - zero.
    nibbles = {(q - zero if q >= zero else 15 - q): q - zero for q in range(16)}
    assert sorted(nibbles) == list(range(16))
    assert all(code_named("n4").decode(nibble, zero) == value for nibble, value in nibbles.items())


# --- encode -----------------------------------------------------------------------------------------------------------


def finite(code: Code) -> list[int]:
    return [at for at in range(1 << code.bits) if math.isfinite(code.decode(at))]


@pytest.mark.parametrize("name", NAMES)
def test_encode_undoes_decode(name: str) -> None:
    code = code_named(name)
    for at in finite(code):
        value = code.decode(at)
        lost = name == "s0e5m3b" and value == 0
        assert encoded(code, value) == (0 if lost else at)


def test_encode_undoes_decode_of_float32() -> None:
    code = code_named("float32")
    assert all(code.encode(code.decode(at)) == at for at in samples(code) if math.isfinite(code.decode(at)))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "e4m3"])
def test_encode_rounds_like_torch(name: str) -> None:
    """All codes, the ties between neighbours, and the numbers next to each tie."""
    code = code_named(name)
    values = sorted({abs(code.decode(at)) for at in finite(code)})
    step = values[-1] - values[-2]
    values += [values[-1] + step]
    ties = [(low + high) / 2 for low, high in pairwise(values)]
    beside = [tie * (1 + sign * 2.0**-20) for tie in ties for sign in (-1, 1)]
    tried = [sign * value for value in (*values, *ties, *beside) for sign in (1, -1)]
    tried = torch.tensor(tried, dtype=torch.float64).to(torch.float32).tolist()
    assert [encoded(code, value) for value in tried] == torch_codes(name, tried)


@settings(deadline=None, max_examples=500)
@given(st.floats(width=32))
@example(464.0)
@example(464.0000305175781)
@example(65519.99609375)
@example(65520.0)
@example(-0.0)
@example(1e-45)
def test_encode_any_float_like_torch(value: float) -> None:
    for name in ("float16", "bfloat16", "e4m3"):
        assert [encoded(code_named(name), value)] == torch_codes(name, [value])


def test_encode_of_e2m1_takes_the_nearest_and_the_even() -> None:
    code = code_named("e2m1")
    ties = {0.25: 0, 0.75: 2, 1.25: 2, 1.75: 4, 2.5: 4, 3.5: 6, 5.0: 6, 0.26: 1, 2.4: 4, 2.6: 5, 6.9: 7}
    assert {value: code.encode(value) for value in ties} == ties
    assert {value: code.encode(-value) - 8 for value in ties} == ties
    assert encoded(code, 7.0) is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("e4m3", math.nan, "it is not a finite number"),
        ("float16", math.inf, "it is not a finite number"),
        ("float16", 65520.0, "65520.0 is beyond 65504.0, the largest float16"),
        ("e4m3", -465.0, "-465.0 is beyond 448.0, the largest e4m3"),
        ("s0e5m3", -1.0, "-1.0 is negative and s0e5m3 has no sign"),
        ("e8m0", 3.0, "3.0 is no power of two that e8m0 holds"),
        ("e8m0", -1.0, "-1.0 is no power of two that e8m0 holds"),
        ("e8m0", 2.0**128, "2^128 is no power of two that e8m0 holds"),
        ("u4", 16.0, "16.0 is no integer that u4 holds"),
        ("u4", 0.5, "0.5 is no integer that u4 holds"),
        ("u4b8", -9.0, "-9.0 is no integer that u4b8 holds"),
    ],
)
def test_what_cannot_be_held(name: str, value: float, why: str) -> None:
    with pytest.raises(Unrepresentable) as caught:
        code_named(name).encode(value)
    assert str(caught.value) == why


def test_a_missing_sign_takes_minus_zero() -> None:
    assert code_named("s0e5m3").encode(-0.0) == 0
    assert code_named("e8m0z").encode(0.0) == 0
    assert code_named("s0e5m3b").encode(1.99) == 0


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "float32", "int32", "int64", "u1", "u3b4", "u8b255"])
def test_names(name: str) -> None:
    assert code_named(name).name == name
    assert code_named(name) is code_named(name)


@pytest.mark.parametrize(
    ("name", "help"),
    [
        ("u4b8x", "did you mean `u4b8`?"), ("e4m3fn", "did you mean `e4m3`?"), ("bfloat", "did you mean `bfloat16`?"),
        ("u9", None), ("u4b16", None), ("u0", None), ("", None), ("U4", None),
    ],
)
def test_no_names(name: str, help: str | None) -> None:
    with pytest.raises(LayoutError) as caught:
        code_named(name)
    assert caught.value.message == f"`{name}` is no element code"
    assert help is None or caught.value.help == help


def test_dtypes_have_the_width_of_their_codes() -> None:
    for dtype, name in CODE_OF_DTYPE.items():
        assert code_named(name).bits == DTYPE_BITS[dtype] == getattr(torch, dtype).itemsize * 8
    assert all(getattr(torch, dtype).itemsize * 8 == bits for dtype, bits in DTYPE_BITS.items())


@pytest.mark.parametrize("name", [*NAMES, "float32", "int64"])
def test_samples_are_codes(name: str) -> None:
    code = code_named(name)
    found = list(samples(code))
    assert len(set(found)) == len(found)
    assert all(0 <= at < 1 << code.bits for at in found)
    assert {0, (1 << code.bits) - 1} <= set(found)
