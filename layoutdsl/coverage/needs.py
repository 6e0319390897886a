"""What must be served: modules of given sizes between two formats, and the rows of a table that need them.

    Need("gptq", "marlin_int4_a16", "moe_gated", (("e", 8), ("i", 1408), ("h", 2048)), (("group", 128),))

Equal needs are equal values: whoever asks for many of them compiles each once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, Module, ParamValue

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Need:
    """What `compile_plan` takes, without ranks. only: the matrices of the module that are needed; none for all."""

    source: str
    target: str
    module: str
    sizes: tuple[tuple[str, Size], ...]
    params: tuple[tuple[str, ParamValue], ...]
    only: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """The name of the kernel; nothing where weights stay as they are."""
        return "" if self.target == self.source else Path(self.target).name.removesuffix(".yaml").removesuffix(".yml")

    def of_module(self, specs: tuple[str, ...]) -> Module:
        spec = load_spec(self.module, specs=specs, kind="module")
        assert isinstance(spec, Module)
        return spec

    def of_source(self, specs: tuple[str, ...]) -> Checkpoint:
        spec = load_spec(self.source, specs=specs, kind="checkpoint")
        assert isinstance(spec, Checkpoint)
        return spec


@dataclass(frozen=True)
class Row:
    """A family with all that one of its layers needs, or units of a checkpoint that look alike.

    needs: what each is called, and the need. count: how many there are of it in the model. choice: of rows that name
    the same choice, one alternative is there in each layer. maybe: the model may have none of it; then the row tells
    of one, and no sum counts it.
    """

    name: str
    needs: tuple[tuple[str, Need], ...]
    count: int = 1
    choice: str = ""
    alternative: str = ""
    maybe: bool = False


@dataclass(frozen=True)
class Asked:
    """All rows, what they are called, what is said above the table and below it; summed: whether rows add up to one
    model."""

    path: str
    kind: str
    source: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    summed: bool = False


def side(params: Mapping[str, ParamValue], name: str, known: Mapping[str, object]) -> dict[str, ParamValue]:
    """Those of a plan's parameters that one of its sides takes: `source.group` before `group`."""
    own = {key.removeprefix(f"{name}."): value for key, value in params.items() if key.startswith(f"{name}.")}
    return {key: value for key, value in params.items() if key in known} | own
