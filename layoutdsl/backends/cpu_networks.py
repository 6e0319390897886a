"""Text of the kernels that move codes inside vectors: cpu_network.py found what to exchange.

A block is read vector by vector, recoded where it must be, exchanged, and written. The addresses of a row are taken
once for all its columns. Where blocks are taken out of a panel, a row is one, and sorts it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from layoutdsl.backends.cpu_forms import FAR, Moving, Spread
from layoutdsl.backends.cpu_network import BITS, Network
from layoutdsl.codes import code_named

_LOADS = ("load256", "load128", "load64x4", "load32x8")
_STORES = ("store256", "store128", "store64x4", "store32x8")
"""By the digits of a vector's place that are not in a granule."""


class _Places:
    """The names of a block's addresses: those of rows and of columns are added up, and the digits that are not read or
    written together choose from both."""

    def __init__(self, network: Network, down: int, digits: Sequence[int], rows: str, columns: str):
        axes = network.axes
        self.sides = [[at for at in digits if (axes[at] == down) == (side == 0)] for side in (0, 1)]
        self.names = rows, columns

    def taken(self, side: int, index: str, table: str, start: str = "", order: str = "") -> Iterator[str]:
        """Lines that name the addresses of one side, through an order if there is one."""
        count = 1 << len(self.sides[side])
        for at in range(count):
            place = f"at({table}, {index if count == 1 else f'{count} * {index} + {at}'})"
            yield f"{self.names[side]}{at} = {start}{f'at({order}, {place})' if order else place}"

    def of(self, chosen: Mapping[int, int]) -> str:
        found = (sum(chosen[digit] << at for at, digit in enumerate(side)) for side in self.sides)
        return " + ".join(f"{name}{at}" for name, at in zip(self.names, found))


def title(form: Moving) -> str:
    network = form.network
    count = 1 << len(network.axes) - network.inside
    recoded = "" if form.recode == "copy" else f", {form.recode} on the way"
    found = ", out of a sorted panel" if form.sorts is not None else ""
    return f"{network.bits}-bit codes, {count} vector{'s' * (count > 1)} at a time{found}{recoded}"


def functions(form: Moving) -> Iterator[str]:
    """What a kernel needs that is made for it: exchanges inside of a vector, and what spreads an operand."""
    bits = form.network.bits
    ops = (*form.network.ops, *(form.sorts.ops if form.sorts is not None else ()))
    for first, second in sorted({(op.place, op.other) for op in ops if op.kind == "turn"}):
        yield f"turn{first}_{second} = turned({first}, {second})"
    for order in sorted({op.order for op in ops if op.kind == "arrange"}):
        yield f"arrange{_numbers(order)} = arranged({max(bits, 8)}, {order})"
    spread = form.operand
    if spread is not None and spread.width < BITS:
        far = sum(step == FAR for step in spread.steps)
        for number in range(1 << far):
            yield f"spread{number} = spread({spread.bits}, {spread.steps[: form.network.inside]}, {number})"


def moving(form: Moving) -> Iterator[str]:
    network, spread, down = form.network, form.operand, form.down
    digits = range(len(network.axes))
    reads = _Places(network, down, digits[network.reads :], "a", "b")
    writes = _Places(network, down, network.written[network.writes :], "c", "d")
    beside = [at for at in digits if spread is not None and spread.leads_away(at, network.inside)]
    operands = _Places(network, down, beside, "y", "x")
    order = "columns_order" if form.looks_up or form.sorts is not None else ""
    if form.refuses:
        yield "seen = splat(uint64(0))"
    yield "for i in range(top, bottom):"
    if form.sorts is None:
        yield from _indented(4, reads.taken(0, "i", "rows_of", "of + "))
    else:
        yield from _indented(4, _sorting(form, form.sorts))
        yield "    a0 = panel"
    yield from _indented(4, writes.taken(0, "i", "rows_to", "to + "))
    if spread is not None:
        yield from _indented(4, operands.taken(0, "i", "rows_by", "" if spread.odd else "by + "))
    yield "    for j in range(left, right):"
    yield from _indented(8, reads.taken(1, "j", "columns_of", order=order))
    yield from _indented(8, writes.taken(1, "j", "columns_to"))
    if spread is not None:
        yield from _indented(8, operands.taken(1, "j", "columns_by"))
    yield from _indented(8, _loads(network, reads))
    if form.refuses:
        yield from _indented(8, (f"seen |= {_suspect(form.refuses, f'w{at}')}" for at in range(network.vectors)))
    if form.recode != "copy":
        yield from _indented(8, _recoded(form, operands))
    yield from _indented(8, _exchanges(network))
    if network.inside == network.writes:
        yield "        if mode == STREAM:"
        yield from _indented(12, _stores(network, writes, "stream256"))
        yield "        elif mode == STORE:"
    else:
        yield "        if mode != LOOK:"
    yield from _indented(12, _stores(network, writes, _STORES[network.inside - network.writes]))
    if form.refuses:
        yield f"found[turn] = int64(folded(seen & uint64({_nonsense(form.refuses)[2]})) != 0) << 62"


def _indented(by: int, lines: Iterator[str]) -> Iterator[str]:
    return (f"{' ' * by}{line}" for line in lines)


def _sorting(form: Moving, network: Network) -> Iterator[str]:
    """A panel, a vector for each k, in memory apart."""
    reads = _Places(network, 0, range(len(network.axes))[network.reads :], "a", "b")
    writes = _Places(network, 0, network.written[network.writes :], "c", "d")
    yield from reads.taken(0, "i", "rows_of", "of + ", "rows_order" if form.looks_up else "")
    yield "c0 = panel"
    yield "for j in range(panels):"
    yield from _indented(4, reads.taken(1, "j", "panel_of"))
    yield from _indented(4, writes.taken(1, "j", "panel_to"))
    yield from _indented(4, _loads(network, reads))
    yield from _indented(4, _exchanges(network))
    yield from _indented(4, _stores(network, writes, "store256"))


