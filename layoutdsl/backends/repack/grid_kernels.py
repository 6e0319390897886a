"""Text of the kernels that go over a grid pair by pair: any plan, any recode, a piece of the target per thread.

What a kernel does with a pair is its form's `use`:

    write    recodes what the sources hold, puts pads beside it, stores
    check    recodes, and stores nothing: finds what would be refused
    compare  recodes, and compares with what the target holds
    largest  keeps the largest value
    equal    compares the source's codes with a number; order: with the groups of coordinates; same: with another tensor

Sizes, steps and addresses are arguments, by the names of `parameters`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from layoutdsl.backends.repack.codes import ZERO_POINTS, non_finite, struct
from layoutdsl.backends.repack.text import kernel_text
from layoutdsl.codes import code_named

THREADS = 256

_EVERY = (
    *("status", "addresses", "experts", "n_columns", "n_count", "n_sources", "n_per_expert"),
    *("k_columns", "k_count", "k_sources", "k_per_expert", "k_first", "blocks_per_expert"),
)
_OF_POWER = ("rescale", "reciprocal", "offset", "int16_undo", "ramp", "nvfp4_scale", "nvfp4_global")
_OF_LARGEST = ("int16_scale", "stepwise", "largest")
_OF_SCALES = ("nvfp4_scale", "nvfp4_global")
_SOURCELESS = ("ramp", "largest")
_IN_CODES = ("copy", "offset", "fold_sign", "ramp", *ZERO_POINTS)
"""Recodes that never look at a code's value."""


@dataclass(frozen=True)
class Form:
    """One kernel, as text: it says nothing of sizes. `recode` is named as in recodes.py, but for `stepwise`, INT8's
    scales rounded at each step; `unit`: which axis each bit of the place in a thread's piece is of; `mixed`: whether
    there is more in the grid than data; `beside` is the code of the operand; `counts`: whether values that become 0 are
    counted."""

    use: str
    recode: str
    source: str
    target: str
    unit: str = ""
    mixed: bool = False
    beside: str = ""
    counts: bool = False

    def whole(self, unit: str, *, mixed: bool) -> Form:
        """The form with its pieces."""
        return replace(self, unit=unit, mixed=mixed)


def parameters(form: Form) -> tuple[str, ...]:
    """Names of a kernel's arguments, in order."""
    found = list(_EVERY)
    if form.use == "largest":
        found += ("keys", "slot_step")
        return (*found, "scales_row", "parts", "reciprocal") if form.recode in _OF_SCALES else tuple(found)
    if form.use in ("equal", "order", "same"):
        return (*found, "other_row") if form.use == "same" else (*found, "expected", "first")
    if form.use in ("write", "compare"):
        found += ("to", "to_step")
    if form.use == "write":
        found += ("mask", "bits")
    if form.mixed:
        found += ("actions", "kinds")
    if form.recode in _OF_POWER:
        found += ("power",)
    if form.beside:
        found += ("beside_row", "n_beside", "n_beside_per_expert", "k_beside", "k_beside_per_expert")
    if form.recode in ZERO_POINTS:
        found += ("plus",)
    if form.recode in _OF_LARGEST or form.recode in _OF_SCALES:
        found += ("keys", "slot_step")
    if form.recode in _OF_SCALES:
        found += ("scales_row", "parts", "reciprocal", "scale_power", "within")
    return (*found, "lost") if form.counts else tuple(found)


def title(form: Form) -> str:
    """What a kernel does, in a line."""
    codes = form.source if form.source == form.target else f"{form.source} to {form.target}"
    bits = code_named(form.source).bits
    return {
        "write": f"{1 << len(form.unit)} codes a thread, {codes}, {form.recode}",
        "check": f"What {form.recode} refuses, {codes}",
        "compare": f"Whether codes that share a place are the same, {codes}, {form.recode}",
        "largest": f"The largest of {form.source}",
        "equal": f"Whether codes of {bits} bits are as expected",
        "order": "Whether coordinates are in the order of their groups",
        "same": f"Whether codes of {bits} bits are the same in two tensors",
    }[form.use]


