"""What a compiled conversion is: a frozen value, JSON both ways, that says every move, pad, recode and duty.

A plan knows nothing of specs any more: a backend can run it as it stands. `prove.py` checks it against the specs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from layoutdsl.errors import LayoutError
from layoutdsl.layout import Run
from layoutdsl.recodes import Habits, Recode
from layoutdsl.resolve import Ranks, Stored

if TYPE_CHECKING:
    import torch

    from layoutdsl.backends.update import Applied, Updates
    from layoutdsl.partial import Parts
    from layoutdsl.reads import Reads
    from layoutdsl.spans import Moves

FORM = 2
"""Version of the JSON form."""

MAX_BYTES = 32_000_000
"""Longest text of a plan; that of the largest module with its experts on one rank has some 100 kB."""

STRICT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class Side:
    """One side's spec: its name, the digest of its text, and all its parameters."""

    __pydantic_config__ = STRICT
    spec: str
    digest: str
    params: tuple[tuple[str, bool | int | str], ...]


@dataclass(frozen=True)
class Extent:
    """What this rank holds of one axis of one matrix: [start, start + length) of `size`, stored as `padded`, of which
    the first `front` hold nothing. `held`: how many tensor-parallel ranks hold each element."""

    __pydantic_config__ = STRICT
    matrix: str
    axis: str
    role: str
    part: str
    size: int
    start: int
    length: int
    padded: int
    front: int
    held: int


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the plan. `shape` is that of one expert; `experts` is 0 (no such axis), or how many it holds; with
    `shared` all experts have one. `codes` counts the codes of one expert, `code` names them."""

    __pydantic_config__ = STRICT
    name: str
    role: str
    dtypes: tuple[str, ...]
    code: str
    codes: int
    shape: tuple[int, ...]
    experts: int
    shared: bool

    @classmethod
    def of(cls, tensor: Stored, experts: int) -> TensorInfo:
        """What a plan says of a resolved tensor, of which it holds so many experts."""
        return cls(
            tensor.name,
            tensor.role,
            tensor.dtypes,
            tensor.code.name,
            tensor.codes,
            tensor.shape,
            experts if tensor.experts != "none" else 0,
            tensor.experts == "shared",
        )

    @property
    def full_shape(self) -> tuple[int, ...]:
        if not self.experts:
            return self.shape
        if self.shared:
            return () if self.codes == 1 else self.shape
        return (self.experts,) if self.codes == 1 and len(self.shape) <= 1 else (self.experts, *self.shape)


@dataclass(frozen=True)
class Lookup:
    """How a gathered axis finds its source: the coordinate goes through the order of `tensor`, then through digits."""

    __pydantic_config__ = STRICT
    tensor: str
    group: int
    digits: tuple[tuple[int, int, int], ...]
    views: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Move:
    """A rectangle of target elements: n runs times k runs.

    kind: data (from the sources), value (computed by the recode alone), pad (the code `pad`). `reason` says why a pad
    is harmless:

    code    it decodes to zero
    scale   the scale beside it is zero
    weight  the weights that it scales are zero
    input   the input it meets is zero, and its value is finite
    unread  no logical element stands there and nothing reads it
    """

    __pydantic_config__ = STRICT
    kind: str
    n: tuple[Run, ...]
    k: tuple[Run, ...]
    pad: int = 0
    reason: str = ""
    gather_n: Lookup | None = None
    gather_k: Lookup | None = None


@dataclass(frozen=True)
class Operand:
    """A second source tensor that a recode needs at target elements, or that fills pads. `sources` has a tensor per
    part; the value of an integer operand is its code plus `plus`."""

    __pydantic_config__ = STRICT
    role: str
    sources: tuple[str, ...]
    code: str
    plus: int
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Reduction:
    """A number found in the data before the recodes, over the scales that the program of `output` reads.

    kind `nvfp4`: per expert the reference global scale and the shift (see recodes); `globals` names each part's global
    scale and its address, `scope` is expert or tensor. kind `largest`: the largest scale of all experts.
    """

    __pydantic_config__ = STRICT
    name: str
    kind: str
    output: str
    scope: str
    globals: tuple[tuple[str, int], ...] = ()
    reciprocal: bool = False


@dataclass(frozen=True)
class Program:
    """One output tensor: where its codes come from (`sources`, per part) and how they change.

    `fill`: pads that repeat a source's value (a group's zero point). `values`: the elements of a shape tensor.
    """

    __pydantic_config__ = STRICT
    output: str
    sources: tuple[str, ...]
    recode: Recode
    moves: tuple[Move, ...]
    operands: tuple[Operand, ...] = ()
    fill: Operand | None = None
    reduction: str = ""
    values: tuple[int, ...] = ()


WHY = {
    "equal": "the target is symmetric: every zero point must be {}, which this source stores as {}",
    "shape": "the stored shape must be the matrix'",
    "order": "the weights are declared in file order: g_idx must be k // group",
    "same": "the parts of one fused matrix must have the same order",
}
"""Why each kind of check is made; the first names the target's zero point and its code."""


