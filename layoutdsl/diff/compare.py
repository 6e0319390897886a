"""Two versions of a format, held against each other at their settings: what each tensor stores where.

    found = difference(opened("main:specs/kernel/x.yaml"), opened("specs/kernel/x.yaml"))
    found.is_same, [change.tensor for change in found.changes]

What follows from a spec at some sizes is asked of `show`, as a picture of both versions; so whatever moves is found,
wherever in the text its cause stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from layoutdsl.diff.facts import Fact, facts_of
from layoutdsl.diff.moves import Moves, moves_of
from layoutdsl.diff.settings import Setting, Size, settings_of
from layoutdsl.diff.stated import Taken, stated, texts, untried
from layoutdsl.diff.versions import Version
from layoutdsl.errors import LayoutError
from layoutdsl.model import Format, ParamValue
from layoutdsl.resolve import bind
from layoutdsl.show.picture import Picture, picture_of
from layoutdsl.show.sheet import Sheet

LONGEST_AXIS = 1 << 16
"""Longest axis that is compared: each is walked along once for every way to lay it out."""


@dataclass(frozen=True)
class Change:
    """What becomes of one tensor, alike at all of `settings`; `moves` and the sheets are those at the first.

    A tensor is added or removed where the version before or after lacks it.
    """

    tensor: str
    facts: tuple[Fact, ...]
    settings: tuple[Setting, ...]
    moves: Moves
    before: Sheet | None
    after: Sheet | None

    @property
    def status(self) -> str:
        """added, removed, moved (an element stands elsewhere) or changed (all stay, but mean something else)."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "moved" if self.moves.moved else "changed"

    @property
    def key(self) -> tuple[Any, ...]:
        """What is alike at the settings that are told of together."""
        return self.tensor, self.status, tuple(fact.key for fact in self.facts)


@dataclass(frozen=True)
class Refusal:
    """A setting at which one version alone has a layout, and why the other has none."""

    label: str
    message: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Difference:
    """All that differs. `stated`: of the spec beside its tensors; `same`: tensors that are alike at all settings;
    `texts`: what is worded otherwise and changes nothing."""

    before: Version
    after: Version
    settings: tuple[Setting, ...]
    stated: tuple[Fact, ...]
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    same: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not (self.stated or self.changes or self.refusals)

    @cached_property
    def moved(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.status == "moved")


def difference(
    before: Version,
    after: Version,
    sizes: Mapping[str, Size] | None = None,
    params: Mapping[str, ParamValue] | None = None,
    specs: tuple[str, ...] = (),
) -> Difference:
    """All that differs between two versions of a format. Requires formats.

    Raises LayoutError where neither version has a layout at any of the sizes.
    """
    one, other = before.spec, after.spec
    assert isinstance(one, Format) and isinstance(other, Format)
    looking = _Looking(before.label, after.label, _renamed(one, other))
    for setting in _distinct(one, other, settings_of(one, other, sizes or {}, params or {})):
        looking.look(setting, *(_picture(spec, setting, specs) for spec in (one, other)))
    if looking.refused is not None and not looking.settings and not looking.refusals:
        raise looking.refused
    told = {change.tensor for change in looking.changes.values()}
    return Difference(
        before,
        after,
        tuple(looking.settings),
        (*stated(before, after, looking.names), *untried(before, after, looking.names, looking.taken)),
        tuple(sorted(looking.changes.values(), key=lambda change: looking.tensors.index(change.tensor))),
        tuple(looking.refusals.values()),
        tuple(name for name in looking.tensors if name not in told),
        tuple(texts(before, after)),
    )


@dataclass
class _Looking:
    """What is found, setting by setting. `names`: key of a tensor after -> before; `taken`: the cases of each side;
    `refused`: why neither version has a layout at some setting."""

    before: str
    after: str
    names: Mapping[str, str]
    settings: list[Setting] = field(default_factory=list[Setting])
    changes: dict[Any, Change] = field(default_factory=dict[Any, Change])
    refusals: dict[Any, Refusal] = field(default_factory=dict[Any, Refusal])
    tensors: list[str] = field(default_factory=list[str])
    taken: tuple[set[Taken], set[Taken]] = field(default_factory=lambda: (set(), set()))
    refused: LayoutError | None = None

    def look(self, setting: Setting, was: Picture | LayoutError, now: Picture | LayoutError) -> None:
        if isinstance(was, Picture) and isinstance(now, Picture):
            self.settings.append(setting)
            self._compare(setting, was, now)
        elif isinstance(was, LayoutError) and isinstance(now, LayoutError):
            self.refused = self.refused or now
        else:
            self._refuse(setting, *((self.before, was) if isinstance(was, LayoutError) else (self.after, now)))

    def _compare(self, setting: Setting, was: Picture, now: Picture) -> None:
        for cases, picture in zip(self.taken, (was, now)):
            cases.update((sheet.key, sheet.case) for sheet in picture.sheets)
        for change in _changes(was, now, self.names, setting):
            if change.tensor not in self.tensors:
                self.tensors.append(change.tensor)
            if change.facts or change.status != "changed":
                known = self.changes.get(change.key)
                settings = (*known.settings, setting) if known else (setting,)
                self.changes[change.key] = replace(known or change, settings=settings)

    def _refuse(self, setting: Setting, label: str, error: Picture | LayoutError) -> None:
        assert isinstance(error, LayoutError)
        known = self.refusals.get((label, error.message))
        settings = (*known.settings, setting) if known else (setting,)
        self.refusals[label, error.message] = Refusal(label, error.message, settings)


