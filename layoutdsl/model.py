"""The pydantic models of a spec file: checkpoint and kernel formats, and modules.

A format says where every element of its tensors stands; a module says which axes its matrices use. The strings inside
are parsed here (see grammar.py), so that a validated model holds trees, not text. What needs numbers is resolve.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from layoutdsl.grammar import (
    AxisSplit,
    Expr,
    Formula,
    GrammarError,
    OrderDigit,
    Template,
    parse_expr,
    parse_order,
    parse_split,
    parse_template,
    parse_value,
)

ROLES = (
    "codes",
    "zero_point",
    "scale",
    "global_scale",
    "bias",
    "act_order",
    "input_scale",
    "weight_shape",
)
"""What a tensor is for. Tensors of two formats meet by their role."""


def _parsed(parse: Callable[[str], Any], what: str, example: str, *, numbers: bool = False) -> Any:
    """A field whose text is parsed; a GrammarError becomes a finding with its place inside the string."""

    def convert(value: Any) -> Any:
        if numbers and isinstance(value, (int, bool)):
            value = str(int(value))
        if not isinstance(value, str):
            raise PydanticCustomError("grammar", "{text}", {"text": f"expected {what}, such as {example}"})
        try:
            return parse(value)
        except GrammarError as error:
            raise PydanticCustomError(
                "grammar",
                "{text}",
                {"text": error.message, "start": error.start, "end": error.end, "help": error.help},
            ) from None

    schema: dict[str, Any] = {"type": ["string", "integer", "boolean"] if numbers else "string"}
    return [BeforeValidator(convert), WithJsonSchema({**schema, "description": f"{what}, such as {example}"})]


Condition = Annotated[Expr, *_parsed(parse_expr, "a condition", "`groups > 1`", numbers=True)]
Number = Annotated[Expr, *_parsed(parse_expr, "a number or expression", "`2^(bits-1)`", numbers=True)]
Split = Annotated[tuple[AxisSplit, ...], *_parsed(parse_split, "a split of axes into digits", "`k = kw kp:8`")]
Order = Annotated[tuple[OrderDigit, ...], *_parsed(parse_order, "an order of digits", "`kw, n {kp}`")]
Value = Annotated[Formula, *_parsed(parse_value, "products and differences of tensors", "`(w - z) * s`")]
Name = Annotated[Template, *_parsed(parse_template, "a name, `{parameter}` filled in", "`u{bits}`")]
NameList = Annotated[
    tuple[str, ...] | Template,
    BeforeValidator(lambda value: parse_template(value) if isinstance(value, str) else value),
    WithJsonSchema({"type": ["array", "string"], "items": {"type": "string"}}),
]


MOST = 64
"""Most tensors, parameters, cases, axes, sizes to try, and so on, of one spec; shipped ones have some ten."""


class Base(BaseModel):
    # No text is validated as what others only derive from: building that is deferred, for ever.
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


ParamValue = bool | int | str


class Param(Base):
    """A parameter of a spec: its type or values, its default, and where a checkpoint's config.json states it."""

    type: Literal["values", "int", "bool", "group", "names"] = Field(
        "values", description="group: a positive extent, or -1 for one group over the whole axis; names: `a,b,c`"
    )
    values: tuple[ParamValue, ...] = Field(
        (), max_length=MOST, description="the values allowed; the first is the default"
    )
    default: ParamValue | None = None
    config: str | tuple[str, ...] | None = Field(
        None,
        description="key in config.json's quantization_config, dotted; `*` stands for any key; the first found wins",
    )
    map: dict[str, ParamValue] | None = Field(None, description="config value (as text) -> parameter value")
    doc: str | None = None


def _param(value: Any) -> Any:
    if not isinstance(value, list | dict | Param):
        text = f"expected a list of values, or a mapping with `type`, `values`, `default`, found `{value}`"
        raise PydanticCustomError("grammar", "{text}", {"text": text})
    return {"values": value} if isinstance(value, list) else value


