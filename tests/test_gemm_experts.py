"""A mixture of experts on the CPU. Its kernels: tokens aligned by expert, activations, and the sum over a token's
experts, against definitions in numpy and torch. And all of it, with plans' weights, against float64 products."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gemm_cases import draw
from gemm_runs import mixed, of_families
from host_kernels import aligned
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError
from layoutdsl.backends.host.counters import total
from layoutdsl.backends.host.launch import Launcher, Schedule, schedules
from layoutdsl.gemm.activate import Activate, Combine
from layoutdsl.gemm.align import Align

FEW = [Schedule(), Schedule("reverse", "late"), Schedule("random", "mixed", 3, 1), Schedule("ahead", "early", 2)]
UNTOUCHED = -77

# ---------------------------------------------------------------- tokens by expert


def align(ids, experts, tile, mapping=None, ids_end=None, schedule=FEW[0]):
    """What the kernel writes, with what it leaves alone still UNTOUCHED."""
    kernel = Align(experts)
    rows = kernel.rows(len(ids), tile)
    found = SimpleNamespace(
        **{
            name: np.full(size, UNTOUCHED, dtype="i4")
            for name, size in {"tokens": rows, "tile_experts": rows // tile, "count": 1, "local": len(ids)}.items()
        }
    )
    launcher = Launcher(schedule)
    launcher.reads("ids", ids)
    if mapping is not None:
        launcher.reads("map", mapping)
    for name, array in vars(found).items():
        launcher.writes(name, array)
    end = ids_end if ids_end is not None else experts if mapping is None else len(mapping)
    launcher.launch(*kernel(
        ids=ids.ctypes.data, id_bytes=ids.itemsize, pairs=len(ids), ids_end=end, tile=tile,
        map=0 if mapping is None else mapping.ctypes.data,
        **{name: array.ctypes.data for name, array in vars(found).items()},
    ))  # fmt: skip
    found.counters = launcher.counters["moe_align"]
    return found


def check_aligned(found, ids, experts, tile, mapping=None):
    """The laws: a pair that goes to an expert here stands once, in its tiles and in order; the rest is filling."""
    pairs = len(ids)
    here = [int(mapping[one]) if mapping is not None and 0 <= one < len(mapping) else int(one) for one in ids]
    here = np.array([one if 0 <= one < experts else -1 for one in here], dtype="i8")
    assert np.array_equal(found.local, here)
    rows, at = int(found.count[0]), 0
    for expert in range(experts):
        mine = np.flatnonzero(here == expert)
        tiles = -(-len(mine) // tile)
        stretch = found.tokens[at : at + tiles * tile]
        assert np.array_equal(stretch[: len(mine)], mine)
        assert np.all(stretch[len(mine) :] == pairs)
        assert np.all(found.tile_experts[at // tile : at // tile + tiles] == expert)
        at += tiles * tile
    assert at == rows
    assert np.all(found.tokens[rows:] == UNTOUCHED) and np.all(found.tile_experts[rows // tile :] == UNTOUCHED)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 300), st.sampled_from([1, 16, 32, 48, 64]), st.sampled_from(["i4", "i8"]),
    st.integers(0, 2**32 - 1), st.sampled_from(FEW),
)  # fmt: skip
def test_aligned(experts, pairs, tile, dtype, seed, schedule):
    dice = np.random.default_rng(seed)
    ids = np.sort(dice.integers(0, experts, pairs)) if seed % 3 == 0 else dice.integers(0, experts, pairs) // 2
    ids = dice.permutation(ids).astype(dtype)
    check_aligned(align(ids, experts, tile, schedule=schedule), ids, experts, tile)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 200), st.sampled_from(["i4", "i8"]), st.integers(0, 2**32 - 1))
def test_of_one_rank(everywhere, pairs, dtype, seed):
    """Experts that live elsewhere have no rows, and neither have numbers that stand for no expert."""
    dice = np.random.default_rng(seed)
    experts = int(dice.integers(1, everywhere + 1))
    mapping = dice.choice([-1, experts, experts + 16, 1 << 30], everywhere).astype("i4")
    mapping[dice.permutation(everywhere)[:experts]] = np.arange(experts)
    ids = dice.integers(0, everywhere, pairs).astype(dtype)
    ids[dice.random(pairs) < 0.1] = -1
    ids[dice.random(pairs) < 0.1] = everywhere
    ids[dice.random(pairs) < 0.05] = np.iinfo(dtype).min
    check_aligned(align(ids, experts, 16, mapping), ids, experts, 16, mapping)


@pytest.mark.parametrize("pairs", [1023, 1024, 4095, 4096, 9000, 40000])
def test_of_many_blocks(pairs):
    ids = np.random.default_rng(pairs).zipf(1.3, pairs) % 512
    ids = ids.astype("i4")
    kernel, blocks, _ = Align(512)(
        ids=0, id_bytes=4, pairs=pairs, ids_end=512, tokens=0, tile_experts=0, count=0, local=0, tile=64
    )
    assert kernel.shared < 48 << 10 and (blocks > 1) == (pairs >= 4096)
    check_aligned(align(ids, 512, 64, schedule=Schedule("random", resident=4)), ids, 512, 64)


def test_aligned_in_every_schedule():
    ids = np.random.default_rng(5).integers(0, 9, 4200).astype("i8")
    wanted = align(ids, 9, 16)
    for schedule in schedules(resident=2):
        found = align(ids, 9, 16, schedule=schedule)
        assert all(np.array_equal(getattr(found, name), getattr(wanted, name)) for name in ("tokens", "local", "count"))


def test_ids_are_read_in_full_sectors():
    ids = aligned(4096, "i4")
    ids[:] = np.random.default_rng(1).integers(0, 60, 4096)
    loads = align(ids, 60, 16).counters.global_loads
    assert loads.bytes == loads.sectors * 32 == 4096 * 4 * 3  # two blocks count all pairs, and place their own


def test_no_more_experts_than_threads():
    with pytest.raises(LayoutError) as caught:
        Align(513)
    assert caught.value.diagnostics[0].code == "LP360"


# ---------------------------------------------------------------- activations

REALS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    # (1 + tanh(y)) / 2 is sigmoid(2 y), which keeps its digits where it is small
    "gelu_tanh": lambda x: x * torch.sigmoid((8 / math.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "gelu": lambda x: x * torch.special.erfc(x * -(0.5**0.5)) / 2,
    "relu2": lambda x: torch.relu(x) ** 2,
}
ACTIVATIONS = [
    *((function, parts) for function in FUNCTIONS for parts in ("split", "alternating", "plain")),
    ("swiglu_oai", "split"),
    ("swiglu_oai", "alternating"),
]


def activated(x, function, parts, valid, up):
    """The definition, in float64."""
    if parts == "plain":
        return FUNCTIONS[function](x[:, :valid])
    split = x[:, :valid], x[:, up : up + valid]
    gate, part = split if parts == "split" else (x[:, 0 : 2 * valid : 2], x[:, 1 : 2 * valid : 2])
    if function != "swiglu_oai":
        return FUNCTIONS[function](gate) * part
    gate, part = gate.clamp(max=7.0), part.clamp(-7.0, 7.0)
    return (part + 1) * (gate * torch.sigmoid(1.702 * gate))


def near(made, wanted, dtype):
    """Rounded once to 16 bits, after arithmetic in fp32 within 2^-15."""
    of = torch.finfo(REALS[dtype])
    bound = wanted.abs() * (of.eps / 2 + 2.0**-15) + of.smallest_normal * of.eps / 2 + 2.0**-118
    return bool(torch.all((made.double() - wanted).abs() <= bound))


def tensor(shape, dtype, seed=0, scale=1.0):
    """Values of all sizes, at a multiple of 256 bytes."""
    found = torch.from_numpy(aligned(shape, "i2")).view(REALS[dtype])
    dice = torch.Generator().manual_seed(seed)
    return found.copy_(torch.randn(shape, generator=dice) * scale)


def activate(x, function, parts, dtype, width, valid, up, front=0, local=None, schedule=FEW[0]):
    to = tensor((len(x), width), dtype).fill_(UNTOUCHED)
    launcher = Launcher(schedule)
    launcher.reads("x", x)
    launcher.writes("to", to)
    if local is not None:
        launcher.reads("local", local)
    kernel = Activate(function, parts, dtype)
    launcher.launch(*kernel(
        of=x.data_ptr(), stride=x.shape[1], rows=len(x), to=to.data_ptr(), width=width, valid=valid, up=up,
        front=front, local=0 if local is None else local.ctypes.data,
    ))  # fmt: skip
    return to, launcher.counters[kernel.name]


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("function, parts", ACTIVATIONS)
def test_activation(function, parts, dtype):
    valid, up = 43, 48
    columns = {"split": 96, "alternating": 96, "plain": 48}[parts]
    for seed, (scale, schedule) in enumerate(zip((0.3, 3.0, 12.0, 0.01), FEW)):
        x = tensor((5, columns), dtype, seed, scale)
        to, _ = activate(x, function, parts, dtype, 64, valid, up, front=8, schedule=schedule)
        wanted = activated(x.double(), function, parts, valid, up)
        assert near(to[:, 8 : 8 + valid], wanted, dtype)
        assert not to[:, :8].any() and not to[:, 8 + valid :].any()


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_number(function, dtype):
    """All finite 16-bit numbers, and what infinite ones and NaNs become."""
    codes = aligned((1 << 13, 8), "u2")
    codes[:] = np.arange(1 << 16, dtype="u2").reshape(codes.shape)
    x = torch.from_numpy(codes.view("i2")).view(REALS[dtype])
    to, _ = activate(x, function, "plain", dtype, 8, 8, 0)
    wanted = activated(x.double(), function, "plain", 8, 0)
    finite = x.isfinite() & (wanted.abs() <= torch.finfo(REALS[dtype]).max)
    assert near(to[finite], wanted[finite], dtype)
    assert torch.all(to[x.isnan()].isnan()) and torch.all(to[x == math.inf] == math.inf)


def test_rows_of_other_ranks_are_left_alone():
    x, local = tensor((64, 128), "bfloat16"), np.full(64, -1, dtype="i4")
    local[[3, 17, 40]] = [0, 5, 2]
    x[local < 0] = math.nan
    to, counters = activate(x, "silu", "split", "bfloat16", 64, 64, 64, local=local)
    wanted = activated(x.double(), "silu", "split", 64, 64)
    assert near(to[local >= 0], wanted[local >= 0], "bfloat16")
    assert torch.all(to[local < 0] == UNTOUCHED)
    assert counters.global_stores.bytes == 3 * 128 and counters.global_loads.bytes == 3 * 256 + 64 * 8 * 4


@pytest.mark.parametrize("function, parts", ACTIVATIONS)
def test_each_byte_once_and_in_full_sectors(function, parts):
    columns = 512 if parts != "plain" else 256
    x = tensor((24, columns), "float16")
    _, counters = activate(x, function, parts, "float16", 320, 256, 256, front=32)
    loads, stores = counters.global_loads, counters.global_stores
    assert loads.bytes == loads.sectors * 32 == x.nbytes and loads.wide == loads.accesses
    assert stores.bytes == stores.sectors * 32 == 24 * 320 * 2
    assert {line.width for line, _ in counters.lines if line.way == "store"} == {8 if parts == "alternating" else 16}


@pytest.mark.parametrize(
    "name, wrong", [("stride", 129), ("up", 4), ("width", 60), ("front", 2), ("rows", 1 << 40), ("of", 8)]
)
def test_what_accesses_cannot_follow(name, wrong):
    right = {"of": 0, "stride": 128, "rows": 4, "to": 0, "width": 64, "valid": 64, "up": 64}
    Activate("silu", "split", "float16")(**right)
    with pytest.raises(LayoutError) as caught:
        Activate("silu", "split", "float16")(**{**right, name: wrong})
    assert caught.value.diagnostics[0].code == "LP362"


def test_a_swiglu_oai_has_a_gate():
    with pytest.raises(LayoutError) as caught:
        Activate("swiglu_oai", "plain", "float16")
    assert caught.value.diagnostics[0].code == "LP361"


# ---------------------------------------------------------------- the sum over a token's experts


def summed(x, local, top_k, columns, dtype, schedule=FEW[0]):
    tokens = len(x) // top_k
    to = tensor((tokens, columns), dtype).fill_(UNTOUCHED)
    launcher = Launcher(schedule)
    for name, of in (("x", x), ("local", local)):
        launcher.reads(name, of)
    launcher.writes("to", to)
    kernel = Combine(dtype)
    launcher.launch(*kernel(
        of=x.data_ptr(), stride=x.shape[1], local=local.ctypes.data, top_k=top_k, to=to.data_ptr(), columns=columns,
        tokens=tokens,
    ))  # fmt: skip
    return to, launcher.counters[kernel.name]


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("top_k, columns", [(1, 64), (2, 40), (8, 37), (10, 96)])
def test_sum(top_k, columns, dtype):
    for seed, schedule in enumerate(FEW):
        dice = np.random.default_rng(seed)
        x = tensor((7 * top_k, -(-columns // 8) * 8), dtype, seed)
        local = dice.integers(-1, 3, 7 * top_k).astype("i4")
        local[:top_k] = -1  # a token that has no expert here
        x[local < 0] = math.nan
        to, _ = summed(x, local, top_k, columns, dtype, schedule)
        terms = torch.where(torch.from_numpy(local < 0)[:, None], 0, x.double())[:, :columns].reshape(7, top_k, columns)
        wanted, of = terms.sum(1), torch.finfo(REALS[dtype])
        bound = wanted.abs() * of.eps / 2 + terms.abs().sum(1) * top_k * 2.0**-24 + of.smallest_normal * of.eps / 2
        assert torch.all((to.double() - wanted).abs() <= bound)
        assert not to[0].any()


def test_sum_in_order():
    """1 + 2^-24 is 1 in fp32, so that small numbers count only where they come first."""
    x = tensor((4, 8), "bfloat16").fill_(0)
    x[:, 0], x[:, 1] = torch.tensor([1.0, 2.0**-24, 2.0**-24, -1.0]), torch.tensor([2.0**-24, 2.0**-24, 1.0, -1.0])
    to, _ = summed(x, np.zeros(4, dtype="i4"), 4, 8, "bfloat16")
    assert to[0, :2].tolist() == [0.0, 2.0**-23]


def test_sum_reads_each_byte_once_and_in_full_sectors():
    x, local = tensor((48, 256), "float16"), np.zeros(48, dtype="i4")
    _, counters = summed(x, local, 4, 256, "float16")
    wide = [traffic for line, traffic in counters.lines if line.width == 16]
    assert sum(traffic.bytes for traffic in wide) == x.nbytes + 12 * 512
    assert all(traffic.bytes == traffic.sectors * 32 for traffic in wide)
    assert counters.global_stores.wide == counters.global_stores.accesses


# ---------------------------------------------------------------- the whole

SIZES = {"e": 8, "i": 72, "h": 128}


def ep_map(everywhere: int, held: range) -> np.ndarray:
    """The map of a rank that has these of all experts."""
    made = np.full(everywhere, -1, dtype="i4")
    made[list(held)] = np.arange(len(held))
    return made


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("e, top_k", [(1, 1), (8, 2), (60, 4)])
def test_tokens_and_experts(e, top_k, dtype):
    case = draw("u4b8", dtype, "moe_gated", SIZES | {"e": e}, group=64)
    for seed, tokens in enumerate((1, 5, 16, 33, 64)):
        of = mixed(case, tokens, top_k, "silu", seed=seed)
        of.check()


CODES = [
    ("u4b8", "float16", 32), ("u4b8", "bfloat16", -1), ("u4", "float16", 32), ("u4", "bfloat16", 64),
    ("u8b128", "float16", 64), ("u8b128", "bfloat16", -1), ("e4m3", "float16", None), ("e4m3", "bfloat16", None),
    ("e4m3_blocks", "float16", 64), ("e4m3_blocks", "bfloat16", 128), ("nvfp4", "float16", None),
    ("nvfp4", "bfloat16", None), ("mxfp8", "bfloat16", None), ("mxfp4", "bfloat16", None),
]  # fmt: skip


@pytest.mark.parametrize("name, dtype, group", CODES)
def test_codes(name, dtype, group):
    case = draw(name, dtype, "moe_gated", SIZES, group=group)
    of = mixed(case, 9, 2, "silu")
    of.check()


def test_gpt_oss():
    """Gate and up alternate, both products have a bias, and h is no multiple of a tile."""
    sizes, orders = {"e": 6, "i": 96, "h": 160}, ("alternating", "alternating")
    case = draw("gpt_oss", "bfloat16", "moe_gated", sizes, stored=orders, params={"bias": True})
    of = mixed(case, 33, 4, "swiglu_oai")
    of.check()
    of.check(*of_families(32), splits=2)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "swiglu_oai", "relu2"])
def test_activations_between_products(activation):
    module = "moe_plain" if activation == "relu2" else "moe_gated"
    orders = ["stacked"] if activation == "relu2" else ["stacked", "alternating"]
    for order in orders:
        case = draw("u4b8", "float16", module, SIZES, group=32, stored=("apart", order), params={"bias": True})
        of = mixed(case, 7, 3, activation)
        of.check()


TILES = [(16, 2), (32, 1), (48, 3), (64, 1)]


@pytest.mark.parametrize("schedule, m, splits", [(schedule, *tile) for schedule, tile in zip(FEW, TILES)])
def test_tiles_and_splits(schedule, m, splits):
    case = draw("u4b8", "bfloat16", "moe_gated", SIZES | {"i": 136, "h": 256}, group=64)
    of = mixed(case, 70, 2, "silu")
    of.check(*of_families(m), splits=splits, schedule=schedule)


def test_expert_parallel():
    """Each rank adds what its experts give; what the kernels keep of other ranks' pairs is NaN throughout."""
    total = 0
    for rank in range(3):
        case = draw("u4b8", "float16", "moe_gated", SIZES, group=64, ep=3, ep_rank=rank)
        of = mixed(case, 21, 3, "silu", map=ep_map(8, case.job.held))
        made = of.check()
        total = total + made.double()
    whole = draw("u4b8", "float16", "moe_gated", SIZES, group=64)
    of = mixed(whole, 21, 3, "silu")
    wanted = of.wanted()
    wanted.error[:] *= 2  # each rank has rounded its part
    wanted.check(total)


