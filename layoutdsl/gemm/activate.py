"""The activation between two products, and the sum over a token's experts (kernels/gemm/activate.cuh, combine.cuh).

    >>> kernel = Activate("silu", "split", "bfloat16")
    >>> numbers = {"stride": 2 * i, "up": i, "rows": rows, "width": k, "valid": i}
    >>> launcher.launch(*kernel(of=gate_up.data_ptr(), to=to.data_ptr(), **numbers))

Refuses: a clamped swiglu without a gate (LP361), columns and strides that 16-byte accesses cannot follow and more
elements than one launch has threads for (LP362), a function that is not listed (LP363), numbers that no float32 is
(LP364).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import ClassVar, Literal, get_args

from layoutdsl.errors import LayoutError, did_you_mean

THREADS = 256

CHUNK = 8
"""Elements of an access: 16 bytes."""

TYPES = {"float16": "Operand::f16", "bfloat16": "Operand::bf16"}

FUNCTIONS = {"silu": "Silu", "gelu_tanh": "GeluTanh", "gelu": "GeluErf", "relu2": "Relu2"}

Function = Literal["silu", "gelu_tanh", "gelu", "relu2", "swiglu_oai"]
Parts = Literal["split", "alternating", "plain"]


LEAST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Of normal float32."""


@dataclass(frozen=True)
class Activate:
    """The kernel of one activation. Called, it is the kernel, the blocks and the arguments of a launch.

    function   silu: most gated models (Llama, Qwen, DeepSeek, Mixtral)
               gelu: by erf, which configurations call `gelu` (Grok-1, Falcon)
               gelu_tanh: by tanh, which they call `gelu_pytorch_tanh` and `gelu_new` (Gemma)
               relu2: the square of what is positive (Nemotron-H)
               swiglu_oai: gpt-oss's, (up + 1) * gate * sigmoid(alpha * gate), both clamped to the limit
    parts      split: gate, then up; alternating: gate and up by turns, from gate on (gpt-oss); plain: no gate
    dtype      float16 or bfloat16, of what is read and written
    alpha      a finite float32
    limit      a positive float32; infinity clamps nothing
    """

    function: Function
    parts: Parts
    dtype: str
    alpha: float = 1.702
    limit: float = 7.0

    threads: ClassVar[int] = THREADS
    shared: ClassVar[int] = 0

    def __post_init__(self) -> None:
        assert self.dtype in TYPES
        _check_named("activation", self.function, get_args(Function))
        _check_named("arrangement of parts", self.parts, get_args(Parts))
        _check_numbers(self.alpha, self.limit)
        if self.function == "swiglu_oai" and self.parts == "plain":
            raise LayoutError(
                "a clamped swiglu of one part: it multiplies the part `gate` by the part `up`",
                code="LP361",
                name="no-gate",
                help="parts are split or alternating where the module is `moe_gated`",
            )

    @property
    def name(self) -> str:
        numbers = f"_{float(self.alpha)}_{float(self.limit)}" if self.function == "swiglu_oai" else ""
        numbers = numbers.translate({ord("."): "p", ord("-"): "m", ord("+"): ""})
        return f"activate_{self.function}{numbers}_{self.parts}_{self.dtype}"

    @property
    def source(self) -> str:
        combined = FUNCTIONS.get(self.function, "ClampedSwiglu<Numbers>")
        if self.parts != "plain" and self.function != "swiglu_oai":
            combined = f"Gated<{combined}>"
        form = f"{self.parts.title()}<{TYPES[self.dtype]}, {combined}>"
        return f"""#include "gemm/activate.cuh"

namespace ld {{

struct Numbers {{
    static constexpr float alpha = {_literal(self.alpha)}, limit = {_literal(self.limit)};
}};

LD_KERNEL({self.name}, {THREADS})(Global from, i64 from_stride, i64 up, Global to, i64 width, i64 front, i64 valid,
                                  i64 rows, Global local) {{
    activate<{form}>({{from, from_stride, up, to, width, front, valid, rows, local}});
}}

}}  // namespace ld
"""

    def __call__(
        self, *, of: int, stride: int, rows: int, to: int, width: int, valid: int, up: int = 0, front: int = 0,
        local: int = 0,
    ) -> tuple[Activate, int, tuple[int, ...]]:  # fmt: skip
        """A launch that reads 16-bit floats at address `of` and writes [rows, width] of them at address `to`.

        stride   elements between rows that are read; a row has whole chunks of 8, also behind the last valid one
        up       where the part `up` begins, in split parts
        valid    how many columns have values; `front` columns of zeros stand before them, and zeros up to the width
        local    address of [rows] int32: rows with a negative number are neither read nor written; 0: all are

        Addresses are multiples of 16 bytes, and stride, up, width and front of 8 elements.
        """
        _check_aligned(of=of // 2, to=to // 2, stride=stride, up=up, width=width, front=front)
        each = CHUNK // 2 if self.parts == "alternating" else CHUNK
        return self, _blocks(rows, width // each), (of, stride, up, to, width, front, valid, rows, local)


@dataclass(frozen=True)
class Combine:
    """The kernel that sums the rows of a token's experts, in their order. Called, it is a launch of it."""

    dtype: str

    threads: ClassVar[int] = THREADS
    shared: ClassVar[int] = 0

    @property
    def name(self) -> str:
        return f"moe_sum_{self.dtype}"

    @property
    def source(self) -> str:
        return f"""#include "gemm/combine.cuh"

namespace ld {{

LD_KERNEL({self.name}, {THREADS})(Global from, i64 stride, Global local, i64 top_k, Global to, i64 columns,
                                  i64 tokens) {{
    combine<{TYPES[self.dtype]}>({{from, stride, local, top_k, to, columns, tokens}});
}}

}}  // namespace ld
"""

    def __call__(
        self, *, of: int, stride: int, local: int, top_k: int, to: int, columns: int, tokens: int
    ) -> tuple[Combine, int, tuple[int, ...]]:
        """A launch that reads [tokens * top_k] rows at address `of`, a multiple of 16 bytes, `stride` elements apart, a
        multiple of 8, and writes [tokens, columns] at address `to`. Rows with a negative number in `local` (address of
        int32) are left out."""
        _check_aligned(of=of // 2, stride=stride)
        return self, _blocks(tokens, -(-columns // CHUNK)), (of, stride, local, top_k, to, columns, tokens)


def _check_named(what: str, name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        raise LayoutError(
            f"there is no {what} `{name}`",
            code="LP363",
            name="no-such-activation",
            help=did_you_mean(name, names) or f"there are: {', '.join(names)}",
        )


def _check_numbers(alpha: float, limit: float) -> None:
    wrong = None
    if not isinstance(alpha, Real) or not (alpha == 0 or LEAST <= abs(alpha) <= LARGEST):
        wrong = f"`alpha` is {alpha!r}, expected a finite float32"
    elif not isinstance(limit, Real) or not (LEAST <= limit <= LARGEST or limit == inf):
        wrong = f"`limit` is {limit!r}, expected a positive float32, or inf to clamp nothing"
    if wrong is not None:
        raise LayoutError(
            wrong,
            code="LP364",
            name="no-such-number",
            help="take the model's; gpt-oss has alpha=1.702, limit=7.0",
        )


def _literal(value: float) -> str:
    """A float32 in a kernel's text, which has no word for infinity."""
    return "__builtin_bit_cast(float, 0x7f800000u)" if value == inf else f"{float(value)!r}f"


def _check_aligned(**numbers: int) -> None:
    for name, number in numbers.items():
        if number % CHUNK:
            raise LayoutError(
                f"`{name}` is at element {number}, which is no multiple of {CHUNK}: 16-byte accesses cannot follow it",
                code="LP362",
                name="not-in-chunks",
                help="copy the rows into a tensor whose rows are padded",
            )


def _blocks(rows: int, chunks: int) -> int:
    blocks = -(-rows * chunks // THREADS)
    if not 0 < blocks * THREADS < 1 << 32:
        raise LayoutError(
            f"{rows} rows of {chunks} chunks of columns: a launch has 1 to 2^32 of them",
            code="LP362",
            name="not-in-chunks",
            help="split the rows",
        )
    return blocks
