"""Value changes: a closed list of named recodes, kept apart from movement.

A recode turns the codes that a move brings into target codes. `apply` is the definition, one code at a time, in exact
arithmetic rounded once; backends have vectorised twins that are held to it.

    copy            the same code on both sides; NaN codes are refused
    rescale         value times 2^power, encoded anew: exact where the target holds it, else rounded once (lossy);
                    overflow is refused
    reciprocal      one over the value, times 2^power, rounded once (lossy)
    offset          zero points of another convention: code plus `power`; what leaves the range is refused
    constant        the code `power`, whatever the source (a zero point that a symmetric source leaves unsaid)
    fp8_nibbles     integer codes recoded around their zero point, for FP8 activations; operand zero_point, else z = 8
    plain_nibbles   its inverse
    fold_sign       a negative block scale moved into the sign bits of its FP4 codes; operand scale
    nvfp4_scale     |scale| * 2^(power + shift), as S0E5M3; `shift` from the reduction nvfp4, which also folds the ratio
                    of the parts' global scales; exact with fp16 or refused, values below 2.0 are lost with bf16 (lossy)
    nvfp4_global    the reference global scale times 2^(power - shift), rounded once where it is a reciprocal
    int16_scale     round(scale * 4096 / largest) as int16 (lossy); `largest` from the reduction of that name
    largest         largest / 4096, the factor int16_scale leaves out
    int16_undo      int16 code times its factor, rounded once (lossy); operand global_scale
    ramp            the index of the group that a coordinate is in (g_idx of weights in file order)
    shape           the extents of the matrix
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from layoutdsl.codes import Code, Unrepresentable, code_named
from layoutdsl.errors import LayoutError
from layoutdsl.resolve import Stored


@dataclass(frozen=True)
class Recode:
    """A recode with its codes; `power` is the power of two, the offset or the constant that the name calls for."""

    name: str
    source: str
    target: str
    power: int = 0


@dataclass(frozen=True)
class Habits:
    """Choices of value that another engine makes differently; the defaults are ours, see docs/laws.md.

    pads: neutral (a pad code decodes to zero wherever a code does) or zero (code 0 everywhere).
    nvfp4_factor: expert (a factor per expert) or tensor (one for all).
    int16: nearest (largest absolute scale, one rounding) or stepwise (signed maximum, each step rounded to the dtype).
    """

    pads: str = "neutral"
    nvfp4_factor: str = "expert"
    int16: str = "nearest"


_S0E5M3 = ("s0e5m3", "s0e5m3b")


def refuse_pair(matrix: str, target: Stored, reason: str, help: str | None = None) -> LayoutError:
    return LayoutError(
        f"`{target.name}` cannot be made: {reason}",
        code="LP130",
        name="no-conversion",
        help=help or f"choose a kernel for the codes of `{matrix}`",
    )


def for_codes(matrix: str, source: Stored, target: Stored, has_zero: bool, signed_scales: bool) -> Recode:
    """The recode of a matrix' weight codes. `has_zero`: the source carries zero points; `signed_scales`: it may carry
    negative scales and the target may not."""
    a, b = source.code, target.code
    if a.is_weight_integer and b.is_weight_integer and a.bits == b.bits:
        if a.bias and b.bias and a.bias != b.bias:
            raise refuse_pair(
                matrix,
                target,
                f"codes with bias {a.bias} would become codes with bias {b.bias}",
                "a target with zero points of its own can hold them: target.zero_points=true",
            )
        if a.kind == b.kind:
            return Recode("copy", a.name, b.name)
        return Recode("fp8_nibbles" if b.kind == "nibble" else "plain_nibbles", a.name, b.name)
    if a.name == b.name == "e2m1" and signed_scales:
        return Recode("fold_sign", a.name, b.name)
    if a.name == b.name:
        return Recode("copy", a.name, b.name)
    raise refuse_pair(
        matrix, target, f"`{source.name}` holds {a.name}, it holds {b.name}; weights are never requantized"
    )


def for_scale(
    matrix: str, source: Stored, target: Stored, source_global: Stored | None, target_global: Stored | None
) -> Recode:
    """The recode of block scales, as the two sides' codes and global scales ask for."""
    a, b = source.code, target.code
    power = target.scaled - source.scaled
    if b.name in _S0E5M3 and (a.name != b.name or power):
        if source_global is None:
            raise refuse_pair(matrix, target, f"`{source.name}` has no global scale beside it")
        return Recode("nvfp4_scale", a.name, b.name, power)
    if b.name == "int16":
        if a.name == "int16":
            return Recode("copy", a.name, b.name)
        return Recode("int16_scale", a.name, b.name)
    if a.name == "int16":
        return Recode("int16_undo", a.name, b.name, power)
    if (source_global is None) != (target_global is None):
        raise refuse_pair(matrix, target, "one side has a global scale, the other has none")
    return _plain(a, b, power)


