"""A coverage as text, as Markdown and as JSON. All end with, or hold, how many of all pairs are accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from layoutdsl.checkpoints.progress import in_bytes
from layoutdsl.coverage.needs import Row
from layoutdsl.coverage.table import Cell, Count, Coverage, Line, Outcome
from layoutdsl.errors import Diagnostic

SHORT = {"finer groups": "finer", "one group a rank": "one group"}
"""Names of choices that are too long for a table."""

MAYBE = "may be there: "
"""Before the name of a row that is in no sum."""

FORM = 1
"""Version of the JSON form."""


def text_of(found: Coverage) -> str:
    return "\n".join(_text(found))


def _text(found: Coverage) -> Iterator[str]:
    yield from _head(found)
    yield ""
    if found.counted:
        yield from _table(found)
        yield ""
    yield from _below(found)
    yield last_line(found)


def last_line(found: Coverage) -> str:
    return f"{found.accepted} of {found.of} accepted"


def column(count: Count, counts: Sequence[Count]) -> str:
    """`tp 8`, or `tp 8 ep 2` where expert-parallel ranks are asked about."""
    return f"tp {count[0]} ep {count[1]}" if any(ep > 1 for _, ep in counts) else f"tp {count[0]}"


def short(choice: str) -> str:
    return SHORT.get(choice, choice)


def percent(overhead: float) -> str:
    return f"{100 * overhead:.1f} %"


def _head(found: Coverage) -> Iterator[str]:
    yield found.asked.title
    yield f"{found.asked.source}, to {', '.join(found.kernels) or 'nothing'}"
    yield "in each cell: the choice, padding as a share of what would be stored without it, bytes on the widest rank"


def _table(found: Coverage) -> Iterator[str]:
    """For each number of ranks what is chosen, how much padding that is, and bytes on the widest rank."""
    lines = [(line.row, (line.row.name, *(_cells(cell, line.row) for cell in line.cells))) for line in found.counted]
    rows = [cells for row, cells in lines if not row.maybe]
    if found.asked.summed:
        rows.append(("on a rank, at most", *(_sum(found, at) for at in range(len(found.counts)))))
    rows += [(f"{MAYBE}{name}", *cells) for row, (name, *cells) in lines if row.maybe]
    width = max(len(found.asked.kind), *(len(row[0]) for row in rows))
    widths = [[max(len(row[at][sub]) for row in rows) for sub in range(3)] for at in range(1, len(rows[0]))]
    heads = [column(count, found.counts) for count in found.counts]
    wide = [max(len(head), sum(subs) + 2) for head, subs in zip(heads, widths)]
    yield "  ".join([found.asked.kind.ljust(width), *(head.ljust(w) for head, w in zip(heads, wide))]).rstrip()
    for name, *cells in rows:
        joined = [f"{cell[0]:<{a}} {cell[1]:>{b}} {cell[2]:>{c}}".ljust(w)
                  for cell, (a, b, c), w in zip(cells, widths, wide)]  # fmt: skip
        yield "  ".join([name.ljust(width), *joined]).rstrip()


def _cells(cell: Cell, row: Row) -> tuple[str, str, str]:
    if not cell.accepted:
        return "refused", "", ""
    return short(cell.choice), percent(cell.overhead), in_bytes(cell.widest * row.count)


def _sum(found: Coverage, at: int) -> tuple[str, str, str]:
    total = found.total(at)
    return "", "", "" if total is None else in_bytes(total)


def _below(found: Coverage) -> Iterator[str]:
    apart = [line for line in found.lines if line.apart]
    if apart:
        yield f"not counted, since no writer makes files of these sizes: {len(apart)}"
        yield from (f"  {line.row.name}: {line.apart}" for line in apart)
    for refusal in found.refusals:
        finding = refusal.finding
        yield f"refused: {_sentence(finding)}"
        yield f"  {_pairs(refusal.pairs, found.counts)}"
    yield from found.asked.notes


def _sentence(finding: Diagnostic) -> str:
    return f"{finding.code} {finding.name}: {finding.message}" + (f"; {finding.help}" if finding.help else "")


def _pairs(pairs: Sequence[tuple[str, Count]], counts: Sequence[Count]) -> str:
    """`jamba (tp 8, tp 16), lfm2 (tp 16)`"""
    found: dict[str, list[str]] = {}
    for name, count in pairs:
        found.setdefault(name, []).append(column(count, counts))
    return ", ".join(f"{name} ({', '.join(columns)})" for name, columns in found.items())


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown_of(found: Coverage) -> str:
    return "\n".join(_markdown(found))


def _markdown(found: Coverage) -> Iterator[str]:
    yield from (*(f"{line}  " for line in _head(found)), "")
    if found.counted:
        heads = [found.asked.kind, *(column(count, found.counts) for count in found.counts)]
        yield _row(heads)
        yield "|---|" + "---:|" * len(found.counts)
        yield from (_row_of(line, "") for line in found.counted if not line.row.maybe)
        if found.asked.summed:
            yield _row(["on a rank, at most", *(_sum(found, at)[2] for at in range(len(found.counts)))])
        yield from (_row_of(line, MAYBE) for line in found.counted if line.row.maybe)
        yield ""
    for line in _below(found):
        yield f"  - {line.strip()}" if line.startswith("  ") else f"- {line}"
    yield from ("", f"**{last_line(found)}**")


def _row_of(line: Line, before: str) -> str:
    cells = (_cells(cell, line.row) for cell in line.cells)
    return _row([f"{before}`{line.row.name}`", *(" · ".join(filter(None, cell)) for cell in cells)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# --- JSON -------------------------------------------------------------------------------------------------------------


def json_of(found: Coverage) -> str:
    return json.dumps(_tree(found), indent=1, ensure_ascii=False)


def _tree(found: Coverage) -> dict[str, Any]:
    refusals = found.refusals
    numbers = {(one.finding.code, one.finding.message, one.finding.help): at for at, one in enumerate(refusals)}

    def cell(one: Cell) -> dict[str, Any]:
        which = {"tp": one.count[0], "ep": one.count[1], "accepted": one.accepted}
        if not one.accepted:
            keys = dict.fromkeys((f.code, f.message, f.help) for f in one.refused)
            return {**which, "refusals": [numbers[key] for key in keys]}
        return {
            **which,
            "choice": one.choice,
            "padding": round(one.overhead, 6),
            "stored": one.stored,
            "rank": one.widest,
            "modules": [_module(outcome) for outcome in one.served],
        }

    return {
        "form": FORM,
        "path": found.asked.path,
        "source": found.asked.source,
        "kernels": list(found.kernels),
        "rows": [
            {
                "name": line.row.name,
                "count": line.row.count,
                "maybe": line.row.maybe,
                "modules": [
                    {
                        "name": label,
                        "module": need.module,
                        "only": list(need.only),
                        "sizes": dict(need.sizes),
                        "kernel": need.kernel or None,
                    }
                    for label, need in line.row.needs
                ],
                "cells": [cell(one) for one in line.cells],
            }
            for line in found.counted
        ],
        "not_counted": [{"name": line.row.name, "reason": line.apart} for line in found.lines if line.apart],
        "refusals": [
            {
                "code": one.finding.code,
                "name": one.finding.name,
                "message": one.finding.message,
                "help": one.finding.help,
                "pairs": [{"name": name, "tp": tp, "ep": ep} for name, (tp, ep) in one.pairs],
            }
            for one in refusals
        ],
        "notes": list(found.asked.notes),
        **({"rank_bytes": [found.total(at) for at in range(len(found.counts))]} if found.asked.summed else {}),
        "accepted": found.accepted,
        "of": found.of,
    }


def _module(outcome: Outcome | Diagnostic) -> dict[str, Any]:
    assert isinstance(outcome, Outcome)
    return {
        "choice": outcome.choice,
        "groups": dict(outcome.groups),
        "stored": outcome.stored,
        "padding": round(float(outcome.padding)),
        "rank": outcome.widest,
        "kinds": outcome.kinds,
    }
