"""What people give to GEMMs that is none of what they take: a LayoutError each, through modules and operators."""

from __future__ import annotations

import threading
from collections import Counter
from math import inf, nan

import numpy as np
import pytest
import torch
from test_gemm_state import drawn, linear, loaded, mixture, refused

from layoutdsl import LayoutError, MarlinLinear, MarlinMoE, compile_plan
from layoutdsl.gemm import launch, ops, table
from layoutdsl.gemm.activate import Activate
from layoutdsl.gemm.facts import Facts
from layoutdsl.gemm.instance import Instance

TEXT = "u4b8 float16 f16 float16 group=64 n=256 k=384 front=0 valid=380 columns=0:200"
X = torch.zeros(2, 380, dtype=torch.float16)
WEIGHT, SCALE = torch.zeros(24, 512, dtype=torch.int32), torch.zeros(6, 256, dtype=torch.float16)
NOT_DENSE = (None, [1.0], np.ones((2, 320), np.float16), torch.zeros(2, 320).half().to_sparse(),
             torch.nested.nested_tensor([torch.zeros(2, 320).half()]))  # fmt: skip


# ---------------------------------------------------------------- operators


@pytest.mark.parametrize(
    "text",
    ["", "u4b8", TEXT.replace("n=256", "n=many"), TEXT.replace("n=256 ", ""), TEXT.replace("group=64", "group"),
     TEXT + " colour=3", TEXT + " align=0", TEXT.replace("0:200", "0"), TEXT.replace(" columns=0:200", "")],
)  # fmt: skip
def test_texts_that_are_no_facts(text: str) -> None:
    for x, weight, scale in ((X, WEIGHT, SCALE), tuple(tensor.to("meta") for tensor in (X, WEIGHT, SCALE))):
        refused(lambda x=x, w=weight, s=scale: ops.gemm(x, w, s, None, None, None, text), "columns=", code="LP358")


@pytest.mark.parametrize("columns", ["0:8,0:8", "8:8,0:9", "100:100,0:256"])
def test_outputs_that_overlap(columns: str) -> None:
    text = TEXT.replace("0:200", columns)
    refused(lambda: ops.gemm(X, WEIGHT, SCALE, None, None, None, text), "overlap", code="LP344")
    ops.gemm(X, WEIGHT, SCALE, None, None, None, TEXT.replace("0:200", "8:8,0:8,200:0,4:0"))


def test_a_tensor_that_stands_elsewhere() -> None:
    """An operator would else give memory that nobody wrote."""
    for at in range(3):
        given = [X, WEIGHT, SCALE]
        given[at] = given[at].to("meta")
        refused(lambda given=given: ops.gemm(*given, None, None, None, TEXT), "meta", code="LP343")
    assert ops.gemm(X.to("meta"), WEIGHT.to("meta"), SCALE.to("meta"), None, None, None, TEXT).is_meta


def test_gradients() -> None:
    tensors = [WEIGHT, SCALE.clone().requires_grad_(), None, None, None]
    refused(lambda: ops.gemm(X, *tensors, TEXT), "no backward", code="LP355")
    refused(lambda: ops.gemm(X.clone().requires_grad_(), WEIGHT, SCALE, None, None, None, TEXT), code="LP355")
    with torch.no_grad():
        ops.gemm(X, *tensors, TEXT)
    layer = loaded(mixture())
    x, ids, router = torch.zeros(2, 128).half(), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    refused(lambda: layer(x.requires_grad_(), ids, router), code="LP355")
    refused(lambda: layer(x.detach(), ids, router.clone().requires_grad_()), code="LP355")
    first, second = ([layer.get_buffer(path) if path else None for path in paths] for paths in layer._stored)
    of = (*layer._facts, 4, "silu", "split", 1.702, 7.0)
    wants = router.clone().requires_grad_()
    refused(lambda: ops.moe(x.detach(), ids, wants, None, None, first, second, *of), code="LP355")


def test_a_compiled_operator_says_why_it_refuses() -> None:
    compiled = torch.compile(
        lambda x: ops.gemm(x, WEIGHT, SCALE, None, None, None, TEXT), fullgraph=True, backend="eager"
    )
    with pytest.raises(Exception, match="GEMMs on quantized weights have no backward"):
        compiled(X.clone().requires_grad_())


