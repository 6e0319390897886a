"""What a launch has to know of a matrix, as a value and as the text that custom ops carry.

    >>> Facts.of("u4b8 float16 f16 float16 group=64 n=256 k=384 front=0 valid=380 columns=0:100,128:100")
    Facts(code='u4b8', scale='float16', kind='f16', dtype='float16', group=64, n=256, k=384, ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from layoutdsl.codes import code_named
from layoutdsl.errors import LayoutError

KINDS = {"float16": "f16", "bfloat16": "bf16"}
"""The dtypes of the caller's activations, and what kernels call them where they are multiplied as they are."""


@dataclass(frozen=True)
class Stretch:
    """Stored outputs that the caller gets: `length` of them, from `start` on."""

    start: int
    length: int


@dataclass(frozen=True)
class Facts:
    """A matrix stored n x k.

    code      of the stored weights
    scale     code of their scales
    kind      what is multiplied: f16, bf16, s8, e4m3
    dtype     of the caller's inputs, of outputs, biases and 16-bit scales
    group     inputs that share a scale; 0: all
    front     stored inputs before the caller's first one
    valid     inputs that the caller gives
    columns   where the caller's outputs are stored, in their order
    align     of the caller's outputs, each stretch begins at a multiple of this
    """

    code: str
    scale: str
    kind: str
    dtype: str
    group: int
    n: int
    k: int
    front: int
    valid: int
    columns: tuple[Stretch, ...]
    align: int = 1

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(text: str) -> Facts:
        """The facts that `str` made a text of. LayoutError where it is none of these."""
        try:
            code, scale, kind, dtype, *rest = text.split()
            numbers = dict(one.split("=") for one in rest)
            columns = tuple(Stretch(*map(int, one.split(":"))) for one in numbers.pop("columns").split(",") if one)
            sizes = {name: int(number) for name, number in numbers.items()}
            facts = Facts(code, scale, kind, dtype, columns=columns, **sizes)
        except (ValueError, KeyError, TypeError):
            facts = None
        if facts is None or facts.align < 1:
            raise LayoutError(
                f"these are no facts of a matrix: {text[:200]!r}",
                code="LP358",
                name="no-facts",
                help="expected a text like `u4b8 float16 f16 float16 group=64 n=256 k=384 front=0 valid=380 "
                "columns=0:100,128:100`: str() of the facts of a Matrix (layoutdsl.gemm.matrix)",
            )
        return facts

    def __str__(self) -> str:
        numbers = " ".join(f"{name}={getattr(self, name)}" for name in ("group", "n", "k", "front", "valid"))
        columns = ",".join(f"{one.start}:{one.length}" for one in self.columns)
        return f"{self.code} {self.scale} {self.kind} {self.dtype} {numbers} columns={columns}"

    @property
    def bits(self) -> int:
        """Of a code."""
        return code_named(self.code).bits

    @property
    def groups(self) -> int:
        """How many groups of inputs have a scale of their own."""
        return self.k // self.group if self.group else 1

    @property
    def outputs(self) -> int:
        """Columns that the caller gets."""
        return sum(up(one.length, self.align) for one in self.columns)

    def places(self) -> list[int]:
        """For each stored output, which of the caller's it is; -1: none."""
        found, at = [-1] * self.n, 0
        for one in self.columns:
            found[one.start : one.start + one.length] = range(at, at + one.length)
            at += up(one.length, self.align)
        return found


def up(number: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-number // multiple) * multiple
