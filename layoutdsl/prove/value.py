"""Law `value`: a recode leaves what the codes of both sides stand for, tried on samples of every kind of code."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, NoReturn

from layoutdsl import recodes
from layoutdsl.codes import Code, Unrepresentable, samples
from layoutdsl.errors import did_you_mean
from layoutdsl.plan import Program
from layoutdsl.prove.given import Given, Pair, broken
from layoutdsl.recodes import Recode
from layoutdsl.resolve import Stored

MADE = ("constant", "ramp", "largest")
"""Recodes that make their codes without a source."""

ALLOWED = {
    "codes": ("copy", "fp8_nibbles", "plain_nibbles", "fold_sign"),
    "zero_point": ("offset", "constant"),
    "scale": ("copy", "rescale", "nvfp4_scale", "int16_scale", "int16_undo"),
    "global_scale": ("copy", "rescale", "reciprocal", "nvfp4_global", "largest"),
    "bias": ("copy", "rescale", "constant"),
    "act_order": ("copy", "ramp"),
    "input_scale": ("copy", "rescale", "reciprocal"),
    "weight_shape": ("shape",),
}
"""Recodes by the role of the tensor that they make."""

REDUCTIONS = {"nvfp4_scale": "nvfp4", "nvfp4_global": "nvfp4", "int16_scale": "largest", "largest": "largest"}

MOST_POWER = 1 << 8
"""Beyond any power of two that a scale is stored with."""


def keeps_value(given: Given, pair: Pair, target: Stored, program: Program) -> None:
    """Law `value` of one program."""
    recode, role = program.recode, target.role
    if recode.name not in ALLOWED[role]:
        known = did_you_mean(recode.name, ALLOWED[role]) or f"its recodes are {', '.join(ALLOWED[role])}"
        broken("value", f"a {role} tensor is not made by `{recode.name}`: {known}", target.name)
    source = pair.first("source", role)
    if source is None and recode.name not in (*MADE, "shape"):
        broken("value", f"it is copied, but the source has no {role}", target.name)
    codes = recode.source, recode.target
    expected = _codes(recode.name, source, target)
    if codes != expected:
        broken("value", f"the recode is from {expected[0]} to {expected[1]}", target.name)
    reduction = REDUCTIONS.get(recode.name)
    if program.reduction != (f"{pair.matrix.name}.{reduction}" if reduction else ""):
        broken("value", f"the recode {recode.name} takes {reduction or 'no reduction'}", target.name)
    if role not in ("zero_point", "act_order") and abs(recode.power) > MOST_POWER:
        broken("value", f"no two scales are 2^{recode.power} apart", target.name)
    getattr(_Values(given, pair, target, recode, source), role)()


def _codes(name: str, source: Stored | None, target: Stored) -> tuple[str, str]:
    if name == "largest":
        return "float32", target.code.name
    if name == "shape":
        return "int64", "int64"
    return (target if name in MADE or source is None else source).code.name, target.code.name


class _Values:
    """One method per role."""

    def __init__(self, given: Given, pair: Pair, target: Stored, recode: Recode, source: Stored | None):
        self.given, self.pair, self.target, self.recode = given, pair, target, recode
        self._source = source

    @property
    def source(self) -> Stored:
        return self._source or self._fail(f"it is read from a {self.target.role} tensor, which the source has not")

    def _fail(self, message: str) -> NoReturn:
        broken("value", message, self.target.name)

    def _same(self, made: float, value: float, what: str) -> None:
        if made != value:
            self._fail(f"{what} becomes {made!r}, it is worth {value!r}")

    def _no_power(self) -> None:
        if self.recode.power:
            self._fail(f"the recode {self.recode.name} has no power {self.recode.power} here")

    # codes and zero points --------------------------------------------------------------------------------------------

    def codes(self) -> None:
        a, b = self.source.code, self.target.code
        signed = self._folds()
        if (self.recode.name == "fold_sign") != signed:
            self._fail("the signs of its scales " + ("must be folded in" if signed else "stay with them"))
        self._no_power()
        if self.recode.name == "copy" and a == b:
            return
        runtime = "zero_point" in self.pair.source and a.needs_zero_point and b.needs_zero_point
        for zero in (0, 7, 15) if runtime else (a.bias or b.bias,):
            for code in samples(a):
                for scale in (0x38, 0xB8) if signed else (0,):
                    self._one_code(code, zero, scale)

    def _one_code(self, code: int, zero: int, scale: int) -> None:
        a, b = self.source.code, self.target.code
        value = a.decode(code, zero if a.needs_zero_point else None)
        if math.isnan(value):
            return
        try:
            made = recodes.apply(self.recode, code, zero=zero, scale=scale)
        except Unrepresentable:
            return
        worth = b.decode(made, zero if b.needs_zero_point else None)
        self._same(worth, -value if scale == 0xB8 else value, f"code {code}")

    def _folds(self) -> bool:
        """Whether the source's scales may be negative, and the target's not."""
        source, target = self.pair.first("source", "scale"), self.pair.first("target", "scale")
        if source is None or target is None or target.code.kind != "float":
            return False
        return source.code.sign and not target.code.sign

    def zero_point(self) -> None:
        named, plus = ("offset", self.source.plus) if self._source is not None else ("constant", self._bias())
        if self.recode.name != named:
            self._fail("zero points are read from the source, or constant where it is symmetric")
        self._same(self.recode.power + self.target.plus, plus, f"the {named}")

    def _bias(self) -> int:
        codes = self.pair.first("source", "codes")
        return codes.code.bias if codes is not None else self._fail("the source has no codes")

    # scales -----------------------------------------------------------------------------------------------------------

    def scale(self) -> None:
        a, b = self.source.code.name, self.target.code.name
        wanted = None
        if self._shifted():
            wanted = "nvfp4_scale"
        elif "int16" in (a, b) and a != b:
            wanted = "int16_scale" if b == "int16" else "int16_undo"
        if wanted is not None and self.recode.name != wanted:
            self._fail(f"{a} scales become {b} by {wanted}")
        if wanted != "int16_scale":
            self._scaled()
            return
        self._no_power()
        half = recodes.apply(self.recode, self.source.code.encode(1.0), factor=2.0)
        self._same(half, 2048, "half of the largest scale")

    def global_scale(self) -> None:
        if self._source is None and self.target.derive == "largest_scale":
            if self.recode.name != "largest":
                self._fail("it is the factor that the int16 scales leave out")
            self._no_power()
            made = self.target.code.decode(recodes.apply(self.recode, 0, factor=4096.0))
            self._same(made, 1.0, "a largest scale of 4096")
            return
        if (self.recode.name == "nvfp4_global") != self._shifted():
            self._fail("a global scale is shifted together with its block scales, or not at all")
        self._scaled()

    def _shifted(self) -> bool:
        """Whether block scales become S0E5M3, with a power of two moved between them and their global scale."""
        source, target = self.pair.first("source", "scale"), self.pair.first("target", "scale")
        if source is None or target is None or not target.code.name.startswith("s0"):
            return False
        return source.code != target.code or source.scaled != target.scaled

    def _scaled(self) -> None:
        """What is stored is the true value times 2^scaled, or one over that; tried on powers of two both sides hold."""
        for tensor in (self.source, self.target):
            if abs(tensor.scaled) > MOST_POWER:
                self._fail(f"no scale is stored times 2^{tensor.scaled}")
        same = self.source.code.name == self.target.code.name and not self.recode.power
        if self.recode.name in ("copy", "rescale") and same != (self.recode.name == "copy"):
            self._fail("what stays the same code and value is copied, all else is not")
        a, b = ((tensor.code, tensor.scaled, tensor.reciprocal) for tensor in (self.source, self.target))
        tries = map(self._one_scale, (2.0**-6, 0.5, 1.0, 4.0, 128.0))
        enough = any if self.recode.name == "copy" and a == b else sum  # one sample, or all of them
        if not enough(tries):
            self._fail("no sample of a scale fits both codes")

    def _one_scale(self, true: float) -> bool:
        source, target = (_Scale(one.code, one.scaled, one.reciprocal) for one in (self.source, self.target))
        made = _made(self.recode, source, target, true)
        if made is None:
            return False
        self._same(made, target.stored(true), f"a scale of {true}")
        return True

    # others -----------------------------------------------------------------------------------------------------------

    def bias(self) -> None:
        if self.pair.matrix.bias_here:
            if self.recode.name == "constant":
                self._fail("it is read from the source's bias")
            self._scaled()
            return
        if self.recode.name != "constant":
            self._fail("the bias of summed ranks stands on rank 0, the others add zero")
        self._no_power()

    def act_order(self) -> None:
        kept = self.given.source.params.get("act_order") and self.given.orders[self.pair.matrix.name] is None
        ordered = bool(kept) and self._source is not None
        if (self.recode.name == "copy") != ordered:
            self._fail("an order is copied from an order, and counted where there is none")
        group = 0 if ordered else self.given.group("target")
        if self.recode.power != group:
            self._fail(f"groups of {group} are counted")

    def input_scale(self) -> None:
        self._scaled()

    def weight_shape(self) -> None:
        self._no_power()


class _Scale(NamedTuple):
    """How a tensor stores scales."""

    code: Code
    scaled: int
    reciprocal: bool

    def stored(self, true: float) -> float:
        return math.ldexp(1 / true, -self.scaled) if self.reciprocal else math.ldexp(true, self.scaled)


@lru_cache(maxsize=1 << 10)
def _made(recode: Recode, source: _Scale, target: _Scale, true: float) -> float | None:
    """What a scale becomes; None where one of the codes does not hold it."""
    a, b = source.code, target.code
    try:
        stored = a.encode(source.stored(true))
        factor = 1.0
        if recode.name == "nvfp4_global":
            factor = 1 / a.decode(stored) if source.reciprocal else a.decode(stored)
        made = b.decode(recodes.apply(recode, stored, factor=factor))
    except Unrepresentable:
        return None
    return None if made == 0 and target.stored(true) < b.floor else made
