"""One conversion, checked end to end: draw a checkpoint, plan, run, and read both sides with their own decoders.

`Job` says what is converted. The tests' own idea of modules, parts, ranks and padding is here; of a plan they use only
the padded extents that it states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from checkpoints import Format, nearest, rows_of
from decoders import marlin
from decoders.numbers import FLOAT, f32

from layoutdsl import Plan, compile_plan

# kernel -> activation (None: that of the parameters' dtype), exponent that its float scales carry
KERNELS = {
    "marlin_int4_a16": (None, {}),
    "marlin_int8_a16": (None, {}),
    "marlin_int4_a8int8": ("int8", {}),
    "marlin_int8_a8int8": ("int8", {}),
    "marlin_int4_a8fp8": ("float8_e4m3fn", {"float16": 9, "bfloat16": 9}),
    "marlin_fp8_a16": (None, {"float16": 8, "bfloat16": 120}),
    "marlin_int4_a16_n128": (None, {}),
    "own_fp8_a16": (None, {"float16": 8, "bfloat16": 120}),
    "marlin_mxfp8_a16": (None, {}),
    "marlin_nvfp4_a16": (None, {}),
    "marlin_mxfp4_a16": (None, {}),
    "marlin_mxfp4_a8fp8": ("float8_e4m3fn", {}),
}
TILES = ((64, 128), (128, 64))
# module -> the matrix that writes the inner axis and the one that reads it; parts of the first
INNER = {
    "moe_gated": ("w13", "w2", ("gate", "up")),
    "moe_plain": ("w13", "w2", ("",)),
    "mlp_gated": ("gate_up", "down", ("gate", "up")),
    "mlp_plain": ("up", "down", ("",)),
}
STEP = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 2.0**-134)}
"""Half a unit in the last place of 1, and half the least number."""


class Matrix(NamedTuple):
    name: str
    parts: tuple
    widths: tuple
    k: int
    cut: str
    tail: bool


@dataclass
class Job:
    """A format's tensors into a kernel's, for one rank. `stored` says how fused parts are stored on either side;
    `slots`, the expert of each place for one; `sharded`, that the file holds this rank's slice alone; `only`, the
    matrices that are converted, where not all are."""

    source: Format
    kernel: str
    module: str
    sizes: dict
    stored: tuple = ("apart", "stacked")
    split: str = "none"
    names: tuple = ("q", "k", "v")
    dtype: str = ""
    params: dict = field(default_factory=dict)
    padded: dict = field(default_factory=dict)
    tp: int = 1
    rank: int = 0
    ep: int = 1
    ep_rank: int = 0
    slots: tuple = ()
    sharded: bool = False
    only: tuple = ()

    def __post_init__(self):
        self.dtype = self.dtype or self.source.dtype

    @property
    def plan(self) -> Plan:
        params = {f"source.{name}": value for name, value in self.source.params.items()}
        params |= {"target.dtype": self.dtype}
        if self.source.bias:
            params["target.bias"] = True
        if self.module.startswith("linear"):
            params["module.split"] = self.split
        if self.module == "linear_fused":
            params["module.names"] = ",".join(self.names)
        if any(len(matrix.parts) > 1 for matrix in self.whole):
            params |= {"source.parts": self.stored[0], "target.parts": self.stored[1]}
        return compile_plan(
            self.source.spec,
            self.kernel,
            self.module,
            self.sizes,
            params=params | self.params,
            tp=self.tp,
            rank=self.rank,
            ep=self.ep,
            ep_rank=self.ep_rank,
            experts=self.slots,
            sharded=self.sharded,
            padded=self.padded,
            only=self.only,
        )

    # the module, in our own words -----------------------------------------------------------------------------------

    @property
    def experts(self) -> int:
        """How many experts the file holds."""
        return self.sizes.get("e", 0) // (self.ep if self.sharded else 1)

    @property
    def matrices(self) -> list[Matrix]:
        """As the file holds them."""
        if not self.sharded:
            return self.whole
        found = []
        for matrix in self.whole:
            n, k = (self.tp if matrix.cut == axis else 1 for axis in "nk")
            found.append(matrix._replace(widths=tuple(width // n for width in matrix.widths), k=matrix.k // k))
        return found

    @property
    def whole(self) -> list[Matrix]:
        sizes, sharing = self.sizes, self.tp > 1
        if self.module in INNER:
            first, second, parts = INNER[self.module]
            cuts = ("n", "k") if sharing else ("", "")
            return [
                Matrix(first, parts, (sizes["i"],) * len(parts), sizes["h"], cuts[0], False),
                Matrix(second, ("",), (sizes["h"],), sizes["i"], cuts[1], False),
            ]
        if self.module.endswith("attention"):
            return [
                Matrix(name, parts, widths, k, cut if sharing else "", len(parts) > 1)
                for name, parts, widths, k, cut in heads_of(self)
            ]
        parts = self.names if self.module == "linear_fused" else ("",)
        widths = sizes["n"] if isinstance(sizes["n"], tuple) else (sizes["n"],) * len(parts)
        cut = self.split if sharing and self.split != "none" else ""
        return [Matrix("linear", parts, widths, sizes["k"], cut, self.module == "linear_fused")]

    def holders(self, matrix: Matrix) -> list[tuple[str, tuple]]:
        """(prefix of the tensors' names, widths of the parts inside) of one matrix in the file."""
        if len(matrix.parts) > 1 and self.stored[0] == "apart":
            return [(f"{matrix.name}.{part}", (width,)) for part, width in zip(matrix.parts, matrix.widths)]
        return [(matrix.name, matrix.widths)]

    def draw(self, rng) -> dict[str, list]:
        """Plan's name -> array per expert."""
        found: dict[str, list] = {}
        for matrix in self.matrices:
            for _ in range(self.experts or 1):
                holders = self.holders(matrix)
                files = [self.source.draw(rng, widths, matrix.k) for _, widths in holders]
                self.source.agree(rng, files)
                for (prefix, _), file in zip(holders, files):
                    for name, array in file.items():
                        found.setdefault(f"{prefix}.{name}", []).append(array)
        return found

    def of(self, tensors: dict, prefix: str, expert: int) -> dict:
        prefix += "."
        return {name.removeprefix(prefix): t[expert] for name, t in tensors.items() if name.startswith(prefix)}

    def values(self, tensors: dict, matrix: Matrix, expert: int, decode) -> list[np.ndarray]:
        """Per part of the whole matrix, what `decode(tensors, widths, k, alternating=)` makes of it."""
        alternating = self.stored[0] == "alternating" and len(matrix.parts) > 1
        return [
            rows
            for prefix, widths in self.holders(matrix)
            for rows in decode(self.of(tensors, prefix, expert), widths, matrix.k, alternating=alternating)
        ]

    def cut(self, size: int, cut: bool) -> slice:
        """This rank's part of an axis: whole grains of what the plan cuts at multiples of, dealt like cards. A last one
        that is short and has no fellow goes to the last rank."""
        if not cut or self.sharded:
            return slice(0, size)
        grain = dict(self.plan.grains).popitem()[1] if self.plan.grains else size // self.tp
        owners = sorted(at % self.tp for at in range(-(-size // grain)))
        if size % grain and len(owners) > self.tp and len(owners) % self.tp == 1:
            owners = sorted([*owners[1:], self.tp - 1])
        held = [at for at, owner in enumerate(owners) if owner == self.rank]
        return slice(min(held[0] * grain, size), min((held[-1] + 1) * grain, size)) if held else slice(size, size)

    def order(self, tensors: dict, matrix: Matrix, expert: int):
        return self.source.order(self.of(tensors, self.holders(matrix)[0][0], expert))

    def logical(self, tensors: dict, matrix: Matrix, expert: int, decode) -> list[np.ndarray]:
        """The rank's [n, k] per part, in act-order sorted as the kernel has it."""
        inner = None
        if self.module in INNER and matrix.name == INNER[self.module][0]:
            inner = self.order(tensors, self.matrices[1], expert)
        own = self.order(tensors, matrix, expert)
        found = []
        for rows in self.values(tensors, matrix, expert, decode):
            rows = rows if inner is None else rows[inner]
            rows = rows if own is None else rows[:, own]
            found.append(rows[self.cut(len(rows), matrix.cut == "n"), self.cut(matrix.k, matrix.cut == "k")])
        return found

    @property
    def held(self) -> Sequence[int]:
        """The experts of this rank, as the file counts them."""
        if self.sharded:
            return range(self.experts or 1)
        places = self.slots or range(self.experts or 1)
        owners = sorted(at % self.ep for at in range(len(places)))
        return places[owners.index(self.ep_rank) :][: owners.count(self.ep_rank)]


def heads_of(job: Job):
    """(name, parts, widths, k, what ranks cut) of each projection of attention. Ranks cut heads."""
    size = dict(job.sizes)
    q, h, dv = size["q"], size["h"], size.get("dv") or size["d"]
    if job.module == "attention":
        kv, d = size.get("kv", q), size["d"]
        yield "qkv", ("q", "k", "v"), (q * size.get("dq", d), kv * d, kv * dv), h, "n"
    elif job.params.get("module.queries") == "direct":
        yield "q", ("",), (q * size["dq"],), h, "n"
    else:
        yield "q_a", ("",), (size["rq"],), h, ""
        yield "q_b", ("",), (q * size["dq"],), size["rq"], "n"
    if job.module == "latent_attention":
        yield "kv_a", ("",), (size["akv"],), h, ""
        yield "kv_b", ("",), (q * size["dkv"],), size["rkv"], "n"
    yield "o", ("",), (h,), q * dv, "k"


# --- run --------------------------------------------------------------------------------------------------------------


def given(plan: Plan, tensors: dict[str, list]) -> dict[str, torch.Tensor | list[torch.Tensor]]:
    """Arrays as the tensors that a plan takes: one for all experts in tensors, every other name a list of them."""
    found = {}
    for at, (name, arrays) in enumerate(tensors.items()):
        dtype = getattr(torch, plan.input[name].dtypes[0]) if name in plan.input else None
        made = [tensor(array, dtype) for array in arrays]
        found[name] = made[0] if not plan.experts[0] else torch.stack(made) if at % 2 else made
    return found


def tensor(array, dtype: torch.dtype | None) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    carrier = {np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32}.get(array.dtype)
    made = torch.from_numpy((array.view(carrier) if carrier else array).copy())
    return made if dtype is None or made.dtype == dtype else made.view(dtype)


def array(made: torch.Tensor) -> np.ndarray:
    """A tensor as decoders take it."""
    if made.dtype in (torch.int32, torch.int64, torch.float32, torch.uint8):
        return made.numpy()
    wide = made.element_size() == 2
    return made.contiguous().view(torch.int16 if wide else torch.uint8).numpy().view(np.uint16 if wide else np.uint8)


def run(job: Job, tensors: dict[str, list], *, plan: Plan | None = None, **options) -> dict[str, np.ndarray]:
    """The target's arrays. Options are those of Plan.run."""
    plan = plan or job.plan
    return {name: array(made) for name, made in plan.run(given(plan, tensors), **options).items()}


def stored(job: Job, plan: Plan, made: dict[str, np.ndarray], matrix: Matrix, at: int) -> np.ndarray:
    """The padded float64 matrix that the kernel reads for the rank's expert number `at`."""
    n, k = padded(plan, matrix)
    prefix = matrix.name + "."
    one = {
        name.removeprefix(prefix): tensor[at] if job.experts and tensor.ndim else tensor
        for name, tensor in made.items()
        if name.startswith(prefix)
    }
    activation = KERNELS[job.kernel][0] or job.dtype
    return marlin.decode(one, n=n, k=k, code=job.source.code, activation=activation, dtype=job.dtype)


def padded(plan: Plan, matrix: Matrix) -> tuple[int, int]:
    found = {(e.role, e.part): e.padded for e in plan.extents if e.matrix == matrix.name}
    n = found.get(("n", "*"), sum(size for (role, _), size in found.items() if role == "n"))
    assert any(n % tile_n == 0 and found["k", ""] % tile_k == 0 for tile_n, tile_k in TILES)
    return n, found["k", ""]


def rows(job: Job, plan: Plan, matrix: Matrix, lengths: list[int]) -> list[np.ndarray]:
    """The stored rows of each part."""
    if job.stored[1] == "alternating" and len(lengths) > 1:
        return [np.arange(length) * len(lengths) + part for part, length in enumerate(lengths)]
    extents = {e.part: e.padded for e in plan.extents if e.matrix == matrix.name and e.role == "n"}
    widths = [extents[part] for part in matrix.parts]
    return [np.arange(length) + sum(widths[:part]) for part, length in enumerate(lengths)]


# --- check ------------------------------------------------------------------------------------------------------------


def check(job: Job, rng=None, tensors: dict[str, list] | None = None, **options) -> dict[str, np.ndarray]:
    """Convert, and hold the target against the source: logical region exact, padding zero. Returns the target."""
    tensors = job.draw(rng) if tensors is None else tensors
    plan = job.plan
    made = run(job, tensors, plan=plan, **options)
    for matrix in job.matrices:
        for at, expert in enumerate(job.held):
            _check_matrix(job, plan, tensors, made, matrix, at, expert)
        _check_passed(job, plan, tensors, made, matrix)
    return made


def compare(job: Job, plan: Plan, tensors: dict[str, list], made: dict[str, np.ndarray]):
    """(matrix, expert, what the source holds, what the target holds) of each matrix of the rank, parts stacked."""
    for matrix in job.matrices:
        for at, expert in enumerate(job.held):
            want = job.logical(tensors, matrix, expert, job.source.decode)
            places = np.concatenate(rows(job, plan, matrix, [len(part) for part in want]))
            want = np.concatenate(want)
            yield matrix, expert, want, stored(job, plan, made, matrix, at)[places, : want.shape[1]]


def _check_matrix(job, plan, tensors, made, matrix, at, expert):
    exact = job.logical(tensors, matrix, expert, job.source.decode)
    found = stored(job, plan, made, matrix, at)
    places = rows(job, plan, matrix, [len(part) for part in exact])
    lossy = f"{matrix.name}.weight_scale" in dict(plan.losses)
    for part, (want, place) in enumerate(zip(exact, places)):
        got = found[place, : want.shape[1]]
        assert np.isfinite(want).all()
        if f"{matrix.name}.input_global_scale" in made:
            levels = job.logical(tensors, matrix, expert, _ones(job.source))[part]
            unit = made[f"{matrix.name}.input_global_scale"].item()
            assert lossy and (np.abs(got - want) <= np.abs(levels) * unit * (0.5 + 2.0**-20)).all()
        else:
            expected = job.logical(tensors, matrix, expert, _rounded(job))[part]
            np.testing.assert_array_equal(got, expected)
            _within(job, plan, matrix, expected, want, job.logical(tensors, matrix, expert, _ones(job.source))[part])
        found[place, : want.shape[1]] = 0
    assert not found.any(), "padding holds a value"
    _check_bias(job, plan, tensors, made, matrix, at, expert, places, found.shape[0])


def _ones(source: Format):
    """Decodes with every float scale 1: codes less their zero points."""
    if source.exact_scale:
        return source.decode
    return lambda tensors, widths, k, **how: source.decode(source.rescaled(tensors, np.ones_like), widths, k, **how)


def _rounded(job: Job):
    """Decodes with scales as the kernel can store them: times its exponent, rounded once."""
    source, power = job.source, KERNELS[job.kernel][1].get(job.dtype, 0)
    if source.spec == "nvfp4":
        return source.inverted
    if source.exact_scale:
        return source.decode

    def change(scale):
        return np.ldexp(nearest(np.ldexp(scale, power), job.dtype), -power)

    return lambda tensors, widths, k, **how: source.decode(source.rescaled(tensors, change), widths, k, **how)


def _within(job, plan, matrix, made, exact, levels):
    """What was rounded is declared, and within the bound that is declared."""
    losses = dict(plan.losses)
    if f"{matrix.name}.global_scale" in losses:
        assert (np.abs(made - exact) <= np.abs(exact) * 2.0**-24).all()
        return
    if f"{matrix.name}.weight_scale" not in losses or job.source.exact_scale:
        np.testing.assert_array_equal(made, exact)
        return
    step, least = STEP[job.dtype]
    power = KERNELS[job.kernel][1].get(job.dtype, 0)
    assert (np.abs(made - exact) <= np.maximum(np.abs(exact) * step, np.abs(levels) * np.ldexp(least, -power))).all()


def _check_bias(job, plan, tensors, made, matrix, at, expert, places, n):
    assert (f"{matrix.name}.bias" in made) == bool(job.source.bias)
    if not job.source.bias:
        return
    values = job.logical(tensors, matrix, expert, _bias(job.source))
    exact = np.zeros(n)
    for part, place in zip(values, places) if matrix.cut != "k" or job.rank == 0 else ():
        exact[place] = part[:, 0]
    want = nearest(exact, job.dtype)
    assert (want == exact).all() or f"{matrix.name}.bias" in dict(plan.losses)
    bias = made[f"{matrix.name}.bias"]
    got = FLOAT[job.dtype](marlin.bias_bits(bias[at] if job.experts else bias, n=n))
    np.testing.assert_array_equal(got, want)


def _bias(source: Format):
    """Decodes a bias as if it were a matrix with k copies of it."""

    def decode(tensors, widths, k, *, alternating):
        return rows_of(np.repeat(FLOAT[source.dtype](tensors["bias"])[:, None], k, axis=1), widths, alternating)

    return decode


def _check_passed(job, plan, tensors, made, matrix):
    """What leaves under its own name: input scales, and the order that the caller gathers its input by."""
    for name, arrays in tensors.items():
        if name.startswith(matrix.name + ".") and name.endswith("input_scale"):
            np.testing.assert_array_equal(f32(made[name]).reshape(-1), [f32(arrays[e]).item() for e in job.held])
    if not job.source.act_order or matrix.name in {second for _, second, _ in INNER.values()}:
        return
    assert ("gather_input", f"{matrix.name}.k_perm") in {(duty.kind, duty.tensor) for duty in plan.duties}
    for at, expert in enumerate(job.held):
        order = job.order(tensors, matrix, expert)[job.cut(matrix.k, matrix.cut == "k")]
        got = made[f"{matrix.name}.k_perm"]
        np.testing.assert_array_equal(got[at] if job.experts else got, order)
