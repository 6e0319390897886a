"""What modules compute, whole and spread over ranks, in float64 and exact.

`Whole` has the matrices of a checkpoint. `Shared` has what ranks store, pads included, as the kernels' decoders read
it, and does around each matrix what the plans call the caller's duties, no more: where a duty leaves something out
stands nan, and where a rank has no head stands rubbish. Heads, experts and parts are counted here and not by layoutdsl;
of plans are used extents and duties.

Nonlinear steps (activations, norms, the core of attention) are hashes of all that they read, small whole numbers that
are 0 where all of it is 0: a single wrong bit shows, and sums of products need no rounding, which is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from conversions import INNER, Job, Matrix, rows, run, stored
from decoders import marlin
from decoders.numbers import FLOAT

from layoutdsl import Plan


def eased(tensors: dict[str, list], spec: str) -> dict[str, list]:
    """The same checkpoint with scales of so few bits that every kernel stores them, and sums of products are exact."""

    def ease(name: str, array: np.ndarray) -> np.ndarray:
        if array.dtype == np.uint8 and spec in ("mxfp4", "mxfp8") and name.endswith(("weight_scale", ".scales")):
            return (120 + array % 12).astype(np.uint8)
        if array.dtype == np.float32:
            kept = 0 if "global" in name or name.endswith("scale_2") else 4
            return (array.view(np.uint32) >> 23 - kept << 23 - kept).view(np.float32)
        if array.dtype == np.uint16:
            return array & np.uint16(0xFFE0)
        return array

    return {name: [ease(name, np.asarray(array)) for array in arrays] for name, arrays in tensors.items()}


# --- what stands for nonlinear steps ----------------------------------------------------------------------------------


def hashed(*columns: np.ndarray) -> np.ndarray:
    """Elementwise, a whole number of -3 to 3 from all bits of all columns; 0 where all are 0."""
    total = np.zeros(columns[0].shape, np.uint64)
    for column in columns:
        assert not np.isnan(column).any(), "a number that nobody promised was used"
        bits = np.ascontiguousarray(column + 0.0).view(np.uint64)
        total = (total + bits) * np.uint64(0x9E3779B97F4A7C15)
        total ^= total >> np.uint64(29)
    return (total * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(33)).astype(np.int64) % 7 - 3.0 * (total != 0)


def core(query: np.ndarray, *keys: np.ndarray, width: int) -> np.ndarray:
    """One head's output from all that it reads."""
    read = np.concatenate((query, *keys))
    mixed = hashed(read, np.arange(len(read)) + 1.0) @ (np.arange(len(read)) * 7.0 + 1)
    return hashed(np.full(width, mixed), np.arange(width) + 1.0)