ParamField = Annotated[
    Param,
    BeforeValidator(_param),
    WithJsonSchema({"anyOf": [{"type": "array"}, {"$ref": "#/$defs/Param"}]}),
]


class Fields(Base, defer_build=True):
    """What a tensor's case may state anew."""

    name: str | None = Field(None, description="name in the file, where it differs from the key")
    dtype: Name | tuple[Name, ...] | None = Field(None, description="storage type; of several, the first is written")
    code: Name | None = Field(None, description="element code (see codes); default: the dtype's own")
    split: Split | None = None
    order: Order | None = None
    shape: tuple[Number, ...] | None = Field(
        None, description="the shape to report, where the order's commas do not say it"
    )
    scaled: Number | None = Field(None, description="p: the stored value is the true one times 2^p")
    plus: Number | None = Field(None, description="the value is the stored code plus this")
    reciprocal: bool | None = Field(None, description="the stored value is one over the true one")


class Case(Fields, defer_build=False):
    """Overrides of a tensor, taken where `when` holds; the first such case wins."""

    when: Condition


class Tensor(Fields, defer_build=False):
    """One tensor of a format."""

    role: Literal[ROLES]  # pyright: ignore[reportInvalidTypeForm]
    order: Order
    dtype: Name | tuple[Name, ...]
    when: Condition | None = Field(None, description="whether the format has this tensor")
    derive: Literal["largest_scale"] | None = Field(
        None, description="computed from other tensors where the source lacks it"
    )
    cases: tuple[Case, ...] = Field((), max_length=MOST)
    doc: str | None = None

    def conditions(self) -> Iterator[Expr]:
        """Those under which it is there, or one of its cases counts."""
        if self.when is not None:
            yield self.when
        yield from (case.when for case in self.cases)

    def expressions(self) -> Iterator[Expr | Template]:
        """Everything in it that may use a parameter."""
        yield from self.conditions()
        for fields in (self, *self.cases):
            dtypes = fields.dtype if isinstance(fields.dtype, tuple) else (fields.dtype,)
            for one in (*dtypes, fields.code, fields.scaled, fields.plus, *(fields.shape or ())):
                if one is not None:
                    yield one
            for axis in fields.split or ():
                yield from (digit.size for digit in axis.digits if digit.size is not None)


class Parts(Base):
    """How the parts of a fused matrix (gate and up; q, k and v) are stored."""

    stored: tuple[Literal["apart", "stacked", "alternating"], ...] = Field(
        ("apart",),
        min_length=1,
        description="apart: a tensor per part; stacked: one after the other; alternating: row by row in turn. "
        "The parameter `parts` picks one; the first is the default",
    )
    orders: tuple[tuple[str, ...], ...] = Field(
        (), max_length=MOST, description="in which order parts stand; the first that names them all"
    )


class Tile(Base):
    n: Annotated[int, Field(gt=0, le=4096)]
    k: Annotated[int, Field(gt=0, le=4096)]


class Accepts(Base):
    """Which matrices a kernel takes."""

    tiles: tuple[Tile, ...] = Field(
        min_length=1, max_length=MOST, description="families: n and k are multiples of one of these"
    )
    groups: tuple[int, ...] = Field(min_length=1, max_length=MOST, description="group sizes along k; -1: one group")
    capability: int = Field(80, ge=20, description="least compute capability, times ten: 80 for 8.0")


class Spec(Base, defer_build=True):
    """What every spec file states."""

    version: Literal["1"]
    doc: str = Field(min_length=1)
    source: str = Field(min_length=1, description="where the facts come from")
    params: dict[str, ParamField] = Field({}, max_length=MOST)
    try_: tuple[dict[str, bool | int | str | tuple[int, ...]], ...] = Field(
        alias="try", min_length=1, max_length=MOST, description="sizes (and parameters) at which lint proves the spec"
    )


class Format(Spec):
    """Tensors over the axes e (experts), n (outputs), k (inputs)."""

    parts: Parts = Parts()
    tensors: dict[str, Tensor] = Field(min_length=1, max_length=MOST)
    value: Value


