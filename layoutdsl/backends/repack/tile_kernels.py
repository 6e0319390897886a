"""Text of the kernels that move tiles, each warp one of its own:

    rows of the source to shared memory, 16 bytes per lane where the addresses allow it
    blocks of words from there, recoded and their codes exchanged, back to shared memory in the target's order
    rows of the target from shared memory

Steps, sizes and addresses are arguments; the order of the tile's digits, and which steps double, are the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from layoutdsl.backends.repack.codes import ZERO_POINTS
from layoutdsl.backends.repack.row_kernels import refused
from layoutdsl.backends.repack.text import FIELDS, PACKED, TYPES, WARPS, kernel_text, tile_memory
from layoutdsl.backends.repack.warps import Side, Warp, arranged
from layoutdsl.codes import code_named


@dataclass(frozen=True)
class Rows:
    """How a side's digits lie in memory: the first `near` are contiguous, then come groups in which each step is twice
    the one before. width: bytes that a lane moves at once."""

    near: int
    groups: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class Form:
    """One kernel, of tiles whose source has the target's digits in `order` (warps.py). code: of the codes that are
    looked at, or none; beside: the code of the operand, one for all codes of a word; apart: the digits along which it
    differs; recoded: whether words are, as they come (first) or as they go (last)."""

    bits: int
    order: tuple[int, ...]
    source: Rows
    target: Rows
    code: str = ""
    recode: str = ""
    beside: str = ""
    apart: tuple[int, ...] = ()
    recoded: str = "first"

    @property
    def size(self) -> int:
        """Bytes of a tile."""
        return (self.bits << len(self.order)) // 8

    @property
    def warp(self) -> Warp:
        found = arranged(self.order, (32 // self.bits).bit_length() - 1)
        assert found is not None, "tiles.py asked before"
        return found


def parameters(form: Form) -> tuple[str, ...]:
    """Names of a kernel's arguments, in order."""
    names = ["blocks_per_expert", "tiles", "fast"]
    for side, rows in (("to", form.target), ("from", form.source)):
        names += [side, *(f"{side}_{name}" for name in ("step", "first", "fast", "slow"))]
        names += [f"{side}_row{at}" for at in range(len(rows.groups))]
    if form.beside:
        names += ["beside", *(f"beside_{name}" for name in ("step", "first", "fast", "slow"))]
        names += [f"beside_digit{digit}" for digit in form.apart]
    names += ["plus"] if form.recode in ZERO_POINTS else []
    return (*names, "status") if form.code else tuple(names)


def title(form: Form) -> str:
    """What a kernel does, in a line."""
    codes = f"{1 << len(form.order)} codes of {form.bits} bits a warp"
    return f"{codes}, {form.recode or f'all finite {form.code}'}" if form.recode or form.code else codes


def shared(form: Form) -> int:
    """Bytes of shared memory of a block: each warp's tile as the source has it and as the target wants it."""
    return WARPS * 2 * form.size


def named_text(form: Form) -> tuple[str, str]:
    """A kernel's name and its text."""
    return kernel_text("tile", title(form), parameters(form), _body(form))


def _body(form: Form) -> Iterator[str]:
    """What a lane moves is under way all at once: it waits in registers."""
    warp, (source, target) = form.warp, (TYPES[form.source.width], TYPES[form.target.width])
    yield "const u32 expert = block() / static_cast<u32>(blocks_per_expert), l = lane();"
    yield f"const u32 tile = (block() - expert * static_cast<u32>(blocks_per_expert)) * {WARPS} + warp();"
    yield "if (tile >= tiles) return;"
    yield "const u32 slow = tile / static_cast<u32>(fast), at = tile - slow * static_cast<u32>(fast);"
    yield from tile_memory("source", "from")
    yield from tile_memory("target", "to")
    yield f"const Shared in = shared_memory() + warp() * {2 * form.size}, out = in + {form.size};"
    if form.code:
        yield "bool bad = false;"
    yield ""
    yield f"{source} held[{_turns(form, form.source)}];"
    yield from _each(form, form.source, f"held[turn] = source.load<{source}>({_in_memory(form, form.source, 'from')});")
    yield from _each(form, form.source, f"in.store<{source}>({_swizzled('byte', warp.source)}, held[turn]);")
    yield "sync_warp();"
    yield ""
    yield from _blocks(form, warp)
    yield "sync_warp();"
    yield ""
    load = f"const {target} made = out.load<{target}>({_swizzled('byte', warp.target)});"
    yield from _each(form, form.target, load, f"target.store<{target}>({_in_memory(form, form.target, 'to')}, made);")
    if form.code:
        yield "if (bad) refuse(status);"


