"""Element codes and recodes as the text of kernels has them.

A code is stated as a struct of its numbers, of which kernels/codes.cuh decodes and encodes; a recode is a call of
kernels/recodes.cuh.
"""

from __future__ import annotations

from layoutdsl.codes import Code, code_named
from layoutdsl.recodes import Recode

ZERO_POINTS = ("fp8_nibbles", "plain_nibbles")


def struct(name: str, code: Code) -> str:
    """C++ of a code under a name of the kernel's own."""
    mask, nan = non_finite(code) or (0, 1)
    kind = {"float": "floating", "power": "power"}.get(code.kind, "integer")
    top = code.encode(code.top) if code.kind == "float" else (255 if nan == 1 else 254)
    numbers = f"bits = {code.bits}, exponent = {code.exponent}, mantissa = {code.mantissa}, bias = {code.bias}"
    return (
        f"struct {name} {{  // {code.name}\n"
        f"    static constexpr Kind kind = Kind::{kind};\n"
        f"    static constexpr int {numbers};\n"
        f"    static constexpr bool sign = {str(code.sign).lower()}, has_zero = {str(code.name == 'e8m0z').lower()};\n"
        f"    static constexpr u32 top = {top:#x}, nan_mask = {mask:#x}, nan = {nan:#x};\n"
        f"    static constexpr double floor = {code.floor};\n"
        "};\n"
    )


def non_finite(code: Code) -> tuple[int, int] | None:
    """(mask, value) of the codes that are NaN or infinite; None where there are none."""
    if code.name == "e4m3":
        return 0x7F, 0x7F
    if code.name == "e8m0":
        return 0xFF, 0xFF
    if code.kind != "float" or code.name == "e2m1":
        return None
    top = ((1 << code.exponent) - 1) << code.mantissa
    return top, top


def may_refuse(recode: Recode, plus: int = 0) -> bool:
    """Whether some code of the source, or some value beside it, is refused."""
    a, b = code_named(recode.source), code_named(recode.target)
    if recode.name == "offset":
        return recode.power != 0 or a.bits > b.bits
    if recode.name in ("constant", "ramp", "shape", "fold_sign", *ZERO_POINTS):
        return False
    return recode.name != "copy" or non_finite(a) is not None
