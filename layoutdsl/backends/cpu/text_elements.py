"""Text of the kernels that take one element after the other: all that vectors do not do, and the edges of what they do.

Codes are read at addresses that rows and columns add up to, recoded, and written. What is refused, and how many values
became 0, is said in `found`, turn by turn.
"""

from __future__ import annotations

from collections.abc import Iterator

from layoutdsl.backends.cpu.forms import LOST, REFUSED, SIGNED, Filling, Largest, Single
from layoutdsl.backends.cpu.network import BITS
from layoutdsl.codes import Code, code_named

TABLES = ("rescale", "reciprocal", "offset", "nvfp4_scale", "copy")
"""Recodes that know nothing but the code: those of 4 and 8 bits are looked up."""


def looked_up(form: Single) -> bool:
    """Whether target codes come from a table: of words, the code in its low bits, above it whether it is refused, and
    whether a value became 0."""
    code = code_named(form.source)
    plain = form.recode == "copy" and (code.kind in ("integer", "nibble", "signed") or code.name in ("e2m1", "e8m0z"))
    return code.bits <= 8 and form.recode in TABLES and not plain


def title(form: Single) -> str:
    """What a kernel does, in a line."""
    if form.how == "value":
        return f"Codes of {form.target} that are counted"
    recoded = f"{form.source} to {form.target} by {form.recode}"
    beside = f", {form.operand} beside it" if form.operand else ""
    compared = ", compared with what stands there" if form.how == "compare" else ""
    return f"{recoded}{beside}, {'two codes' if form.pair else 'one code'} at a time{compared}"


