"""The programs, checks and duties of a plan, matrix by matrix: for each target tensor the runs that fill it.

One method per role of a tensor; below it, how moves and pads are made. Nothing here is trusted afterwards: prove.py
checks what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from layoutdsl import recodes
from layoutdsl.errors import LayoutError
from layoutdsl.layout import Chain, Run, View, runs
from layoutdsl.pairs import Pair, Request, sides, target_mode
from layoutdsl.plan import WHY, Check, Duty, Lookup, Move, Operand, Program, Reduction, TensorInfo
from layoutdsl.recodes import Recode
from layoutdsl.resolve import Matrix, Stored

Gap = tuple[int, int]
"""(first, count) of stored k without a logical one."""

NOWHERE = View(Chain(()))
"""The target of a check: it reads and writes nothing."""


class Builder:
    """Collects the programs, checks and duties of a plan, matrix by matrix."""

    def __init__(self, request: Request, pairs: Sequence[Pair]):
        self.request, self.pairs = request, pairs
        self.outputs: list[TensorInfo] = []
        self.programs: list[Program] = []
        self.reductions: list[Reduction] = []
        self.checks: list[Check] = []
        self.passed: list[tuple[str, str]] = []
        self.duties: list[Duty] = []
        self.outputs_of: dict[str, tuple[Run, ...]] = {}
        self.orders = {pair.matrix.name: self._order_of(pair) for pair in pairs}

    def _order_of(self, pair: Pair) -> Stored | None:
        """The tensor whose order k is sorted by, where the source is in act-order and the target is not."""
        if not self.request.source_params.get("act_order") or self.request.target_params.get("act_order"):
            return None
        return pair.source["act_order"][0]

    def matrix(self, pair: Pair) -> None:
        order, k = self.orders[pair.matrix.name], pair.matrix.k
        if self.request.sharded and order is not None and k.cut:
            raise LayoutError(
                f"`{order.name}` orders {k.length} of the {k.size} inputs along `{k.axis}`, which are no whole groups",
                code="LP126",
                name="order-of-a-slice",
                help="give the whole tensors (sharded=False): each rank then takes its slice of the sorted inputs",
            )
        recode = self._scale_recode(pair)
        signed = bool(recode and recode.name == "nvfp4_scale" and pair.source["scale"][0].code.sign)
        for role, found in pair.target.items():
            for tensor in found:
                make = getattr(self, f"_{role}")
                try:
                    self.programs.append(make(pair, tensor, recode, signed))
                except LayoutError as error:
                    raise _at(tensor, error) from None
                self.outputs.append(TensorInfo.of(tensor, pair.matrix.experts[2] if pair.matrix.experts else 0))
        self._narrow(pair)
        self._pass_through(pair)
        self._duties(pair)

    def _scale_recode(self, pair: Pair) -> Recode | None:
        if "scale" not in pair.target:
            return None
        if "scale" not in pair.source:
            raise recodes.refuse_pair(pair.matrix.name, pair.target["scale"][0], "the source has no scales")
        return recodes.for_scale(
            pair.matrix.name,
            pair.source["scale"][0],
            pair.target["scale"][0],
            pair.source.get("global_scale", (None,))[0],
            pair.target.get("global_scale", (None,))[0],
        )

    # one method per role ----------------------------------------------------------------------------------------------

    def _codes(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        source = pair.source["codes"]
        zeros = pair.source.get("zero_point", ())
        recode = recodes.for_codes(pair.matrix.name, source[0], target, bool(zeros), signed)
        operands: list[Operand] = []
        nibbles = {"fp8_nibbles": target.code, "plain_nibbles": source[0].code}.get(recode.name)
        if nibbles is not None and nibbles.needs_zero_point and zeros:
            operands.append(self._operand(pair, target, "zero_point"))
        if recode.name == "fold_sign":
            operands.append(self._operand(pair, target, "scale"))
        moves = self._data(pair, target, "codes")
        beside = self._beside(pair, target)
        fill = None
        pads, beyond = self._pads(pair, target, _without(target.k_gaps, beside)), len(target.n_gaps)
        n = self._n_data(pair, target) if beside else ()
        if n and zeros:
            fill = replace(
                self._operand(pair, target, "zero_point"), moves=tuple(self._fill(pair, target, beside, zeros))
            )
        elif n:
            pads[beyond:beyond] = [
                Move("pad", n, _k_pads(target, gap), source[0].code.bias, "code") for gap in beside
            ]
        moves += pads
        return Program(target.name, self._sources(pair, target, "codes"), recode, tuple(moves), tuple(operands), fill)

    def _beside(self, pair: Pair, target: Stored) -> list[Gap]:
        """The pads along k that lie in a group with its own zero point; they repeat it, to decode to 0."""
        if (
            "zero_point" not in pair.target
            or self.request.habits.pads != "neutral"
            or target_mode(self.request) != "padded"
            or target.code.kind != "integer"
        ):
            return []
        return [gap for gap, _ in _split_gaps(target.k_gaps, pair.matrix, pair.target["zero_point"][0]) if gap[1]]

    def _fill(self, pair: Pair, target: Stored, gaps: Sequence[Gap], zeros: tuple[Stored, ...]) -> Iterator[Move]:
        """Pads along k read the zero point of the nearest real element: they are in its group, even if stored short."""
        inner = self._inner_order(pair)
        for part in target.parts:
            n_view, k_view = _holder(zeros, part).view(part)
            stretch = pair.matrix.n[part]
            n_source = _sorted_positions(stretch.start) if inner is not None else n_view
            n = runs(stretch.length, target.view(part)[0], n_source, part=part)
            for first, count in gaps if n else ():
                nearest = 0 if first < pair.matrix.k.front else pair.matrix.k.length - 1
                source = View(Chain(()), base=k_view.at(nearest))
                k = runs(count, View(target.view(part)[1].chain), source, start=first)
                yield Move("data", n, k, gather_n=self._lookup_n(pair, zeros))

    def _lookup_n(self, pair: Pair, sources: tuple[Stored, ...]) -> Lookup | None:
        inner = self._inner_order(pair)
        if inner is None:
            return None
        views = [_holder(sources, part).view(part)[0] for part in range(len(pair.matrix.n))]
        return _lookup(inner, self._group(), views, [s.start for s in pair.matrix.n])

    def _zero_point(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        sources = pair.source.get("zero_point", ())
        if not sources:
            bias = pair.source["codes"][0].code.bias
            code = bias - target.plus
            recode = Recode("constant", target.code.name, target.code.name, code)
            return Program(target.name, (), recode, tuple(self._values(pair, target)))
        recode = Recode("offset", sources[0].code.name, target.code.name, sources[0].plus - target.plus)
        return self._plain(pair, target, "zero_point", recode)

    def _scale(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        assert scale is not None
        if scale.name in ("nvfp4_scale", "int16_undo") and "global_scale" not in pair.source:
            raise _no_global(pair.source["scale"][0])
        operands = ()
        reduction = ""
        name = pair.matrix.name
        if scale.name == "nvfp4_scale":
            reduction = f"{name}.nvfp4"
            found = [(part, _holder(pair.source["global_scale"], part)) for part in range(len(pair.matrix.n))]
            globals_ = tuple((tensor.name, tensor.view(part)[0].at(0)) for part, tensor in found)
            self.reductions.append(
                Reduction(
                    reduction, "nvfp4", target.name, self.request.habits.nvfp4_factor, globals_, found[0][1].reciprocal
                )
            )
        if scale.name == "int16_scale":
            reduction = f"{name}.largest"
            self.reductions.append(Reduction(reduction, "largest", target.name, "tensor"))
        if scale.name == "int16_undo":
            operands = (self._operand(pair, target, "global_scale"),)
        return self._plain(pair, target, "scale", scale, operands, reduction)

    def _global_scale(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        if scale is None:
            reason, help = "no scale stands beside it", "give its tensor the role scale, or the format both"
            raise recodes.refuse_pair(pair.matrix.name, target, reason, help)
        sources = pair.source.get("global_scale", ())
        recode = recodes.for_global(pair.matrix.name, sources[0] if sources else None, target, scale)
        name = pair.matrix.name
        if recode.name == "largest":
            return Program(target.name, (), recode, tuple(self._values(pair, target)), reduction=f"{name}.largest")
        reduction = f"{name}.nvfp4" if recode.name == "nvfp4_global" else ""
        return self._plain(pair, target, "global_scale", recode, (), reduction)

    def _bias(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        if "bias" not in pair.source:
            raise _no_source(target)
        source, code = pair.source["bias"][0], target.code
        recode = Recode("copy" if source.code == code else "rescale", source.code.name, code.name)
        if pair.matrix.bias_here:
            return self._plain(pair, target, "bias", recode)
        return Program(target.name, (), Recode("constant", code.name, code.name, 0), tuple(self._values(pair, target)))

    def _act_order(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        kept = self.request.source_params.get("act_order") and self.orders[pair.matrix.name] is None
        if kept and "act_order" in pair.source:
            order, k = pair.source["act_order"][0], pair.matrix.k
            if k.cut:
                raise LayoutError(
                    f"`{order.name}` orders all {k.size} inputs along `{k.axis}`, and the {k.length} of a rank are no "
                    "whole groups",
                    code="LP126",
                    name="order-of-a-slice",
                    help="target.act_order=false sorts the inputs; each rank then takes its slice of them",
                )
            return self._plain(pair, target, "act_order", Recode("copy", "int32", "int32"))
        group = max(int(self.request.target_params.get("group", -1)), 0)
        start = pair.matrix.k.start % group if group else 0
        return Program(
            target.name, (), Recode("ramp", "int32", "int32", group), tuple(self._values(pair, target, start))
        )

    def _input_scale(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        if "input_scale" not in pair.source:
            raise _no_source(target)
        source = pair.source["input_scale"][0]
        alone = Recode("copy", source.code.name, target.code.name)  # unlike a global scale, nothing goes with it
        return self._plain(pair, target, "input_scale", recodes.for_global(pair.matrix.name, source, target, alone))

    def _weight_shape(self, pair: Pair, target: Stored, scale: Recode | None, signed: bool) -> Program:
        values = _logical_shape(pair.matrix, target, "local")
        return Program(target.name, (), Recode("shape", "int64", "int64"), (), values=values)

    # moves ------------------------------------------------------------------------------------------------------------

    def _plain(
        self,
        pair: Pair,
        target: Stored,
        role: str,
        recode: Recode,
        operands: tuple[Operand, ...] = (),
        reduction: str = "",
    ) -> Program:
        moves = [*self._data(pair, target, role), *self._pads(pair, target, target.k_gaps)]
        return Program(target.name, self._sources(pair, target, role), recode, tuple(moves), operands, None, reduction)

    def _sources(self, pair: Pair, target: Stored, role: str) -> tuple[str, ...]:
        """The source tensor's name per part of the module; empty for parts that this target does not hold."""
        return tuple(
            _holder(pair.source[role], part).name if part in target.parts else "" for part in range(len(pair.matrix.n))
        )

    def _operand(self, pair: Pair, target: Stored, role: str) -> Operand:
        first = pair.source[role][0]
        return Operand(
            role, self._sources(pair, target, role), first.code.name, first.plus, tuple(self._data(pair, target, role))
        )

    def _data(self, pair: Pair, target: Stored, role: str) -> list[Move]:
        """Moves from the source tensors of a role to all of a target's logical elements, one per distinct view of k."""
        sources = pair.source[role]
        by_view: dict[tuple, list[int]] = {}
        for part in target.parts:
            k_view = _holder(sources, part).view(part)[1]
            by_view.setdefault((target.view(part)[1], k_view), []).append(part)
        order = self.orders[pair.matrix.name]
        inner = self._inner_order(pair)
        found: list[Move] = []
        for (k_target, k_source), parts in by_view.items():
            gathers_k = order is not None and role == "codes"
            k_stretch = pair.matrix.k
            k = runs(k_stretch.length, k_target, _sorted_positions(k_stretch.start) if gathers_k else k_source)
            n: list[Run] = []
            for part in parts:
                n_source = _holder(sources, part).view(part)[0]
                stretch = pair.matrix.n[part]
                n.extend(
                    runs(
                        stretch.length,
                        target.view(part)[0],
                        _sorted_positions(stretch.start) if inner is not None else n_source,
                        part=part,
                    )
                )
            lookup_k = _lookup(order, self._group(), [k_source], [k_stretch.start]) if gathers_k and order else None
            if not n or not k:
                continue
            found.append(
                Move(
                    "data",
                    tuple(_joined(n)),
                    tuple(_joined(k)),
                    gather_n=self._lookup_n(pair, sources),
                    gather_k=lookup_k,
                )
            )
        return _joined_moves(found)

    def _group(self) -> int:
        return max(int(self.request.source_params.get("group", -1)), 0)

    def _phase(self, pair: Pair) -> int:
        """The coordinate of the rank's first k, as g_idx of the source counts groups."""
        start, group = pair.matrix.k.start, self._group()
        return start if sides(self.request)[0].mode == "whole" or not group else start % group

    def _inner_order(self, pair: Pair) -> Stored | None:
        """The order of this matrix' n, where another matrix of the module has it as its sorted k.

        An axis seen outside keeps its order as outputs; only the input of the matrix that sorts it is gathered.
        """
        if pair.matrix.n[0].seen:
            return None
        for other in self.pairs:
            if other is not pair and other.matrix.k.axis == pair.matrix.n[0].axis:
                return self.orders[other.matrix.name]
        return None

    def _n_data(self, pair: Pair, target: Stored) -> tuple[Run, ...]:
        """All real outputs of a target, part by part, without a source."""
        if target.name not in self.outputs_of:
            self.outputs_of[target.name] = tuple(
                run
                for part in target.parts
                for run in runs(pair.matrix.n[part].length, target.view(part)[0], None, part=part)
            )
        return self.outputs_of[target.name]

    def _pads(self, pair: Pair, target: Stored, k_gaps: Sequence[Gap]) -> list[Move]:
        """Pads: stored n that hold no output, along all of k; then the gaps along k, for the real outputs."""
        mode = target_mode(self.request)
        found: list[Move] = []
        k_all = _k_pads(target, (0, target.k_end)) if target.n_gaps else ()
        for view, first, count in target.n_gaps:
            code, reason = self._pad_code(target, mode, "zero_point" in pair.target, grouped=True)
            found.append(Move("pad", runs(count, view, None, start=first), k_all, code, reason))
        n = self._n_data(pair, target) if k_gaps else ()
        scale = pair.target.get("scale", (None,))[0]
        for beside, beyond in _split_gaps(k_gaps, pair.matrix, scale) if n else ():
            for gap, grouped in ((beside, False), (beyond, True)):
                if gap[1]:
                    code, reason = self._pad_code(target, mode, "zero_point" in pair.target, grouped=grouped)
                    found.append(Move("pad", n, _k_pads(target, gap), code, reason))
        return found

    def _pad_code(self, target: Stored, mode: str, has_zero: bool, *, grouped: bool) -> tuple[int, str]:
        """Pad code and why it is harmless. `grouped`: the scale found there is itself a pad, hence 0."""
        if mode != "padded":
            return 0, "unread"
        if target.role == "zero_point":
            return 0, "scale"
        if target.role != "codes":
            kept = target.code.kind == "power" and self.request.habits.pads == "zero"
            return (target.scaled, "weight") if kept and target.scaled else (0, "code")
        integer = target.code.kind == "integer"
        if self.request.habits.pads == "neutral":
            return target.code.bias if integer else 0, "code"
        # A pad code 0 is minus the bias or minus the zero point that it meets; zero points of pads are 0.
        if not integer or (target.code.needs_zero_point and (grouped or not has_zero)):
            return 0, "code"
        return 0, "scale" if grouped else "input"

    def _values(self, pair: Pair, target: Stored, start: int = 0) -> list[Move]:
        """A target that the recode alone makes; the source column counts coordinates along k from `start`."""
        n, k = self._n_data(pair, target), runs(pair.matrix.k.length, target.k[0], _sorted_positions(start))
        made = [Move("value", tuple(_joined(n)), k)] if n and k else []
        return [*made, *self._pads(pair, target, target.k_gaps)]

    # what is not moved ------------------------------------------------------------------------------------------------

    def _narrow(self, pair: Pair) -> None:
        """Checks for what the target cannot say: zero points of a symmetric format, a stored shape, equal orders."""
        if "zero_point" in pair.source and "zero_point" not in pair.target:
            source = pair.source["zero_point"]
            bias = pair.target["codes"][0].code.bias
            for tensor in source:
                self.checks.append(
                    self._check(
                        "equal",
                        pair,
                        tensor,
                        (bias - tensor.plus,),
                        WHY["equal"].format(bias, bias - tensor.plus),
                    )
                )
        for tensor in pair.source.get("weight_shape", ()):
            self.checks.append(
                Check(
                    "shape",
                    tensor.name,
                    _logical_shape(pair.matrix, tensor, sides(self.request)[0].mode),
                    "",
                    WHY["shape"],
                    (),
                )
            )
        for tensor in pair.source.get("act_order", ()):
            first = pair.source["act_order"][0]
            if not self.request.source_params.get("act_order"):
                self.checks.append(
                    self._check(
                        "order",
                        pair,
                        tensor,
                        (self._group(), self._phase(pair)),
                        WHY["order"],
                    )
                )
            elif tensor is not first and self.orders[pair.matrix.name] is not None:
                self.checks.append(
                    replace(
                        self._check("same", pair, tensor, (), WHY["same"]),
                        other=first.name,
                    )
                )
        if "bias" in pair.source and "bias" not in pair.target:
            raise LayoutError(
                f"`{pair.source['bias'][0].name}` has no place in the target",
                code="LP132",
                name="unused-source",
                help="set target.bias=true",
            )

    def _check(self, kind: str, pair: Pair, tensor: Stored, expect: tuple[int, ...], why: str) -> Check:
        moves = []
        for part in tensor.parts:
            n_view, k_view = tensor.view(part)
            try:
                n = runs(pair.matrix.n[part].length, NOWHERE, n_view, part=part)
            except LayoutError as error:
                raise _at(tensor, error) from None
            k = runs(pair.matrix.k.length, NOWHERE, k_view)
            moves += [Move("data", n, k)] if n and k else []
        return Check(kind, tensor.name, expect, "", why, tuple(moves))

    def _pass_through(self, pair: Pair) -> None:
        """Input scales of a kernel target that has no place for them leave under their own names, and so does the order
        that the caller must gather its input by."""
        if "input_scale" in pair.source and "input_scale" not in pair.target:
            for tensor in pair.source["input_scale"]:
                count = pair.matrix.experts[2] if pair.matrix.experts else 0
                self.outputs.append(TensorInfo.of(tensor, count))
                self.passed.append((tensor.name, tensor.name))
        order = self.orders[pair.matrix.name]
        if order is not None and pair.matrix.k.seen:
            name = f"{pair.matrix.name}.k_perm"
            count = pair.matrix.experts[2] if pair.matrix.experts else 0
            length = pair.matrix.k.length
            self.outputs.append(TensorInfo(name, "k_perm", ("int32",), "int32", length, (length,), count, False))
            self.passed.append((order.name, name))

    def _duties(self, pair: Pair) -> None:
        matrix = pair.matrix
        n, k = matrix.n[0], matrix.k
        padded = target_mode(self.request) == "padded"
        if self.orders[matrix.name] is not None and k.seen:
            self.duties.append(Duty("gather_input", matrix.name, k.axis, tensor=f"{matrix.name}.k_perm"))
        for s in (*(dict.fromkeys(matrix.n)), k) if padded else ():
            if s.seen and s.widest > s.length and not (s is k and self.orders[matrix.name] is not None):
                self.duties.append(Duty("lacks", matrix.name, s.axis, length=s.widest, rest=s.widest - s.length))
        width = k.length if self.orders[matrix.name] is not None else k.widest
        if padded and k.seen and k.padded > width:
            rest = k.padded - k.front - width
            self.duties.append(Duty("pad_input", matrix.name, k.axis, front=k.front, rest=rest))
        for other in self.pairs if padded and not k.seen else ():
            written = other.matrix.n[0]
            if written.axis == k.axis and written.padded < k.padded:
                self.duties.append(Duty("write_zeros", matrix.name, k.axis, rest=k.padded - written.padded))
        if padded and n.seen and matrix.n_padded > matrix.n_widest:
            self.duties.append(Duty("slice_output", matrix.name, n.axis, length=matrix.n_widest))
        if k.cut:
            self.duties.append(Duty("sum_over_ranks", matrix.name, k.axis))

    def losses(self) -> Iterator[tuple[str, str]]:
        inverts = {reduction.name: reduction.reciprocal for reduction in self.reductions}
        stepwise = self.request.habits.int16 == "stepwise"
        for program in self.programs:
            reciprocal = inverts.get(program.reduction, False)
            if text := recodes.loss(program.recode, reciprocal=reciprocal, stepwise=stepwise):
                yield program.output, text