def test_names_that_the_operator_does_not_know() -> None:
    layer = loaded(mixture())
    x, ids, router = torch.zeros(2, 128).half(), torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    first, second = ([layer.get_buffer(path) if path else None for path in paths] for paths in layer._stored)
    for activation, parts in (("swish", "split"), ("silu", "apart")):
        of = (*layer._facts, 4, activation, parts, 1.702, 7.0)
        refused(lambda of=of: ops.moe(x, ids, router, None, None, first, second, *of), "there is no", code="LP363")


# ---------------------------------------------------------------- modules


@pytest.mark.parametrize("x", NOT_DENSE, ids=["none", "list", "numpy", "sparse", "nested"])
def test_x_that_is_no_dense_tensor(x) -> None:
    refused(lambda: MarlinLinear(linear())(x), "no dense tensor", "[..., 320]", code="LP342")


@pytest.mark.parametrize("given", NOT_DENSE, ids=["none", "list", "numpy", "sparse", "nested"])
def test_routing_that_is_no_dense_tensor(given) -> None:
    layer, x = loaded(mixture()), torch.zeros(2, 128).half()
    ids, router = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    refused(lambda: layer(x, given, router), "ids are a", code="LP356")
    refused(lambda: layer(x, ids, given), "router weights are a", code="LP356")


def test_what_is_no_plan_and_no_checkpoint() -> None:
    refused(lambda: MarlinLinear(None), "NoneType", "compile_plan", code="LP340")
    refused(lambda: MarlinMoE("plan", activation="silu"), "str", code="LP340")
    refused(lambda: MarlinLinear(linear()).load_checkpoint([1]), "list", code="LP166")
    refused(lambda: MarlinLinear(linear()).update_all([1]), "list", code="LP166")


def test_a_compiled_module_says_why_it_refuses() -> None:
    compiled = torch.compile(MarlinLinear(linear()), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"x is float32 of shape \[2, 320\], expected float16"):
        compiled(torch.zeros(2, 320))


# ---------------------------------------------------------------- numbers of an activation


@pytest.mark.parametrize(
    ("numbers", "words"),
    [({"alpha": nan}, "`alpha` is nan"), ({"alpha": inf}, "finite"), ({"alpha": "1.7"}, "'1.7'"), ({"alpha": 1e39}, ""),
     ({"alpha": 1e-45}, ""), ({"limit": -7.0}, "`limit` is -7.0"), ({"limit": 0}, "positive"), ({"limit": nan}, ""),
     ({"limit": 1e39}, "inf to clamp nothing"), ({"limit": None}, "")],
)  # fmt: skip
def test_numbers_that_are_refused(numbers: dict, words: str) -> None:
    plan = mixture()
    refused(lambda: MarlinMoE(plan, activation="swiglu_oai", **numbers), words, code="LP364")


@pytest.mark.parametrize("alpha", [1.702, -1.0, 1e-5, 2, 0.0, 1e30, np.float32(1.5)])
@pytest.mark.parametrize("limit", [7.0, inf, 1, 1e-6])
def test_names_of_numbers(alpha: float, limit: float) -> None:
    kernel = Activate("swiglu_oai", "split", "float16", alpha, limit)
    assert kernel.name.isidentifier() and kernel.name in kernel.source
    others = [(1.702, 7.5), (-1.702, 7.0), (1.702, inf), (1e-5, 7.0), (1e5, 7.0), (1.0, 2.0), (1.02, 2.0)]
    assert len({Activate("swiglu_oai", "split", "float16", *one).name for one in others}) == len(others)


def test_numbers_are_taken_as_they_are() -> None:
    """Clamped at infinity, with an alpha that kernels' texts and names must spell."""
    plan = mixture()
    x, ids, router = torch.rand(2, 128).half() * 8, torch.tensor([[0], [1]]), torch.ones(2, 1)
    tensors = drawn(plan)

    def run(**numbers) -> torch.Tensor:
        return MarlinMoE(plan, activation="swiglu_oai", **numbers).load_checkpoint(tensors)(x, ids, router)

    assert torch.equal(run(limit=inf), run(limit=60000.0)) and torch.equal(run(limit=7), run())
    assert not torch.equal(run(limit=inf), run(limit=1e-3)) and not torch.equal(run(alpha=-1.0), run(alpha=1e-5))


