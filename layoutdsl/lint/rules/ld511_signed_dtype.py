"""An unsigned code fills the elements of a signed dtype, whose bytes are two's complement.

## Why is this bad

Writers of `int8` weights (bitsandbytes, torchao, compressed-tensors int-quantized) store -1 as the byte 255. Read as
`u8b128` that byte is worth 127, and the plan to any format of such codes would copy it: every sign is lost, without a
word. No code of this language is two's complement in 8 bits, so such a file cannot be described. A word that packs
several codes is no number, whatever its dtype, and is not meant here.

## Example

    w: {role: codes, dtype: int8, code: u8b128, order: "n, k"}

## Use instead

    w: {role: codes, dtype: uint8, code: u8b128, order: "n, k"}

where the file holds unsigned bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.codes import DTYPE_BITS
from layoutdsl.lint.formats import code_of, dtypes_of
from layoutdsl.lint.rule import Found
from layoutdsl.lint.subject import Subject
from layoutdsl.source import Route


def check(subject: Subject) -> Iterator[Found]:
    seen: set[Route] = set()
    for scope, roles in subject.settings:
        for one in roles.values():
            code, path = code_of(one.tensor, scope), one.path("dtype")
            if code is None or not code.is_weight_integer or path in seen:
                continue
            for dtype in dtypes_of(one.tensor, scope):
                if dtype.startswith("int") and DTYPE_BITS[dtype] == code.bits:
                    seen.add(path)
                    yield Found(
                        f"each element of `{one.key}` is a signed {dtype}, whose bytes are two's complement; code "
                        f"{code.name} reads the byte of -1 as {code.decode((1 << code.bits) - 1, code.bias):.0f}",
                        path,
                        help=f"write `u{dtype}` if the bytes are unsigned; no code is two's complement in {code.bits} "
                        "bits, so signed bytes cannot be described",
                    )
                    break