def filling(form: Filling) -> Iterator[str]:
    yield "for i in range(top, bottom):"
    yield "    c0 = to + at(rows_to, i)" if form.bits > 4 else "    c0 = at(rows_to, i)"
    yield "    for j in range(left, right):"
    if form.bits > 64:
        for byte in range(0, form.bits // 8, 8):
            yield f"        store64(c0 + at(columns_to, j) + {byte}, uint64(value))"
    elif form.bits > 4:
        yield f"        store{form.bits}(c0 + at(columns_to, j), uint64(value))"
    else:
        yield "        put(to, c0 + at(columns_to, j), value & 15)"


def largest(form: Largest) -> Iterator[str]:
    code, kind = code_named(form.source), f'"{form.source}", {form.signs}'
    looks = bool(code.sign) and not form.signs
    yield f"most = least({kind})" if form.vectors else f"most = {-(1 << code.bits - 1) if form.signs else 0}"
    if looks:
        yield "seen = uint64(0)"
    yield "for i in range(top, bottom):"
    yield f"    a0 = {_address('rows_of', 'i', form.looks_up[0], 'rows_order')}"
    yield "    for j in range(left, right):"
    yield f"        b0 = {_address('columns_of', 'j', form.looks_up[1], 'columns_order')}"
    if form.vectors:
        yield f"        most = larger(most, of + a0 + b0, {kind})"
        if looks:
            words = (f"load64(of + a0 + b0 + {byte})" for byte in range(0, BITS // 8, 8))
            yield f"        seen |= {' | '.join(words)}"
    else:
        yield f"        code = {_read('of', 'a0 + b0', code)}"
        if looks:
            yield "        seen |= uint64(code)"
        yield f"        size = code & {_magnitude(code)}"
        if form.signs:
            yield f"        if size < {_first_nan(code)}:"
            yield f"            most = max(most, -size if code >> {code.bits - 1} else size)"
        else:
            yield "        most = max(most, size)"
    found = f"largest(most, {kind})" if form.vectors else "most"
    if looks:
        signs = sum(1 << at for at in range(code.bits - 1, 64, code.bits))
        found += f" | int64(seen & uint64(0x{signs:X}) != 0) << {SIGNED}"
    yield f"store64(found + 8 * turn, uint64({found}))"


def single(form: Single) -> Iterator[str]:
    source, target = code_named(form.source), code_named(form.target)
    rows, columns = (2 if form.pair == side else 1 for side in ("rows", "columns"))
    yield "refused, lost = False, 0"
    yield "for i in range(top, bottom):"
    yield from (f"    a{at} = {_address('rows_of', _index('i', rows, at), form.looks_up[0], 'rows_order')}"
                for at in range(rows))
    yield "    c0 = at(rows_to, i)"
    if form.operand:
        yield from (f"    y{at} = {_address('rows_by', _index('i', rows, at), form.looks_up[2], 'rows_beside')}"
                    for at in range(rows))
    yield "    for j in range(left, right):"
    for at in range(rows * columns):
        row, column = (at, 0) if rows == 2 else (0, at)
        place = _address("columns_of", _index("j", columns, column), form.looks_up[1], "columns_order")
        if form.how == "value":
            yield f"        made = a{row} + {place}"
            continue
        yield f"        code = {_read('of', f'a{row} + {place}', source)}"
        if form.operand:
            place = _address("columns_by", _index("j", columns, column), form.looks_up[3], "columns_beside")
            yield f"        beside = {_read('by', f'y{row} + {place}', code_named(form.operand))}"
        yield from (f"        {line}" for line in _recoded(form, source, target))
        if rows * columns == 2:
            yield f"        made{at} = made"
    yield "        d = c0 + at(columns_to, j)"
    if form.how == "compare":
        yield f"        refused |= {_read('to', 'd', target)} != made"
    else:
        yield "        if mode != LOOK:"
        if form.pair:
            yield "            store8(to + d, uint64(made0 | made1 << 4))"
        elif target.bits == 4:
            yield "            put(to, d, made)"
        else:
            yield f"            store{target.bits}(to + d, uint64(made))"
    yield f"store64(found + 8 * turn, uint64(lost | int64(refused) << {REFUSED}))"


def _index(name: str, count: int, at: int) -> str:
    return name if count == 1 else f"{count} * {name} + {at}"


def _address(table: str, index: str, through: bool, order: str) -> str:
    return f"at({order}, at({table}, {index}))" if through else f"at({table}, {index})"


def _read(base: str, place: str, code: Code) -> str:
    return f"got({base}, {place})" if code.bits == 4 else f"int64(load{code.bits}({base} + {place}))"


def _recoded(form: Single, source: Code, target: Code) -> Iterator[str]:
    """`made` of `code`; what is refused and lost beside it."""
    if looked_up(form):
        yield "entry = at(given, code)"
        yield f"made = entry & 0x{(1 << target.bits) - 1:X}"
        yield f"refused |= entry >> {REFUSED} != 0"
        if form.counts:
            yield f"lost += entry >> {LOST} & 1"
        return
    if form.recode in ("fp8_nibbles", "plain_nibbles"):
        zero = "beside + value" if form.operand else str(source.bias or target.bias)
        if form.recode == "fp8_nibbles":
            yield f"made = code - ({zero}) if code >= {zero} else 15 - code"
        else:
            yield f"made = code + {zero} if code + {zero} < 16 else 15 - code"
        return
    if form.recode == "fold_sign":
        yield "made = code ^ int64(negative(uint64(beside)))"
        return
    if form.recode == "copy":
        yield "made = code"
        if source.kind == "float" and source.bits > 8:
            yield f"refused |= code & {_magnitude(source)} >= {_first_nan(source) - 1}"
        return
    yield from _computed(form, source, target)
    if form.counts and target.name != "e8m0":  # whose code 0 is no 0
        yield f"lost += (made & {_magnitude(target)} == 0) & (real != 0)"


def _computed(form: Single, source: Code, target: Code) -> Iterator[str]:
    yield f"real = {_decoded('code', source)}"
    if source.kind == "float":
        yield "refused |= not abs(real) < inf"
    if form.recode == "rescale":
        yield f"made, no = {_encoded('real * factor', target)}"
    elif form.recode == "reciprocal":
        yield f"made, no = {_encoded('1 / real * factor if real != 0 else inf', target)}"
    elif form.recode == "nvfp4_global":
        yield f"made, no = {_encoded('factor', target)}"
    elif form.recode == "int16_undo":
        scale = _decoded("beside", code_named(form.operand))
        yield f"made, no = {_encoded(f'real * {scale} * factor', target)}"
    else:
        assert form.recode == "int16_scale", form.recode
        yield "made, no = 0, False"
        yield "if factor != 0:"
        if form.stepwise:
            step = _decoded("made", source)
            yield f"    made, no = {_encoded('real / factor', source)}"
            yield f"    made, worse = {_encoded(f'{step} * 4096', source)}"
            yield f"    made, worst = whole({step})"
            yield "    no |= worse or worst"
        else:
            yield "    made, no = whole(real * 4096 / factor)"
    yield "refused |= no"


def _decoded(name: str, code: Code) -> str:
    if code.kind == "signed":
        return f"float(({name} ^ {1 << code.bits - 1}) - {1 << code.bits - 1})"
    return f"decoded({name}, {code.exponent}, {code.mantissa}, {code.bias})"


def _encoded(value: str, code: Code) -> str:
    if code.kind == "power":
        return f"encoded_power({value}, {255 if code.name == 'e8m0z' else 254})"
    return f"encoded({value}, {code.bits}, {code.mantissa}, {code.bias}, {code.encode(code.top)})"


def _magnitude(code: Code) -> str:
    """The bits of a code that are 0 where its value is."""
    return f"0x{(1 << code.bits - code.sign) - 1:X}"


def _first_nan(code: Code) -> int:
    """The smallest magnitude that is no number; that before it is infinite, where a code has infinities."""
    if code.name == "e4m3":
        return 0x7F
    if code.kind == "power":
        return 1 << code.bits
    return (((1 << code.exponent) - 1) << code.mantissa) + 1