def _distinct(before: Format, after: Format, settings: Sequence[Setting]) -> Iterator[Setting]:
    """The settings that are not the same with every parameter bound; the first of those that are."""
    seen: set[Any] = set()
    for setting in (_alike(setting, before, after) for setting in settings):
        bound = tuple(_bound(spec, setting) for spec in (before, after))
        if (setting.sizes, bound) not in seen:
            seen.add((setting.sizes, bound))
            yield setting


def _bound(spec: Format, setting: Setting) -> Any:
    try:
        own = {name: value for name, value in setting.for_spec(spec).items() if name != "names"}
        return tuple(bind(spec, own).items())
    except LayoutError as error:
        return error.message


def _alike(setting: Setting, before: Format, after: Format) -> Setting:
    """The setting with a value for each parameter whose default is another by now: both versions are asked alike."""
    was, now = bind(before, {}), bind(after, {})
    mine = {name: was[name] for name in before.params if name in after.params and was[name] != now[name]}
    return setting.at(**{**mine, **dict(setting.params)}) if mine else setting


def _picture(spec: Format, setting: Setting, specs: tuple[str, ...]) -> Picture | LayoutError:
    """What a version stores there; or why it is not known."""
    longest = max(sum(size) if isinstance(size, tuple) else size for _, size in setting.sizes)
    if longest > LONGEST_AXIS:
        return LayoutError(
            f"an axis of {longest} elements is asked for, {LONGEST_AXIS} can be compared",
            code="LP117",
            name="too-large-to-draw",
            help="a layout repeats: a few tiles show all of it",
        )
    try:
        return picture_of(spec, dict(setting.sizes), setting.for_spec(spec), specs=specs)  # pyright: ignore
    except LayoutError as error:
        return error


def _renamed(before: Format, after: Format) -> dict[str, str]:
    """Key of a tensor after -> its key before: of the same name, or alone in its role."""
    found = {name: name for name in after.tensors if name in before.tensors}
    for name, tensor in after.tensors.items():
        mine = [key for key, one in after.tensors.items() if one.role == tensor.role and key not in before.tensors]
        theirs = [key for key, one in before.tensors.items() if one.role == tensor.role and key not in after.tensors]
        if name not in found and len(mine) == len(theirs) == 1:
            found[name] = theirs[0]
    return found


def _changes(was: Picture, now: Picture, names: Mapping[str, str], setting: Setting) -> Iterator[Change]:
    """One change per tensor of the spec; of parts that are stored apart, which are tensors alike, the first tells."""
    before = {(sheet.key, frozenset(sheet.stored.parts)): sheet for sheet in was.sheets}
    told: dict[str, Change] = {}
    for sheet in now.chosen(None):
        other = before.pop((names.get(sheet.key, sheet.key), frozenset(sheet.stored.parts)), None)
        change = _change(other, sheet, setting)
        if (first := told.get(change.tensor)) is not None:
            change = _together(first, change)
        told[change.tensor] = change
    for sheet in before.values():
        told.setdefault(sheet.key, _change(sheet, None, setting))
    yield from told.values()


def _change(before: Sheet | None, after: Sheet | None, setting: Setting) -> Change:
    if before is None or after is None:
        sheet = before or after
        assert sheet is not None
        return Change(sheet.key, (), (setting,), Moves(0, 0), before, after)
    facts = facts_of(before, after)
    is_same = not facts and before.stored == after.stored
    moves = Moves(0, 0) if is_same or not (before.is_drawn and after.is_drawn) else moves_of(before, after)
    return Change(before.key, facts, (setting,), moves, before, after)


def _together(first: Change, second: Change) -> Change:
    """Two parts of one tensor: what moves of both, the rest as the first that moves has it."""
    moves = [change.moves for change in (first, second)]
    elements, moved = sum(one.elements for one in moves), sum(one.moved for one in moves)
    shown = second if second.moves.moved and not first.moves.moved else first
    facts = tuple(dict.fromkeys((*first.facts, *second.facts)))
    return replace(shown, facts=facts, moves=replace(shown.moves, elements=elements, moved=moved))
