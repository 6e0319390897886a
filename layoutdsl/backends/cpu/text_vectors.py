"""Text of the kernels that move codes inside vectors: network.py found what to do.

A block is read, recoded where it must be, its digits are brought to their places, and it is written. The addresses of a
row are taken once for all its columns. Of short rows the next is asked for before: a processor foresees no page that it
begins. Where blocks are taken out of a panel, a row is one, and sorts it first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from layoutdsl.backends.cpu.forms import FAR, LINE, REFUSED, STAGED, Moving
from layoutdsl.backends.cpu.making import READ
from layoutdsl.backends.cpu.network import Network

_READ = {recode: "given" if recode == "rule" else "factor" for recode in READ}
"""What recodes of codes as they are read are given."""

AHEAD = 16
"""How many columns ahead the source of a panel is asked for: each in a page of its own, which no processor foresees."""


class _Sides:
    """The digits that choose among a row's addresses and a column's, for the pieces that vectors are read or written
    in. `order` is that of the digits there, of which so many are in a piece."""

    def __init__(self, network: Network, down: int, order: Sequence[int], piece: int):
        apart = list(order[piece:])
        self.pieces = network.inside - piece
        self.rows, self.columns = (
            [at for at, digit in enumerate(apart) if (network.axes[digit] == down) is side] for side in (True, False)
        )
        self.vectors = network.vectors

    def __str__(self) -> str:
        rows, columns = (f"({''.join(f'{at}, ' for at in side).rstrip()})" for side in (self.rows, self.columns))
        return f"vectors={self.vectors}, pieces={self.pieces}, rows={rows}, columns={columns}"

    def taken(self, side: int, table: str, base: str, order: str = "") -> str:
        """The addresses of one side, through an order if there is one."""
        count, index = 1 << len((self.rows, self.columns)[side]), "ij"[side]
        if order:
            return f"through({order}, entries({table}, {index}, {count}, 0))"
        return f"entries({table}, {index}, {count}, {base})"


def title(form: Moving) -> str:
    """What a kernel does, in a line."""
    network = form.network
    count = network.vectors
    names = f", {form.source} to {form.target} by {form.recode}"
    recoded = "" if form.recode == "copy" else names if form.recode in _READ else f", {form.recode} on the way"
    found = ", out of a sorted panel" if form.sorts is not None else ""
    return f"{network.bits}-bit codes, {count} vector{'s' * (count > 1)} at a time{found}{recoded}"


def functions(form: Moving) -> Iterator[str]:
    """What a kernel needs that is made for it."""
    network, spread = form.network, form.operand
    reads, writes, operands = _sides(form)
    if form.recode in _READ:
        yield f'read = recoding("{form.recode}", "{form.source}", "{form.target}", {reads})'
    else:
        yield f"read = reading({reads})"
    if form.sorts is not None:
        sorts = form.sorts
        yield f"read_unsorted = reading({_Sides(sorts, form.down, range(len(sorts.axes)), sorts.reads)})"
        yield f"write_sorted = writing({_Sides(sorts, form.down, sorts.written, sorts.writes)})"
        if not form.staged:
            yield f"fetch = prefetching({_Sides(sorts, form.down, range(len(sorts.axes)), sorts.reads)})"
    else:
        yield f"fetch = prefetching({reads})"
    if spread is not None:
        what = f'"{form.recode}", {spread.bits}, {spread.width}, {spread.steps[: network.inside]}, odd={spread.odd}'
        both = f"rows={tuple(operands.rows)}, columns={tuple(operands.columns)}, vectors={network.vectors}"
        yield f"recoded = beside({what}, {both})"
    for order in sorted({op.order for net in (network, form.sorts) if net for op in net.ops if op.kind == "arrange"}):
        yield f"arrange{''.join(map(str, order))} = arranging({max(network.bits, 8)}, {order})"
    outside = network.written[network.inside :]
    line = outside.index(network.line) if network.line in outside else -1
    yield f"write = writing({writes}, line={line})"
    if network.writes == network.inside:
        yield f"stream = streaming({writes}, line={line})"


def _sides(form: Moving) -> tuple[_Sides, _Sides, _Sides]:
    """Of what is read, of what is written, and of operands."""
    network, spread = form.network, form.operand
    order = list(range(len(network.axes)))
    operands = _Sides(network, form.down, order, network.inside)
    if spread is not None:
        far = [at for at in range(network.inside) if spread.steps[at] == FAR]
        moved = [at for at in order[network.inside :] if spread.leads_away(at, network.inside)]
        numbers = {digit: at for at, digit in enumerate([*far, *order[network.inside :]])}
        operands.pieces = len(far)
        operands.rows, operands.columns = (
            [numbers[at] for at in (*far, *moved) if (network.axes[at] == form.down) is side] for side in (True, False)
        )
    reads = _Sides(network, form.down, order, network.reads)
    return reads, _Sides(network, form.down, network.written, network.writes), operands


def moving(form: Moving) -> Iterator[str]:
    network, spread = form.network, form.operand
    reads, writes, operands = _sides(form)
    order = "columns_order" if form.looks_up or form.sorts is not None else ""
    given = _READ.get(form.recode)
    if form.refuses or given or form.recode == "offset":
        yield "refused, lost = 0, 0"
    yield "for i in range(top, bottom):"
    if form.sorts is None:
        row = reads.taken(0, "rows_of", "of")
        yield f"    row = {row}"
        yield f"    after = {row.replace(', i, ', ', min(i + 1, bottom - 1), ')}"
    else:
        yield from (f"    {line}" for line in _sorting(form, form.sorts))
        yield "    row = (panel,)"
    yield f"    row_to = {writes.taken(0, 'rows_to', 'to')}"
    if spread is not None:
        yield f"    row_by = {operands.taken(0, 'rows_by', '0' if spread.odd else 'by')}"
    yield "    for j in range(left, right):"
    column = reads.taken(1, "columns_of", "0", order)
    if form.sorts is None:
        yield "        if i + 1 < bottom:"
        yield f"            fetch(after, {column})"
    if given:
        yield f"        w, refused, lost = read(row, {column}, {given}, refused, lost)"
    else:
        yield f"        w = read(row, {column})"
    if form.refuses:
        yield f'        refused |= suspects(w, "{form.source}")'
    if spread is not None:
        yield f"        w = recoded(w, row_by, {operands.taken(1, 'columns_by', '0')}, by, value)"
    elif form.recode == "offset":
        yield "        w, refused = raised(w, value, refused)"
    elif form.recode not in ("copy", *_READ):
        yield f'        w = around_eight(w, "{form.recode}")'
    yield from (f"        {line}" for line in _operations(network))
    yield f"        column_to = {writes.taken(1, 'columns_to', '0')}"
    if network.writes == network.inside:
        yield "        if mode == STREAM:"
        yield "            stream(row_to, column_to, w)"
        yield "        elif mode == STORE:"
    else:
        yield "        if mode != LOOK:"
    yield "            write(row_to, column_to, w)"
    if form.refuses or given or form.recode == "offset":
        lost = "lost | " if form.counts and given else ""
        yield f"store64(found + 8 * turn, uint64({lost}int64(refused != 0) << {REFUSED}))"


def _sorting(form: Moving, network: Network) -> Iterator[str]:
    """A panel, a vector for each k, in memory apart."""
    reads = _Sides(network, form.down, range(len(network.axes)), network.reads)
    writes = _Sides(network, form.down, network.written, network.writes)
    column = reads.taken(1, "panel_of", "of" if form.looks_up else "0")
    sorts = [*_operations(network), f"write_sorted((panel,), {writes.taken(1, 'panel_to', '0')}, w)"]
    if not form.staged:
        yield f"row = {reads.taken(0, 'rows_of', 'of', 'rows_order' if form.looks_up else '')}"
        yield "for j in range(panels):"
        yield f"    fetch(row, {column.replace(', j, ', f', min(j + {AHEAD}, panels - 1), ')})"
        yield f"    w = read_unsorted(row, {column})"
        yield from (f"    {line}" for line in sorts)
        return
    piece, rows = network.bits << network.reads >> 3, 1 << len(reads.rows)
    place = f"at(rows_of, {rows} * i + r)"
    yield f"staged = spaced(stage, {STAGED + LINE}, {rows})"
    yield f"for start in range(0, panels, {STAGED // piece}):"
    yield f"    end, first = min(start + {STAGED // piece}, panels), of + at(panel_of, start)"
    yield f"    for r in range({rows}):"
    yield f"        line = first + {f'at(rows_order, {place})' if form.looks_up else place}"
    yield f"        for byte in range(0, (end - start) * {piece}, 8):"
    yield f"            store64(stage + r * {STAGED + LINE} + byte, load64(line + byte))"
    yield "    for j in range(start, end):"
    yield f"        w = read_unsorted(staged, ((j - start) * {piece},))"
    yield from (f"        {line}" for line in sorts)


def apart(form: Moving) -> str:
    """Where a panel is in memory apart: behind the rows of its source that are copied together, if they are."""
    if form.sorts is None:
        return ""
    if not form.staged:
        return "    panel = scratch\n"
    rows = _Sides(form.sorts, form.down, range(len(form.sorts.axes)), form.sorts.reads).rows
    return f"    stage, panel = scratch, scratch + {(STAGED + LINE) << len(rows)}\n"


def _operations(network: Network) -> Iterator[str]:
    for op in network.ops:
        if op.kind == "arrange":
            yield f"w = arrange{''.join(map(str, op.order))}(w)"
        elif op.kind == "swap":
            yield f"w = swap(w, {op.place}, {op.other})"
        else:
            yield f"w = {op.kind}(w, {op.place}, {op.digit})"
