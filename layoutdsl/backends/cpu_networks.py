"""Text of the kernels that move codes inside vectors: cpu_network.py found what to exchange.

A block is read vector by vector, recoded where it must be, exchanged, and written. The addresses of a row are taken
once for all its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdsl.backends.cpu_forms import FAR, Moving, Spread
from layoutdsl.backends.cpu_network import BITS, Network
from layoutdsl.codes import code_named

_LOADS = {0: "load256", 1: "load128", 2: "load64x4"}
_STORES = {0: "store256", 1: "store128", 2: "store64x4"}


class _Places:
    """The names of a block's addresses, which its digits that are not read or written together choose from."""

    def __init__(self, form: Moving, digits: Sequence[int], rows: str, columns: str):
        axes = form.network.axes
        self.sides = [[at for at in digits if (axes[at] == form.down) == (side == 0)] for side in (0, 1)]
        self.names = rows, columns

    def taken(self, side: int, base: str, table: str, index: str) -> Iterator[str]:
        count = 1 << len(self.sides[side])
        for at in range(count):
            place = index if count == 1 else f"{count} * {index} + {at}"
            yield f"{self.names[side]}{at} = {base}at({table}, {place})"

    def of(self, chosen: dict[int, int]) -> str:
        found = (sum(chosen[digit] << at for at, digit in enumerate(side)) for side in self.sides)
        return " + ".join(f"{name}{at}" for name, at in zip(self.names, found))


def title(form: Moving) -> str:
    network = form.network
    count = 1 << len(network.axes) - network.inside
    recoded = "" if form.recode == "copy" else f", {form.recode} on the way"
    return f"{network.bits}-bit codes, {count} vector{'s' * (count > 1)} at a time{recoded}"


def functions(form: Moving) -> Iterator[str]:
    """What a kernel needs that is made for it: exchanges inside of a vector, and what spreads an operand."""
    bits = form.network.bits
    for first, second in sorted({(a, b) for kind, a, b in form.network.swaps if kind == "code"}):
        yield f"turn{bits << first}_{bits << second} = turned({bits << first}, {bits << second})"
    spread = form.operand
    if spread is not None and spread.width < BITS:
        far = [at for at in range(form.network.inside) if spread.steps[at] == FAR]
        for number in range(1 << len(far)):
            chosen = {at: number >> bit & 1 for bit, at in enumerate(far)}
            places = [_place(spread, place, chosen) for place in range(1 << form.network.inside)]
            yield f"spread{number} = spread({spread.bits}, {places})"


def _place(spread: Spread, place: int, far: dict[int, int]) -> int | None:
    """Which code of a word stands beside a place; none where it is in another word."""
    if any(place >> at & 1 != digit for at, digit in far.items()):
        return None
    return sum(step for at, step in enumerate(spread.steps) if step > 0 and place >> at & 1)


def moving(form: Moving) -> Iterator[str]:
    network, spread = form.network, form.operand
    digits, inside = range(len(network.axes)), network.inside
    reads = _Places(form, [at for at in digits if at >= network.reads], "a", "b")
    writes = _Places(form, network.written[network.writes :], "c", "d")
    beside = [at for at in digits if spread is not None and spread.leads_away(at, inside)]
    operands = _Places(form, beside, "y", "x")
    base = "" if spread is None or spread.odd else "by + "
    if form.refuses:
        yield "seen = splat(uint64(0))"
    yield "for i in range(top, bottom):"
    tables = [(reads, "of", "of + "), (writes, "to", "to + ")] + [(operands, "by", base)] * (spread is not None)
    for places, what, start in tables:
        yield from (f"    {line}" for line in places.taken(0, start, f"rows_{what}", "i"))
    yield "    for j in range(left, right):"
    for places, what, _ in tables:
        yield from (f"        {line}" for line in places.taken(1, "", f"columns_{what}", "j"))
    yield from (f"        {line}" for line in _block(form, reads, writes, operands))
    if form.refuses:
        yield f"found[turn] = int64(folded(seen & uint64({_nonsense(form.refuses)[2]})) != 0) << 62"


def _block(form: Moving, reads: _Places, writes: _Places, operands: _Places) -> Iterator[str]:
    network = form.network
    vectors = range(1 << len(network.axes) - network.inside)
    for at in vectors:
        pieces = ", ".join(_pieces(network, reads, range(len(network.axes)), network.reads, at))
        yield f"w{at} = {_LOADS[network.inside - network.reads]}({pieces})"
    if form.refuses:
        yield from (f"seen |= {_suspect(form.refuses, f'w{at}')}" for at in vectors)
    if form.recode != "copy":
        yield from _recoded(form, operands)
    for kind, a, b in network.swaps:
        if kind == "code":
            yield from (f"w{at} = turn{network.bits << a}_{network.bits << b}(w{at})" for at in vectors)
        else:
            pairs = ((at, at | 1 << a) for at in vectors if not at >> a & 1)
            yield from (f"w{x}, w{y} = exchange{network.bits << b}(w{x}, w{y})" for x, y in pairs)
    order = sorted(vectors, key=lambda at: _last_in_line(network, at))
    written = {at: ", ".join(_pieces(network, writes, network.written, network.writes, at)) for at in order}
    stores = [f"({pieces}, w{at})" for at, pieces in written.items()]
    if network.inside == network.writes:
        yield "if mode == STREAM:"
        yield from (f"    stream256{store}" for store in stores)
        yield "elif mode == STORE:"
    else:
        yield "if mode != LOOK:"
    yield from (f"    {_STORES[network.inside - network.writes]}{store}" for store in stores)