def _loads(network: Network, places: _Places) -> Iterator[str]:
    order = range(len(network.axes))
    for at in range(network.vectors):
        pieces = ", ".join(_pieces(network, places, order, network.reads, at))
        yield f"w{at} = {_LOADS[network.inside - network.reads]}({pieces})"


def _exchanges(network: Network) -> Iterator[str]:
    for op in network.ops:
        for at in range(network.vectors):
            if op.kind == "turn":
                yield f"w{at} = turn{op.place}_{op.other}(w{at})"
            elif op.kind == "arrange":
                yield f"w{at} = arrange{_numbers(op.order)}(w{at})"
            elif not at >> op.digit & 1:
                other = at | 1 << op.digit
                yield f"w{at}, w{other} = {op.kind}{op.place}(w{at}, w{other})"


def _numbers(order: Sequence[int]) -> str:
    return "".join(map(str, order))


def _stores(network: Network, places: _Places, function: str) -> Iterator[str]:
    """Vectors that make a line of the cache are written one after the other."""
    outside = network.written[network.inside :]
    bit = 1 << outside.index(network.line) if network.line in outside else 0
    for at in sorted(range(network.vectors), key=lambda at: (at & ~bit, at)):
        yield f"{function}({', '.join(_pieces(network, places, network.written, network.writes, at))}, w{at})"


def _pieces(network: Network, places: _Places, order: Sequence[int], granule: int, vector: int) -> Iterator[str]:
    """The addresses of a vector's granules; `order` is that of the digits where it is read or written."""
    inside = network.inside
    for piece in range(1 << inside - granule):
        chosen = {digit: piece >> at & 1 for at, digit in enumerate(order[granule:inside])}
        chosen |= {digit: vector >> at & 1 for at, digit in enumerate(order[inside:])}
        yield places.of(chosen)


# recodes --------------------------------------------------------------------------------------------------------------


def _recoded(form: Moving, operands: _Places) -> Iterator[str]:
    network, spread = form.network, form.operand
    known: dict[tuple[str, ...], int] = {}
    for at in range(network.vectors):
        if spread is None:
            yield from _around_eight(form.recode, f"w{at}")
            continue
        words = tuple(_words(network, spread, operands, at))
        if words not in known:
            known[words] = len(known)
            yield from _operand(form.recode, spread, words, known[words])
        beside = f"even{known[words]}", f"odd{known[words]}"
        if form.recode == "fold_sign":
            yield f"w{at} ^= {beside[0]} | ({beside[1]} << uint64(4))"
        else:
            yield f"w{at} = {form.recode}(w{at}, {beside[0]}, {beside[1]})"


def _words(network: Network, spread: Spread, operands: _Places, vector: int) -> Iterator[str]:
    """The addresses of the words that have what stands beside a vector."""
    far = [at for at in range(network.inside) if spread.steps[at] == FAR]
    for number in range(1 << len(far)):
        chosen = {at: number >> bit & 1 for bit, at in enumerate(far)}
        chosen |= {at: vector >> at - network.inside & 1 for at in range(network.inside, len(network.axes))}
        yield operands.of(chosen)


def _operand(recode: str, spread: Spread, words: Sequence[str], name: int) -> Iterator[str]:
    """Bytes beside the even and the odd codes of a vector."""
    for number, place in enumerate(words):
        even, odd = (f"{half}{name}" if number == 0 else f"more_{half}" for half in ("even", "odd"))
        if spread.width == BITS:
            yield f"{even}, {odd} = halves(load256({place}))"
        else:
            word = f"load{spread.width}({place})"
            if spread.odd:
                yield f"place = {place}"
                word = f"load{spread.width}(by + (place >> 1)) >> uint64((place & 1) << 2)"
            word = f"negative({word})" if recode == "fold_sign" else word
            yield f"{even}, {odd} = spread{number}({word})"
        if number:
            yield f"even{name} |= more_even"
            yield f"odd{name} |= more_odd"
    if recode != "fold_sign":
        yield f"even{name} += uint64(value * 0x0101010101010101)"
        yield f"odd{name} += uint64(value * 0x0101010101010101)"


def _around_eight(recode: str, word: str) -> Iterator[str]:
    """4-bit codes around the zero point 8: below it, 15 minus the code is all bits but the topmost turned around."""
    yield f"t = ({word} >> uint64(3)) & uint64(0x1111111111111111)"
    if recode == "fp8_nibbles":
        yield "t ^= uint64(0x1111111111111111)"
    yield f"{word} ^= (t | (t << uint64(1)) | (t << uint64(2))) ^ uint64(0x8888888888888888)"


def _suspect(name: str, word: str) -> str:
    """A word with the topmost bit set of the codes that are NaN or infinite."""
    mask, step, _ = _nonsense(name)
    found = f"(({word} & uint64({mask})) + uint64({step}))"
    return f"({found} & {word})" if code_named(name).kind == "power" or name.startswith("s0") else found


def _nonsense(name: str) -> tuple[str, str, str]:
    """For the codes of a word: a mask of all but their topmost bit, what carries into that where the rest is NaN or
    infinite, and that bit."""
    code = code_named(name)
    step = 1 if name == "e4m3" else 1 << code.mantissa
    mask, step, top = (
        _everywhere(code.bits, value) for value in ((1 << code.bits - 1) - 1, step, 1 << code.bits - 1)
    )
    return mask, step, top


def _everywhere(bits: int, value: int) -> str:
    return f"0x{sum(value << at for at in range(0, 64, bits)):X}"
