"""What there is to say of files: of each by itself, and of a run over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from layoutdsl.errors import Diagnostic, Span
from layoutdsl.lint.suppress import Suppression


@dataclass(frozen=True)
class Fault:
    """A failure of our own: in which file, what was at work, and what it raised."""

    file: str
    stage: str
    error: Exception

    def __str__(self) -> str:
        what = " ".join(str(self.error).split()) or "no reason given"
        return f"{self.file}: {self.stage} failed: {type(self.error).__name__}: {what}"


@dataclass(frozen=True)
class Outcome:
    """What a run found, in the order of the files and of their lines. `across`: what other files make a finding of one,
    suppressed or not."""

    findings: tuple[Diagnostic, ...]
    files: tuple[Path, ...]
    faults: tuple[Fault, ...] = ()
    across: Mapping[Path, tuple[Diagnostic, ...]] = field(default_factory=dict[Path, tuple[Diagnostic, ...]])


@dataclass
class Examined:
    """All there is to say of one file by itself, whatever is selected and suppressed.

    `refusals` keep the spec from being read, so they are always shown: nothing else is known of it then. `explains` are
    the codes, per code that is found, that stay silent where it is shown. `kind` and `layout`: what a spec is, and the
    digest of what it describes.
    """

    refusals: list[Diagnostic] = field(default_factory=list)
    findings: list[Diagnostic] = field(default_factory=list)
    suppressions: tuple[Suppression, ...] = ()
    faults: list[Fault] = field(default_factory=list)
    explains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    name: str | None = None
    name_at: tuple[Span, str] | None = None
    kind: str = ""
    layout: str = ""

    def add(self, other: Examined) -> None:
        """Also what another stage says of the same file."""
        self.findings += other.findings
        self.faults += other.faults
        self.explains |= other.explains