def product(weight: np.ndarray, x: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """weight @ x + bias, which float64 holds exactly in whatever order it is added."""
    nonzero = np.concatenate((weight[weight != 0], bias[bias != 0]))
    if len(nonzero) and not np.isnan(x).any():
        mantissa, exponent = np.frexp(nonzero)
        digits = np.ldexp(mantissa, 53).astype(np.int64)
        unit = (exponent - 53 + np.log2((digits & -digits).astype(float)).astype(int)).min()
        largest = max(float((np.abs(weight) @ np.abs(x) + np.abs(bias)).max()), float(np.abs(nonzero).max()))
        assert np.ldexp(largest, -unit) < 2.0**53 and (x == np.rint(x)).all(), "a sum was rounded"
    return weight @ x + bias


# --- the checkpoint ---------------------------------------------------------------------------------------------------


class Whole:
    """The matrices of one expert as the checkpoint has them; one rank that holds everything."""

    def __init__(self, job: Job, tensors: dict[str, list], expert: int):
        self.job, self.tensors, self.expert = job, tensors, expert

    def weights(self, matrix: Matrix) -> list[np.ndarray]:
        """[n, k] per part."""
        return self.job.values(self.tensors, matrix, self.expert, self.job.source.decode)

    def bias(self, matrix: Matrix) -> list[np.ndarray]:
        """[n] per part."""
        if not self.job.source.bias:
            return [np.zeros(width) for width in matrix.widths]
        found = []
        alternating = self.job.stored[0] == "alternating" and len(matrix.parts) > 1
        for prefix, widths in self.job.holders(matrix):
            one = FLOAT[self.job.source.dtype](self.job.of(self.tensors, prefix, self.expert)["bias"])
            found += [one[at :: len(widths)] for at in range(len(widths))] if alternating else np.split(
                one, np.cumsum(widths)[:-1]
            )  # fmt: skip
        return found

    def outputs(self, matrix: Matrix, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        (x,) = inputs
        return [[product(w, x, b) for w, b in zip(self.weights(matrix), self.bias(matrix))]]

    def attended(self, matrix: Matrix, made: Sequence[list[np.ndarray]], heads, width: int) -> list[np.ndarray]:
        """made: each rank's outputs of parts that are counted in heads: (matrix, part, features of a head)."""
        (parts,) = made
        counts = [len(part) // each for part, (_, _, each) in zip(parts, heads)]
        split = [part.reshape(count, -1) for part, count in zip(parts, counts)]
        found = []
        for at, query in enumerate(split[0]):
            keys = [part[at * count // counts[0]] for part, count in zip(split[1:], counts[1:])]
            found.append(core(query, *keys, width=width))
        return [np.concatenate(found)]

    def total(self, matrix: Matrix, outputs: Sequence[list[np.ndarray]]) -> np.ndarray:
        ((y,),) = outputs
        return y


# --- the ranks --------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """What a rank holds of one matrix, for each of its places for an expert."""

    weight: list[np.ndarray]
    bias: list[np.ndarray]
    order: list[np.ndarray | None]


@dataclass
class Rank:
    """One rank's plan, the kernel's tensors it made, and those read by the kernel's decoder."""

    job: Job
    plan: Plan
    made: dict[str, np.ndarray]
    held: dict[str, Held]

    @staticmethod
    def of(job: Job, tensors: dict[str, list]) -> Rank:
        plan = job.plan
        return Rank.read(job, plan, run(job, tensors, plan=plan))

    @staticmethod
    def read(job: Job, plan: Plan, made: dict[str, np.ndarray]) -> Rank:
        held = {}
        for matrix in job.whole:
            one = Held([], [], [])
            for at in range(len(job.held)):
                one.weight.append(stored(job, plan, made, matrix, at))
                pick = lambda name, at=at: made[name][at] if job.experts else made[name]  # noqa: E731
                bias, order = f"{matrix.name}.bias", f"{matrix.name}.k_perm"
                n = len(one.weight[-1])
                one.bias.append(FLOAT[job.dtype](marlin.bias_bits(pick(bias), n=n)) if bias in made else np.zeros(n))
                one.order.append(pick(order) if order in made else None)
            held[matrix.name] = one
        return Rank(job, plan, made, held)

    def duty(self, matrix: Matrix, kind: str):
        found = [duty for duty in self.plan.duties if (duty.matrix, duty.kind) == (matrix.name, kind)]
        assert len(found) < 2
        return found[0] if found else None

    def extent(self, matrix: Matrix, role: str, part: str = ""):
        (found,) = (e for e in self.plan.extents if (e.matrix, e.role, e.part) == (matrix.name, role, part))
        return found

    def fed(self, matrix: Matrix, x: np.ndarray) -> np.ndarray:
        """What the kernel is given: what the duties say, and elsewhere nan."""
        buffer = np.full(self.extent(matrix, "k").padded, np.nan)
        pad, zeros = self.duty(matrix, "pad_input"), self.duty(matrix, "write_zeros")
        front = pad.front if pad else 0
        rest = (pad.rest if pad else 0) + (zeros.rest if zeros else 0)
        assert front + len(x) + rest <= len(buffer), "more is written than the kernel reads"
        buffer[:front] = 0
        buffer[front : front + len(x)] = x
        buffer[front + len(x) :][:rest] = 0
        return buffer

    def outputs(self, matrix: Matrix, at: int, x: np.ndarray) -> list[np.ndarray]:
        """Per part, as wide as it is stored; of an output that is sliced, what is kept."""
        held = self.held[matrix.name]
        y = product(held.weight[at], self.fed(matrix, x), held.bias[at])
        keep = self.duty(matrix, "slice_output")
        if keep:
            y[keep.length :] = np.nan
        if len(matrix.parts) == 1:
            return [y[: keep.length] if keep else y]
        widths = [self.extent(matrix, "n", part).padded for part in matrix.parts]
        return [y[place] for place in rows(self.job, self.plan, matrix, widths)]


class Shared:
    """One expert, at one place, on its tensor-parallel ranks."""

    def __init__(self, ranks: Sequence[Rank], at: int, rng: np.random.Generator):
        self.ranks, self.at, self.rng = ranks, at, rng

    def rubbish(self, size: int) -> np.ndarray:
        return self.rng.integers(1, 1000, size).astype(float)

    def outputs(self, matrix: Matrix, inputs: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """inputs: each rank's, or one that all of them have."""
        inputs = list(inputs) * (len(self.ranks) if len(inputs) == 1 else 1)
        whole = np.full(matrix.k, np.nan)
        for rank, x in zip(self.ranks, inputs):
            k = rank.extent(matrix, "k")
            whole[k.start :][: k.length] = x[: k.length]
        found = []
        for rank, x in zip(self.ranks, inputs):
            gather = rank.duty(matrix, "gather_input")
            if gather is not None:
                assert gather.tensor == f"{matrix.name}.k_perm"
                x = whole[rank.held[matrix.name].order[self.at]]
            found.append(rank.outputs(matrix, self.at, x))
        return found

    def attended(self, matrix: Matrix, made: Sequence[list[np.ndarray]], heads, width: int) -> list[np.ndarray]:
        """Every rank computes as many heads as any; those that it does not hold give rubbish."""
        found = []
        for rank, parts in zip(self.ranks, made):
            owned = []
            for part, (of, name, each) in zip(parts, heads):
                extent = rank.extent(of, "n", name)
                assert len(part) % each == extent.start % each == extent.length % each == 0, "a head is cut"
                owned.append((extent.start // each, extent.length // each, extent.size // each, len(part) // each))
            split = [part.reshape(-1, each) for part, (_, _, each) in zip(parts, heads)]
            first, count, total, slots = owned[0]
            outputs = [self.rubbish(width) for _ in range(slots)]
            for at in range(count):
                keys = []
                for part, (start, length, size, places) in zip(split[1:], owned[1:]):
                    group = (first + at) * size // total - start
                    assert 0 <= group < length, "a query's keys are on another rank"
                    assert group == at * places // slots, "queries of a rank do not share its keys evenly"
                    keys.append(part[group])
                outputs[at] = core(split[0][at], *keys, width=width)
            found.append(np.concatenate(outputs))
        return found

    def total(self, matrix: Matrix, outputs: Sequence[list[np.ndarray]]) -> np.ndarray:
        if self.ranks[0].duty(matrix, "sum_over_ranks"):
            return sum(y for (y,) in outputs)
        for (y,) in outputs:
            np.testing.assert_array_equal(y, outputs[0][0])
        return outputs[0][0]


# --- modules ----------------------------------------------------------------------------------------------------------


def forward(job: Job, made: Whole | Shared, x: np.ndarray) -> np.ndarray:
    """What the module makes of x."""
    found = {matrix.name: matrix for matrix in job.whole}
    if job.module in INNER:
        first, second = job.whole
        inner = [hashed(*parts) for parts in made.outputs(first, [x])]
        return made.total(second, made.outputs(second, inner))
    o, size = found["o"], job.sizes
    width = size.get("dv", size.get("d"))
    if job.module == "attention":
        qkv = found["qkv"]
        heads = [(qkv, "q", size.get("dq", size["d"])), (qkv, "k", size["d"]), (qkv, "v", width)]
        parts = made.outputs(qkv, [x])
    else:
        queries, start = found.get("q"), x
        if queries is None:
            queries, start = found["q_b"], hashed(made.total(found["q_a"], made.outputs(found["q_a"], [x])))
        latent = made.total(found["kv_a"], made.outputs(found["kv_a"], [x]))
        assert latent.shape == (size["akv"],)
        keys = made.outputs(found["kv_b"], [hashed(latent[: size["rkv"]])])
        heads = [(queries, "", size["dq"]), (found["kv_b"], "", size["dkv"])]
        parts = [[*q, *kv] for q, kv in zip(made.outputs(queries, [start]), keys)]
    return made.total(o, made.outputs(o, made.attended(o, parts, heads, width)))


# --- checks -----------------------------------------------------------------------------------------------------------


def spread(job: Job, tensors: dict[str, list]) -> list[Rank]:
    """All ranks of a job, tensor-parallel neighbours first."""
    return [
        Rank.of(replace(job, rank=rank, ep_rank=ep_rank), tensors)
        for ep_rank in range(job.ep)
        for rank in range(job.tp)
    ]


def check_values(job: Job, tensors: dict[str, list], ranks: Sequence[Rank]) -> None:
    """Put together from the plans' extents, what the ranks store is the checkpoint: every value, as often as the plans
    say, and between them zeros."""
    places = Counter(expert for rank in ranks for expert in rank.job.held)
    for matrix in job.whole:
        for expert in range(job.experts or 1):
            own = job.order(tensors, matrix, expert)
            inner = None
            if job.module in INNER and matrix.name == INNER[job.module][0]:
                inner = job.order(tensors, job.whole[1], expert)
            parts = Whole(job, tensors, expert).weights(matrix)
            counts = [np.zeros(part.shape, int) for part in parts]
            for rank in ranks:
                for at in (at for at, one in enumerate(rank.job.held) if one == expert):
                    _check_rank(rank, matrix, at, parts, counts, own, inner)
            for name, count in zip(matrix.parts, counts):
                held = min(ranks[0].extent(matrix, role, part).held for role, part in (("n", name), ("k", "")))
                assert (count == held * places[expert] // job.tp).all(), "not held as often as the plan says"


def _check_rank(rank, matrix, at, parts, counts, own, inner):
    k = rank.extent(matrix, "k")
    left = rank.held[matrix.name].weight[at].copy()
    columns = (np.arange(matrix.k) if own is None else own)[k.start :][: k.length]
    extents = [rank.extent(matrix, "n", part) for part in matrix.parts]
    places = rows(rank.job, rank.plan, matrix, [n.length for n in extents])
    for part, (n, place) in enumerate(zip(extents, places)):
        outputs = (np.arange(n.size) if inner is None else inner)[n.start :][: n.length]
        here, there = np.ix_(place, np.arange(k.front, k.front + k.length)), np.ix_(outputs, columns)
        np.testing.assert_array_equal(left[here], parts[part][there])
        left[here] = 0
        counts[part][there] += 1
    assert not left.any(), "padding holds a value"


def check_forward(job: Job, tensors: dict[str, list], ranks: Sequence[Rank], rng: np.random.Generator) -> None:
    """Expert by expert, all its places: the ranks together compute what the checkpoint does, bit by bit."""
    x = rng.integers(-3, 4, job.sizes["h"]).astype(float)
    for ep_rank in range(job.ep):
        group = ranks[ep_rank * job.tp :][: job.tp]
        for at, expert in enumerate(group[0].job.held):
            want = forward(job, Whole(job, tensors, expert), x)
            np.testing.assert_array_equal(forward(job, Shared(group, at, rng), x), want)
