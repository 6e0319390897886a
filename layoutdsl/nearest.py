"""The nearest setting that works, where one is refused: worked out by trying, not by rule.

    ways = nearest.ways(error, arguments, attempt)    # ways out, the nearest first, each of them tried

`attempt` compiles from keyword arguments as compile_plan takes them, or raises LayoutError; it looks for no way out
itself. What is tried depends on what was refused: other groups, as many ranks with others of them expert-parallel,
fewer or more ranks, other kernels. At most TRIES settings are tried, most of which are refused at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from layoutdsl import library
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.model import Format, Kernel, Module, ParamValue, Spec

TRIES = 48
"""Settings tried for one refusal."""

MOST_MORE = 4
"""How many times as many ranks as asked for are still near."""

Arguments = Mapping[str, Any]
Attempt = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Way:
    """A way out: what to say of it, and the arguments that it changes."""

    words: str
    changes: dict[str, Any] = field(hash=False)

    def arguments(self, given: Arguments) -> dict[str, Any]:
        """All arguments, changed; of a rank that is no more, the last one that is."""
        changed = {**given, **self.changes}
        return changed | {
            rank: min(changed[rank], changed[count] - 1) for rank, count in (("rank", "tp"), ("ep_rank", "ep"))
        }


def helped(error: LayoutError, arguments: Arguments, attempt: Attempt) -> LayoutError:
    """The same refusal, whose help is the nearest way out; as it is where none was found. `arguments` hold the specs
    themselves."""
    found = error.diagnostics[0]
    way = next(ways(error, arguments, attempt), None)
    fact = (found.help or "").partition(";")[0] if found.code in _FACTS else ""
    if way is None and found.code == "LP120":
        fact = _whatever_the_ranks(arguments, attempt)
    if way is None and not fact:
        return error
    help = "; ".join(words for words in (fact, _said(way, arguments) if way else "") if words)
    first = Diagnostic(found.code, found.name, found.message, found.span, help, found.source)
    return LayoutError.of([first, *error.diagnostics[1:]])


def _said(way: Way, arguments: Arguments) -> str:
    """The way in words; a rank that it has not is named."""
    changed, asked = way.arguments(arguments), {**arguments, **way.changes}
    moved = [rank for rank in ("rank", "ep_rank") if changed[rank] != asked[rank]]
    gone = [f"--{rank.replace('_', '-')} {changed[rank]}" for rank in moved]
    return f"{way.words}; its last rank is `{' '.join(gone)}`" if gone else way.words


def _whatever_the_ranks(arguments: Arguments, attempt: Attempt) -> str:
    """What else is wrong, where other ranks help nothing."""
    try:
        attempt({**arguments, "tp": 1, "rank": 0, "ep": 1, "ep_rank": 0})
    except LayoutError as error:
        return f"one rank alone is refused too: {error.message}"
    return ""


def ways(error: LayoutError, arguments: Arguments, attempt: Attempt) -> Iterator[Way]:
    """All ways out that work, the nearest first."""
    makers = _MAKERS.get(error.diagnostics[0].code, ())
    tries = 0
    for maker in makers:
        for way in maker(arguments):
            if tries == TRIES:
                return
            tries += 1
            if _works(way, arguments, attempt):
                yield way


def _works(way: Way, arguments: Arguments, attempt: Attempt) -> bool:
    """For the rank that was asked for, for the first and for the last."""
    asked = way.arguments(arguments)
    last = {"rank": asked["tp"] - 1, "ep_rank": asked["ep"] - 1}
    tried: list[dict[str, Any]] = []
    for changed in (asked, {**asked, "rank": 0, "ep_rank": 0}, {**asked, **last}):
        if changed in tried:
            continue
        tried.append(changed)
        try:
            attempt(changed)
        except LayoutError:
            return False
    return True


def _with_param(arguments: Arguments, name: str, value: ParamValue) -> Way:
    shown = str(value).lower() if isinstance(value, bool) else value
    return Way(f"`--param {name}={shown}` works", {"params": {**(arguments["params"] or {}), name: value}})


# --- groups -----------------------------------------------------------------------------------------------------------


def _groups(arguments: Arguments) -> Iterator[Way]:
    """Other groups of the target, and leaving them out where they were asked for."""
    params = dict(arguments["params"] or {})
    target: Format = arguments["target"]
    if "group" not in target.params:
        return
    default = getattr(arguments["source"].params.get("group"), "default", None) or -1
    own, asked = (int(params.get(name, params.get("group", default))) for name in ("source.group", "target.group"))
    known: Iterable[int] = target.accepts.groups if isinstance(target, Kernel) else _near(own, asked)
    # Finer ones first, since a scale can be repeated; the coarsest of them is the nearest.
    for group in sorted({*known} - {asked}, key=lambda group: (group < 0, 0 < asked < group, abs(group - asked))):
        way = _with_param(arguments, "target.group", group)
        finer = own // group if 0 < group < own and own % group == 0 else 0
        yield Way(f"{way.words}, each scale for {finer} finer groups", way.changes) if finer else way
    if "target.group" in params:
        del params["target.group"]
        yield Way("without `target.group` it works", {"params": params})


def _near(own: int, asked: int) -> set[int]:
    """Groups that fit those of the source, as near as can be to those asked for."""
    if own < 1:
        return {own}
    return {own, math.gcd(own, asked), own * max(asked // own, 1), own * -(-asked // own)}


# --- ranks ------------------------------------------------------------------------------------------------------------


def _as_many(arguments: Arguments) -> Iterator[Way]:
    """As many ranks, others of them expert-parallel."""
    tp, ep, module = arguments["tp"], arguments["ep"], arguments["module"]
    if "ep" not in module.ranks:
        return
    for count in _nearest(tp, (count for count in range(1, tp * ep + 1) if tp * ep % count == 0)):
        yield Way(f"`--tp {count} --ep {tp * ep // count}` works, as many ranks", {"tp": count, "ep": tp * ep // count})


def _other_ranks(arguments: Arguments) -> Iterator[Way]:
    """Fewer or more ranks, of those that divide an axis."""
    tp, ep, module = arguments["tp"], arguments["ep"], arguments["module"]
    if "ep" in module.ranks and (experts := _experts(arguments)) and ep > experts:
        yield Way(f"`--ep {experts}` works", {"ep": experts})
        return
    sizes = [size for given in arguments["sizes"].values() for size in (given if _is_list(given) else [given])]
    counts = {count for size in sizes for count in _divisors(size, MOST_MORE * tp)}
    yield from (Way(f"`--tp {count}` works", {"tp": count}) for count in _nearest(tp, counts))


def _nearest(asked: int, counts: Iterable[int]) -> list[int]:
    """By how many times more or fewer they are, the fewer first."""
    return sorted({*counts} - {asked}, key=lambda count: (max(count / asked, asked / count), count))


def _divisors(size: int, most: int) -> Iterator[int]:
    return (count for count in range(1, min(size, most, 4096) + 1) if size % count == 0)


def _experts(arguments: Arguments) -> int:
    """Places for experts."""
    module: Module = arguments["module"]
    size = arguments["sizes"].get(module.experts or "", 0)
    return len(arguments["experts"]) or (size if isinstance(size, int) else 0)


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


# --- parameters and specs ---------------------------------------------------------------------------------------------


def _kernels(arguments: Arguments) -> Iterator[Way]:
    """Other formats of the target's kind: another build of the same kernel first, builds that stand for themselves
    last."""
    target: Format = arguments["target"]
    kind = library.kind_of(target)
    found: dict[str, Format] = {}
    for path in library.files(tuple(arguments["specs"])):
        if not re.search(rf"^{kind}:", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE):
            continue
        try:
            spec = library.read_spec(path, specs=tuple(arguments["specs"]))
        except LayoutError:  # lint tells what is wrong with it
            continue
        if isinstance(spec, Format) and library.kind_of(spec) == kind and spec.name != target.name:
            found.setdefault(spec.name, spec)
    for spec in sorted(found.values(), key=lambda spec: _kinship(spec, target)):
        yield Way(f"{'kernel' if kind == 'kernel' else 'format'} `{spec.name}` takes it", {"target": spec})


def _kinship(spec: Spec, target: Spec) -> tuple[bool, bool]:
    base, own = (one.base if isinstance(one, Kernel) else None for one in (spec, target))
    akin = base == target.name or own == spec.name
    return not akin, base is not None


def _flags(arguments: Arguments) -> Iterator[Way]:
    """What the target may have and may lack."""
    target: Format = arguments["target"]
    given = arguments["params"] or {}
    for name, param in target.params.items():
        if param.type == "bool" or set(param.values) == {True, False}:
            now = given.get(f"target.{name}", given.get(name))
            for value in (False, True) if now is None else (not now,):
                yield _with_param(arguments, f"target.{name}", value)


def _values(arguments: Arguments) -> Iterator[Way]:
    """What the target may take of what it would else take over from the source."""
    source, target = arguments["source"], arguments["target"]
    for name in (name for name in target.params if name in source.params):
        for value in target.params[name].values:
            yield _with_param(arguments, f"target.{name}", value)


def _parts(arguments: Arguments) -> Iterator[Way]:
    """How parts are stored."""
    for side in ("source", "target"):
        spec: Format = arguments[side]
        yield from (_with_param(arguments, f"{side}.parts", way) for way in spec.parts.stored)


def _whole(arguments: Arguments) -> Iterator[Way]:
    if arguments["sharded"]:
        yield Way("`sharded=False` works, with the whole tensors: each rank then takes its slice", {"sharded": False})


def _unpadded(arguments: Arguments) -> Iterator[Way]:
    if arguments["padded"]:
        yield Way("without `padded` it works", {"padded": None})


_MAKERS: dict[str, tuple[Callable[[Arguments], Iterator[Way]], ...]] = {
    "LP102": (_values, _kernels),
    "LP120": (_as_many, _other_ranks),
    "LP121": (_parts,),
    "LP122": (_groups, _as_many, _other_ranks),
    "LP123": (_groups, _kernels, _as_many, _other_ranks),
    "LP124": (_groups, _as_many, _other_ranks),
    "LP125": (_unpadded,),
    "LP126": (_whole, _flags),
    "LP130": (_flags, _kernels),
    "LP131": (_flags,),
    "LP132": (_flags,),
}
"""What is tried for each refusal, the nearest first."""

_FACTS = ("LP102", "LP123", "LP124")
"""Refusals whose help begins with a fact that stays true, up to the semicolon."""