def for_global(matrix: str, source: Stored | None, target: Stored, scale: Recode) -> Recode:
    """The recode of a global scale, given that of the block scales."""
    if scale.name == "int16_scale":
        return Recode("largest", "float32", target.code.name)
    if source is None:
        raise refuse_pair(matrix, target, "the source has no global scale")
    power = target.scaled - source.scaled
    if scale.name == "nvfp4_scale":
        return Recode("nvfp4_global", source.code.name, target.code.name, power)
    power = -power if target.reciprocal else power
    if source.reciprocal != target.reciprocal:
        return Recode("reciprocal", source.code.name, target.code.name, power)
    return _plain(source.code, target.code, power)


def _plain(a: Code, b: Code, power: int) -> Recode:
    return Recode("copy" if a.name == b.name and power == 0 else "rescale", a.name, b.name, power)


def loss(recode: Recode, *, reciprocal: bool = False, stepwise: bool = False) -> str | None:
    """What a recode may lose, with its bound; None where it is exact or refuses.

    reciprocal: its reduction inverts the global scale. stepwise: the habit of rounding int16 scales at each step.
    """
    a, b = recode.source, recode.target
    if recode.name in ("rescale", "copy"):
        if {a, b} == {"e8m0", "e8m0z"} and recode.power == 0:
            return "round_scale: a scale byte of 0 is read as 0 by the kernel, not as 2^-127; off by 2^-127 of the code"
        if b in ("float16", "bfloat16") and a != b:
            digits = {"float16": 11, "bfloat16": 8}[b]
            return (
                f"round_scale: rounded once to {b}, off by at most 2^-{digits} of the scale, or by half the least {b} "
                "where it is below the normal range"
            )
        if a == b in ("float16", "bfloat16") and recode.power < 0:
            return f"round_scale: a quotient below the normal range of {b} is rounded to its least step"
        return None
    if recode.name == "reciprocal" or (recode.name == "nvfp4_global" and reciprocal):
        return "reciprocal: rounded once to float32, off by at most 2^-24 of the scale"
    if recode.name == "nvfp4_scale" and b == "s0e5m3b":
        return "nvfp4_scale: block scales under 2^-13 of the largest become 0; the run counts them"
    if recode.name == "int16_scale" and stepwise:
        digits = {"float16": 9, "bfloat16": 6}.get(a, 22)
        return (
            f"int16_scale: scales become multiples of 1/4096 of the largest positive one, each step rounded to {a}; "
            f"off by at most 1/8192 of it and 2^-{digits} of the scale"
        )
    if recode.name == "int16_scale":
        return "int16_scale: scales become multiples of 1/4096 of the largest, off by at most 1/8192 of it"
    if recode.name == "int16_undo":
        return f"int16_undo: rounded once to {b}"
    return None