def _several(value: Any) -> Any:
    """One alternative is short for a list of one, and so is one value."""
    return [_entries(entries) for entries in (value if isinstance(value, list) else [value])]


def _entries(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: wanted if isinstance(wanted, list) else [wanted] for key, wanted in value.items()}


_TEXTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
_ENTRIES = {"type": "object", "additionalProperties": _TEXTS, "minProperties": 1}
Entries = Annotated[dict[str, Annotated[tuple[str, ...], Field(min_length=1)]], Field(min_length=1)]


class Checkpoint(Format, defer_build=False):
    checkpoint: str
    detect: Annotated[
        tuple[Entries, ...],
        BeforeValidator(_several),
        WithJsonSchema({"anyOf": [_ENTRIES, {"type": "array", "items": _ENTRIES}]}),
    ] = Field(
        (),
        description="entries of quantization_config that name this format, dotted key -> value or values; several such "
        "mappings are alternatives. `null` also stands for what is absent, `*` for whatever is there",
    )

    @property
    def name(self) -> str:
        return self.checkpoint


INHERITED = ("params", "accepts", "parts", "tensors", "value")
"""What a build takes from its base, key by key, where it does not state it."""


class Kernel(Format, defer_build=False):
    kernel: str
    base: str | None = Field(
        None,
        description="the kernel that this one is another build of; what is not stated of "
        f"{', '.join(f'`{key}`' for key in INHERITED)} is as there",
    )
    accepts: Accepts

    @property
    def name(self) -> str:
        return self.kernel


def _product(value: Any) -> Any:
    return tuple(value.split()) if isinstance(value, str) else value


Axes = Annotated[
    tuple[str, ...],
    BeforeValidator(_product),
    Field(min_length=1),
    WithJsonSchema({"type": "string", "description": "an axis, or the product of several: `q dq`"}),
]


class Matrix(Base):
    """One matrix of a module: which module axis is its n and which its k.

    An axis may be a product: `q dq` counts q things of dq elements each, and ranks cut between whole things.
    """

    n: Axes | Annotated[dict[str, Axes], Field(min_length=1, max_length=MOST)] = Field(
        description="outputs; part -> axis where fused parts have an axis of their own each"
    )
    k: Axes = Field(description="inputs")
    parts: NameList = Field((), description="names of the fused parts that make up n, which all have its axis")
    pad: Literal["part", "tail"] = Field("part", description="pad each part at its end, or the whole once at the end")
    when: Condition | None = Field(None, description="whether the module has this matrix")


class Module(Spec, defer_build=False):
    """Matrices that share axes."""

    module: str
    axes: dict[str, str] = Field(min_length=1, max_length=MOST, description="axis -> what it is")
    default: dict[str, str] = Field({}, description="axis -> the axis whose size it takes where it is given none")
    experts: str | None = Field(None, description="the axis that counts experts")
    ranks: dict[Literal["tp", "ep"], Name] = Field({}, description="which axis a rank cuts; `none` for none")
    serves: dict[str, str] = Field(
        {},
        description="axis -> axis of which each of its elements serves equally many (a key-value head, query heads); "
        "ranks cut the second in such groups and hold, of the first, what serves theirs",
    )
    visible: tuple[str, ...] = Field((), description="axes seen outside; their padding is the caller's duty")
    matrices: dict[str, Matrix] = Field(min_length=1, max_length=MOST)
    activation: Literal["zero", "unknown"] = Field(
        "unknown", description="zero: what stands between the matrices maps zero to zero"
    )
    tight: Condition | None = Field(
        None,
        description="whether what stands between the matrices writes zeros beyond what it computes, so that one matrix "
        "may be padded less along an inner axis than the next one reads",
    )

    @property
    def name(self) -> str:
        return self.module


KINDS: dict[str, type[Spec]] = {"checkpoint": Checkpoint, "kernel": Kernel, "module": Module}
"""The key that names a spec also says its kind."""
