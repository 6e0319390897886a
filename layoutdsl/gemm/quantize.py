"""Rows of 16-bit activations as 8-bit ones with a float32 scale each: the kernel that does it, and how it is called.

    of = quantizer("bfloat16", "int8", columns=4096)
    launcher.launch(of, rows, of.arguments(codes, scales, x, stride=8192, front=0, valid=4096))

A row's scale is its largest magnitude over 127 (int8) or 448 (e4m3); kernels/gemm/quantize.cuh says what happens to
rows of zeros and to those with elements that are not finite. Refuses rows of more than 65536 elements, and what the
kernel cannot read 16 bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layoutdsl.errors import LayoutError

READS = {"float16": "Half", "bfloat16": "Bfloat16"}
MAKES = {"int8": "Int8", "float8_e4m3fn": "E4m3"}
"""What a kernel reads and makes, by the name of its dtype, as its types in kernels/gemm/quantize.cuh."""

ELEMENTS, MOST_THREADS = 8, 1024
"""Elements that a thread reads at a time; most threads of a block."""

MOST_COLUMNS = 8 * ELEMENTS * MOST_THREADS
"""More would not stay in registers."""


@dataclass(frozen=True)
class Quantizer:
    """A kernel, launched with a block per row: `columns` 8-bit elements of `code` are made of elements of `dtype`."""

    dtype: str
    code: str
    columns: int

    @property
    def name(self) -> str:
        return f"quantize_{READS[self.dtype]}_{MAKES[self.code]}_{self._per_thread}x{self.threads}".lower()

    @property
    def source(self) -> str:
        kinds = f"{READS[self.dtype]}, {MAKES[self.code]}, {self._per_thread}"
        return f"""#include "gemm/quantize.cuh"
namespace ld {{
LD_KERNEL({self.name}, {self.threads})
(Global codes, Global scales, Global rows, i64 stride, i64 front, i64 valid, i64 columns) {{
    quantize<{kinds}>(codes, scales, rows, stride, front, valid, columns);
}}
}}
"""

    @property
    def threads(self) -> int:
        """Enough that each has two pieces of a row, a power of two."""
        return min(max(32, _power(-(-self.columns // (2 * ELEMENTS)))), MOST_THREADS)

    @property
    def shared(self) -> int:
        return self.threads // 32 * 4

    @property
    def _per_thread(self) -> int:
        return _power(-(-self.columns // (ELEMENTS * self.threads)))

    def arguments(self, codes: int, scales: int, rows: int, *, stride: int, front: int, valid: int) -> list[int]:
        """codes: address of [rows, columns] bytes; scales: of a float32 per row; rows: of the first row of `valid`
        elements, `stride` bytes before the next one; front: columns of codes before them, which are 0 as those after
        them are. LayoutError where the kernel cannot read 16 bytes at a time; then a copy of the rows has to be made.
        """
        assert front >= 0 and valid > 0 and front + valid <= self.columns
        if rows % 16 or stride % 16 or front % ELEMENTS or valid % ELEMENTS:
            raise LayoutError(
                f"rows of {valid} elements at address {rows:#x}, {stride} bytes apart, with {front} columns before "
                "them, are not read 16 bytes at a time",
                code="LP345",
                name="rows-not-aligned",
                help="copy them into a tensor of whole 16 bytes per row",
            )
        return [codes, scales, rows, stride, front, valid, self.columns]


def quantizer(dtype: str, code: str, columns: int) -> Quantizer:
    """The kernel for rows of so many columns, padded ones included. LayoutError for more than it can hold."""
    assert dtype in READS and code in MAKES and columns > 0
    if columns > MOST_COLUMNS or columns % ELEMENTS:
        raise LayoutError(
            f"rows of {columns} columns are not quantized: they have a multiple of {ELEMENTS}, at most {MOST_COLUMNS}",
            code="LP346",
            name="columns-not-quantized",
            help="split the inputs among ranks, or take a kernel spec with 16-bit activations",
        )
    return Quantizer(dtype, code, columns)


def quantizers(dtype: str, code: str) -> Iterator[Quantizer]:
    """The kernels for rows of all lengths."""
    columns = 32 * ELEMENTS
    while columns <= MOST_COLUMNS:
        yield quantizer(dtype, code, columns)
        columns *= 2


def _power(least: int) -> int:
    """The least power of two that is not less."""
    return 1 << (least - 1).bit_length()
