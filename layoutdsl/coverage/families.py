"""A file of model families: what a layer of each needs.

    qwen3_moe: {hidden: 2048, heads: 32, kv_heads: 4, head_dim: 64, moe: {experts: 128, intermediate: 768}, act: silu}

A layer needs its experts, where there are any, else its MLP; and its attention. An MLP has a gate unless `gated` says
no or, where nothing is said, `act` is one of PLAIN. `kv_heads` are as many as `heads` unless stated, `head_dim` is
`hidden / heads`. A family without `heads` has no attention to serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from layoutdsl import source
from layoutdsl.checkpoints.planning import kernels_asked
from layoutdsl.choose import kernel_for
from layoutdsl.coverage.needs import Asked, Need, Row, Size, side
from layoutdsl.errors import Diagnostic, LayoutError
from layoutdsl.library import load_spec
from layoutdsl.model import Base, Checkpoint, Module, ParamValue
from layoutdsl.resolve import MAX_EXTENT, Ranks, bind, matrices
from layoutdsl.source import Tree

PLAIN = ("relu", "relu2", "relu_squared", "xielu")
"""Activations of MLPs that have no gate: a gate is multiplied with silu or gelu, never with these."""

MODULES = ("moe_gated", "moe_plain", "mlp_gated", "mlp_plain", "attention")
"""By which modules a family is served."""

Extent = Annotated[int, Field(gt=0, le=MAX_EXTENT, strict=True)]


class Experts(Base):
    experts: Extent
    intermediate: Extent


class Family(Base):
    """Extents before sharding; what a family does not have is left out."""

    hidden: Extent
    intermediate: Extent | None = None
    moe: Experts | None = None
    heads: Extent | None = None
    kv_heads: Extent | None = None
    head_dim: Extent | None = None
    layers: Extent | None = None
    act: str | None = None
    gated: bool | None = None

    @property
    def has_gate(self) -> bool:
        return self.act not in PLAIN if self.gated is None else self.gated


def families(
    path: str, named: str, params: Mapping[str, ParamValue], to: Sequence[str], specs: tuple[str, ...]
) -> Asked:
    """What the families of the file `path` need, in the format `named`. LayoutError for a file of another form."""
    chooser = _Chooser(named, params, to, specs)
    found = _read(source.read_file(path))
    rows = tuple(
        Row(name, tuple((label, chooser.need(module, sizes)) for label, module, sizes in _modules(family)))
        for name, family in found.items()
    )
    bare = [name for name, family in found.items() if family.heads is None]
    idle = [name for name, family in found.items() if family.moe is None and family.intermediate is None]
    notes = [f"no heads are stated, so no attention is counted: {', '.join(bare)}"] if bare else []
    notes += [f"no `intermediate` is stated, so no MLP is counted: {', '.join(idle)}"] if idle else []
    count = f"{len(found)} famil{'y' if len(found) == 1 else 'ies'}"
    title = f"{count} of {Path(path).name}, a layer of each: its experts or MLP, and its attention"
    return Asked(path, "family", chooser.said, title, rows, tuple(notes))


def _modules(family: Family) -> Iterator[tuple[str, str, dict[str, Size]]]:
    """What a layer needs: (label, one of MODULES, sizes)."""
    gate = "gated" if family.has_gate else "plain"
    if family.moe is not None:
        yield "experts", f"moe_{gate}", {"e": family.moe.experts, "i": family.moe.intermediate, "h": family.hidden}
    elif family.intermediate is not None:
        yield "mlp", f"mlp_{gate}", {"i": family.intermediate, "h": family.hidden}
    if family.heads is not None:
        kv, head = family.kv_heads or family.heads, family.head_dim or family.hidden // family.heads
        yield "attention", "attention", {"q": family.heads, "kv": kv, "d": head, "h": family.hidden}


class _Chooser:
    """Finds the kernel of each need."""

    def __init__(self, named: str, params: Mapping[str, ParamValue], to: Sequence[str], specs: tuple[str, ...]):
        spec = load_spec(named, specs=specs, kind="checkpoint")
        assert isinstance(spec, Checkpoint)
        self.named, self.spec, self.given, self.specs = named, spec, dict(params), specs
        self.to = kernels_asked(to, specs)
        self.params = bind(spec, side(params, "source", {**spec.params, "parts": None}))
        self.kernels = side({key: value for key, value in params.items() if "." in key}, "target", {})

    @property
    def said(self) -> str:
        stated = ", ".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}"
                           for name, value in self.given.items())  # fmt: skip
        return f"{self.spec.name} with {stated or 'its defaults'}"

    def need(self, module: str, sizes: dict[str, Size]) -> Need:
        spec = load_spec(module, specs=self.specs, kind="module")
        assert isinstance(spec, Module)
        given = {key: value for key, value in self.given.items() if not self._is_of_others(key, spec)}
        own = {key: value for key, value in given.items() if key not in self.spec.params}
        found = matrices(spec, bind(spec, side(own, "module", spec.params)), sizes, Ranks())
        kernel = kernel_for(self.spec, self.params, found, asked=self.to, stated=self.kernels, specs=self.specs)
        return Need(self.named, kernel, module, tuple(sizes.items()), tuple(given.items()))

    def _is_of_others(self, key: str, module: Module) -> bool:
        """Whether a parameter is meant for other modules than this one."""
        name = key.removeprefix("module.")
        others = {param for other in MODULES for param in load_spec(other, specs=self.specs, kind="module").params}
        return name in others - {*module.params} and key not in self.spec.params


# --- the file ---------------------------------------------------------------------------------------------------------

SHOWN = 8
"""How many findings of one file are reported at once."""


def _read(tree: Tree) -> dict[str, Family]:
    named = [name for name in tree.data if not name.startswith("x-")] if isinstance(tree.data, dict) else []
    if not named:
        raise LayoutError.of([tree.diagnostic(
            "LD022", "wrong-type", "expected a mapping of families", (),
            help="such as `qwen3: {hidden: 4096, intermediate: 12288, heads: 32, kv_heads: 8, head_dim: 128}`",
        )])  # fmt: skip
    found: dict[str, Family] = {}
    wrong: list[Diagnostic] = []
    for name in named:
        try:
            found[name] = source.validate(tree, Family, (name,))
            wrong += _findings(name, found[name], tree)
        except LayoutError as error:
            wrong += error.diagnostics
    if wrong:
        raise LayoutError.of(wrong[:SHOWN])
    return found


def _findings(name: str, family: Family, tree: Tree) -> Iterator[Diagnostic]:
    """What no single key shows."""

    def missing(message: str, help: str) -> Diagnostic:
        return tree.diagnostic("LD021", "missing-key", message, (name,), key=True, help=help)

    heads, kv_heads = family.heads, family.kv_heads or family.heads
    if heads is None and (family.kv_heads or family.head_dim):
        yield missing(
            f"missing key `heads` in `{name}`",
            "state it, or leave out `kv_heads` and `head_dim` where there is no attention",
        )
    if heads is None and family.moe is None and family.intermediate is None:
        yield missing(f"`{name}` states no layer that could be served", "state `intermediate` or `moe`, and `heads`")
    if heads is not None and family.head_dim is None and family.hidden % heads:
        help = f"its {heads} heads do not divide {family.hidden}, its hidden size"
        yield missing(f"missing key `head_dim` in `{name}`", help)
    if heads is not None and kv_heads is not None and heads % kv_heads:
        yield tree.diagnostic("LD023", "wrong-value", f"{kv_heads} key-value heads do not divide {heads} heads",
                              (name, "kv_heads"), help="every key-value head serves equally many heads")  # fmt: skip