@dataclass(frozen=True)
class Check:
    """Something that must hold in the data: every code of `tensor` read by the moves is `expect` (kind equal), or the
    group of its coordinate (kind order), or that of `other` (kind same), or the stored shape (kind shape). `why` is the
    text of WHY."""

    __pydantic_config__ = STRICT
    kind: str
    tensor: str
    expect: tuple[int, ...]
    other: str
    why: str
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Duty:
    """What the caller must do around the matrix at run time.

    pad_input: give it `front` zeros before and `rest` after x along k; slice_output: keep `length` outputs;
    write_zeros: what computes the input writes `rest` zeros beyond the outputs of the matrix before;
    lacks: other ranks hold more heads than this one, which computes as many, `length` elements with the last `rest` of
    heads that it lacks (as outputs they are zeros, as inputs anything); gather_input: take x in the order of the output
    `tensor`; sum_over_ranks: add the ranks' outputs.
    """

    __pydantic_config__ = STRICT
    kind: str
    matrix: str
    axis: str
    front: int = 0
    rest: int = 0
    length: int = 0
    tensor: str = ""

    def __str__(self) -> str:
        return {
            "pad_input": f"{self.matrix}: pad its input along {self.axis} with {self.front} zeros before "
            f"and {self.rest} after",
            "slice_output": f"{self.matrix}: keep the first {self.length} of its outputs along {self.axis}",
            "write_zeros": f"{self.matrix}: the activation writes {self.rest} zeros along {self.axis} beyond what it "
            "computes",
            "lacks": f"{self.matrix}: have {self.length} along {self.axis}, as the widest rank has; the last "
            f"{self.rest} are of heads that this rank lacks",
            "gather_input": f"{self.matrix}: take its input along {self.axis}, of all ranks, in the order of "
            f"`{self.tensor}`",
            "sum_over_ranks": f"{self.matrix}: add up the outputs of all tensor-parallel ranks",
        }[self.kind]


@dataclass(frozen=True)
class Lost:
    """What one run could not keep of a lossy output: `count` of its `of` values were not 0 and became 0."""

    tensor: str
    expert: int
    count: int
    of: int