def _at(tensor: Stored, error: LayoutError) -> LayoutError:
    """The algebra knows no tensors; its errors are given the one they belong to."""
    found = error.diagnostics[0]
    if found.code != "LD110":
        return error
    message = f"`{tensor.name}`: {found.message}"
    return LayoutError(message, code=found.code, name=found.name, help=found.help, span=found.span)


def _holder(found: Sequence[Stored], part: int) -> Stored:
    return next(tensor for tensor in found if part in tensor.parts)


def _sorted_positions(start: int) -> View:
    """A gathered axis: the source column holds positions in the sorted axis."""
    return View(Chain(((1, 0, 1),)), start)


def _lookup(order: Stored, group: int, views: Sequence[View], starts: Sequence[int]) -> Lookup:
    return Lookup(
        order.name,
        group,
        views[0].chain.digits,
        tuple((v.offset - v.step * start, v.step, v.base) for v, start in zip(views, starts)),
    )


def _no_global(scale: Stored) -> LayoutError:
    return LayoutError(
        f"`{scale.name}` of {scale.code.name} is worth something only beside a global scale, which the source lacks",
        code="LP131",
        name="no-source",
        help="let the tensor with `role: global_scale` be there wherever the scales have this code: check its `when`",
    )


def _no_source(target: Stored) -> LayoutError:
    return LayoutError(
        f"`{target.name}` has no source: the source has no {target.role.replace('_', ' ')}",
        code="LP131",
        name="no-source",
        help=f"set source.{_switch(target)}=true, or leave target.{_switch(target)} out",
    )


