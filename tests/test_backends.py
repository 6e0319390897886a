"""Every backend gives the same bytes, or the same refusal, as the reference: for recorded cases, and for every pair of
shipped formats that hold the same kind of code.

Drawn: modules, odd sizes, ranks, how parts are stored, the parameters of both sides; codes of all values, scales that
are subnormal, largest, zero or negative, and now and then a code that one side must refuse.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layoutdsl import LayoutError, compile_plan, conform
from layoutdsl import recodes as definition
from layoutdsl.backends import BACKENDS
from layoutdsl.backends.torch import pieces
from layoutdsl.backends.torch.recodes import STORED, decode, encode, signed, twin, unsigned, vanished
from layoutdsl.codes import Unrepresentable, code_named
from layoutdsl.library import files, load_spec
from layoutdsl.plan import Lost, Plan, TensorInfo
from layoutdsl.recodes import Habits, Recode

GOLDEN = Path(__file__).parent / "golden"
RECORDED = json.loads((GOLDEN / "index.json").read_text())["cases"]
REFERENCE_EVERY = 4
"""The reference is slow: it runs one case in so many here, and all in `layoutdsl conform --backend reference`."""
CPU_EVERY = 4
"""A kernel of the cpu backend takes a second to compile, and many cases share theirs."""


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors are small, and workers would stand in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- recorded cases ---------------------------------------------------------------------------------------------------


def recorded(case: dict, backend: str, folder: Path) -> list[str | None]:
    shutil.copy(GOLDEN / case["file"], folder)
    (folder / "index.json").write_text(json.dumps({"cases": [case]}))
    return [outcome.wrong for outcome in conform.cases(folder, backend=backend)]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["id"])
def test_torch_gives_the_recorded_bytes(case, tmp_path):
    assert recorded(case, "torch", tmp_path) == [None]


@pytest.mark.parametrize("case", RECORDED[::CPU_EVERY], ids=lambda case: case["id"])
def test_cpu_gives_the_recorded_bytes(case, tmp_path):
    assert recorded(case, "cpu", tmp_path) == [None]


@pytest.mark.parametrize("case", RECORDED[::REFERENCE_EVERY], ids=lambda case: case["id"])
def test_reference_gives_the_recorded_bytes(case, tmp_path):
    assert recorded(case, "reference", tmp_path) == [None]


# --- every pair -------------------------------------------------------------------------------------------------------

def names_of(kind: str) -> list[str]:
    return [path.stem for path in files() if path.parent.name == kind]


INT4 = ("gptq", "awq", "ct_int", "marlin_int4_a16", "marlin_int4_a16_n128", "marlin_int4_a8int8", "marlin_int4_a8fp8")
INT8 = ("gptq", "ct_int", "marlin_int8_a16", "marlin_int8_a8int8")
E4M3 = ("fp8", "fp8_block", "mxfp8", "marlin_fp8_a16", "own_fp8_a16", "marlin_mxfp8_a16")
MXFP4 = ("mxfp4", "marlin_mxfp4_a16", "marlin_mxfp4_a8fp8")
NVFP4 = ("nvfp4", "marlin_nvfp4_a16")
FAMILIES = {
    "int4": (INT4, {"bits": 4}),
    "int8": (INT8, {"bits": 8}),
    "e4m3": (E4M3, {}),
    "mxfp4": (MXFP4, {}),
    "nvfp4": (NVFP4, {}),
    "plain": (("plain",), {}),
}
NEVER = {("mxfp8", "marlin_fp8_a16"), ("marlin_mxfp8_a16", "marlin_fp8_a16"), ("marlin_fp8_a16", "marlin_mxfp8_a16")}
"""The same code, but no group that both take."""
PAIRS = [(family, a, b) for family, (names, _) in FAMILIES.items() for a in names for b in names if (a, b) not in NEVER]
MODULES = ("linear", "linear_fused", "moe_gated", "moe_plain", "attention")
FREE = (
    "dtype",
    "scale_dtype",
    "writer",
    "global_scale",
    "scale",
    "zero_offset",
    "qzeros",
    "g_idx",
    "shape_tensor",
    "scale_name",
    "zero_points",
    "group",
    "block_n",
    "transposed",
)
"""Parameters that a target may set otherwise than its source."""
PEER = Habits(pads="zero", nvfp4_factor="tensor", int16="stepwise")


class Case:
    """A plan, how its tensors are drawn, and in words what it is for. No dataclass: hypothesis would print the plan."""

    def __init__(self, plan: Plan, seed: int, mood: str, poison: bool, what: str):
        self.plan, self.seed, self.mood, self.poison, self.what = plan, seed, mood, poison, what

    def __repr__(self) -> str:
        return f"{self.what}, seed {self.seed}, {self.mood}, poison {self.poison}"


@st.composite
def cases(draw, family, source, target, module, whole=False):
    """`whole`: one rank, and sizes at which no format has a code that stands for nothing."""
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    fixed = FAMILIES[family][1]
    params: dict[str, bool | int | str] = {}
    for side, name in (("source", source), ("target", target)):
        spec = load_spec(name)
        for key, param in spec.params.items():
            if key in fixed:
                params[f"{side}.{key}"] = fixed[key]
            elif side == "source" or (key in FREE and pick(True, False, False)):
                params[f"{side}.{key}"] = drawn(pick, key, param)
        params[f"{side}.parts"] = pick(*spec.parts.stored)
    if "source.group" in params and "target.group" in params and pick(True, True, False):
        params["target.group"] = params["source.group"]
    tp, ep = pick(1, 1, 2, 3) if not whole else 1, 1
    sizes: dict[str, int | tuple[int, ...]]
    if module.startswith("moe"):
        ep = pick(1, 2)
        sizes = {"e": ep * pick(1, 2), "i": tp * pick(8, 16, 21, 32, 64) + pick(0, 1), "h": pick(16, 40, 66, 100)}
    elif module == "attention":
        kv = pick(1, 2, 3)
        sizes = {"q": kv * pick(1, 2, 3), "kv": kv, "d": pick(8, 20, 40), "h": pick(16, 40, 66)}
    else:
        params["module.split"] = pick("n", "k", "none")
        n, k = tp * pick(1, 4, 8, 24, 33), tp * pick(1, 16, 32, 44, 64, 128)
        sizes = {"n": n, "k": k}
    if whole:
        sizes = {axis: 64 if axis in ("n", "i", "d") else 128 if axis in ("k", "h") else 2 for axis in sizes}
        n, tp, ep = 64, 1, 1
    if module == "linear_fused":
        names = pick("q,k,v", "gate,up")
        params["module.names"] = names
        others = (64, 64) if whole else (tp * pick(8, 12), tp * pick(8, 12))
        sizes["n"] = (n, n) if names == "gate,up" else (n, *others)
    sharded = tp > 1 and pick(True, False)
    rank, ep_rank = draw(st.integers(0, tp - 1)), draw(st.integers(0, ep - 1))
    try:
        plan = compile_plan(
            source,
            target,
            module,
            sizes,
            params=params,
            tp=tp,
            rank=rank,
            ep=ep,
            ep_rank=ep_rank,
            sharded=sharded,
            habits=pick(Habits(), PEER),
        )
        if not whole and pick(True, False, False):
            plan = plan.inverse()
    except LayoutError:
        reject()
    what = f"{source} -> {target}, {module} {sizes}, {params}, {plan.ranks}, sharded {plan.sharded}, {plan.habits}"
    return Case(plan, draw(st.integers(0, 2**32)), pick("mild", "flat", "wild"), pick(True, False, False, False), what)


def drawn(pick, key, param):
    if param.values:
        return pick(*param.values)
    if param.type == "bool":
        return pick(True, False)
    return pick(-1, 32, 64, 128) if param.type == "group" else pick(128, 64, 32, 1)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids=str)
def test_torch_is_the_reference(family, source, target, module):
    same_as_the_reference("torch", 2, family, source, target, module)


@pytest.mark.parametrize("module", ("linear", "moe_gated"))
@pytest.mark.parametrize(("family", "source", "target"), PAIRS, ids=str)
def test_cpu_is_the_reference(family, source, target, module):
    same_as_the_reference("cpu", 1, family, source, target, module)


def same_as_the_reference(backend, count, family, source, target, module):
    @examples(count)
    @given(cases(family, source, target, module))
    def holds(case):
        tensors = inputs_of(case.plan, case.seed, case.mood)
        if case.poison:
            poison(case.plan, tensors, case.seed)
        wanted = outcome(case.plan, tensors, "reference")
        assert outcome(case.plan, tensors, backend) == wanted
        apart = {
            name: list(tensor) if case.plan.input[name].full_shape[:1] == (case.plan.input[name].experts,) else tensor
            for name, tensor in tensors.items()
        }
        out = outputs_of(case.plan)
        before = {name: raw(tensor) for name, tensor in out.items()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "PIECE", 700)
            assert outcome(case.plan, apart, backend, out=out) == wanted
        if not isinstance(wanted[0], dict):
            assert {name: raw(tensor) for name, tensor in out.items()} == before, "a refusal wrote into `out`"

    holds()


KEEPING = (
    "copy",
    "offset",
    "constant",
    "ramp",
    "shape",
    "fp8_nibbles",
    "plain_nibbles",
    "fold_sign",
    "nvfp4_scale",
    "nvfp4_global",
)


def keeps(recode: Recode, reciprocal: bool) -> bool:
    """Whether a recode keeps every positive scale that `inputs_of` draws when it is told to be mild."""
    a, b = recode.source, recode.target
    if recode.name == "rescale":
        return a == b or b == "float32" or code_named(a).bits == 8 or code_named(b).kind == "power"
    return recode.name in KEEPING and b != "s0e5m3b" and not (recode.name == "nvfp4_global" and reciprocal)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(
    ("family", "source", "target"), [pair for pair in PAIRS if pair[1] not in names_of("kernel")], ids=str
)
def test_the_inverse_gives_the_bytes_back(family, source, target, module):
    @examples(1)
    @given(cases(family, source, target, module, whole=True))
    def holds(case):
        plan = case.plan
        inverted = any(reduction.reciprocal for reduction in plan.reductions)
        assume(all(keeps(program.recode, inverted) for program in plan.programs))
        assume(not plan.passed and not dict(plan.source.params).get("act_order"))
        tensors, there = mild(plan, case.seed)
        here = plan.inverse().run(there)
        assert {name: raw(here[name]) for name in tensors} == {name: raw(tensor) for name, tensor in tensors.items()}

    holds()


def mild(plan: Plan, seed: int) -> tuple[dict, dict]:
    """Inputs that the plan takes, and what it makes of them: scales that differ, or all the same where they must be."""
    for mood in ("mild", "flat"):
        tensors = inputs_of(plan, seed, mood)
        for name, tensor in tensors.items():
            if plan.input[name].role == "scale":
                positive(tensor, power="mx" in plan.target.spec)
        try:
            return tensors, plan.run(tensors)
        except LayoutError:
            continue
    reject()


def positive(scales: torch.Tensor, *, power: bool) -> None:
    if scales.dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint8):
        scales.view(torch.uint8).bitwise_and_(0x7F)
    elif scales.is_floating_point():
        scales.copy_(torch.exp2(scales.abs().float().log2().floor()) if power else scales.abs())


# --- inputs and outcomes ----------------------------------------------------------------------------------------------


def inputs_of(plan: Plan, seed: int, mood: str) -> dict[str, torch.Tensor]:
    """Random tensors. mood: mild (scales that every side holds), flat (all scales of a tensor equal, so that shared
    ones agree) or wild (every finite code)."""
    random = torch.Generator().manual_seed(seed)
    made: dict[str, torch.Tensor] = {}
    for info in plan.inputs:
        copies = 1 if info.shared or not info.experts else info.experts
        made[info.name] = packed(info, codes_of(info, plan, mood, copies, random))
    return made


def codes_of(info: TensorInfo, plan: Plan, mood: str, copies: int, random: torch.Generator) -> torch.Tensor:
    """Codes as plain numbers, [copies, codes]."""
    code, shape = code_named(info.code), (copies, info.codes)
    draw = lambda low, high: torch.randint(low, high, shape, generator=random)  # noqa: E731
    check = next((check for check in plan.checks if check.tensor == info.name and check.kind != "same"), None)
    if info.role == "weight_shape":
        return torch.tensor(check.expect if check else (0, 0)).expand(shape)
    if info.role == "act_order":
        return act_order(info, plan, copies)
    if check is not None:
        return torch.full(shape, check.expect[0])
    if info.role == "zero_point":
        return draw(0, (1 << code.bits) - (mood != "wild"))
    if info.role == "codes" and code.bits <= 8:  # wider codes are numbers of their own, drawn like scales
        found = draw(0, 1 << code.bits)
        return torch.where(found & 0x7F == 0x7F, 0x30, found) if code.name == "e4m3" else found
    if info.role == "global_scale":
        exponents = draw(-3, 4) if mood == "wild" else torch.zeros(shape, dtype=torch.int64)
        return torch.ldexp(torch.full(shape, 0.0149), exponents).view(torch.int32).to(torch.int64)
    found = scales(code, mood, draw)
    return found[:, :1].expand(shape) if mood == "flat" else found


def scales(code, mood: str, draw) -> torch.Tensor:
    if code.kind == "signed":
        return (draw(-(1 << 15), 1 << 15) if mood == "wild" else draw(-4096, 4097)) % (1 << 16)
    if code.kind == "power":
        return draw(0, 255) if mood == "wild" else draw(100, 150)
    low, high = (0, (1 << code.exponent) - 1) if mood == "wild" else (code.bias - 6, code.bias - 1)
    if code.name == "s0e5m3b" and mood != "wild":
        low, high = 16, 30
    sign = draw(0, 2) if code.sign and (mood == "wild" or code.name == "e4m3") else 0
    return draw(low, high) << code.mantissa | draw(0, 1 << code.mantissa) | sign << (code.bits - 1)


def outputs_of(plan: Plan) -> dict[str, torch.Tensor]:
    """Storage for the outputs, with something in it."""
    found = {info.name: torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    for tensor in found.values():
        tensor.reshape(-1).view(torch.uint8).fill_(0x5A)
    return found


def act_order(info: TensorInfo, plan: Plan, copies: int) -> torch.Tensor:
    """The group of each k; shuffled in act-order, and for all parts alike. A rank's slice begins inside a group."""
    params = dict(plan.source.params)
    matrix = info.name.split(".")[0]
    phases = [check.expect for check in plan.checks if check.tensor == info.name and check.kind == "order"]
    group, start = phases[0] if phases else (max(int(params.get("group", -1)), 0), 0)
    k = torch.arange(info.codes) + start
    found = (k // group if group else torch.zeros_like(k)).repeat(copies, 1)
    if not params.get("act_order"):
        return found
    random = torch.Generator().manual_seed(len(matrix))
    return torch.stack([row[torch.randperm(info.codes, generator=random)] for row in found])


def packed(info: TensorInfo, codes: torch.Tensor) -> torch.Tensor:
    bits = 64 if info.role == "weight_shape" else code_named(info.code).bits
    if bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    carried = codes.to(STORED[bits])
    return carried.contiguous().view(getattr(torch, info.dtypes[0])).reshape(info.full_shape)


def poison(plan: Plan, tensors: dict[str, torch.Tensor], seed: int) -> None:
    """Some bytes of one tensor become something else: NaN, infinite, negative, of another group, of another order."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda high: int(torch.randint(high, (1,), generator=random))  # noqa: E731
    info = plan.inputs[draw(len(plan.inputs))]
    width = torch.finfo(tensors[info.name].dtype).bits // 8 if tensors[info.name].is_floating_point() else 1
    raw = tensors[info.name].reshape(-1).view(torch.uint8)
    for _ in range(1 + draw(3)):
        at = draw(len(raw) // width) * width
        raw[at : at + width] = torch.tensor([0xFF] * (width - 1) + [(0x7F, 0xFF, 0x7C, 0x80, draw(256))[draw(5)]])


def outcome(plan: Plan, tensors: dict, backend: str, **options) -> tuple:
    """What a backend gives back: a digest, dtype and shape of each tensor and what was lost, or the refusal."""
    report: list[Lost] = []
    try:
        made = plan.run(tensors, backend=backend, report=report, **options)
    except LayoutError as error:
        return error.diagnostics[0].code, error.message, error.help
    return {name: (str(tensor.dtype), tuple(tensor.shape), digest(tensor)) for name, tensor in made.items()}, report


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(raw(tensor)).hexdigest()[:16]


# --- which pairs there are --------------------------------------------------------------------------------------------

VARIANTS = ({}, {"target.group": 32}, {"target.group": -1}, {"source.group": 32, "source.block_n": 1})


def test_no_other_pair_compiles():
    """The families above are all there are: a new format joins one, or starts its own."""
    names = sorted({name for kind in ("checkpoint", "kernel") for name in names_of(kind)})
    assert names == sorted({name for family, _ in FAMILIES.values() for name in family})
    known = {(a, b) for _, a, b in PAIRS}
    for a in names:
        for b in names:
            assert (a, b) in known or not any(compiles(a, b, variant) for variant in VARIANTS), (a, b)


def compiles(source: str, target: str, params: dict) -> bool:
    try:
        compile_plan(source, target, "linear", {"n": 64, "k": 128}, params=params)
    except LayoutError:
        return False
    return True


# --- recodes ----------------------------------------------------------------------------------------------------------

FACTOR = 0.7337646484375
TWINS = [
    *[
        (Recode("rescale", a, b, power), {})
        for a in ("float32", "float16", "bfloat16")
        for b in ("float16", "bfloat16", "float32")
        for power in (0, 8, 120, -9)
    ],
    *[
        (Recode("rescale", a, b, power), {})
        for a in ("float32", "bfloat16")
        for b in ("e8m0", "e8m0z", "e4m3")
        for power in (0, 6)
    ],
    *[
        (Recode("rescale", a, b, 3), {})
        for a in ("e4m3", "e8m0", "e8m0z", "s0e5m3")
        for b in ("float16", "e4m3", "float32")
    ],
    *[
        (Recode("copy", name, name), {})
        for name in ("float16", "bfloat16", "float32", "e4m3", "e8m0", "s0e5m3", "int16", "u4")
    ],
    *[
        (Recode("int16_scale", name, "int16"), {"factor": factor, "stepwise": stepwise})
        for name in ("float16", "bfloat16")
        for factor in (FACTOR, 0.0, 65504.0, -0.25)
        for stepwise in (False, True)
    ],
    *[
        (Recode("nvfp4_scale", "e4m3", name, 7), {"shift": shift})
        for name in ("s0e5m3", "s0e5m3b")
        for shift in (-12, 0, 3)
    ],
    (Recode("nvfp4_global", "float32", "float32", -119), {"factor": FACTOR, "shift": 3}),
    (Recode("nvfp4_global", "float32", "float32", 119), {"factor": 3e38, "shift": -3}),
    (Recode("reciprocal", "float32", "float32"), {}),
    (Recode("offset", "u4", "u4", -1), {}),
    (Recode("offset", "u8", "u8", 1), {}),
]


def shown(twin) -> str:
    recode, options = twin
    return "-".join(map(str, (recode.name, recode.source, recode.target, recode.power, *options.values())))


@pytest.mark.parametrize(("recode", "options"), TWINS, ids=map(shown, TWINS))
def test_a_twin_is_its_recode(recode, options):
    a, b = code_named(recode.source), code_named(recode.target)
    codes = some_codes(a)
    made, bad = twin(recode, torch.tensor([signed(code, a.bits) for code in codes], dtype=STORED[a.bits]), **options)
    assert made.dtype == STORED[b.bits]
    found = [unsigned(code, b.bits) for code in made.tolist()]
    refused = [False] * len(codes) if bad is None else bad.tolist()
    for code, got, no in zip(codes, found, refused):
        want = applied(recode, code, options)
        assert no == (want is None), hex(code)
        assert no or got == want, hex(code)


def applied(recode: Recode, code: int, options: dict) -> int | None:
    try:
        return definition.apply(recode, code, **options)
    except Unrepresentable:
        return None


def some_codes(code) -> list[int]:
    """All of a narrow code; of a wide one the specials, their neighbours, halves between narrower codes, and others."""
    if code.bits <= 8:
        return list(range(1 << code.bits))
    random = torch.Generator().manual_seed(1)
    found = torch.randint(1 << code.bits, (1500,), generator=random).tolist()
    top = (1 << code.bits) - 1
    specials = [0, 1, 1 << (code.bits - 1), top >> 1, *(e << code.mantissa for e in range(0, 1 << code.exponent, 3))]
    found += [(special + step) & top for special in specials for step in (-1, 0, 1)]
    if code.bits == 32:  # the halves between float16's and between bfloat16's codes, and their neighbours
        found += [
            one >> 16 << 16 | low
            for one in found[:300]
            for low in (0x7FFF, 0x8000, 0x8001, 0x0FFF, 0x1000, 0x1001, 0x3000)
        ]
    return found


@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "float32", "e4m3", "e2m1", "s0e5m3", "s0e5m3b", "e8m0", "e8m0z"]
)
def test_encode_rounds_once(name):
    """Doubles around each half between two codes: a cast through float32 would round some of them twice."""
    code = code_named(name)
    random = torch.Generator().manual_seed(2)
    values = [code.decode(c) for c in (some_codes(code) if code.bits < 32 else some_codes(code)[:2000])]
    values = torch.tensor([value for value in values if abs(value) < float("inf")], dtype=torch.float64)
    order = values.sort().values
    halves = (order[1:] + order[:-1]) / 2
    near = [halves * (1 + sign * 2.0**-power) for sign in (-1, 0, 1) for power in (30, 45, 52)]
    wild = torch.randint(-(2**63), 2**63 - 1, (500,), generator=random).view(torch.float64)
    values = torch.cat(
        [values, *near, wild, torch.tensor([0.0, -0.0, 1e-320, code.top, code.top * 1.0001], dtype=torch.float64)]
    )
    made, bad = encode(code, values)
    for value, got, no in zip(values.tolist(), made.tolist(), bad.tolist()):
        try:
            want = code.encode(value)
        except Unrepresentable:
            want = None
        assert no == (want is None), value
        assert no or unsigned(got, code.bits) == want, value


@pytest.mark.parametrize(
    "recode", [Recode("fp8_nibbles", "u4", "n4"), Recode("plain_nibbles", "n4", "u4")], ids=lambda r: r.name
)
def test_nibbles_for_every_zero_point(recode):
    for zero in range(17):
        codes = torch.arange(16, dtype=torch.uint8)
        made, bad = twin(recode, codes, zero=torch.full_like(codes, zero))
        assert bad is None
        assert made.tolist() == [definition.apply(recode, code, zero=zero) for code in range(16)]


def test_signs_fold_for_every_scale():
    recode = Recode("fold_sign", "e2m1", "e2m1")
    for scale in range(256):
        codes = torch.arange(16, dtype=torch.uint8)
        made, _ = twin(recode, codes, scale=torch.full_like(codes, scale))
        assert made.tolist() == [definition.apply(recode, code, scale=scale) for code in range(16)]


def test_int16_undo_for_scales_of_all_sizes():
    recode = Recode("int16_undo", "int16", "float16", 2)
    codes = [signed(code, 16) for code in some_codes(code_named("int16"))]
    for factor in (1e-3, 1e-12, 0.0, 3.0, 65504.0, float("inf"), float("nan")):
        given = torch.tensor(codes, dtype=torch.int16)
        made, bad = twin(recode, given, factor=torch.full(given.shape, factor, dtype=torch.float64))
        for code, got, no in zip(codes, made.tolist(), bad.tolist()):
            want = applied(recode, unsigned(code, 16), {"factor": factor})
            assert no == (want is None)
            assert no or unsigned(got, 16) == want


def test_every_16_bit_scale_decodes_exactly():
    for name in ("float16", "bfloat16"):
        code = code_named(name)
        codes = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
        values = decode(code, codes).tolist()
        assert all(
            got == (want := code.decode(unsigned(c, 16))) or want != want for c, got in zip(codes.tolist(), values)
        )


def test_what_vanishes():
    recode = Recode("nvfp4_scale", "e4m3", "s0e5m3b", 0)
    codes = torch.arange(0x7F, dtype=torch.uint8)
    made, _ = twin(recode, codes)
    assert vanished(recode, codes, made).tolist() == [
        definition.vanishes(recode, c, m) for c, m in zip(codes.tolist(), made.tolist())
    ]
    assert vanished(recode, codes, made).any()


# --- what callers give ------------------------------------------------------------------------------------------------

EVERY = pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "cuda"])  # it has tensors on a GPU
GPTQ = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 128}, params={"qzeros": False, "g_idx": False})
MOE = compile_plan(
    "fp8",
    "marlin_fp8_a16",
    "moe_gated",
    {"e": 4, "i": 24, "h": 32},
    params={"dtype": "bfloat16"},
    tp=2,
    rank=1,
    ep=2,
    ep_rank=1,
)


def tensors_of(plan: Plan) -> dict:
    return inputs_of(plan, 7, "mild")


def refusal(plan: Plan, backend: str, tensors: dict, **options) -> str:
    with pytest.raises(LayoutError) as caught:
        plan.run(tensors, backend=backend, **options)
    return caught.value.message


@EVERY
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.pop("linear.scales"), "tensor `linear.scales` is missing"),
        (lambda x: x.update({"linear.scale": x["linear.scales"]}), "the plan reads no tensor `linear.scale`"),
        (
            lambda x: x.update({"linear.scales": x["linear.scales"][:, :32]}),
            "`linear.scales` has the shape [1, 32], expected [1, 64]",
        ),
        (
            lambda x: x.update({"linear.scales": x["linear.scales"].float()}),
            "`linear.scales` is float32, expected float16",
        ),
        (lambda x: x.update({"linear.scales": 3}), "`linear.scales` is of type int, a torch tensor is needed"),
        (
            lambda x: x.update({"linear.scales": x["linear.scales"].to("meta")}),
            "the tensors stand on different devices: cpu, meta",
        ),
    ],
)
def test_inputs_that_do_not_fit(backend, change, message):
    tensors = tensors_of(GPTQ)
    change(tensors)
    assert refusal(GPTQ, backend, tensors) == message


@EVERY
def test_an_axis_of_one_may_stand_anywhere(backend):
    tensors = tensors_of(GPTQ)
    tensors["linear.scales"] = tensors["linear.scales"].reshape(64, 1)
    assert outcome(GPTQ, tensors, backend) == outcome(GPTQ, tensors_of(GPTQ), backend)


@EVERY
def test_experts_that_do_not_fit(backend):
    tensors = {name: list(tensor) for name, tensor in tensors_of(MOE).items()}
    short = {**tensors, "w2.weight": tensors["w2.weight"][:3]}
    assert refusal(MOE, backend, short) == "`w2.weight` has 3 tensors, one for each of 4 experts is needed"
    wrong = {**tensors, "w2.weight": [*tensors["w2.weight"][:3], tensors["w2.weight"][3][:5]]}
    assert refusal(MOE, backend, wrong) == "`w2.weight`, expert 3 has the shape [5, 24], expected [32, 24]"
    others = {**tensors, "w2.weight": [None, None, *tensors["w2.weight"][2:]]}
    assert outcome(MOE, others, backend) == outcome(MOE, tensors, backend), "experts of other ranks are not needed"


@EVERY
def test_a_refused_value_has_a_place(backend):
    tensors = tensors_of(MOE)
    tensors["w13.up.weight"].view(torch.uint8)[3, 20, 9] = 0xFF
    tensors["w13.up.weight"].view(torch.uint8)[3, 21, 2] = 0x7F
    tensors["w13.up.weight"].view(torch.uint8)[0, 0, 0] = 0xFF  # of another rank
    assert refusal(MOE, backend, tensors) == "`w13.up.weight` at expert 3, part up, n 20, k 9: code 0xff of e4m3 is NaN"
    tensors["w13.gate.weight_scale"][2, 13] = float("inf")
    assert refusal(MOE, backend, tensors) == "`w13.up.weight` at expert 3, part up, n 20, k 9: code 0xff of e4m3 is NaN"
    tensors["w13.up.weight"] = tensors_of(MOE)["w13.up.weight"]
    assert (
        refusal(MOE, backend, tensors)
        == "`w13.gate.weight_scale` at expert 2, part gate, n 13, k 0: code 0x7f800000 of float32 is infinite"
    )


def test_an_order_of_unequal_groups_is_refused_before_anything_is_written():
    plan = compile_plan(
        "gptq",
        "marlin_int4_a16",
        "moe_gated",
        {"e": 2, "i": 64, "h": 64},
        params={"group": 32, "act_order": True, "qzeros": False},
    )
    tensors, out = tensors_of(plan), outputs_of(plan)
    tensors["w2.g_idx"][1] = tensors["w2.g_idx"][1].clamp(min=1)
    before = {name: raw(tensor) for name, tensor in out.items()}
    want = outcome(plan, tensors, "reference")
    assert want[0] == "LP172" and "expert 1" in want[1]
    assert outcome(plan, tensors, "torch", out=out) == want == outcome(plan, tensors, "torch")
    assert {name: raw(tensor) for name, tensor in out.items()} == before


@EVERY
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: out.pop("linear.weight_scale"), "`out` lacks the tensor `linear.weight_scale`"),
        (lambda out: out.update(more=out["linear.weight"]), "the plan writes no tensor `more`"),
        (
            lambda out: out.update({"linear.weight": out["linear.weight"][1:]}),
            "`linear.weight` of `out` has the shape [7, 128], expected [8, 128]",
        ),
        (
            lambda out: out.update({"linear.weight": out["linear.weight"].float()}),
            "`linear.weight` of `out` is float32, expected int32",
        ),
        (
            lambda out: out.update({"linear.weight": out["linear.weight"].T.contiguous().T}),
            "`linear.weight` of `out` is not contiguous",
        ),
    ],
)
def test_out_that_does_not_fit(backend, change, message):
    out = outputs_of(GPTQ)
    change(out)
    assert refusal(GPTQ, backend, tensors_of(GPTQ), out=out) == message


@EVERY
def test_out_keeps_its_storage(backend):
    out = outputs_of(MOE)
    pointers = {name: tensor.data_ptr() for name, tensor in out.items()}
    made = MOE.run(tensors_of(MOE), backend=backend, out=out)
    assert {name: tensor.data_ptr() for name, tensor in made.items()} == pointers
    assert all(made[name] is out[name] for name in out)
    assert outcome(MOE, tensors_of(MOE), backend)[0] == {
        name: (str(tensor.dtype), tuple(tensor.shape), digest(tensor)) for name, tensor in out.items()
    }


@EVERY
def test_out_may_lie_on_the_inputs(backend):
    plan = compile_plan(
        "awq",
        "gptq",
        "linear",
        {"n": 64, "k": 64},
        params={"group": 32, "zero_points": True, "zero_offset": 0, "target.g_idx": False},
    )
    tensors = tensors_of(plan)
    want = plan.run({name: tensor.clone() for name, tensor in tensors.items()})
    out = {
        f"linear.{name}": tensors[f"linear.{name}"].view(plan.output[f"linear.{name}"].full_shape)
        for name in ("qweight", "qzeros", "scales")
    }
    plan.run(tensors, backend=backend, out=out)
    assert {name: raw(tensor) for name, tensor in out.items()} == {name: raw(tensor) for name, tensor in want.items()}


@EVERY
@pytest.mark.parametrize("shift", [-96, -4, 4, 96])
def test_out_may_lie_on_a_part_of_the_inputs(backend, shift):
    """Bytes further on or back: what is written first would be read later, were it not made apart."""
    tensors = tensors_of(GPTQ)
    size = tensors["linear.qweight"].nbytes
    room = torch.zeros(size + 2 * abs(shift), dtype=torch.uint8)
    given, made = room[abs(shift) :][:size], room[abs(shift) + shift :][:size]
    given.copy_(tensors["linear.qweight"].view(-1).view(torch.uint8))
    tensors["linear.qweight"] = given.view(torch.int32).view(16, 64)
    wanted = outcome(GPTQ, {name: tensor.clone() for name, tensor in tensors.items()}, "reference")
    out = outputs_of(GPTQ) | {"linear.weight": made.view(torch.int32).view(8, 128)}
    assert outcome(GPTQ, tensors, backend, out=out) == wanted
    assert out["linear.weight"].data_ptr() == made.data_ptr()


@EVERY
def test_outputs_that_share_memory(backend):
    out = outputs_of(MOE)
    room = torch.zeros(2 * out["w2.weight"].nbytes, dtype=torch.uint8)
    for at, name in enumerate(("w2.weight", "w2.weight_scale")):
        part = room[at * 64 :][: out[name].nbytes]
        out[name] = part.view(out[name].dtype).view(out[name].shape)
    message = "`w2.weight` and `w2.weight_scale` of `out` share memory"
    assert refusal(MOE, backend, tensors_of(MOE), out=out) == message
    assert not room.any()


@EVERY
def test_inputs_that_are_not_contiguous(backend):
    tensors = tensors_of(MOE)
    strided = {name: torch.stack([tensor, tensor], dim=-1)[..., 0] for name, tensor in tensors.items()}
    assert not strided["w2.weight"].is_contiguous()
    assert outcome(MOE, strided, backend) == outcome(MOE, tensors, backend)


# --- how torch does it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [GPTQ, MOE], ids=["gptq", "fp8 moe"])
def test_every_tensor_is_made_on_the_inputs_device(plan):
    """What states no device would land on another one here, and the run would fail as it would on a GPU."""
    with torch.device("meta"):
        made = plan.run(tensors_of_cpu(plan))
    assert {str(tensor.device) for tensor in made.values()} == {"cpu"}


def tensors_of_cpu(plan: Plan) -> dict:
    with torch.device("cpu"):
        return tensors_of(plan)


class Largest(TorchDispatchMode):
    """Notes the most bytes that one new tensor took."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {
            one.untyped_storage().data_ptr() for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)
        }
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize(
    ("source", "target", "params"),
    [
        ("gptq", "marlin_int4_a16", {"group": 64}),
        ("awq", "marlin_int4_a8fp8", {"group": 64}),
        ("ct_int", "marlin_int4_a8fp8", {"group": 64, "zero_points": True}),
        ("marlin_int4_a16", "gptq", {"group": 64}),
        ("nvfp4", "marlin_nvfp4_a16", {}),
        ("fp8", "marlin_fp8_a16", {"dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_nothing_is_made_that_is_larger_than_a_piece(source, target, params, monkeypatch):
    """Codes that were unpacked would be 128 KB."""
    monkeypatch.setattr(pieces, "PIECE", 512)
    plan = compile_plan(source, target, "linear", {"n": 512, "k": 256}, params=params)
    tensors, out = tensors_of(plan), outputs_of(plan)
    with Largest() as largest:
        plan.run(tensors, out=out)
    assert largest.bytes <= 8 * 512


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "cuda"])
def test_an_operand_is_gathered_as_its_codes_are(backend):
    """In act-order `down` reorders what `up` writes: up's zero points along with its weights, apart for each expert."""
    sizes, params = {"e": 2, "i": 64, "h": 128}, {"group": 32, "zero_points": True, "act_order": True}
    plan = compile_plan("gptq", "marlin_int4_a8fp8", "moe_plain", sizes, params=params)
    dice = torch.Generator().manual_seed(0)
    tensors = {}
    for info in plan.inputs:
        dtype = getattr(torch, info.dtypes[0])
        if info.role == "act_order":
            groups = torch.arange(info.codes) // 32
            moved = [groups[torch.randperm(info.codes, generator=dice)] for _ in range(2)]
            tensors[info.name] = torch.stack(moved if info.name.startswith("w2") else [groups] * 2).to(dtype)
        elif dtype == torch.int32:
            tensors[info.name] = torch.randint(0, 2**31, info.full_shape, generator=dice).to(dtype)
            if info.role == "zero_point":
                tensors[info.name] &= 0x77777777
        else:
            tensors[info.name] = torch.ones(info.full_shape, dtype=dtype)
    wanted = plan.run(tensors, backend="reference")
    made = plan.run(tensors, backend=backend)
    assert {name: raw(tensor) for name, tensor in made.items()} == {name: raw(one) for name, one in wanted.items()}


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "cuda"])
def test_one_number_of_any_stride(backend):
    plan = compile_plan("fp8", "marlin_fp8_a16", "linear", {"n": 64, "k": 128}, params={"scale": "tensor"})
    tensors = {info.name: torch.ones(info.full_shape).to(getattr(torch, info.dtypes[0])) for info in plan.inputs}
    wanted = plan.run(tensors)
    cut = tensors | {"linear.weight_scale": torch.ones(1, 2)[:, 0].to(tensors["linear.weight_scale"].dtype)}
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in plan.run(cut, backend=backend).items())