@dataclass(frozen=True)
class Plan:
    """A conversion of one rank's slice of a module. See the module's docstring.

    only: the matrices converted, where not all are. choice: how the planner serves the module. groups: matrix -> the
    kernel's group along k (0: one); tiles: (matrix, n, k) of its tile family. experts: how many there are, and the
    first and the count of those that this rank takes from its inputs. Where some experts have several places, places
    counts them, experts are places, and slots says the expert of each of this rank's.
    """

    __pydantic_config__ = STRICT
    form: int
    source: Side
    target: Side
    module: Side
    sizes: tuple[tuple[str, int | tuple[int, ...]], ...]
    only: tuple[str, ...]
    ranks: Ranks
    grains: tuple[tuple[str, int], ...]
    choice: str
    sharded: bool
    habits: Habits
    extents: tuple[Extent, ...]
    groups: tuple[tuple[str, int], ...]
    tiles: tuple[tuple[str, int, int], ...]
    experts: tuple[int, int, int]
    places: int
    slots: tuple[int, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    programs: tuple[Program, ...]
    reductions: tuple[Reduction, ...]
    checks: tuple[Check, ...]
    passed: tuple[tuple[str, str], ...]
    duties: tuple[Duty, ...]
    losses: tuple[tuple[str, str], ...]

    @cached_property
    def input(self) -> Mapping[str, TensorInfo]:
        return {info.name: info for info in self.inputs}

    @cached_property
    def output(self) -> Mapping[str, TensorInfo]:
        return {info.name: info for info in self.outputs}

    @cached_property
    def source_experts(self) -> Sequence[int]:
        """Which expert of the inputs each of this rank's experts is; 0 alone where there are none."""
        total, start, count = self.experts
        return self.slots or range(start, start + (count if total else 1))

    @cached_property
    def parts(self) -> Parts:
        """What of it can be carried out on its own."""
        from layoutdsl.partial import Parts

        return Parts(self)

    @cached_property
    def digest(self) -> str:
        """sha256 of the plan's JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self, *, indent: int | None = None) -> str:
        """The plan as JSON text; `from_json` gives an equal plan."""
        return _adapter().dump_json(self, indent=indent).decode()

    @staticmethod
    def from_json(text: str, *, specs: tuple[str, ...] = (), prove: bool = True) -> Plan:
        """Read a plan; unless told otherwise it is proven against the specs it names (shipped, or in folders `specs`).

        Raises LayoutError where the text is no plan, or the plan breaks a law.
        """
        from pydantic import ValidationError

        if len(text) > MAX_BYTES:
            raise LayoutError(f"this is no plan: longer than {MAX_BYTES} bytes", code="LP140", name="not-a-plan")
        try:
            plan = _reader().validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])[:200]
            raise LayoutError(
                f"this is no plan: {place or 'text'}: {first['msg'].lower()}",
                code="LP140",
                name="not-a-plan",
                help="a plan is written by Plan.to_json or `layoutdsl plan --json`",
            ) from None
        except RecursionError:
            raise LayoutError("this is no plan: nested too deeply", code="LP140", name="not-a-plan") from None
        if plan.form != FORM:
            raise LayoutError(
                f"plan form {plan.form} is not {FORM}",
                code="LP140",
                name="not-a-plan",
                help="compile the plan anew with this version",
            )
        if prove:
            from layoutdsl.prove import prove as check

            check(plan, specs=specs)
        return plan

    def run(
        self,
        tensors: Mapping[str, torch.Tensor | list[torch.Tensor]],
        *,
        backend: str = "torch",
        out: Mapping[str, torch.Tensor] | None = None,
        report: list[Lost] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Convert tensors by name; with experts, stacked along the first dimension or a list with one per expert.
        Dimensions of size one do not count: a scale may be (), (1,) or (1, 1).

        `out` gives storage to write into (pointers stay). A list given as `report` is told which outputs lost values to
        0, expert by expert. Raises LayoutError for a missing, unknown or misshapen tensor and for a value that the
        target cannot hold, before anything is returned.
        """
        from layoutdsl.backends import load

        if report is not None and not isinstance(report, list):
            raise LayoutError(
                f"`report` is a {type(report).__name__}, a list is needed",
                code="LP166",
                name="no-tensor",
                help="give an empty list: what is lost is appended to it",
            )
        return load(backend)(self, tensors, out, report)

    def update(
        self,
        out: Mapping[str, torch.Tensor],
        name: str,
        tensor: torch.Tensor | list[torch.Tensor],
        *,
        expert: int | None = None,
        backend: str = "torch",
    ) -> Applied:
        """Write what follows from one source tensor, or from that of one expert (counted as in the checkpoint), into
        the outputs `out` of an earlier run. Their storage stays; a refused update changes nothing.

        A tensor may need others beside it: zero points, an order, the other parts' scales. Where `out` was made by
        `updates`, it is then held until these are there, with the backend stated there; else it is refused.
        """
        return self.update_all(out, {name: tensor}, expert=expert, backend=backend)

    def update_all(
        self,
        out: Mapping[str, torch.Tensor],
        tensors: Mapping[str, torch.Tensor | list[torch.Tensor]],
        *,
        expert: int | None = None,
        backend: str = "torch",
    ) -> Applied:
        """The same for several source tensors, or those of one expert, at once: faster than one by one, and all or
        nothing. What each needs may be among them."""
        from layoutdsl.backends import load

        load(backend)  # says what is not installed
        from layoutdsl.backends.update import Updates

        if isinstance(out, Updates):
            return out.update_all(tensors, expert=expert)
        return Updates(self, {} if out is None else out, backend).alone(tensors, expert=expert)

    def updates(self, out: Mapping[str, torch.Tensor] | None = None, *, backend: str = "torch") -> Updates:
        """Outputs to which source tensors are applied one by one, in any order: once all have been given, they are
        those of a full run. `out`: storage to write into, whatever it holds; where it is left out, new tensors on the
        CPU.
        """
        from layoutdsl.backends import load

        load(backend)  # says what is not installed
        from layoutdsl.backends.update import Updates

        return Updates(self, out, backend)

    def inverse(self, *, specs: tuple[str, ...] = ()) -> Plan:
        """The plan that leads back: from this plan's outputs to the rank's slice of the source tensors."""
        from layoutdsl.compile import invert

        return invert(self, specs=specs)

    def irreversible(self, *, specs: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
        """(source tensor, what is lost) of those that `inverse` does not give back byte for byte."""
        from layoutdsl.irreversible import irreversible

        return irreversible(self, specs)

    def reads(self) -> Mapping[str, Reads]:
        """The bytes that are needed of each input, inside the tensor of one expert; all others may hold anything."""
        from layoutdsl.reads import reads

        return reads(self)

    def moves(self) -> Moves:
        """Which bytes of the outputs are bytes of the inputs, for one-sided transfers; and which outputs are not made
        of such, with the reason."""
        from layoutdsl.spans import moves

        return moves(self)

    def explain(self, *, specs: tuple[str, ...] = ()) -> str:
        """Axes, what was chosen and what else could have been, tensors, padding with reasons, bytes, losses and duties,
        as text. `specs`: folders of your own specs that the plan names."""
        from layoutdsl.explain import explain

        return explain(self, specs)


@lru_cache(maxsize=1)
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)


@lru_cache(maxsize=1)
def _reader() -> Any:
    """The validator of a plan's JSON. Of a list it reports the first wrong element alone: a long text that is no plan
    is refused at once."""
    from pydantic_core import SchemaValidator

    def fail_fast(schema: Any) -> Any:
        if isinstance(schema, list):
            return [fail_fast(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        quick = {"fail_fast": True} if schema.get("type") == "tuple" else {}
        return {key: fail_fast(one) for key, one in schema.items()} | quick

    return SchemaValidator(fail_fast(_adapter().core_schema))


def params_of(side: Side) -> dict[str, bool | int | str]:
    return dict(side.params)
