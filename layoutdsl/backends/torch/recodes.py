"""The recodes of recodes.py on whole tensors, on any device.

`twin` gives the target codes of a tensor of source codes, and which of them are refused. A code of 4 or 8 bits goes
through a table that recodes.apply itself fills; wider ones are computed in float64, which holds every value exactly, so
that the one rounding is that of `encode`. Torch's own casts are not used to narrow: float64 to bfloat16 rounds twice.

    >>> made, bad = twin(Recode("rescale", "e8m0", "bfloat16", 1), torch.tensor([127, 255], dtype=torch.uint8))
    >>> made.view(torch.bfloat16)[0].item(), bad.tolist()
    (2.0, [False, True])
"""

from __future__ import annotations

from functools import lru_cache

import torch

from layoutdsl import recodes
from layoutdsl.codes import Code, Unrepresentable, code_named
from layoutdsl.recodes import Recode

STORED = {4: torch.uint8, 8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
"""Bits of a code -> the dtype that carries it as a bit pattern; unpacked 4-bit codes take a byte each."""

Made = tuple[torch.Tensor, "torch.Tensor | None"]
"""Target codes and a mask of the refused ones (None: none is)."""


def twin(recode: Recode, codes: torch.Tensor, *, zero: torch.Tensor | None = None, scale: torch.Tensor | None = None,
         factor: float | torch.Tensor = 1.0, shift: int = 0, stepwise: bool = False) -> Made:
    """What recodes.apply makes of each code. `zero` (values, not codes), `scale` and, for int16_undo, `factor` are
    tensors of the same shape."""
    if recode.name in ("fp8_nibbles", "plain_nibbles"):
        return _nibbles(recode, codes, zero), None
    if recode.name == "fold_sign" and scale is not None:
        negative = (scale > 0x80) & (scale != 0xFF)
        return codes ^ (negative.to(torch.uint8) << 3), None
    if recode.name == "copy":
        return codes, non_finite(code_named(recode.source), codes)
    if code_named(recode.source).bits <= 8:
        assert isinstance(factor, float)
        made, bad = _table(recode, factor, shift, stepwise, codes.device)
        at = codes.reshape(-1).to(torch.int32)
        refused = None if bad is None else bad.index_select(0, at).view(codes.shape)
        return made.index_select(0, at).view(codes.shape), refused
    return _computed(recode, codes, factor, shift, stepwise)


def vanished(recode: Recode, codes: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Which values other than 0 have become 0, as recodes.vanishes says."""
    return (decode(code_named(recode.target), made) == 0) & (decode(code_named(recode.source), codes) != 0)


def non_finite(code: Code, codes: torch.Tensor) -> torch.Tensor | None:
    """Which codes are NaN or infinite; None where the code has none."""
    bits = _all_ones(code)
    return None if bits is None else (codes & bits) == bits


def all_finite(code: Code, codes: torch.Tensor) -> bool:
    """Whether no code is NaN or infinite."""
    bits = _all_ones(code)
    return bits is None or codes.numel() == 0 or int((codes & bits).amax()) < bits


def _all_ones(code: Code) -> int | None:
    """Bits that are all set in a code that is NaN or infinite, and in no other."""
    if code.name == "e4m3":
        return 0x7F
    if code.name == "e8m0":
        return 0xFF
    if code.kind != "float" or code.name == "e2m1":
        return None
    return ((1 << code.exponent) - 1) << code.mantissa


def decode(code: Code, codes: torch.Tensor) -> torch.Tensor:
    """Values in float64, exact; NaN codes give nan."""
    if code.bits <= 8:
        values = torch.tensor(_values(code), dtype=torch.float64, device=codes.device)
        return values.index_select(0, codes.reshape(-1).to(torch.int32)).view(codes.shape)
    if code.kind == "float":
        return codes.view(getattr(torch, code.name)).to(torch.float64)
    return codes.to(torch.float64)


def encode(code: Code, values: torch.Tensor) -> Made:
    """The codes nearest to float64 values, half to even, as Code.encode gives them; refused ones are masked."""
    bits = values.view(torch.int64)
    magnitude = values.abs()
    exponent = ((bits >> 52) & 0x7FF) - 1023
    finite = exponent != 1024
    if code.kind == "power":
        made = exponent + 127
        alone = ((bits & ((1 << 52) - 1)) == 0) & (values > 0)
        power = alone & (made >= 0) & (made <= (255 if code.name == "e8m0z" else 254))
        return torch.where(power, made, 0).to(STORED[code.bits]), ~(power | (values == 0))
    assert code.kind == "float", f"{code.name} is never computed"
    biased = (exponent + code.bias).clamp(min=1)
    # Times a power of two below, in a range where it is exact: the only rounding is that of `round`, half to even.
    step = ((code.mantissa + code.bias + 1023) - biased) << 52
    whole = (magnitude * step.view(torch.float64)).round().to(torch.int64) + ((biased - 1) << code.mantissa)
    whole = torch.where(magnitude < code.floor, 0, whole)
    negative = bits < 0
    bad = ~finite | (whole > code.encode(code.top))
    if not code.sign:
        bad |= negative & (magnitude > 0)
        return whole.to(STORED[code.bits]), bad
    return (whole | (negative.to(torch.int64) << (code.bits - 1))).to(STORED[code.bits]), bad


def _nibbles(recode: Recode, codes: torch.Tensor, zero: torch.Tensor | None) -> torch.Tensor:
    a, b = code_named(recode.source), code_named(recode.target)
    if recode.name == "fp8_nibbles":
        z = (a.bias or b.bias) if zero is None else zero
        moves, moved = codes >= z, codes - z
    else:
        z = a.bias if zero is None else zero
        moves, moved = codes < 16 - z, codes + z
    # Bytes wrap, so this is exact, and it is some times faster than torch.where.
    mirrored = 15 - codes
    return mirrored + moves.to(torch.uint8) * (moved - mirrored)


def _computed(recode: Recode, codes: torch.Tensor, factor: float | torch.Tensor, shift: int, stepwise: bool) -> Made:
    a, b = code_named(recode.source), code_named(recode.target)
    values = decode(a, codes)
    refused = ~values.isfinite()
    if recode.name == "rescale":
        made, bad = encode(b, values * 2.0**recode.power)
    elif recode.name == "reciprocal":
        refused |= values == 0
        made, bad = encode(b, torch.ones_like(values) / values * 2.0**recode.power)
    elif recode.name == "nvfp4_scale":
        made, bad = encode(b, values.abs() * 2.0 ** (recode.power + shift))
    elif recode.name == "nvfp4_global":
        assert isinstance(factor, float)
        made, bad = encode(b, torch.full_like(values, factor * 2.0 ** (recode.power - shift)))
    elif recode.name == "int16_undo":
        made, bad = encode(b, values * factor * 2.0**recode.power)
    else:
        assert recode.name == "int16_scale" and isinstance(factor, float), recode.name
        made, bad = _int16(values, factor, a, stepwise)
    return made, refused | bad


def _int16(values: torch.Tensor, largest: float, dtype: Code, stepwise: bool) -> Made:
    if largest == 0:
        return torch.zeros_like(values, dtype=torch.int16), torch.zeros_like(values, dtype=torch.bool)
    # A tensor, not a number: CUDA divides by a number through its reciprocal.
    divisor = torch.full_like(values, largest)
    if not stepwise:
        quotient = values * 4096 / divisor
        return _low(quotient), ~quotient.isfinite()
    step, bad = encode(dtype, values / divisor)
    step, worse = encode(dtype, decode(dtype, step) * 4096)
    return _low(decode(dtype, step)), bad | worse


def _low(values: torch.Tensor) -> torch.Tensor:
    """The low 16 bits of whole numbers of any size."""
    return values.round().fmod(1 << 16).to(torch.int32).to(torch.int16)


@lru_cache(maxsize=64)
def _values(code: Code) -> list[float]:
    return [code.decode(at, 0) for at in range(1 << code.bits)]


@lru_cache(maxsize=256)
def _table(recode: Recode, factor: float, shift: int, stepwise: bool, device: torch.device) -> Made:
    """Target codes by source code, made by the definition itself, and which are refused."""
    bits = code_named(recode.target).bits
    made: list[int] = []
    bad: list[bool] = []
    for code in range(1 << code_named(recode.source).bits):
        try:
            found = recodes.apply(recode, code, factor=factor, shift=shift, stepwise=stepwise)
        except Unrepresentable:
            found = None
        bad.append(found is None)
        made.append(signed(found or 0, bits))
    table = torch.tensor(made, dtype=STORED[bits], device=device)
    return table, torch.tensor(bad, device=device) if any(bad) else None


def signed(code: int, bits: int) -> int:
    """A code as its carrier shows it: bytes are unsigned, wider ones two's complement."""
    return code - (1 << bits) if bits > 8 and code >> (bits - 1) else code


def unsigned(shown: int, bits: int) -> int:
    return shown % (1 << bits)