def _switch(target: Stored) -> str:
    """The parameter that says whether a format has the tensor."""
    return "zero_points" if target.role == "zero_point" else target.role


def _k_pads(target: Stored, gap: Gap) -> tuple[Run, ...]:
    return runs(gap[1], View(target.k[0].chain), None, start=gap[0])


def _without(gaps: Sequence[Gap], taken: Sequence[Gap]) -> list[Gap]:
    """Gaps less those that others take of their beginnings."""
    lost = dict(taken)
    left = [(first + lost.get(first, 0), count - lost.get(first, 0)) for first, count in gaps]
    return [gap for gap in left if gap[1]]


def _split_gaps(gaps: Sequence[Gap], matrix: Matrix, other: Stored | None) -> Iterator[tuple[Gap, Gap]]:
    """Each gap along k in two: what shares an element of another tensor with real weights, and what is beyond."""
    for first, count in gaps:
        end = first
        if other is not None and matrix.k.length:
            end = first + count
            if other.k_unit is not None:
                end = min(end, -(-(matrix.k.front + matrix.k.length) // other.k_unit) * other.k_unit)
        within = max(end - first, 0)
        yield (first, within), (first + within, count - within)


def _joined(found: Sequence[Run]) -> list[Run]:
    """Runs whose target element another one already writes are marked: they are compared, not written."""
    seen: set[int] = set()
    marked: list[Run] = []
    for run in found:
        points = not any(loop[2] for loop in run.loops)
        marked.append(replace(run, join=True) if points and run.dst in seen else run)
        if points:
            seen.add(run.dst)
    return marked


def _joined_moves(found: list[Move]) -> list[Move]:
    """The same across moves (parts whose sources see k differently)."""
    if len(found) < 2:
        return found
    n = _joined([run for move in found for run in move.n])
    marked: list[Move] = []
    at = 0
    for move in found:
        marked.append(replace(move, n=tuple(n[at : at + len(move.n)])))
        at += len(move.n)
    return marked


def _logical_shape(matrix: Matrix, tensor: Stored, mode: str) -> tuple[int, ...]:
    n = sum(matrix.n[part].size if mode == "whole" else matrix.n[part].length for part in tensor.parts)
    return n, matrix.k.size if mode == "whole" else matrix.k.length
