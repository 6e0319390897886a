"""What `[tool.layoutdsl.lint]` and the flags of `lint` say: the keys are the flags, and a flag wins.

    [tool.layoutdsl.lint]
    select = ["LD"]
    extend-select = ["LP"]
    ignore = ["tried-twice", "LD030"]
    output-format = "concise"
    fix = true
    exit-zero = false

`select`, `extend-select` and `ignore` are those of the file nearest to each spec; the others, which are about a whole
run, those of the file nearest to the current folder. The flag `--select` begins anew, `--extend-select` and `--ignore`
add to what the file says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layoutdsl import settings
from layoutdsl.folders import real
from layoutdsl.lint.select import ALL, Selection, unknown
from layoutdsl.settings import Table

FORMATS = ("text", "concise", "json", "github", "sarif")
WORDS = ("select", "extend-select", "ignore")
SWITCHES = ("fix", "exit-zero")


@dataclass(frozen=True)
class Choices:
    """How a run of `lint` goes; None and () where nothing was said."""

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    output_format: str | None = None
    fix: bool | None = None
    exit_zero: bool | None = None

    def over(self, other: Choices) -> Choices:
        """These, and of `other` what they leave open. `select` begins anew; the other two add to what is there."""
        words = other if self.select is None else Choices()
        return Choices(
            self.select if self.select is not None else words.select,
            (*words.extend_select, *self.extend_select),
            (*words.ignore, *self.ignore),
            self.output_format or other.output_format,
            self.fix if self.fix is not None else other.fix,
            self.exit_zero if self.exit_zero is not None else other.exit_zero,
        )

    @property
    def selection(self) -> Selection:
        return Selection.of((ALL,) if self.select is None else self.select, self.extend_select, self.ignore)


@dataclass(frozen=True)
class Nearest:
    """Choices of the flags over those of the pyproject.toml that is nearest to each folder."""

    flags: Choices
    known: dict[Path, Choices] = field(default_factory=dict)

    def at(self, folder: Path) -> Choices:
        folder = real(folder)
        if folder not in self.known:
            self.known[folder] = self.flags.over(choices_in(settings.nearest(folder)))
        return self.known[folder]

    def selection(self, file: Path) -> Selection:
        return self.at(file.parent).selection


def choices_in(table: Table | None) -> Choices:
    """What a table `[tool.layoutdsl]` says of `lint`."""
    if table is None:
        return Choices()
    own = table.inner("lint")
    own.known((*WORDS, "output-format", *SWITCHES))
    words = {key: own.texts(key, "codes and names") for key in WORDS if key in own.values}
    for key, given in words.items():
        _refuse_unknown(own, key, given)
    if words.get("select") == () and not words.get("extend-select"):
        own.refuse("select", "select must name codes or names: with none, nothing would be found")
    form: Any = own.values.get("output-format")
    if form is not None and form not in FORMATS:
        own.refuse("output-format", f"output-format must be one of {', '.join(FORMATS)}")
    for key in SWITCHES:
        if not isinstance(own.values.get(key, False), bool):
            own.refuse(key, f"{key} must be true or false")
    return Choices(
        words.get("select"), words.get("extend-select", ()), words.get("ignore", ()), form,
        own.values.get("fix"), own.values.get("exit-zero"),
    )  # fmt: skip


def _refuse_unknown(table: Table, key: str, words: Sequence[str]) -> None:
    for word in words:
        if (sentence := unknown(word)) is not None:
            table.refuse(key, f"{key}: {sentence}")