def _pieces(network: Network, places: _Places, order: Sequence[int], granule: int, vector: int) -> Iterator[str]:
    """The addresses of a vector's granules; `order` is that of the digits where it is read or written."""
    inside = network.inside
    for piece in range(1 << inside - granule):
        chosen = {digit: piece >> at & 1 for at, digit in enumerate(order[granule:inside])}
        chosen |= {digit: vector >> at & 1 for at, digit in enumerate(order[inside:])}
        yield places.of(chosen)


def _last_in_line(network: Network, vector: int) -> tuple[int, int]:
    """The order in which vectors are written: those of a line of the cache one after the other."""
    if network.line < 0 or network.line not in network.written[network.inside :]:
        return vector, 0
    bit = 1 << network.written[network.inside :].index(network.line)
    return vector & ~bit, vector


# recodes --------------------------------------------------------------------------------------------------------------


def _recoded(form: Moving, operands: _Places) -> Iterator[str]:
    network, spread = form.network, form.operand
    vectors = range(1 << len(network.axes) - network.inside)
    if spread is None:
        for at in vectors:
            yield from _around_eight(form.recode, f"w{at}")
        return
    known: dict[tuple[str, ...], int] = {}
    for at in vectors:
        words = tuple(_words(network, spread, operands, at))
        if words not in known:
            known[words] = len(known)
            yield from _operand(form, words, known[words])
        name = known[words]
        if form.recode == "fold_sign":
            yield f"w{at} = w{at} ^ (even{name} | (odd{name} << uint64(4)))"
        else:
            yield f"w{at} = {form.recode}(w{at}, even{name}, odd{name})"


def _words(network: Network, spread: Spread, operands: _Places, vector: int) -> Iterator[str]:
    """The addresses of the words that have what stands beside a vector."""
    far = [at for at in range(network.inside) if spread.steps[at] == FAR]
    for number in range(1 << len(far)):
        chosen = {at: number >> bit & 1 for bit, at in enumerate(far)}
        chosen |= {at: vector >> at - network.inside & 1 for at in range(network.inside, len(network.axes))}
        yield operands.of(chosen)


def _operand(form: Moving, words: Sequence[str], name: int) -> Iterator[str]:
    """Bytes beside the even and the odd codes of a vector."""
    spread = form.operand
    assert spread is not None
    for number, place in enumerate(words):
        even, odd = (f"{half}{name}" if number == 0 else f"more_{half}" for half in ("even", "odd"))
        if spread.width == BITS:
            yield f"{even}, {odd} = halves(load256({place}))"
        else:
            word = f"load{spread.width}({place})"
            if spread.odd:
                yield f"place = {place}"
                word = f"load{spread.width}(by + (place >> 1)) >> uint64((place & 1) << 2)"
            word = f"negative({word})" if form.recode == "fold_sign" else word
            yield f"{even}, {odd} = spread{number}({word})"
        if number:
            yield f"even{name} |= more_even"
            yield f"odd{name} |= more_odd"
    if form.recode != "fold_sign":
        yield f"even{name} += uint64(value * 0x0101010101010101)"
        yield f"odd{name} += uint64(value * 0x0101010101010101)"


def _around_eight(recode: str, word: str) -> Iterator[str]:
    """4-bit codes around the zero point 8: below it, 15 minus the code is all bits but the topmost turned around."""
    yield f"t = ({word} >> uint64(3)) & uint64(0x1111111111111111)"
    if recode == "fp8_nibbles":
        yield "t ^= uint64(0x1111111111111111)"
    yield f"{word} ^= (t | (t << uint64(1)) | (t << uint64(2))) ^ uint64(0x8888888888888888)"


def _nonsense(name: str) -> tuple[str, str, str]:
    """For the codes of a word that are NaN or infinite: a mask, what makes the topmost bit of the masked code where all
    bits of its exponent are set, and that bit."""
    code = code_named(name)
    step = 1 if name == "e4m3" else 1 << code.mantissa
    mask, step, top = (
        _everywhere(code.bits, value) for value in ((1 << code.bits - 1) - 1, step, 1 << code.bits - 1)
    )
    return mask, step, top


def _suspect(name: str, word: str) -> str:
    mask, step, _ = _nonsense(name)
    found = f"(({word} & uint64({mask})) + uint64({step}))"
    return f"({found} & {word})" if code_named(name).kind == "power" or name.startswith("s0") else found


def _everywhere(bits: int, value: int) -> str:
    return f"0x{sum(value << at for at in range(0, 64, bits)):X}"
