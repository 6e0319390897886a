"""Text of the kernels that go over the rows of tiles on one side alone, each warp over a tile. A form's `use`:

    fill     rows of the target get a pad's code
    check    rows of the source are looked through for codes that are refused
    equal    rows of the source are looked through for codes other than one

Where the rows are and how long they are is in the arguments: all tiles share a few kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from layoutdsl.backends.repack.codes import non_finite
from layoutdsl.backends.repack.text import FIELDS, PACKED, TYPES, kernel_text, tile_at
from layoutdsl.codes import code_named


@dataclass(frozen=True)
class Form:
    """One kernel, of which a lane moves `width` bytes at once; check: of this `code`."""

    use: str
    width: int
    code: str = ""

    @property
    def side(self) -> str:
        return "to" if self.use == "fill" else "from"


def parameters(form: Form) -> tuple[str, ...]:
    """Names of a kernel's arguments, in order."""
    side = ("", "_step", "_first", "_fast", "_slow", "_near", "_bits0", "_row0", "_bits1", "_row1", "_row2")
    names = ["blocks_per_expert", "tiles", "fast", "size", *(f"{form.side}{name}" for name in side)]
    names += ["value"] if form.use in ("fill", "equal") else []
    return (*names, *(["status"] if form.use != "fill" else []))


def title(form: Form) -> str:
    """What a kernel does, in a line."""
    return {
        "fill": f"Rows filled, {form.width} bytes a lane",
        "check": f"What is refused in rows of {form.code}, {form.width} bytes a lane",
        "equal": f"Whether all is the same in rows, {form.width} bytes a lane",
    }[form.use]


def named_text(form: Form) -> tuple[str, str]:
    """A kernel's name and its text."""
    return kernel_text(f"rows_{form.use}", title(form), parameters(form), _body(form))


def _body(form: Form) -> Iterator[str]:
    kind = TYPES[form.width]
    yield from tile_at(form.side)
    yield "const u32 word = static_cast<u32>(value);" if form.use != "check" else ""
    yield "bool bad = false;" if form.use != "fill" else ""
    yield f"for (u32 byte = lane() * {form.width}; byte < size; byte += {32 * form.width}) {{"
    place = ", ".join(f"{form.side}_{name}" for name in ("near", "bits0", "row0", "bits1", "row1", "row2"))
    yield f"    const i64 place = place_of(byte, {place});"
    if form.use == "fill":
        yield f"    memory.store<{kind}>(place, {PACKED[max(form.width // 4, 1)].format(*['word'] * 4)});"
    else:
        yield f"    const {kind} found = memory.load<{kind}>(place);"
        for field in FIELDS[max(form.width // 4, 1)]:
            yield f"    bad |= {_bad(form, field.format('found'))};"
    yield "}"
    if form.use != "fill":
        yield "if (bad) refuse(status);"


def _bad(form: Form, word: str) -> str:
    if form.use == "equal":
        return f"{word} != {'word' if form.width > 2 else f'static_cast<{TYPES[form.width]}>(word)'}"
    return refused(form.code, word)


def refused(code: str, word: str) -> str:
    """Whether a word has codes that are NaN or infinite."""
    bits, (mask, value) = code_named(code).bits, non_finite(code_named(code)) or (0, 1)
    numbers = [f"{sum(one << at for at in range(0, 32, bits)):#x}" for one in (mask, value, 1)]
    return f"has_code({word}, {', '.join(numbers)})"