@pytest.mark.parametrize("i, group, tp, rank, contract, w13, w2", [
    (192, 64, 2, 1, "tight", 192, 128),  # 96 of w2's inputs
    (192, 64, 2, 1, "vllm", 256, 128),  # 64
    (200, 128, 3, 2, "tight", 192, 128),  # 72
    (160, 64, 4, 3, "tight", 128, 64),  # none
])  # fmt: skip
def test_padding_between_products(i, group, tp, rank, contract, w13, w2):
    """A rank's w2 has inputs that are no output of its w13, which has outputs that nobody asked for."""
    params = {"module.contract": contract}
    case = draw("u4b8", "float16", "moe_gated", SIZES | {"i": i}, group=group, tp=tp, rank=rank, params=params)
    assert (case.padded("w13")[0], case.padded("w2")[1]) == (w13, w2) and case.extent("w2", "k").length < w2
    of = mixed(case, 9, 2, "silu")
    of.check()


def test_experts_that_no_token_chose_cost_nothing():
    """Of 60 experts 5 are chosen, unevenly: the tiles that they need are all that is loaded."""
    case = draw("u4b8", "float16", "moe_gated", SIZES | {"e": 60}, group=64)
    of = mixed(case, 40, 1, "silu", choice=[7])
    of.ids[:8] = [[3], [59], [59], [21], [21], [21], [22], [7]]
    of.check()
    tiles = 1 + 1 + 1 + 1 + 3
    for name in ("w13", "w2"):
        n, k = case.padded(name)
        loads = total(
            traffic for line, traffic in of.launches[name].counters.lines
            if line.file.endswith("weights.cuh") and line.space == "global"
        )  # fmt: skip
        assert loads.bytes == loads.sectors * 32 == tiles * n * k // 2


def test_a_rank_that_no_token_needs():
    case = draw("u4b8", "float16", "moe_gated", SIZES, group=64, ep=2, ep_rank=0)
    of = mixed(case, 5, 2, "silu", map=ep_map(8, case.job.held), choice=[4, 5, 6, 7])
    assert not of.run().any()
    assert all(of.launches[name].counters.global_loads.wide == 0 for name in ("w13", "w2"))