def named_text(form: Form) -> tuple[str, str]:
    """A kernel's name and its text."""
    body = [*_body(form)]
    structs = "".join(f"{one}\n" for one in _structs(form, "\n".join(body)))
    name = f"grid_{form.use}"
    return kernel_text(name, title(form), parameters(form), body, THREADS, include="grids.cuh", before=structs)


def _structs(form: Form, body: str) -> Iterator[str]:
    """The codes that a kernel's text speaks of."""
    codes = {"Source": form.source, "Target": form.target, "Beside": form.beside, "Scale": "float32"}
    for name, code in codes.items():
        if name in body:
            yield struct(name, code_named(code))


def _body(form: Form) -> Iterator[str]:
    yield "const Turn turn = turn_of(blocks_per_expert);"
    yield "const Axis n{n_columns, n_count, n_sources, n_per_expert}, k{k_columns, k_count, k_sources, k_per_expert};"
    yield "const Rows rows{addresses, experts};"
    yield f"const u32 n_pieces = n_count{_shift('>>', form, 'n')}, k_pieces = k_count{_shift('>>', form, 'k')};"
    yield "bool bad = false;"
    if form.use == "largest":
        yield from _largest(form)
        return
    yield "if (turn.piece >= n_pieces * k_pieces) return;"
    order = "mask, bits" if form.use == "write" else "0, 0"
    yield f"const Pair at = pair_of(turn.piece, {order}, n_pieces, k_pieces, k_first);"
    if form.recode in _OF_SCALES:
        yield "const GlobalScales<Scale> scales{rows, scales_row, parts, reciprocal != 0};"
        yield "const double top = largest_of(keys, turn.expert * slot_step);"
        yield "const i64 shift = scales.shift(top, scale_power, within != 0, turn.expert, bad);"
        yield "i64 part = -1, ratio = 0;"
    elif form.recode in _OF_LARGEST:
        yield "const double largest = largest_of(keys, turn.expert * slot_step);"
    yield from _write(form) if form.use == "write" else _look(form)
    yield "if (bad) refuse(status);"


def _write(form: Form) -> Iterator[str]:
    bits, codes = code_named(form.target).bits, 1 << len(form.unit)
    yield f"const u32 i = at.n{_shift('<<', form, 'n')}, j = at.k{_shift('<<', form, 'k')};"
    yield f"u32 word = 0{', kept = 0' if form.mixed else ''}{', zeros = 0' if form.counts else ''};"
    if form.recode not in _IN_CODES:
        yield "#pragma unroll 1"  # recodes of values are long, and few
    yield f"for (u32 c = 0; c < {codes}; ++c) {{"
    yield f"    const u32 a = i{_place(form.unit, 'n')}, b = j{_place(form.unit, 'k')};"
    if form.mixed:
        yield "    const i64 action = actions.load<i64>((n.kind(a) * kinds + k.kind(b)) * 8);"
        yield f"    if (action == KEPT) kept |= {(1 << bits) - 1:#x}u << c * {bits};"
        yield f"    if (action >= 0) word |= static_cast<u32>(action) << c * {bits};"
        yield "    if (action != DATA) continue;"
    for line in _made(form):
        yield f"    {line}"
    if form.counts:
        yield "    zeros += vanished<Source, Target>(code, made);"
    yield f"    word |= made << c * {bits};"
    yield "}"
    place = "to + turn.expert * to_step, n.target(i) + k.target(j)"
    yield f"store_codes<{bits}, {codes}>({place}, word, {'kept' if form.mixed else '0'});"
    if form.counts:
        yield "if (zeros) atomic_add(lost, turn.expert * 4, zeros);"


def _shift(way: str, form: Form, letter: str) -> str:
    """Between entries along an axis and pieces of them."""
    return f" {way} {form.unit.count(letter)}" if letter in form.unit else ""


def _place(unit: str, letter: str) -> str:
    """Which entry of a piece along an axis code c is of."""
    bits = [(at, unit[:at].count(letter)) for at, found in enumerate(unit) if found == letter]
    terms = [f"(c{f' >> {at}' if at else ''} & 1){f' * {1 << bit}' if bit else ''}" for at, bit in bits]
    return "".join(f" + {term}" for term in terms)