def test_wrong_types_are_refused_in_words():
    plan = compile_plan("fp8", "marlin_fp8_a16", "linear", {"n": 64, "k": 128})
    tensors = {info.name: torch.ones(info.full_shape).to(getattr(torch, info.dtypes[0])) for info in plan.inputs}
    name = next(iter(tensors))
    for arguments, code in (
        (({1: tensors[name]},), "LP160"),
        ((tensors, {"out": [1]}), "LP166"),
        ((tensors, {"report": ()}), "LP166"),
        ((tensors, {"backend": []}), "LP150"),
        ((tensors, {"backend": None}), "LP150"),
    ):
        with pytest.raises(LayoutError, match=code):
            plan.run(arguments[0], **(arguments[1] if len(arguments) > 1 else {}))
    scales = tensors["linear.weight_scale"]
    negated = tensors | {"linear.weight_scale": torch._neg_view(scales)}
    with pytest.raises(LayoutError, match=r"LP166 .*`linear.weight_scale` is a negated view"):
        plan.run(negated)


@pytest.mark.parametrize("made", [torch.zeros(1, dtype=torch.int8), torch.zeros(3, dtype=torch.int32)])
def test_the_way_out_of_a_wrong_out_is_to_allocate_it(made):
    """Its dtype and shape are no matter of the file."""
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 128})
    tensors = inputs_of(plan, 1, "mild")
    out = plan.run(tensors) | {"linear.weight": made}
    with pytest.raises(LayoutError) as caught:
        plan.run(tensors, out=out)
    assert caught.value.help == "allocate int32 of shape [8, 128]"
