"""Two versions of a module: what each rank holds of its matrices, at the sizes to try and for 1, 2 and 4 ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from layoutdsl.diff.compare import Difference, Refusal
from layoutdsl.diff.facts import Fact
from layoutdsl.diff.settings import Setting, Size
from layoutdsl.diff.stated import stated, texts
from layoutdsl.diff.versions import Version
from layoutdsl.errors import LayoutError
from layoutdsl.model import Module, ParamValue
from layoutdsl.resolve import Matrix, Ranks, Stretch, bind, matrices, with_defaults

RANKS = (1, 2, 4)


def difference(
    before: Version, after: Version, sizes: Mapping[str, Size], params: Mapping[str, ParamValue]
) -> Difference:
    """All that differs between two versions of a module: what they state, and what the first rank that holds something
    else holds of each matrix. Requires modules."""
    one, other = before.spec, after.spec
    assert isinstance(one, Module) and isinstance(other, Module)
    settings = tuple(dict.fromkeys(_tried(spec, sizes, params, entry) for spec in (other, one) for entry in spec.try_))
    facts, refusals, compared = dict[tuple[str, str], Fact](), dict[tuple[str, str], Refusal](), list[Setting]()
    for setting in settings:
        for tp in RANKS:
            was, now = (_held(spec, setting, tp) for spec in (one, other))
            if isinstance(was, list) and isinstance(now, list):
                compared.append(setting)
                for fact in _facts(was, now, setting):
                    facts.setdefault((fact.kind, fact.said.partition(":")[0]), fact)
            elif isinstance(was, str) != isinstance(now, str):
                label, message = (before.label, was) if isinstance(was, str) else (after.label, now)
                refusals.setdefault((label, str(message)), Refusal(label, str(message), (setting,)))
    said = (*stated(before, after, {}), *facts.values())
    return Difference(
        before, after, tuple(dict.fromkeys(compared)), said, (), tuple(refusals.values()), (),
        tuple(texts(before, after)),
    )  # fmt: skip


def _tried(
    spec: Module, sizes: Mapping[str, Size], params: Mapping[str, ParamValue], entry: Mapping[str, Size | ParamValue]
) -> Setting:
    found = {name: value for name, value in entry.items() if name in spec.axes}
    chosen = {name: value for name, value in entry.items() if name not in spec.axes}
    return Setting(tuple({**found, **sizes}.items()), tuple({**chosen, **params}.items()))  # pyright: ignore


Held = tuple[int, int, Matrix]


def _held(spec: Module, setting: Setting, tp: int) -> list[Held] | str:
    """(ranks, rank, matrix) of all that ranks hold; or why there is none."""
    try:
        params = bind(spec, setting.for_spec(spec))
        sizes = with_defaults(spec, {axis: size for axis, size in setting.sizes if axis in spec.axes})
        ranks = [Ranks(tp, rank) for rank in range(tp)]
        return [(tp, one.rank, matrix) for one in ranks for matrix in matrices(spec, params, sizes, one)]
    except LayoutError as error:
        return error.message


def _facts(was: list[Held], now: list[Held], setting: Setting) -> Iterator[Fact]:
    """What the first rank holds otherwise of each matrix."""
    before, after = ({(tp, rank, matrix.name): matrix for tp, rank, matrix in held} for held in (was, now))
    for key in dict.fromkeys((*before, *after)):
        one, other = (_said(side.get(key)) for side in (before, after))
        if one != other:
            tp, rank, name = key
            who = f"rank {rank} of {tp} holds" if tp > 1 else "it holds"
            yield Fact(name, one, other, f"matrix `{name}`: {who} something else at {setting}")


def _said(matrix: Matrix | None) -> str:
    """What one rank holds of a matrix: its parts in order, the stretch of each, and its inputs."""
    if matrix is None:
        return "nothing"
    parts = [f"n {part} {_stretch(n)}".replace("  ", " ") for part, n in zip(matrix.parts or ("",), matrix.n)]
    padded = "padded once" if matrix.pad == "tail" else ""
    return ", ".join([*parts, f"k {_stretch(matrix.k)}", *([padded] if padded else [])])


def _stretch(held: Stretch) -> str:
    last = f"{held.start} to {held.start + held.length - 1}" if held.length else "nothing"
    return f"{last} of {held.size}"