def apply(
    recode: Recode,
    code: int,
    *,
    zero: int | None = None,
    scale: int | None = None,
    factor: float = 1.0,
    shift: int = 0,
    stepwise: bool = False,
) -> int:
    """One target code from one source code; the definition of every recode but ramp and shape.

    zero: operand of the nibble recodes, a zero point's value. scale: operand of fold_sign, a code of the source's scale
    (e4m3). factor: `largest` for int16_scale, the decoded global scale for int16_undo, the reference global scale for
    nvfp4_global. Raises Unrepresentable.
    """
    a, b = code_named(recode.source), code_named(recode.target)
    name = recode.name
    if name == "constant":
        return recode.power
    if name == "offset":
        if not 0 <= code + recode.power < 1 << b.bits:
            raise Unrepresentable(f"zero point {code + recode.power} does not fit its {b.bits} bits")
        return code + recode.power
    if name == "fp8_nibbles":
        z = (a.bias or b.bias) if zero is None else zero
        return code - z if code >= z else 15 - code
    if name == "plain_nibbles":
        z = a.bias if zero is None else zero
        return code + z if code < 16 - z else 15 - code
    value = a.decode(code, 0)
    if math.isnan(value) or math.isinf(value):
        raise Unrepresentable(f"code {code:#x} of {a.name} is {'NaN' if math.isnan(value) else 'infinite'}")
    if name == "copy":
        return code
    if name == "fold_sign":
        return code ^ 8 if code_named("e4m3").decode(scale or 0) < 0 else code
    if name == "rescale":
        return _rescaled(value, recode.power, b)
    if name == "reciprocal":
        return b.encode(math.ldexp(_inverse(value), recode.power))
    if name == "nvfp4_scale":
        return _block_scale(abs(value), recode.power + shift, b)
    if name == "nvfp4_global":
        return b.encode(math.ldexp(factor, recode.power - shift))
    if name == "int16_scale":
        return _int16(value, factor, a, stepwise) & 0xFFFF
    if name == "largest":
        return b.encode(factor / 4096)
    if name == "int16_undo":
        return b.encode(math.ldexp(value * factor, recode.power))
    raise AssertionError(name)


def vanishes(recode: Recode, code: int, made: int) -> bool:
    """Whether a value other than 0 has become 0."""
    return code_named(recode.target).decode(made, 0) == 0 != code_named(recode.source).decode(code, 0)


def _rescaled(value: float, power: int, target: Code) -> int:
    try:
        return target.encode(math.ldexp(value, power))
    except Unrepresentable as error:
        raise Unrepresentable(f"{value!r}, stored times 2^{power}: {error}" if power else str(error)) from None


def _block_scale(scale: float, power: int, target: Code) -> int:
    """Below `floor` a bf16 kernel reads nothing, which is declared; any other rounding is refused."""
    value = math.ldexp(scale, power)
    made = target.encode(value)
    if value >= target.floor and target.decode(made) != value:
        raise Unrepresentable(
            f"block scale {scale!r} times 2^{power}, as the parts' global scales ask, is below what {target.name} holds"
        )
    return made


def _inverse(value: float) -> float:
    if value == 0:
        raise Unrepresentable("a global scale of 0 has no reciprocal")
    return 1 / value


def _int16(value: float, largest: float, dtype: Code, stepwise: bool) -> int:
    if largest == 0:
        return 0
    if not stepwise:
        return round(value * 4096 / largest)
    step = dtype.decode(dtype.encode(value / largest))
    return round(dtype.decode(dtype.encode(step * 4096)))


def largest(values: Sequence[float], stepwise: bool) -> float:
    """The scale that INT8's int16 scales are taken relative to."""
    return max(values, default=0.0) if stepwise else max((abs(value) for value in values), default=0.0)


def nvfp4_ratio(first: float, value: float, reciprocal: bool) -> int:
    """The power of two of a part's global scale over the first part's. Raises Unrepresentable where it is none."""
    if not value > 0 or math.isinf(value):
        raise Unrepresentable(f"global scale {value!r} is not a positive number")
    above, below = (first, value) if reciprocal else (value, first)
    mantissa, exponent = math.frexp(above / below)
    if mantissa != 0.5 or math.ldexp(below, exponent - 1) != above:
        raise Unrepresentable(f"its global scale {value!r} is no power of two times the first part's {first!r}")
    return exponent - 1


def nvfp4_shift(top: float, target: str, power: int, folded: bool) -> int:
    """The power of two moved from the global scale into the block scales, `top` being the largest of these.

    fp16 kernels read every S0E5M3 byte, so nothing moves unless folded ratios overflow; bf16 kernels read none below
    2.0, so as much moves as the largest scale leaves room for.
    """
    if top == 0:
        return 0
    limit = math.ldexp(448.0, 7)
    room = math.frexp(limit / math.ldexp(top, power))[1] - 1
    if target == "s0e5m3":
        return min(room, 0) if folded else 0
    return room if folded else max(room, 0)
