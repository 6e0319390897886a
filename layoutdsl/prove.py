"""The laws of a plan, checked on its numbers against the specs it names, before any data.

    header    sizes, ranks, parameters and extents are what specs and request say; a kernel's tiles and groups fit
    meaning   every run stands, on both sides, where the specs put the element it names
    complete  a matrix' logical elements are each moved once; over all ranks, each source element as often as stated
    once      every target element is written exactly once, pads included
    value     a recode leaves the value that both sides' codes stand for, on samples of every kind of code
    neutral   each pad has a true reason
    duties    what the caller must do follows from the extents

Provenance needs no law of its own: a scale's program is complete and means what both specs say at every weight that
shares it, so each weight meets its own scale. The prover shares with the compiler only resolve.py (what a spec says)
and recodes.apply (what a recode means); it neither compiles nor compares with a compiled plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from layoutdsl import laws, recodes
from layoutdsl.codes import Unrepresentable, code_named, samples
from layoutdsl.errors import LayoutError
from layoutdsl.layout import Chain, Run, View
from layoutdsl.library import recall
from layoutdsl.model import Format, Kernel, Module
from layoutdsl.plan import Check, Duty, Extent, Lookup, Move, Operand, Plan, Program, Reduction, TensorInfo, params_of
from layoutdsl.resolve import Matrix, Side, Stored, bind, matrices, tensors, with_extents

IDENTITY = Chain(((1, 0, 1),))


def prove(plan: Plan, *, specs: tuple[str, ...] = ()) -> None:
    """Check every law; LayoutError names the law and the element that breaks it."""
    _Prover(plan, specs).prove()


def prove_ranks(plans: Sequence[Plan], *, specs: tuple[str, ...] = ()) -> None:
    """The law `complete` over the plans of all ranks: together they read every source element as often as stated."""
    first = plans[0]
    wanted = {(rank, ep_rank) for rank in range(first.ranks.tp) for ep_rank in range(first.ranks.ep)}
    have = [(plan.ranks.rank, plan.ranks.ep_rank) for plan in plans]
    if sorted(have) != sorted(wanted):
        _broken("complete", f"plans of the ranks {sorted(wanted)} are needed, given are {sorted(have)}")
    provers = [_Prover(plan, specs) for plan in plans]
    for prover in provers:
        prover.prove()
    if provers[0].source_side.mode != "whole":
        return  # each rank has its own tensors and, by the law on one rank, reads all of them
    z = _point(first)
    for program in first.programs:
        for source in dict.fromkeys(name for name in program.sources if name):
            _complete_over_ranks(provers, program.output, source, z)


def _complete_over_ranks(provers: Sequence[_Prover], output: str, source: str, z: int) -> None:
    found = 0
    for prover in provers:
        program = next(program for program in prover.plan.programs if program.output == output)
        experts = laws.geometric(pow(z, 3, laws.PRIME), max(prover.plan.experts[2], 1))
        experts = experts * pow(z, 3 * prover.plan.experts[1], laws.PRIME)
        for move in program.moves:
            if move.kind != "data":
                continue
            n = [run for run in move.n if program.sources[run.part] == source]
            found += laws.total(n, z, laws.SRC) * laws.total(move.k, z, laws.SRC) * experts
    tensor = provers[0].source_named(source)
    matrix = provers[0].pair_of(output)[0]
    moves = [m for p in provers[0].plan.programs if p.output == output for m in p.moves if m.kind == "data"]
    n_all = sum(_all_n(tensor, matrix, part, z, any(m.gather_n for m in moves)) for part in tensor.parts)
    k_all = laws.geometric(z, matrix.k.size) if any(m.gather_k for m in moves) else laws.prefix(tensor.k[0].chain, matrix.k.size, z)
    if tensor.role == "bias" and matrix.k.cut:
        k_all = k_all * pow(provers[0].plan.ranks.tp, -1, laws.PRIME)
    total = max(provers[0].plan.experts[0], 1)
    everything = n_all * k_all * laws.geometric(pow(z, 3, laws.PRIME), total) * provers[0].plan.replicas
    if (found - everything) % laws.PRIME:
        _broken("complete", f"the ranks together do not read `{source}` exactly {provers[0].plan.replicas} times for `{output}`")


def _all_n(tensor: Stored, matrix: Matrix, part: int, z: int, gathered: bool) -> int:
    size = matrix.n[part].size
    if gathered:
        return laws.geometric(z, size)
    view, start = tensor.view(part)[0], matrix.n[part].start
    offset = view.offset - view.step * start
    if view.step == 1:
        low, high = (laws.prefix(view.chain, end, z) for end in (offset, offset + size))
        return pow(z, view.base, laws.PRIME) * (high - low)
    whole = View(view.chain, offset, view.step, view.base)
    return sum(pow(z, whole.at(x), laws.PRIME) for x in range(size))


def _broken(law: str, message: str, tensor: str = "") -> NoReturn:
    of = f"`{tensor}`: " if tensor else ""
    raise LayoutError(f"the plan breaks the law `{law}`: {of}{message}", code="LP200", name=f"law-{law}",
                      help="compile the plan anew; if it was just compiled, the spec or layoutdsl is at fault")


def _point(plan: Plan) -> int:
    return int(plan.digest, 16) % (laws.PRIME - 2) + 2


@dataclass(frozen=True)
class _Pair:
    matrix: Matrix
    source: tuple[Stored, ...]
    target: tuple[Stored, ...]

    def of(self, side: str, role: str) -> tuple[Stored, ...]:
        return tuple(tensor for tensor in getattr(self, side) if tensor.role == role)


class _Prover:
    def __init__(self, plan: Plan, specs: tuple[str, ...]):
        self.plan = plan
        source, target = recall(plan.source.spec, plan.source.digest, specs), recall(plan.target.spec, plan.target.digest, specs)
        module = recall(plan.module.spec, plan.module.digest, specs)
        if not isinstance(source, Format) or not isinstance(target, Format) or not isinstance(module, Module):
            _broken("header", "source and target must be formats, module a module")
        self.source_spec, self.target_spec, self.module = source, target, module
        for side, spec in ((plan.source, source), (plan.target, target), (plan.module, module)):
            if tuple(bind(spec, params_of(side)).items()) != side.params:
                _broken("header", f"the parameters of `{side.spec}` are not all of its own, in its order")
        self.z = _point(plan)
        self.w = pow(self.z, 3, laws.PRIME)
        self.pairs = self._resolve()

    # header -----------------------------------------------------------------------------------------------------------

    def _resolve(self) -> list[_Pair]:
        plan = self.plan
        local = bool(plan.sharded)
        if local and (isinstance(self.source_spec, Kernel) or plan.ranks.tp * plan.ranks.ep == 1):
            _broken("header", "`sharded` means checkpoint tensors cut for several ranks")
        mode = "padded" if isinstance(self.source_spec, Kernel) else "local" if local else "whole"
        self.source_side = Side(self.source_spec, params_of(plan.source), mode)
        self.target_side = Side(self.target_spec, params_of(plan.target), "padded" if isinstance(self.target_spec, Kernel) else "local")
        if dict(plan.sizes) != {axis: size for axis, size in sorted(plan.sizes)} or len(dict(plan.sizes)) != len(plan.sizes):
            _broken("header", "sizes stand in order of their axes, each once")
        found = matrices(self.module, params_of(plan.module), dict(plan.sizes), plan.ranks)
        pairs: list[_Pair] = []
        for matrix in found:
            wide = self._wide(matrix)
            group = dict(plan.groups).get(matrix.name)
            kernel_source = self.source_side.mode == "padded"
            source_matrix, source_group = (wide, group) if kernel_source else (matrix, None)
            if kernel_source and self.target_side.mode == "padded":
                source_matrix, source_group = self._source_kernel(matrix)
            target = (wide, group) if self.target_side.mode == "padded" else (matrix, None)
            pairs.append(_Pair(
                wide, tensors(self.source_side, source_matrix, source_group), tensors(self.target_side, *target),
            ))
        self._extents_are_all(found)
        return pairs

    def _wide(self, matrix: Matrix) -> Matrix:
        known: dict[tuple[str, str, str], Extent] = {(e.matrix, e.role, e.part): e for e in self.plan.extents}
        parts = matrix.parts or ("",)
        for role, part, stretch in [("k", "", matrix.k), *(("n", part, s) for part, s in zip(parts, matrix.n))]:
            extent = known.get((matrix.name, role, part))
            if extent is None or (extent.axis, extent.size, extent.start, extent.length) != (
                stretch.axis, stretch.size, stretch.start, stretch.length
            ):
                _broken("header", f"rank {self.plan.ranks.rank} holds {stretch.start} to {stretch.start + stretch.length - 1} of "
                        f"axis `{stretch.axis}`, {stretch.size} in all; the plan says otherwise for {role} of `{matrix.name}`")
            if extent.padded < extent.length:
                _broken("header", f"{role} of `{matrix.name}` is padded to {extent.padded}, below its {extent.length} elements")
        wide = with_extents(matrix, known)
        self._fits(wide, matrix)
        return wide

    def _fits(self, wide: Matrix, matrix: Matrix) -> None:
        kernel = next((spec for spec in (self.target_spec, self.source_spec) if isinstance(spec, Kernel)), None)
        group = dict(self.plan.groups).get(matrix.name)
        if kernel is None:
            if wide != matrix or group is not None:
                _broken("header", f"`{matrix.name}` is padded or grouped, but neither side is a kernel")
            return
        if group is None or (group or -1) not in kernel.accepts.groups:
            _broken("header", f"kernel `{kernel.name}` does not take group {group} of `{matrix.name}`")
        if not any(wide.n_padded % tile.n == 0 and wide.k.padded % tile.k == 0 for tile in kernel.accepts.tiles):
            _broken("header", f"`{matrix.name}` of {wide.n_padded} x {wide.k.padded} fits no tile of kernel `{kernel.name}`")
        if group and wide.k.padded % group and wide.k.padded > group:
            _broken("header", f"k of `{matrix.name}` is padded to {wide.k.padded}, no multiple of group {group}")

    def _source_kernel(self, matrix: Matrix) -> tuple[Matrix, int]:
        from layoutdsl.resolve import pad

        assert isinstance(self.source_spec, Kernel)
        group = max(int(self.source_side.params.get("group", -1)), 0)
        found = matrices(self.module, params_of(self.plan.module), dict(self.plan.sizes), self.plan.ranks)
        padded = pad(self.source_spec, self.source_side.params, found, [group] * len(found))
        return next(wide for wide in padded if wide.name == matrix.name), group

    def _extents_are_all(self, found: Sequence[Matrix]) -> None:
        expected = []
        for matrix in found:
            expected.append((matrix.name, "k", ""))
            expected += [(matrix.name, "n", part) for part in matrix.parts or ("",)]
            if matrix.pad == "tail" and len(matrix.n) > 1:
                expected.append((matrix.name, "n", "*"))
                star = next((e for e in self.plan.extents if (e.matrix, e.role, e.part) == (matrix.name, "n", "*")), None)
                if star is not None and (star.axis, star.size, star.start, star.length) != (matrix.n[0].axis, matrix.n_size, 0, matrix.n_length):
                    _broken("header", f"all parts of `{matrix.name}` together have {matrix.n_length} outputs of {matrix.n_size}")
        if [(e.matrix, e.role, e.part) for e in self.plan.extents] != expected:
            _broken("header", "the extents are not one per axis of each matrix, in their order")
        names = [matrix.name for matrix in found]
        if [name for name, _ in self.plan.groups] not in ([], names):
            _broken("header", "the groups are not one per matrix, in their order")
        total, start, count = found[0].experts or (0, 0, 0)
        if self.plan.experts != (total, start if self.source_side.mode == "whole" else 0, count):
            _broken("header", f"this rank holds experts {start} to {start + count - 1} of {total}")
        cut = any(matrix.k.cut or matrix.n[0].cut for matrix in found)
        if self.plan.replicas != (1 if cut else self.plan.ranks.tp):
            _broken("header", f"every weight is held {1 if cut else self.plan.ranks.tp} times over all ranks")

    # the plan ---------------------------------------------------------------------------------------------------------

    def prove(self) -> None:
        self._inputs_and_outputs()
        programs = {program.output: program for program in self.plan.programs}
        targets = [tensor for pair in self.pairs for tensor in pair.target]
        if [program.output for program in self.plan.programs] != [tensor.name for tensor in targets]:
            _broken("once", "the programs are not one per target tensor, in their order")
        for pair in self.pairs:
            for tensor in pair.target:
                _Programs(self, pair, tensor, programs[tensor.name]).prove()
        self._reductions(programs)
        self._checks()
        self._duties()
        inverts = {reduction.name: reduction.reciprocal for reduction in self.plan.reductions}
        losses = tuple(
            (p.output, text)
            for p in self.plan.programs
            if (text := recodes.loss(p.recode, inverts.get(p.reduction, False)))
        )
        if self.plan.losses != losses:
            _broken("value", "the stated losses are not those of the recodes")

    def _inputs_and_outputs(self) -> None:
        total, _, count = self.plan.experts
        given = total if self.source_side.mode == "whole" else count
        inputs = tuple(_info(t, given) for pair in self.pairs for role in _roles(pair.source) for t in pair.of("source", role))
        if self.plan.inputs != inputs:
            _broken("header", "the inputs are not the tensors of the source spec", _odd(self.plan.inputs, inputs))
        outputs: list[TensorInfo] = []
        passed: list[tuple[str, str]] = []
        for pair in self.pairs:
            outputs += [_info(t, count) for role in _roles(pair.target) for t in pair.of("target", role)]
            if not pair.of("target", "input_scale"):
                outputs += [_info(t, count) for t in pair.of("source", "input_scale")]
                passed += [(t.name, t.name) for t in pair.of("source", "input_scale")]
            order = self.order_of(pair)
            if order is not None and pair.matrix.k.axis in self.module.visible:
                name, length = f"{pair.matrix.name}.k_perm", pair.matrix.k.length
                outputs.append(TensorInfo(name, "k_perm", ("int32",), "int32", length, (length,), count, False))
                passed.append((order.name, name))
        if self.plan.outputs != tuple(outputs):
            _broken("header", "the outputs are not the tensors of the target spec", _odd(self.plan.outputs, outputs))
        if self.plan.passed != tuple(passed):
            _broken("header", "the tensors passed through are not the source's input scales and orders")

    def order_of(self, pair: _Pair) -> Stored | None:
        """The tensor by whose order the target's k is sorted."""
        if params_of(self.plan.source).get("act_order") and not params_of(self.plan.target).get("act_order"):
            return pair.of("source", "act_order")[0]
        return None

    def inner_order(self, pair: _Pair) -> Stored | None:
        """The order of another matrix' k that this matrix' n follows."""
        for other in self.pairs:
            if other is not pair and other.matrix.k.axis == pair.matrix.n[0].axis:
                return self.order_of(other)
        return None

    def pair_of(self, output: str) -> tuple[Matrix, _Pair]:
        pair = next(pair for pair in self.pairs if any(tensor.name == output for tensor in pair.target))
        return pair.matrix, pair

    def source_named(self, name: str) -> Stored:
        return next(tensor for pair in self.pairs for tensor in pair.source if tensor.name == name)

    def group(self) -> int:
        return max(int(params_of(self.plan.source).get("group", -1)), 0)

    # reductions, checks, duties ---------------------------------------------------------------------------------------

    def _reductions(self, programs: Mapping[str, Program]) -> None:
        expected: list[Reduction] = []
        for pair in self.pairs:
            for tensor in pair.of("target", "scale"):
                name = programs[tensor.name].recode.name
                if name == "nvfp4_scale":
                    holders = [next(t for t in pair.of("source", "global_scale") if p in t.parts) for p in range(len(pair.matrix.n))]
                    globals_ = tuple((t.name, t.view(p)[0].at(0)) for p, t in enumerate(holders))
                    expected.append(Reduction(f"{pair.matrix.name}.nvfp4", "nvfp4", tensor.name, self.plan.habits.nvfp4_factor,
                                              globals_, holders[0].reciprocal))
                if name == "int16_scale":
                    expected.append(Reduction(f"{pair.matrix.name}.largest", "largest", tensor.name, "tensor"))
        if self.plan.reductions != tuple(expected):
            _broken("value", "the reductions are not those that the scales' recodes need")

    def _checks(self) -> None:
        expected: list[tuple[str, Stored, tuple[int, ...], str]] = []
        for pair in self.pairs:
            if pair.of("source", "zero_point") and not pair.of("target", "zero_point"):
                bias = pair.of("target", "codes")[0].code.bias
                expected += [("equal", t, (bias - t.plus,), "") for t in pair.of("source", "zero_point")]
            for t in pair.of("source", "weight_shape"):
                whole = self.source_side.mode == "whole"
                n = sum(pair.matrix.n[p].size if whole else pair.matrix.n[p].length for p in t.parts)
                expected.append(("shape", t, (n, pair.matrix.k.size if whole else pair.matrix.k.length), ""))
            for t in pair.of("source", "act_order"):
                first = pair.of("source", "act_order")[0]
                if not params_of(self.plan.source).get("act_order"):
                    start, group = pair.matrix.k.start, self.group()
                    phase = start if self.source_side.mode == "whole" or not group else start % group
                    expected.append(("order", t, (group, phase), ""))
                elif t is not first and self.order_of(pair) is not None:
                    expected.append(("same", t, (), first.name))
        if [(c.kind, c.tensor, c.expect, c.other) for c in self.plan.checks] != [(k, t.name, e, o) for k, t, e, o in expected]:
            _broken("value", "the checks on the data are not those that this pair of formats needs")
        for check, (_, tensor, _, _) in zip(self.plan.checks, expected):
            self._covers(check, tensor)

    def _covers(self, check: Check, tensor: Stored) -> None:
        pair = next(pair for pair in self.pairs if tensor in pair.source)
        if check.kind == "shape":
            if check.moves:
                _broken("meaning", "a shape is not moved", tensor.name)
            return
        covers_all(self, pair, check.moves, tensor.parts, tensor.name)
        for move in check.moves:
            if move.kind != "data" or move.gather_n or move.gather_k:
                _broken("meaning", "a check reads the source as it lies", tensor.name)
            means(move.n, [tensor.view(run.part)[0] for run in move.n], laws.SRC, tensor.name, "n")
            for part in {run.part for run in move.n}:
                means(move.k, [tensor.view(part)[1]] * len(move.k), laws.SRC, tensor.name, "k")

    def _duties(self) -> None:
        expected: list[Duty] = []
        padded = self.target_side.mode == "padded"
        for pair in self.pairs:
            m = pair.matrix
            seen_k, seen_n = m.k.axis in self.module.visible, m.n[0].axis in self.module.visible
            if self.order_of(pair) is not None and seen_k:
                expected.append(Duty("gather_input", m.name, m.k.axis, tensor=f"{m.name}.k_perm"))
            if padded and seen_k and m.k.padded > m.k.length:
                expected.append(Duty("pad_input", m.name, m.k.axis, rest=m.k.padded - m.k.length))
            if padded and seen_n and m.n_padded > m.n_length:
                expected.append(Duty("slice_output", m.name, m.n[0].axis, length=m.n_length))
            if m.k.cut:
                expected.append(Duty("sum_over_ranks", m.name, m.k.axis))
        if self.plan.duties != tuple(expected):
            _broken("duties", "they are " + ("; ".join(map(str, expected)) or "none"))