# ---------------------------------------------------------------- tables, instances


def test_shapes_without_a_tile() -> None:
    sizes = {"rows": 1, "n": 256, "k": 384, "multiprocessors": 4}
    for name in ("rows", "multiprocessors"):
        refused(lambda name=name: table.choose("u4b8", "f16", **sizes | {name: 0}), "at least one", code="LP342")
    refused(lambda: table.choose("u4b8", "f32", **sizes), "f32", "f16, bf16", code="LP344")


@pytest.mark.parametrize(
    ("code", "scale", "options", "words"),
    [("zz", "channel", {}, "'zz'"), ("u4b8", "group", {}, "groups of 0"), ("u4b8", "row", {}, "'row'"),
     ("u4b8", "channel", {"k": 0}, "128 x 0"), ("u4b8", "channel", {"rows": "sparse"}, "dense, experts")],
)  # fmt: skip
def test_instances_that_are_none(code: str, scale: str, options: dict, words: str) -> None:
    refused(lambda: Instance(code, "f16", scale, **options), words, code="LP344")


# ---------------------------------------------------------------- where x and tables stand


@pytest.mark.parametrize(("tp", "rank", "group"), [(16, 15, 32), (16, 7, 64), (16, 1, 32)])
def test_a_rank_that_begins_within_a_chunk(tp: int, rank: int, group: int) -> None:
    """Rows of 36 inputs behind 28: with 8-bit activations they are quantized into 64 stored ones."""
    sizes, params = {"n": 128, "k": 576}, {"qzeros": False, "g_idx": False, "split": "k", "group": group}
    x = torch.rand(3, 576, generator=torch.Generator().manual_seed(1)).half()
    each = 576 // tp
    own = x[:, each * rank : each * (rank + 1)]
    plans = {
        kernel: compile_plan("gptq", kernel, "linear", sizes, params=params, tp=tp, rank=rank)
        for kernel in ("marlin_int4_a16", "marlin_int4_a8int8")
    }
    wide, eight = (MarlinLinear(plan).load_checkpoint(drawn(plan))(own).float() for plan in plans.values())
    assert (wide - eight).abs().max() <= 0.02 * wide.abs().max()


@pytest.mark.parametrize(("sizes", "copied"), [((4, 320), 0), ((4, 324), 1)])
def test_x_of_8_bit_activations_is_not_copied(monkeypatch, sizes: tuple[int, int], copied: int) -> None:
    plan = compile_plan("gptq", "marlin_int4_a8int8", "linear", {"n": 64, "k": sizes[1]},
                        params={"qzeros": False, "g_idx": False, "group": -1})  # fmt: skip
    layer, x, read = MarlinLinear(plan).load_checkpoint(drawn(plan)), torch.rand(sizes).half(), []
    reads = launch.HostLauncher.reads
    monkeypatch.setattr(
        launch.HostLauncher, "reads", lambda self, name, of: (read.append((name, of)), reads(self, name, of))[1]
    )
    layer(x)
    assert next(of.data_ptr() != x.data_ptr() for name, of in read if name == "x") == copied


def test_tables_of_outputs_are_made_outside_of_pools(monkeypatch) -> None:
    """A pool of a CUDA graph is that of a thread; a table is made once, on another."""
    made, tensor = [], torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *a, **k: (made.append(threading.get_ident()), tensor(*a, **k))[1])
    facts = Facts.of(TEXT.replace("0:200", "17:31"))
    launch._COLUMNS.pop((facts, X.device), None)
    found = [launch.columns_of(facts, X.device) for _ in range(2)]
    assert found[0] is found[1] and len(made) == 1 and made[0] != threading.get_ident()
    assert Counter(found[0].tolist())[-1] == 256 - 31 and found[0][17:48].tolist() == list(range(31))


def test_a_capture_is_that_of_the_device_of_x(monkeypatch) -> None:
    current = [0]

    class OnDevice:
        def __init__(self, device):
            self.index = device.index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(torch.cuda, "device", OnDevice)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current[-1] == 1)
    assert [launch.captures(torch.device(name)) for name in ("cpu", "cuda:0", "cuda:1")] == [False, False, True]
    with pytest.raises(LayoutError, match="captured that has never run"):
        launch.columns_of(Facts.of(TEXT.replace("0:200", "19:3")), torch.device("cuda:1"))
