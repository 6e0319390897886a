"""A difference in words and as a text grid, for a terminal and, in Markdown, for a comment on a pull request.

    weight: 24,576 of 32,768 elements stand elsewhere
      digits `c` and `kq` change places: lane order
    row  word       0     4     8    12    16    20    24    28
  -   0     4     1,0   1,8   9,0   9,8   1,1   1,9   9,1   9,9      what stood there
  +   0     4     0,2  0,10   8,2  8,10   0,3  0,11   8,3  8,11      what stands there now; `=` where that is the same
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from html import escape

from layoutdsl.diff.compare import Change, Difference
from layoutdsl.diff.facts import Fact
from layoutdsl.diff.hunk import Hunk, Line, alike, element, place
from layoutdsl.diff.moves import Example
from layoutdsl.diff.settings import Setting

WIDTH = 100
LINES = 8
GRIDS = 4
"""Tensors of which a grid is drawn."""

INKS = {"-": "31", "+": "32", "": "1"}
"""Colours of a terminal for what was, for what is, and for titles."""

Ink = Callable[[str, str], str]
"""(text, sign) -> the text, coloured where the reader has colours."""

NOUNS = {"codes": "element", "scale": "scale", "zero_point": "zero point", "bias": "bias"}


def text_of(found: Difference, colour: bool = False) -> str:
    """What `layoutdsl diff` prints."""

    def ink(text: str, sign: str) -> str:
        return f"\x1b[{INKS[sign]}m{text}\x1b[0m" if colour else text

    sections = [[ink(line, "") for line in _wrapped(f"{found.before.label} -> {found.after.label}")]]
    sections[0] += _wrapped(f"{found.after.spec.name}: {verdict(found)}")
    if found.stated:
        sections.append([line for fact in found.stated for line in _fact(fact, "", ink)])
    for at, change in enumerate(found.changes):
        drawn = change.status == "moved" and change in found.moved[:GRIDS]
        sections.append([*_change(found, change, ink), *(["", *grid(change, ink)] if drawn else [])])
        if at and not drawn and not found.changes[at - 1].moves.moved:
            sections[-2:] = [[*sections[-2], *sections[-1]]]
    sections += [[*_wrapped(refused)] for refused in refusals(found)]
    sections.append([line for said in closing(found) for line in _wrapped(said)])
    return "\n\n".join("\n".join(line.rstrip() for line in section) for section in sections if section)


def markdown_of(found: Difference) -> str:
    """The same as a short comment: a table of tensors, what differs, and the grid of the first tensor that moves."""
    lines = [f"**{_code(found.after.spec.name)}**: {verdict(found)}", ""]
    lines.append(f"{_code(found.before.label)} → {_code(found.after.label)}")
    if found.changes:
        lines += ["", "| tensor | what becomes of it | elsewhere | at |", "|---|---|---|---|"]
        for change in found.changes:
            facts = "<br>".join(map(_in_a_line, change.facts)) or change.status
            moved = f"{change.moves.moved:,} of {change.moves.elements:,}" if change.moves.moved else ""
            lines.append("| " + " | ".join(_celled(one) for one in (
                f"`{change.tensor}`", facts, moved, _at(found, change.settings))) + " |")  # fmt: skip
    lines += [""] * bool(found.stated)
    lines += [f"- {_in_a_line(fact)}" for fact in found.stated]
    lines += [line for refused in refusals(found) for line in ("", escape(refused, quote=False))]
    for change in found.moved[:1]:
        lines += ["", *(f"- {said}" for said in examples(change)), "", f"`{change.tensor}` at {change.settings[0]}:"]
        lines += ["", "```diff", *(line.removeprefix("  ").rstrip() for line in grid(change)), "```"]
    said = closing(found)
    lines += ["", f"<details><summary>{said[-1].partition(':')[0]}</summary>", "", *(f"- {one}" for one in said)]
    lines += ["", "</details>"]
    return "\n".join(lines)


def _celled(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# --- sentences --------------------------------------------------------------------------------------------------------


def verdict(found: Difference) -> str:
    """The whole in a sentence."""
    if found.moved:
        return f"elements of {_names([change.tensor for change in found.moved])} stand elsewhere"
    if not found.is_same:
        return "no element moves, but the versions are not the same"
    if found.texts:
        return f"no element moves, both texts describe the same layout; they differ in {_names(found.texts)}"
    return "no element moves, the versions are the same"


def headline(change: Change) -> str:
    """What becomes of a tensor, in a line."""
    if change.status in ("added", "removed"):
        sheet = change.after or change.before
        assert sheet is not None
        which = "the version after" if change.status == "added" else "the version before"
        return f"{change.tensor}: {change.status}; {which} alone has it, {sheet.role}, {sheet.stored.dtypes[0]}"
    if change.status == "changed":
        return f"{change.tensor}: no element moves"
    assert change.before is not None
    noun, moves = NOUNS.get(change.before.stored.role, "value"), change.moves
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    what = f"{moves.moved:,} of {moves.elements:,} {plural} stand elsewhere"
    return f"{change.tensor}: {what}" if moves.elements > 1 else f"{change.tensor}: its one {noun} stands elsewhere"


def examples(change: Change) -> Iterator[str]:
    """Elements that move: which, from where to where."""
    before, after = change.before, change.after
    assert before is not None and after is not None
    for one in change.moves.examples:
        was, now = (sheet.address(one.part, one.n, one.k) for sheet in (before, after))
        row = before.place(was)[0]
        yield f"{_element(change, one)} moves from {place(before, was)}, to {place(after, now, row)}"


def _element(change: Change, one: Example) -> str:
    assert change.before is not None
    parts, role = change.before.matrix.parts, change.before.stored.role
    of = f" of {parts[one.part]}" if len(parts) > 1 else ""
    what = "element" if role == "codes" else f"the {NOUNS.get(role, 'value')} of"
    return f"{what} (n {one.n}, k {one.k}){of}"


def refusals(found: Difference) -> Iterator[str]:
    """Where one version alone has a layout."""
    for one in found.refusals:
        more = f" and {len(one.settings) - 1} more" if len(one.settings) > 1 else ""
        yield f"{one.label} has no layout at {one.settings[0]}{more}: {one.message}"


def closing(found: Difference) -> list[str]:
    """What is the same, and at which settings that was found."""
    settings = f"{len(found.settings)} setting{'s' * (len(found.settings) != 1)}"
    said = [f"the same: {_names(found.same)}"] if found.same else []
    return [*said, f"compared at {settings}: {'; '.join(map(str, found.settings))}"]


def _at(found: Difference, settings: Sequence[Setting]) -> str:
    """Where a change is seen: everywhere, or at which settings."""
    if len(settings) == len(found.settings):
        return "every setting" if len(settings) > 1 else str(settings[0])
    if len(settings) > 4:
        return f"{len(settings)} of {len(found.settings)} settings, the first is {settings[0]}"
    return "; ".join(map(str, settings))


def _names(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in dict.fromkeys(names)]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def _in_a_line(fact: Fact) -> str:
    return f"{fact.said}: {_code(fact.before)} → {_code(fact.after)}"


def _code(text: str) -> str:
    """Text of a spec set as code: whatever it holds, it stays code."""
    return "`" + " ".join(text.replace("`", "'").split()) + "`"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _fact(fact: Fact, indent: str, ink: Ink) -> Iterator[str]:
    yield from _wrapped(fact.said, indent)
    yield ink(f"{indent}  - {fact.before}", "-")
    yield ink(f"{indent}  + {fact.after}", "+")


def _change(found: Difference, change: Change, ink: Ink) -> Iterator[str]:
    yield ink(headline(change), "")
    for fact in change.facts:
        yield from _fact(fact, "  ", ink)
    if change.status == "moved":
        yield from (line for said in examples(change) for line in _wrapped(said, "  "))
    yield from _wrapped(f"at {_at(found, change.settings)}", "  ")


# --- the grid ---------------------------------------------------------------------------------------------------------


def grid(change: Change, ink: Ink = lambda text, sign: text) -> Iterator[str]:
    """The first words that differ and where their elements go, each line as it was and as it is."""
    assert change.before is not None and change.after is not None and change.moves.first is not None
    hunk = Hunk(change.before, change.after, change.moves.first, LINES)
    lines = hunk.lines
    if not lines:
        return
    rows: list[tuple[str, list[str]]] = [("", _columns(hunk, lines))]
    end = lines[0].at
    for line in lines:
        if line.at > end:
            rows.append(("", []))
        rows += _rows(hunk, line)
        end = line.at + 1
    widths = [max(len(row[at]) for _, row in rows if at < len(row)) for at in range(len(rows[0][1]))]
    for sign, row in rows:
        cells = "  ".join(text.rjust(width) for text, width in zip(row, widths)) if row else "..."
        yield ink(f"  {sign} {cells}", sign) if sign.strip() else f"    {cells}"


def _columns(hunk: Hunk, lines: Sequence[Line]) -> list[str]:
    sheet = hunk.before
    head = ["row"] * bool(sheet.stored.shape[1:]) + [sheet.word] + ["lane"] * bool(sheet.words_of_a_lane)
    line = max((side for line in lines for side in (line.before, line.after)), key=len)
    first = sheet.place(line[0].address)[1]
    for cell in line:
        _, word, bit = sheet.place(cell.address)
        bits = f":{bit}" if sheet.per_word > 1 else ""
        head.append(f"+{word - first}{bits}" if len(line) > sheet.per_word else str(bit))
    return head


def _rows(hunk: Hunk, line: Line) -> Iterator[tuple[str, list[str]]]:
    if hunk.is_aligned and not line.is_changed:
        yield " ", _row(hunk, 0, line)
        return
    yield from [("-", _row(hunk, 0, line))] if line.before else []
    yield from [("+", _row(hunk, 1, line))] if line.after else []


def _row(hunk: Hunk, side: int, line: Line) -> list[str]:
    sheet, cells = (hunk.before, hunk.after)[side], (line.before, line.after)[side]
    row, word, _ = sheet.place(cells[0].address)
    lane = sheet.lane(cells[0].address)
    head = [",".join(map(str, row))] * bool(hunk.before.stored.shape[1:]) + [str(word)]
    head += [str(lane if lane is not None else "")] * bool(hunk.before.words_of_a_lane)
    same = [line.is_paired and side == 1 and alike(*pair) for pair in zip(line.before, line.after)]
    texts = [element(sheet, cell) for cell in cells]
    return head + ["=" if at < len(same) and same[at] else text for at, text in enumerate(texts)]