def _turns(form: Form, rows: Rows) -> int:
    """How often a lane moves a piece of the tile's rows."""
    return max(form.size // rows.width // 32, 1)


def _each(form: Form, rows: Rows, *lines: str) -> Iterator[str]:
    """Lines for each piece that a lane moves."""
    within, near = form.size // rows.width < 32, (form.bits << rows.near) // 8
    yield f"for (u32 turn = 0; turn < {_turns(form, rows)}; ++turn) {{  // rows of {near} bytes"
    yield f"    const u32 byte = (turn * 32 + l) * {rows.width};"
    if within:
        yield f"    if (byte >= {form.size}) break;"
    for line in lines:
        yield f"    {line}"
    yield "}"


def _in_memory(form: Form, rows: Rows, side: str) -> str:
    """Where a byte of a tile stands, from the tile's first."""
    at = (form.bits << rows.near).bit_length() - 4
    terms = [f"(byte & {(1 << at) - 1})"] if rows.groups else ["byte"]
    for number, size in enumerate(rows.groups):
        last = number == len(rows.groups) - 1
        turn = f"byte >> {at}" if last else f"(byte >> {at} & {(1 << size) - 1})"
        terms.append(f"({turn}) * {side}_row{number}" if last else f"{turn} * {side}_row{number}")
        at += size
    return " + ".join(terms)


def _swizzled(byte: str, side: Side) -> str:
    """A byte's place in an image: a digit of a word's number is two bits up in a byte's."""
    by_shift: dict[int, int] = {}
    for place, to in side.swizzles:
        by_shift[place - to] = by_shift.get(place - to, 0) | 4 << to
    return " ^ ".join([byte, *(f"({byte} >> {shift} & {mask})" for shift, mask in by_shift.items())])


def _blocks(form: Form, warp: Warp) -> Iterator[str]:
    yield f"const u32 lane_in = {_spread('l', [warp.source.places[digit] for digit in warp.lanes])};"
    yield f"const u32 lane_out = {_spread('l', [warp.target.places[digit] for digit in warp.lanes])};"
    if form.beside:
        place = "beside_first + at * beside_fast + slow * beside_slow"
        yield f"const i64 lane_beside = {_sum(form, place, 'l', warp.lanes)};"
        yield "const Global operand = expert_of(beside, beside_step, expert);"
    yield f"for (u32 turn = 0; turn < {1 << len(warp.turns)}; ++turn) {{"
    for name, side in (("in", warp.source), ("out", warp.target)):
        places = [side.places[digit] for digit in warp.turns]
        yield f"    const u32 {name}_at = lane_{name}{' ^ ' + _spread('turn', places) if places else ''};"
    yield from _loads(warp)
    if form.beside:
        yield f"    const i64 beside_at = {_sum(form, 'lane_beside', 'turn', warp.turns)};"
    if form.recoded == "first":
        yield from _recoded(form, warp.block)
    for kind, a, b in warp.exchanged:
        yield from _exchanged(form, 1 << len(warp.block), kind, a, b)
    if form.recoded == "last":
        yield from _recoded(form, warp.after)
    yield from _stores(warp)
    yield "}"


def _recoded(form: Form, numbers: Sequence[int]) -> Iterator[str]:
    """The words of a block, by the digits that number them."""
    words = range(1 << len(numbers))
    for word in words:
        if form.code:
            yield f"    bad |= {refused(form.code, f'w{word}')};"
        elif form.recode and not form.beside:
            yield f"    w{word} = {form.recode}(w{word}, static_cast<u32>(plus));"
    if not form.beside:
        return
    # Words that differ along none of these digits have one operand.
    differs = sum(1 << at for at, digit in enumerate(numbers) if digit in form.apart)
    for word in words:
        if word & differs == word:
            terms = [f"beside_digit{digit}" for at, digit in enumerate(numbers) if word >> at & 1]
            place = " + ".join(["beside_at", *terms])
            yield f"    const u32 z{word} = load_code<{code_named(form.beside).bits}>(operand, {place});"
    for word in words:
        plus = " + static_cast<u32>(plus)" if form.recode in ZERO_POINTS else ""
        yield f"    w{word} = {form.recode}(w{word}, z{word & differs}{plus});"


def _sum(form: Form, first: str, number: str, digits: Sequence[int]) -> str:
    """An operand's place: the steps of those digits that are set in a number, along which it differs."""
    terms = [f"({number} >> {at} & 1) * beside_digit{digit}" for at, digit in enumerate(digits) if digit in form.apart]
    return " + ".join([first, *terms])


def _loads(warp: Warp) -> Iterator[str]:
    step = 1 << warp.source.vector
    for first in range(0, 1 << len(warp.block), step):
        place = f"in_at ^ {_place(warp.source, warp.block, first)}" if first else "in_at"
        if step == 1:
            yield f"    u32 w{first} = in.load<u32>({place});"
            continue
        fields = FIELDS[step]
        yield f"    const {TYPES[4 * step]} q{first} = in.load<{TYPES[4 * step]}>({place});"
        yield "    u32 " + ", ".join(f"w{first + at} = {fields[at].format(f'q{first}')}" for at in range(step)) + ";"


def _stores(warp: Warp) -> Iterator[str]:
    """Words that stand beside each other in the target go together."""
    near = [warp.after.index(digit) for digit in range(warp.word, warp.word + warp.target.vector)]
    step = 1 << len(near)
    for first in range(1 << len(warp.block)):
        if any(first >> bit & 1 for bit in near):
            continue
        place = f"out_at ^ {_place(warp.target, warp.after, first)}" if first else "out_at"
        words = [f"w{first + sum(1 << bit for at, bit in enumerate(near) if one >> at & 1)}" for one in range(step)]
        yield f"    out.store<{TYPES[4 * step]}>({place}, {PACKED[step].format(*words)});"


def _place(side: Side, digits: Sequence[int], number: int) -> int:
    return reduce(int.__xor__, (side.places[digit] for at, digit in enumerate(digits) if number >> at & 1), 0)


def _exchanged(form: Form, words: int, kind: str, a: int, b: int) -> Iterator[str]:
    places = range(32 // form.bits)
    if kind == "code":
        shift = form.bits * ((1 << b) - (1 << a))
        mask = sum(((1 << form.bits) - 1) << at * form.bits for at in places if at >> a & 1 and not at >> b & 1)
        for word in range(words):
            yield f"    exchange(w{word}, {shift}, {mask:#x});"
        return
    mask = sum(((1 << form.bits) - 1) << at * form.bits for at in places if not at >> b & 1)
    for word in range(words):
        if not word >> a & 1:
            yield f"    exchange(w{word}, w{word | 1 << a}, {form.bits << b}, {mask:#x});"


def _spread(number: str, places: Sequence[int]) -> str:
    """The exclusive or of the places whose bit is set in a number."""
    terms = [f"({number}{f' >> {at}' if at else ''} & 1) * {place}" for at, place in enumerate(places)]
    return " ^ ".join(terms)