def _info(tensor: Stored, experts: int) -> TensorInfo:
    return TensorInfo(tensor.name, tensor.role, tensor.dtypes, tensor.code.name, tensor.codes, tensor.shape,
                      experts if tensor.experts != "none" else 0, tensor.experts == "shared")


def _roles(found: Iterable[Stored]) -> list[str]:
    return list(dict.fromkeys(tensor.role for tensor in found))


def _odd(have: Sequence[TensorInfo], want: Sequence[TensorInfo]) -> str:
    odd = [info.name for info in (*have, *want) if (info in have) != (info in want)]
    return odd[0] if odd else ""


# --- laws on moves ----------------------------------------------------------------------------------------------------


def means(runs: Sequence[Run], views: Sequence[View], column: int, tensor: str, axis: str) -> None:
    """Law `meaning`: each run stands where its view says."""
    for run, view in zip(runs, views):
        if any(loop[0] < 2 or loop[laws.X] < 1 for loop in run.loops):
            _broken("meaning", f"a loop along {axis} at {run.x} does not go forward", tensor)
        wrong = laws.follows(run, view, column)
        if wrong is not None:
            side = {laws.DST: "target", laws.SRC: "source"}[column]
            _broken("meaning", f"element {axis} {wrong} does not stand where the {side} spec puts it ({view.at(wrong)})", tensor)


