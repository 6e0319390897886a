"""A small writer of SVG: elements, one style sheet for light and dark, and files that are whole or not there.

    document("A square", "one cell", 40, 40, [cell("p0", "n 0, k 0", 10, 10, 20, 20, "0")])

No scripts, no fonts from elsewhere. Each colour is given twice: as it is in light, for viewers that know no variables,
and as a variable that the dark scheme changes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from layoutdsl.errors import LayoutError

HUES = 8

COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "line": ("#d1d9e0", "#3d444d"),
    "plain": ("#f3f5f8", "#1b212a"),
    "band": ("#e6eaef", "#262d37"),
    "mark": ("#cf222e", "#ff7b72"),
    "p0": ("#cfe3ff", "#1d4478"),
    "p1": ("#ffdfc0", "#713f12"),
    "p2": ("#cdf0d0", "#1a542b"),
    "p3": ("#e7d8fb", "#50358a"),
    "p4": ("#bdeef0", "#0f5560"),
    "p5": ("#ffd6e4", "#7a2850"),
    "p6": ("#f5ecae", "#564c0d"),
    "p7": ("#e8dacb", "#574334"),
}
"""Name -> (light, dark). Ink on any of them has a contrast of at least 7."""

MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
SANS = "system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"


def _style() -> str:
    def scheme(dark: bool) -> str:
        return ":root{" + "".join(f"--{name}:{both[dark]};" for name, both in COLOURS.items()) + "}"

    def paint(what: str, name: str) -> str:
        return f"{what}:{COLOURS[name][0]};{what}:var(--{name})"

    rules = [
        scheme(dark=False),
        "@media (prefers-color-scheme:dark){" + scheme(dark=True) + "}",
        f"text{{font:11px {MONO};text-anchor:middle;{paint('fill', 'ink')}}}",
        f".head{{font:600 17px {SANS};text-anchor:start}}",
        f".title{{font:600 13px {SANS};text-anchor:start}}",
        f".said{{font:12px {SANS};text-anchor:start;{paint('fill', 'muted')}}}",
        f".small{{font-size:10px;{paint('fill', 'muted')}}}",
        ".left{text-anchor:start}.right{text-anchor:end}",
        f".page{{{paint('fill', 'page')}}}",
        f"rect,path{{stroke-width:1;{paint('stroke', 'line')}}}",
        f".word{{fill:none;{paint('stroke', 'muted')}}}",
        f".mark{{fill:none;stroke-width:2;{paint('stroke', 'mark')}}}",
        f".pad rect{{fill:url(#hatch)}}.hatch{{{paint('stroke', 'muted')}}}",
        *(f".{name} rect{{{paint('fill', name)}}}" for name in ("plain", "band", *(f"p{hue}" for hue in range(HUES)))),
    ]
    return "\n".join(rules)


HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<path class="hatch" d="M0 6L6 0" fill="none"/></pattern></defs>'
)


ARROWS = (
    f".arrow{{fill:none;stroke-width:1.5;stroke:{COLOURS['mark'][0]};stroke:var(--mark)}}\n"
    f".point{{stroke:none;fill:{COLOURS['mark'][0]};fill:var(--mark)}}"
)
"""The rules that arrows need."""


def document(title: str, description: str, width: float, height: float, body: Iterable[str], rules: str = "") -> str:
    """A whole file. `rules` are added to the style sheet."""
    w, h = round(width), round(height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img"'
            ' aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<style>\n{_style()}\n{rules}</style>",
            HATCH,
            f'<rect class="page" width="{w}" height="{h}" rx="8"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, said: str, kind: str = "") -> str:
    named = f" class={quoteattr(kind)}" if kind else ""
    return f'<text{named} x="{x:g}" y="{y:g}">{escape(said)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str = "", radius: float = 0) -> str:
    named = f" class={quoteattr(kind)}" if kind else ""
    rounded = f' rx="{radius:g}"' if radius else ""
    return f'<rect{named} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{rounded}/>'


def line(x: float, y: float, to_x: float, to_y: float, kind: str = "") -> str:
    named = f" class={quoteattr(kind)}" if kind else ""
    return f'<path{named} d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve from left to right with a head at its end."""
    bend = (to_x - x) / 2
    curve = f"M{x:g} {y:g}C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x - 5:g} {to_y:g}"
    head = f"M{to_x:g} {to_y:g}l-7 -3.5v7z"
    return f'<path class="arrow" d="{curve}"/><path class="point" d="{head}"/>'


def cell(kind: str, hover: str, x: float, y: float, width: float, height: float, *said: str) -> str:
    """A box with lines of text in its middle, and what is shown where a pointer rests on it."""
    first = y + height / 2 + 4 - 6 * (len(said) - 1)
    lines = "".join(text(x + width / 2, first + 12 * at, one) for at, one in enumerate(said) if one)
    titled = f"<title>{escape(hover)}</title>" if hover else ""
    return f'<g class="{kind}">{titled}{rect(x, y, width, height)}{lines}</g>'


def write(path: Path, content: str) -> None:
    """Write a file under another name first, so that nobody ever finds half of it."""
    made: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        made = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(content)
        made.chmod(0o666 & ~_umask())
        os.replace(made, path)
    except OSError as error:
        if made is not None:
            made.unlink(missing_ok=True)
        raise LayoutError(
            f"`{path}` cannot be written: {(error.strerror or 'unknown reason').lower()}",
            code="LP115",
            name="cannot-write",
            help="--svg names a file in a folder that is there and may be written to",
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