def _look(form: Form) -> Iterator[str]:
    yield "const u32 a = at.n, b = at.k;"
    if form.use == "compare":
        bits = code_named(form.target).bits
        yield from _made(form)
        yield f"bad |= load_code<{bits}>(to + turn.expert * to_step, n.target(a) + k.target(b)) != made;"
        return
    if form.use == "check":
        yield from _made(form)
        return
    yield from _loaded(form)
    if form.use == "equal":
        yield "bad = code != static_cast<u32>(expected);"
    elif form.use == "order":
        yield "bad = code != static_cast<u32>(expected ? (k.coordinate(b) + first) / expected : 0);"
    else:
        bits = code_named(form.source).bits
        yield f"bad = code != load_code<{bits}>(rows.at(other_row, turn.expert), source);"


def _largest(form: Form) -> Iterator[str]:
    yield "u64 key = NOTHING;"
    yield "if (turn.piece < n_pieces * k_pieces) {"
    yield "    const Pair at = pair_of(turn.piece, 0, 0, n_pieces, k_pieces, k_first);"
    yield "    const u32 a = at.n, b = at.k;"
    for line in _loaded(form):
        yield f"    {line}"
    value = "decode<Source>(code)"
    if form.recode != "stepwise":
        value = f"magnitude_of({value})"
    if form.recode in _OF_SCALES:
        yield "    const GlobalScales<Scale> scales{rows, scales_row, parts, reciprocal != 0};"
        value += " * power_of_two(scales.ratio(n.part(a), turn.expert, bad))"
    yield f"    if (is_finite<Source>(code)) key = key_of({value});"
    yield "}"
    yield "keep_largest(keys, turn.expert * slot_step, key);"
    yield "if (bad) refuse(status);"


def _loaded(form: Form) -> Iterator[str]:
    bits = code_named(form.source).bits
    yield "const i64 source = n.source(turn.expert, a) + k.source(turn.expert, b);"
    yield f"const u32 code = load_code<{bits}>(rows.at(n.part(a), turn.expert), source);"


def _made(form: Form) -> Iterator[str]:
    """`made`, the target's code of entries a and b, and `code`, the source's."""
    if form.recode == "ramp":
        yield "const i64 coordinate = n.source(turn.expert, a) + k.source(turn.expert, b);"
    elif form.recode not in _SOURCELESS:
        yield from _loaded(form)
    if form.beside:
        bits = code_named(form.beside).bits
        for axis, entry in ("na", "kb"):
            place = f"(turn.expert * {axis}_beside_per_expert + {entry}) * 8"
            yield f"const i64 beside_{axis} = {axis}_beside.load<i64>({place});"
        yield "const Global operand = rows.at(beside_row + n.part(a), turn.expert);"
        yield f"const u32 beside = load_code<{bits}>(operand, beside_n + beside_k);"
    if form.recode == "nvfp4_scale":
        yield "if (n.part(a) != part) ratio = scales.ratio(part = n.part(a), turn.expert, bad);"
    yield f"const u32 made = {_recoded(form)};"


def _recoded(form: Form) -> str:
    copied = "code" if non_finite(code_named(form.source)) is None else "copied<Source>(code, bad)"
    zero = "static_cast<u32>(beside + plus)" if form.beside else "static_cast<u32>(plus)"
    return {
        "copy": copied,
        "rescale": "rescaled<Source, Target>(code, power, bad)",
        "reciprocal": "inverted<Source, Target>(code, power, bad)",
        "offset": f"offset<{code_named(form.target).bits}>(code, power, bad)",
        "fp8_nibbles": f"fp8_nibble(code, {zero})",
        "plain_nibbles": f"plain_nibble(code, {zero})",
        "fold_sign": "signed_by(code, beside)",
        "nvfp4_scale": "nvfp4_scale<Source, Target>(code, power + shift + ratio, bad)",
        "nvfp4_global": "nvfp4_global<Source, Target>(code, scales.factor(turn.expert), power - shift, bad)",
        "int16_scale": "int16_scale<Source>(code, largest, bad)",
        "stepwise": "int16_scale_stepwise<Source>(code, largest, bad)",
        "largest": "encode<Target>(largest / 4096.0, bad)",
        "int16_undo": "int16_undone<Source, Beside, Target>(code, beside, power, bad)",
        "ramp": "static_cast<u32>(power ? coordinate / power : 0)",
    }[form.recode]
