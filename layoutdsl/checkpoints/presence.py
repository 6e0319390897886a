"""Which units of a model its files hold: every tensor sorted to its unit, every unit there when it must be.

Of alternatives (a dense layer or experts, one tensor for all experts or one for each) the files say which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layoutdsl.checkpoints.folder import Entry, Folder, refusal
from layoutdsl.checkpoints.names import EXPERT, Names, Places, Sizes, There, Unit, copies_of, instances, placeholders
from layoutdsl.errors import LayoutError

Slot = tuple[str, str, str]
"""(matrix, part, tensor of the format)"""

Found = dict[Slot, dict[int, Entry]]
"""The tensors of one unit: slot -> expert (0 where they are in one tensor, or there are none) -> entry."""

At = tuple[tuple[str, int], ...]
"""The numbers in a unit's names."""


@dataclass(frozen=True)
class Present:
    """The units that are there, layer by layer, with their tensors; and the tensors that every rank gets whole."""

    units: tuple[tuple[Unit, Found], ...]
    copies: tuple[Entry, ...]


def present(folder: Folder, places: Places, names: Names, numbers: Sizes, architecture: str) -> Present:
    """LayoutError for a tensor that no template names, two of one place, a missing unit, and alternatives at once."""
    owned, copies = _sorted_out(folder, places, names)
    for _, at in owned:
        for placeholder, value in at:
            numbers.need(placeholder, value + 1)
    keys = [key for key, unit in names.units.items() if _known(unit.there, architecture)]
    every = {(key, unit.at): unit for key in keys for unit in instances(names, key, numbers)}
    missing = [
        *_units(folder, every, owned),
        *_choices(folder, every, owned),
        *_copied(folder, names, numbers, architecture, owned),
    ]
    if missing:
        raise refusal("LP217", "missing-tensor", missing)
    units = sorted(((every[at], found) for at, found in owned.items()), key=lambda one: _order(one[0], keys))
    return Present(tuple(units), tuple(copies))


def _order(unit: Unit, keys: Sequence[str]) -> tuple[tuple[int, ...], int]:
    return tuple(value for _, value in unit.at), keys.index(unit.key)


def _sorted_out(folder: Folder, places: Places, names: Names) -> tuple[dict[tuple[str, At], Found], list[Entry]]:
    owned: dict[tuple[str, At], Found] = {}
    copies: list[Entry] = []
    strangers: list[tuple[str, str | None]] = []
    for name, entry in folder.entries.items():
        found = places.find(name)
        if found is None:
            help = _way_out(folder, places, name) if len(strangers) < 8 else None
            strangers.append((f"tensor `{name}` of `{entry.file.name}` is none that names `{names.names}` know", help))
            continue
        place, values = found
        if place.unit is None:
            copies.append(entry)
            continue
        expert = values.pop(EXPERT, 0)
        at = tuple((key, values[key]) for key in names.count if key in values)
        own = owned.setdefault((place.unit, at), {}).setdefault((place.matrix, place.part, place.tensor), {})
        if expert in own:
            raise LayoutError(
                f"tensors `{own[expert].name}` and `{name}` are the same one",
                code="LP216",
                name="unmatched-tensor",
                help="keep one of them",
            )
        own[expert] = entry
    if strangers:
        raise refusal("LP216", "unmatched-tensor", strangers)
    return owned, copies


def _way_out(folder: Folder, places: Places, name: str) -> str | None:
    if folder.config.get("quantization_config") is None:
        return "config.json has no `quantization_config`; the tensors of a quantized checkpoint are known only with one"
    return places.close_to(name)


# --- what must be there -----------------------------------------------------------------------------------------------

CONFIG_OR_FILE = "config.json is that of another checkpoint, or a file is missing"

Owned = Mapping[tuple[str, At], Found]
Missing = Iterator[tuple[str, str | None]]


def _known(there: There, architecture: str) -> bool:
    return not there.in_ or architecture in there.in_


def _units(folder: Folder, every: Mapping[tuple[str, At], Unit], owned: Owned) -> Missing:
    for (key, at), unit in every.items():
        there = unit.names.there
        if there.choice is not None:
            continue
        beside = _beside(there, at, owned)
        if (key, at) not in owned and beside and not _optional(there, folder):
            yield f"{_nothing(unit)} is in a file of `{folder.path}`", CONFIG_OR_FILE
        if (key, at) in owned and not beside:
            yield f"`{_one(owned[key, at])}` is there, what it belongs to is not: {' or '.join(there.with_)}", None


def _choices(folder: Folder, every: Mapping[tuple[str, At], Unit], owned: Owned) -> Missing:
    choices: dict[tuple[str, At], list[Unit]] = {}
    for unit in every.values():
        if unit.names.there.choice is not None:
            choices.setdefault((unit.names.there.choice, unit.at), []).append(unit)
    for units in choices.values():
        here = [unit for unit in units if (unit.key, unit.at) in owned]
        if len(here) > 1:
            both = " and ".join(f"`{_one(owned[unit.key, unit.at])}`" for unit in here)
            yield f"{both} exclude each other, but both are there", "keep the tensors of one of them"
        elif not here and not any(unit.names.there.maybe for unit in units):
            others = ", or ".join(_nothing(unit).removeprefix("no ") for unit in units[1:])
            yield f"{_nothing(units[0])} is in a file of `{folder.path}`", f"or {others}" if others else CONFIG_OR_FILE


def _copied(folder: Folder, names: Names, numbers: Sizes, architecture: str, owned: Owned) -> Missing:
    for text, there in names.copied.items():
        if not _known(there, architecture):
            continue
        for name, at in copies_of(names, text, numbers):
            beside = _beside(there, at, owned)
            if name not in folder.entries and beside and not _optional(there, folder):
                unless = f"; config.json may say `{there.unless}`" if there.unless else ""
                yield f"tensor `{name}` is in no file of `{folder.path}`", CONFIG_OR_FILE + unless
            if name in folder.entries and not beside:
                yield f"`{name}` is there, what it belongs to is not: {' or '.join(there.with_)}", None


def _beside(there: There, at: At, owned: Owned) -> bool:
    """Whether what a unit or tensor stands beside is there; true where it stands alone."""
    return not there.with_ or any((key, at) in owned for key in there.with_)


def _optional(there: There, folder: Folder) -> bool:
    return there.maybe or (there.unless is not None and bool(folder.config.get(there.unless)))


def _one(found: Found) -> str:
    return next(entry.name for entries in found.values() for entry in entries.values())


def _nothing(unit: Unit) -> str:
    """`no tensor model.layers.0.mlp.{gate,up}_proj.*`"""
    spelled = []
    for template in unit.names.templates:
        words = dict.fromkeys(placeholders(template), "*")
        spelled.append(f"`{template.fill({**words, **dict(unit.at)})}`")
    return f"no tensor {' or '.join(spelled)}"