def covers_all(prover: _Prover, pair: _Pair, moves: Sequence[Move], parts: Sequence[int], tensor: str) -> None:
    """Law `complete` on one rank: moves bring each logical element (part, n, k) exactly once."""
    z, w = prover.z, prover.w
    length_k = pair.matrix.k.length
    for part in parts:
        length = pair.matrix.n[part].length
        found = sum(
            laws.total([run for run in move.n if run.part == part], z, laws.X) * laws.total(move.k, w, laws.X) for move in moves
        )
        if (found - laws.geometric(z, length) * laws.geometric(w, length_k)) % laws.PRIME:
            n = laws.uncovered([run for move in moves for run in move.n if run.part == part], length)
            k = next((bad for move in moves if (bad := laws.uncovered(move.k, length_k)) is not None), None)
            where = f"n {n}" if n is not None else f"k {k}" if k is not None else "some element"
            of = f" of part {pair.matrix.parts[part]}" if pair.matrix.parts else ""
            _broken("complete", f"{where}{of} is not moved exactly once", tensor)
    for run in (run for move in moves for run in move.n):
        if run.part not in parts:
            _broken("complete", f"part {run.part} does not belong here", tensor)


class _Programs:
    """The laws of one program."""

    def __init__(self, prover: _Prover, pair: _Pair, target: Stored, program: Program):
        self.prover, self.pair, self.target, self.program = prover, pair, target, program
        self.plan = prover.plan
        self.role = target.role

    def prove(self) -> None:
        self._recode()
        made = self.program.recode.name in ("constant", "ramp", "largest", "shape")
        if self.program.recode.name == "shape":
            self._shape()
            return
        if self.program.values:
            self._fail("value", "only a shape tensor has values")
        moved = "value" if made else "data"
        if any(move.kind not in (moved, "pad") for move in self.program.moves):
            self._fail("meaning", f"its moves must be {moved} and pads")
        data = [move for move in self.program.moves if move.kind == moved]
        covers_all(self.prover, self.pair, data, self.target.parts, self.target.name)
        if made:
            self._made(data)
        else:
            self._moved(data, self.role, self.program.sources)
        self._operands()
        fill = self._filled()
        for move in self.program.moves:
            if move.kind == "pad":
                self._pad(move, fill)
        self._once()

    def _fail(self, law: str, message: str) -> NoReturn:
        _broken(law, message, self.target.name)

    # meaning ----------------------------------------------------------------------------------------------------------

    def _holder(self, role: str, part: int) -> Stored:
        found = [tensor for tensor in self.pair.of("source", role) if part in tensor.parts]
        return found[0] if found else self._fail("meaning", f"the source has no {role}")

    def _moved(self, moves: Sequence[Move], role: str, sources: Sequence[str], *, at_k: int | None = None) -> None:
        """Data moves from the source tensors of a role; with `at_k` every k reads what stands there."""
        expected = tuple(self._holder(role, p).name if p in self.target.parts else "" for p in range(len(self.pair.matrix.n)))
        if tuple(sources) != expected:
            self._fail("meaning", f"its sources are {', '.join(filter(None, expected))}")
        order, inner = self.prover.order_of(self.pair), self.prover.inner_order(self.pair)
        for move in moves:
            if move.pad or move.reason:
                self._fail("neutral", "a data move states no pad")
            parts = [run.part for run in move.n]
            sort_k = order is not None and role == "codes"
            self._lookup(move.gather_n, inner, [self._holder(role, p).view(p)[0] for p in range(len(self.pair.matrix.n))] if inner else [],
                         [s.start for s in self.pair.matrix.n])
            self._lookup(move.gather_k, order if sort_k else None, [self._holder(role, parts[0]).view(parts[0])[1]], [self.pair.matrix.k.start])
            means(move.n, [self.target.view(p)[0] for p in parts], laws.DST, self.target.name, "n")
            source_n = [View(IDENTITY, self.pair.matrix.n[p].start) if inner else self._holder(role, p).view(p)[0] for p in parts]
            means(move.n, source_n, laws.SRC, self.target.name, "n")
            for part in set(parts):
                k_source = View(IDENTITY, self.pair.matrix.k.start) if sort_k else self._holder(role, part).view(part)[1]
                if at_k is not None:
                    k_source = View(Chain(()), base=k_source.at(at_k))
                means(move.k, [self.target.view(part)[1]] * len(move.k), laws.DST, self.target.name, "k")
                means(move.k, [k_source] * len(move.k), laws.SRC, self.target.name, "k")
            if any(run.part != -1 for run in move.k):
                self._fail("meaning", "a run along k belongs to no part")

    def _lookup(self, lookup: Lookup | None, order: Stored | None, views: Sequence[View], starts: Sequence[int]) -> None:
        if order is None:
            if lookup is not None:
                self._fail("meaning", "nothing is gathered here")
            return
        expected = Lookup(order.name, self.prover.group(), views[0].chain.digits,
                          tuple((v.offset - v.step * start, v.step, v.base) for v, start in zip(views, starts)))
        if lookup != expected:
            self._fail("meaning", f"it is gathered in the order of `{order.name}`")

    def _made(self, moves: Sequence[Move]) -> None:
        if self.program.sources:
            self._fail("meaning", "it has no source")
        group = self.program.recode.power if self.program.recode.name == "ramp" else 0
        start = self.pair.matrix.k.start % group if group else 0
        for move in moves:
            if move.pad or move.reason or move.gather_n or move.gather_k:
                self._fail("meaning", "a value move states neither pad nor lookup")
            means(move.n, [self.target.view(run.part)[0] for run in move.n], laws.DST, self.target.name, "n")
            means(move.n, [View(Chain(()))] * len(move.n), laws.SRC, self.target.name, "n")
            means(move.k, [self.target.k[0]] * len(move.k), laws.DST, self.target.name, "k")
            means(move.k, [View(IDENTITY, start)] * len(move.k), laws.SRC, self.target.name, "k")

    def _shape(self) -> None:
        n = sum(self.pair.matrix.n[part].length for part in self.target.parts)
        program = self.program
        if program.values != (n, self.pair.matrix.k.length) or program.moves or program.sources or program.operands or program.fill:
            self._fail("value", f"the stored shape is [{n}, {self.pair.matrix.k.length}]")

    def _operands(self) -> None:
        name = self.program.recode.name
        needed: list[str] = []
        nibbles = {"fp8_nibbles": self.target.code, "plain_nibbles": code_named(self.program.recode.source)}.get(name)
        if nibbles is not None and nibbles.needs_zero_point and self.pair.of("source", "zero_point"):
            needed.append("zero_point")
        if name == "fold_sign":
            needed.append("scale")
        if name == "int16_undo":
            needed.append("global_scale")
        if [operand.role for operand in self.program.operands] != needed:
            self._fail("value", f"the recode {name} needs the operands {', '.join(needed) or 'none'}")
        for operand in self.program.operands:
            self._is_operand(operand)
            covers_all(self.prover, self.pair, operand.moves, self.target.parts, self.target.name)

    def _is_operand(self, operand: Operand, *, at_k: int | None = None) -> None:
        first = self.pair.of("source", operand.role)[0]
        if (operand.code, operand.plus) != (first.code.name, first.plus):
            self._fail("value", f"the operand {operand.role} is {first.code.name} plus {first.plus}")
        if any(move.kind != "data" for move in operand.moves):
            self._fail("meaning", "an operand is moved as it is")
        self._moved(operand.moves, operand.role, operand.sources, at_k=at_k)

    # once and neutral -------------------------------------------------------------------------------------------------

    def _once(self) -> None:
        moves = [*self.program.moves, *(self.program.fill.moves if self.program.fill else ())]
        z = self.prover.z
        found = sum(laws.total(move.n, z, laws.DST, written=True) * laws.total(move.k, z, laws.DST, written=True) for move in moves)
        if (found - laws.geometric(z, self.target.codes)) % laws.PRIME:
            self._fail("once", _twice(moves, self.target.codes))

    def _filled(self) -> tuple[int, int]:
        """Where along k pads repeat their group's zero point: [length, end)."""
        length, fill = self.pair.matrix.k.length, self.program.fill
        end = self._zero_end()
        needed = end > length and bool(self.pair.of("source", "zero_point"))
        if fill is None:
            if needed:
                self._fail("neutral", f"k {length} to {end - 1} lies in a group with a zero point, which its pads must repeat")
            return length, end
        if not needed:
            self._fail("neutral", "there is no group whose zero point its pads could repeat")
        if fill.role != "zero_point":
            self._fail("neutral", "pads repeat a zero point")
        # Pads lie in the group of the last real element: they are below the end of the target's groups that hold real
        # elements, and those lie inside the source's.
        self._is_operand(fill, at_k=length - 1)
        z, w = self.prover.z, self.prover.w
        for part in self.target.parts:
            n = laws.geometric(z, self.pair.matrix.n[part].length)
            k = pow(w, length, laws.PRIME) * laws.geometric(w, end - length)
            found = sum(laws.total([r for r in m.n if r.part == part], z, laws.X) * laws.total(m.k, w, laws.X) for m in fill.moves)
            if (found - n * k) % laws.PRIME:
                self._fail("neutral", f"the pads of k {length} to {end - 1} do not each repeat their zero point once")
        return length, end

    def _zero_end(self) -> int:
        """Where along k the target's own zero points of real weights end, if pads must follow them."""
        length = self.pair.matrix.k.length
        zero = self.pair.of("target", "zero_point")
        if self.role != "codes" or not zero or self.target.code.kind != "integer" or self.plan.habits.pads != "neutral":
            return length
        if self.prover.target_side.mode != "padded":
            return length
        stored = sum(self.target.k_gap)
        unit = zero[0].k_unit
        return stored if unit is None else min(stored, -(-length // unit) * unit)

    def _pad(self, move: Move, filled: tuple[int, int]) -> None:
        if move.gather_n or move.gather_k:
            self._fail("meaning", "a pad has no source")
        gap_n = all(run.part == -1 for run in move.n)
        views = [_pad_view(self.target, run) for run in move.n]
        means(move.n, views, laws.DST, self.target.name, "n")
        means(move.k, [View(self.target.k[0].chain)] * len(move.k), laws.DST, self.target.name, "k")
        for run in (*move.n, *move.k):
            if run.src or any(loop[laws.SRC] for loop in run.loops) or run.join:
                self._fail("meaning", "a pad has no source")
        low = min(laws.span(run)[0] for run in move.k)
        high = max(laws.span(run)[1] for run in move.k)
        code, reason = self._expected_pad(gap_n, low, high, filled)
        if (move.pad, move.reason) != (code, reason):
            where = "n beyond the outputs" if gap_n else f"k {low} to {high}"
            self._fail("neutral", f"the pad at {where} must be {code}, harmless because of its {reason}; it is {move.pad} ({move.reason})")

    def _expected_pad(self, gap_n: bool, low: int, high: int, filled: tuple[int, int]) -> tuple[int, str]:
        """The code that a pad must have and the first reason that is true of it."""
        target = self.target
        if self.prover.target_side.mode != "padded":
            return 0, "unread"
        if self.role == "zero_point":
            return 0, "scale"
        if self.role != "codes":
            return (target.scaled, "scale") if target.code.kind == "power" else (0, "code")
        zero_here = 0
        if not gap_n and filled[0] <= low and high < filled[1]:
            zero_here = self.pair.of("source", "codes")[0].code.bias
        elif not gap_n and low < filled[1] and target.code.needs_zero_point and self.plan.habits.pads == "neutral" and target.code.kind == "integer":
            self._fail("neutral", f"the pad at k {low} to {high} is partly in a group with a zero point")
        code = zero_here or (target.code.bias if target.code.kind == "integer" and self.plan.habits.pads == "neutral" else 0)
        if target.code.decode(code, zero_here if target.code.needs_zero_point else None) == 0 and not self._meets_zero_point(gap_n, low, filled):
            return code, "code"
        if gap_n or self._scale_is_pad(low):
            return code, "scale"
        if high >= self._real_scale_end():
            self._fail("neutral", f"the pad at k {low} to {high} is partly beyond the real scales")
        visible = self.pair.matrix.k.axis in self.prover.module.visible
        if not visible and self.prover.module.activation != "zero":
            self._fail("neutral", "its input is not known to be zero: the module's activation may not map zero to zero")
        return code, "input"

    def _meets_zero_point(self, gap_n: bool, low: int, filled: tuple[int, int]) -> bool:
        """Whether a pad code meets a run-time zero point, so that code 0 is minus that zero point."""
        if gap_n or not self.target.code.needs_zero_point or self.target.code.kind != "integer" or not self.pair.of("target", "zero_point"):
            return False
        if self.plan.habits.pads == "neutral":
            return False
        unit = self.pair.of("target", "zero_point")[0].k_unit
        return unit is None or low < -(-self.pair.matrix.k.length // unit) * unit

    def _real_scale_end(self) -> float:
        scale = self.pair.of("target", "scale")
        if not scale:
            return 0
        unit = scale[0].k_unit
        return math.inf if unit is None else -(-self.pair.matrix.k.length // unit) * unit

    def _scale_is_pad(self, low: int) -> bool:
        return low >= self._real_scale_end()

    # value ------------------------------------------------------------------------------------------------------------

    def _recode(self) -> None:
        recode, target = self.program.recode, self.target
        allowed = {
            "codes": ("copy", "fp8_nibbles", "plain_nibbles", "fold_sign"), "zero_point": ("offset", "constant"),
            "scale": ("copy", "rescale", "nvfp4_scale", "int16_scale", "int16_undo"),
            "global_scale": ("copy", "rescale", "reciprocal", "nvfp4_global", "largest"),
            "bias": ("copy", "rescale", "constant"), "act_order": ("copy", "ramp"), "input_scale": ("copy",), "weight_shape": ("shape",),
        }[self.role]
        if recode.name not in allowed:
            self._fail("value", f"a {self.role} tensor is not made by {recode.name}")
        if recode.name == "shape":
            return
        source = self.pair.of("source", self.role)
        made = recode.name in ("constant", "ramp", "largest")
        source_code = target.code.name if made or not source else source[0].code.name
        if recode.name == "largest":
            source_code = "float32"
        if (recode.source, recode.target) != (source_code, target.code.name):
            self._fail("value", f"the recode is from {source_code} to {target.code.name}")
        reduction = {"nvfp4_scale": "nvfp4", "nvfp4_global": "nvfp4", "int16_scale": "largest", "largest": "largest"}.get(recode.name)
        if self.program.reduction != (f"{self.pair.matrix.name}.{reduction}" if reduction else ""):
            self._fail("value", f"the recode {recode.name} takes {reduction or 'no reduction'}")
        getattr(self, f"_{self.role}_value")(recode, source[0] if source else None)

    def _same(self, made: float, value: float, what: str) -> None:
        if made != value:
            self._fail("value", f"{what} becomes {made!r}, it is worth {value!r}")

    def _codes_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        assert source is not None
        a, b = source.code, self.target.code
        zero = bool(self.pair.of("source", "zero_point"))
        signed = self._folds()
        if (recode.name == "fold_sign") != signed or recode.power:
            self._fail("value", "the signs of its scales " + ("must be folded in" if signed else "stay with them"))
        for z in ((0, 7, 15) if zero and a.needs_zero_point and b.needs_zero_point else (a.bias or b.bias,)):
            for code in samples(a):
                for scale in (0x38, 0xB8) if signed else (0,):
                    value = a.decode(code, z if a.needs_zero_point else None)
                    if math.isnan(value):
                        continue
                    made = b.decode(recodes.apply(recode, code, zero=z, scale=scale), z if b.needs_zero_point else None)
                    self._same(made, -value if scale == 0xB8 else value, f"code {code}")

    def _folds(self) -> bool:
        scale, target = self.pair.of("source", "scale"), self.pair.of("target", "scale")
        return bool(scale and target and scale[0].code.sign and not target[0].code.sign and target[0].code.kind == "float")

    def _zero_point_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        if source is None:
            self._same(recode.power + self.target.plus, self.pair.of("source", "codes")[0].code.bias, "the constant zero point")
            if recode.name != "constant":
                self._fail("value", "a symmetric source has one zero point for all")
            return
        self._same(recode.power + self.target.plus, source.plus, "an offset")
        if recode.name != "offset":
            self._fail("value", "zero points are read from the source")

    def _scale_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        if source is None:
            self._fail("value", "the source has no scales")
        b = self.target.code
        wanted = ("nvfp4_scale" if _shifted(source, self.target) else "int16_undo" if source.code.name == "int16" and b.name != "int16"
                  else "int16_scale" if b.name == "int16" and source.code.name != "int16" else None)
        if wanted is not None and recode.name != wanted:
            self._fail("value", f"{source.code.name} scales become {b.name} by {wanted}")
        if wanted == "int16_scale":
            self._same(recodes.apply(recode, source.code.encode(1.0), factor=2.0), 2048, "half of the largest scale")
            if recode.power:
                self._fail("value", "int16 scales have no power of two")
            return
        self._scaled(recode, source)

    def _scaled(self, recode: recodes.Recode, source: Stored) -> None:
        """A recode must leave `stored * 2^-scaled` alone (or invert it); tried on powers of two that both sides hold."""
        a, b = source.code, self.target.code
        if recode.name == "copy" and (a.name != b.name or recode.power):
            self._fail("value", "only the same code is copied")
        if recode.name == "rescale" and a.name == b.name and not recode.power:
            self._fail("value", "the same code is copied")
        tried = 0
        for exponent in (-6, -1, 0, 2, 7):
            true = math.ldexp(1.0, exponent)
            try:
                stored = a.encode(math.ldexp(1 / true if source.reciprocal else true, source.scaled * (-1 if source.reciprocal else 1)))
                made = b.decode(recodes.apply(recode, stored, factor=_factor(recode, a.decode(stored), source.reciprocal)))
            except Unrepresentable:
                continue
            worth = math.ldexp(1 / true if self.target.reciprocal else true, self.target.scaled * (-1 if self.target.reciprocal else 1))
            if made == 0 and worth < b.floor:
                continue
            self._same(made, worth, f"a scale of {true}")
            tried += 1
        if not tried:
            self._fail("value", "no sample of a scale fits both codes")

    def _global_scale_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        if self.target.derive == "largest_scale" and source is None:
            if recode.name != "largest" or recode.power:
                self._fail("value", "it is the factor that the int16 scales leave out")
            self._same(self.target.code.decode(recodes.apply(recode, 0, factor=4096.0)), 1.0, "a largest scale of 4096")
            return
        if source is None:
            self._fail("value", "the source has no global scale")
        shifted = _shifted(self.pair.of("source", "scale")[0], self.pair.of("target", "scale")[0])
        if (recode.name == "nvfp4_global") != shifted:
            self._fail("value", "a global scale is shifted together with its block scales, or not at all")
        self._scaled(recode, source)

    def _bias_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        if not self.pair.matrix.bias_here:
            if recode.name != "constant" or recode.power:
                self._fail("value", "the bias of summed ranks stands on rank 0, the others add zero")
            return
        if source is None or recode.name == "constant":
            self._fail("value", "it is read from the source's bias")
        self._scaled(recode, source)

    def _act_order_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        sorted_source = bool(params_of(self.plan.source).get("act_order")) and source is not None
        if (recode.name == "copy") != sorted_source:
            self._fail("value", "an order is copied from an order, and counted where there is none")
        group = 0 if sorted_source else max(int(params_of(self.plan.target).get("group", -1)), 0)
        if recode.power != group:
            self._fail("value", f"groups of {group} are counted")

    def _input_scale_value(self, recode: recodes.Recode, source: Stored | None) -> None:
        if source is None or recode.power:
            self._fail("value", "it is passed on as it is")


def _shifted(source: Stored, target: Stored) -> bool:
    """Whether block scales become S0E5M3, with a power of two moved between them and their global scale."""
    return target.code.name.startswith("s0") and (source.code != target.code or source.scaled != target.scaled)


def _factor(recode: recodes.Recode, stored: float, reciprocal: bool) -> float:
    if recode.name == "nvfp4_global":
        return 1 / stored if reciprocal else stored
    return 1.0


def _pad_view(target: Stored, run: Run) -> View:
    if run.part != -1:
        return target.view(run.part)[0]
    low = laws.span(run)[0]
    for view, first, count in target.n_gaps:
        if first <= low < first + count and view.at(run.x) == run.dst:
            return view
    return target.n_gaps[0][0] if target.n_gaps else target.n[0]


def _twice(moves: Sequence[Move], total: int, most: int = 1 << 20) -> str:
    """Which target element is not written exactly once, where there are few enough to list."""
    if total > most:
        return "some target element is not written exactly once"
    seen = bytearray(total)
    for move in moves:
        n, k = (_addresses(runs) for runs in (move.n, move.k))
        for a in n:
            for b in k:
                if not 0 <= a + b < total:
                    return f"code {a + b} is written, beyond the {total} of the tensor"
                seen[a + b] = min(seen[a + b] + 1, 2)
    bad = next((at for at, times in enumerate(seen) if times != 1), None)
    return "a target element is not written exactly once" if bad is None else f"code {bad} is written {['never', '', 'twice or more'][seen[bad]]}"


def _addresses(runs: Sequence[Run]) -> list[int]:
    found: list[int] = []
    for run in runs:
        if run.join:
            continue
        points = [run.dst]
        for loop in run.loops:
            if loop[laws.DST]:
                points = [a + i * loop[laws.DST] for i in range(loop[0]) for a in points]
        found += points
    return found
