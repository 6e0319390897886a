"""What a refusal offers: each way out is read back from its words and compiled, for every rank."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError, cli, compile_plan, flags, nearest
from layoutdsl.library import load_spec

LINEAR = {"source": "gptq", "target": "marlin_int4_a16", "module": "linear", "sizes": {"n": 64, "k": 960}}


def compiled(asked: dict[str, Any]) -> Any:
    return compile_plan(asked["source"], asked["target"], asked["module"], asked["sizes"],
                        **{key: value for key, value in asked.items() if key not in LINEAR})  # fmt: skip


def refusal(asked: dict[str, Any]) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        compiled(asked)
    return caught.value


def changed(asked: dict[str, Any], words: str) -> dict[str, Any] | None:
    """What was asked for, with the way out that the words name; None where they name none."""
    if found := re.search(r"`--tp (\d+)(?: --ep (\d+))?` works", words):
        return {**asked, "tp": int(found[1]), "ep": int(found[2] or asked.get("ep", 1))}
    if found := re.search(r"`--ep (\d+)` works", words):
        return {**asked, "ep": int(found[1])}
    if found := re.search(r"`--param (\S+)` works", words):
        name, value = flags.param(found[1])
        return {**asked, "params": {**asked.get("params", {}), name: value}}
    if found := re.search(r"(?:kernel|format) `(\w+)` takes it", words):
        return {**asked, "target": found[1]}
    if found := re.search(r"without `target.group` it works", words):
        return {**asked, "params": {k: v for k, v in asked["params"].items() if k != "target.group"}}
    if found := re.search(r"without `padded` it works", words):
        return {**asked, "padded": None}
    return {**asked, "sharded": False} if "`sharded=False` works" in words else None


def check_all_ranks(asked: dict[str, Any]) -> None:
    for rank in range(asked.get("tp", 1)):
        for ep_rank in range(asked.get("ep", 1)):
            compiled({**asked, "rank": rank, "ep_rank": ep_rank})


# ---------------------------------------------------------------- what is offered


@pytest.mark.parametrize(
    ("asked", "code", "help"),
    [
        ({"sizes": {"n": 4096, "k": 4096}, "params": {"split": "n"}, "tp": 3}, "LP120", "`--tp 4` works"),
        ({"sizes": {"n": 4096, "k": 4096}, "params": {"split": "n"}, "tp": 5}, "LP120", "`--tp 4` works"),
        ({"sizes": {"n": 4099, "k": 5040}, "params": {"split": "n"}, "tp": 16}, "LP120", "`--tp 1` works"),
        ({"module": "linear_fused", "sizes": {"n": (512, 128, 128), "k": 512}, "tp": 6}, "LP120", "`--tp 8` works"),
        ({"module": "moe_gated", "sizes": {"e": 4, "i": 64, "h": 64}, "tp": 2, "ep": 8}, "LP120",
         "`--tp 4 --ep 4` works, as many ranks"),
        ({"module": "moe_gated", "sizes": {"e": 3, "i": 64, "h": 64}, "ep": 5}, "LP120",
         "`--tp 5 --ep 1` works, as many ranks"),
        ({"params": {"split": "k", "group": 20}, "tp": 7}, "LP120",
         "one rank alone is refused too: `linear` has groups of 20 along `k`, which kernel `marlin_int4_a16` does not "
         "take"),
        ({"module": "linear_fused", "sizes": {"n": (128, 64, 64), "k": 512}, "params": {"source.parts": "alternating"}},
         "LP121", "`--param source.parts=apart` works"),
        ({"module": "mlp_gated", "sizes": {"i": 1408, "h": 256}, "params": {"target.group": 128}, "tp": 4,
          "grains": {"i": 32}}, "LP122", "`--param target.group=32` works, each scale for 4 finer groups"),
        ({"source": "fp8_block", "target": "marlin_fp8_a16", "params": {"group": 64}}, "LP123",
         "it takes one group (-1), 128; kernel `own_fp8_a16` takes it"),
        ({"params": {"group": 96, "target.group": 96}}, "LP123",
         "it takes one group (-1), 32, 64, 128; `--param target.group=32` works, each scale for 3 finer groups"),
        ({"params": {"group": 20}}, "LP123", "it takes one group (-1), 32, 64, 128"),
        ({"params": {"group": 64, "target.group": 128}}, "LP124",
         "the kernel's groups must divide 64; `--param target.group=64` works"),
        ({"target": "ct_int", "params": {"source.group": 48, "target.group": 64}}, "LP124",
         "the target's groups must divide 48; `--param target.group=48` works"),
        ({"padded": {"n": 65, "k": 960}}, "LP125", "without `padded` it works"),
        ({"sizes": {"n": 64, "k": 1024}, "params": {"act_order": True, "split": "k"}, "tp": 2, "sharded": True},
         "LP126", "`sharded=False` works, with the whole tensors: each rank then takes its slice"),
        ({"source": "awq", "target": "marlin_fp8_a16"}, "LP130", "kernel `marlin_int4_a16` takes it"),
        ({"source": "mxfp4", "target": "gptq"}, "LP130", "format `mxfp4` takes it"),
        ({"params": {"target.bias": True}}, "LP131", "`--param target.bias=false` works"),
        ({"params": {"source.bias": True, "target.bias": False}}, "LP132", "`--param target.bias=true` works"),
        ({"source": "mxfp8", "target": "marlin_mxfp8_a16", "params": {"dtype": "float16"}}, "LP102",
         "expected bfloat16; `--param target.dtype=bfloat16` works"),
        ({"source": "mxfp4", "target": "marlin_nvfp4_a16"}, "LP102",
         "expected 16; kernel `marlin_mxfp4_a16` takes it"),
    ],
)  # fmt: skip
def test_the_nearest_way_out(asked: dict[str, Any], code: str, help: str) -> None:
    asked = {**LINEAR, **asked}
    error = refusal(asked)
    assert (error.diagnostics[0].code, error.help) == (code, help)
    way = changed(asked, help)
    if way is not None:
        check_all_ranks(way)


def test_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan gptq marlin_int4_a16 --module linear --size n=4096 --size k=4096 --param split=n --tp 3"
    assert cli.main(words.split()) == 1
    assert capsys.readouterr().err.endswith("\n  = help: `--tp 4` works\n")


def test_a_kernel_of_ones_own_is_offered(tmp_path: Any) -> None:
    """Another build of the kernel that was asked for comes before kernels that are no kin."""
    (tmp_path / "aaa.yaml").write_text(
        'version: "1"\nkernel: aaa\nbase: marlin_int4_a16\ndoc: takes 20\nsource: here\n'
        "accepts: {tiles: [{n: 64, k: 20}], groups: [20]}\ntry:\n  - {n: 64, k: 64}\n")  # fmt: skip
    asked = {**LINEAR, "params": {"group": 20}, "specs": [str(tmp_path)]}
    (tmp_path / "broken.yaml").write_text("kernel: broken\n")
    assert str(refusal(asked).help).endswith("kernel `aaa` takes it")


# ---------------------------------------------------------------- laws


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Requests of which many are refused."""
    source, target = draw(st.sampled_from([
        ("gptq", "marlin_int4_a16"), ("awq", "marlin_int4_a16"), ("fp8_block", "marlin_fp8_a16"), ("gptq", "ct_int"),
        ("fp8_block", "own_fp8_a16"), ("mxfp4", "marlin_mxfp4_a16"), ("nvfp4", "marlin_int4_a16"),
    ]))  # fmt: skip
    module = draw(st.sampled_from(["linear", "linear_fused", "moe_gated", "mlp_plain", "attention"]))
    size = st.one_of(st.integers(1, 300), st.sampled_from([96, 128, 256, 384, 704, 1024, 1408]))
    asked: dict[str, Any] = {"source": source, "target": target, "module": module, "tp": draw(st.integers(1, 9))}
    kv = draw(st.integers(1, 3))
    asked["sizes"] = {
        "linear": lambda: {"n": draw(size), "k": draw(size)},
        "linear_fused": lambda: {"n": (draw(size), *[draw(size)] * 2), "k": draw(size)},
        "moe_gated": lambda: {"e": draw(st.integers(1, 4)), "i": draw(size), "h": draw(size)},
        "mlp_plain": lambda: {"i": draw(size), "h": draw(size)},
        "attention": lambda: {"q": kv * draw(st.integers(1, 3)), "kv": kv, "d": draw(size), "h": draw(size)},
    }[module]()
    params: dict[str, Any] = {}
    if module.startswith("linear"):
        params["split"] = draw(st.sampled_from(["n", "k"]))
    if source in ("gptq", "awq", "fp8_block"):
        params["group"] = draw(st.sampled_from([20, 32, 48, 64, 96, 128]))
    if source in ("gptq", "awq") and draw(st.booleans()):
        params["target.group"] = draw(st.sampled_from([-1, 16, 32, 64, 128, 100]))
    if source == "gptq":
        params |= {"act_order": draw(st.booleans()), "source.bias": draw(st.booleans())}
        params |= draw(st.sampled_from([{}, {"target.bias": True}, {"target.bias": False}]))
    if module == "moe_gated":
        asked["ep"] = draw(st.integers(1, 6))
    asked["sharded"] = draw(st.booleans())
    return {**asked, "params": params}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests(), st.data())
def test_every_way_out_compiles(asked: dict[str, Any], data: st.DataObject) -> None:
    """For every rank and as the words say it, not only for the ranks and arguments that were tried."""
    asked["rank"] = data.draw(st.integers(0, asked["tp"] - 1))
    try:
        compiled(asked)
        event("served")
        return
    except LayoutError as error:
        event(error.diagnostics[0].code)
        way = changed(asked, error.help or "")
    event("a way out" if way else "none")
    if way is not None:
        check_all_ranks(way)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests())
def test_all_ways_compile_and_trying_has_an_end(asked: dict[str, Any]) -> None:
    specs = {side: load_spec(asked[side]) for side in ("source", "target", "module")}
    whole = {"params": None, "tp": 1, "rank": 0, "ep": 1, "ep_rank": 0, "sharded": False, "padded": None,
             "grains": None, "only": (), "experts": (), "habits": None, "specs": (), **asked, **specs}  # fmt: skip
    tried: list[dict[str, Any]] = []

    def attempt(arguments: dict[str, Any]) -> None:
        tried.append(arguments)
        compiled(arguments)

    try:
        compiled(whole)
        return
    except LayoutError as error:
        found = list(nearest.ways(error, whole, attempt))
    assert len(tried) <= 3 * nearest.TRIES
    for way in found[:6]:
        compiled(way.arguments(whole))


def test_what_is_served_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "helped", None)
    compiled(LINEAR)


def test_what_is_not_about_shapes_is_left_alone() -> None:
    assert refusal({**LINEAR, "params": {"grup": 3}}).help == "did you mean `group`?"
    assert refusal({**LINEAR, "only": ("lin",)}).help == "did you mean `linear`?"
    assert refusal({**LINEAR, "tp": 2, "rank": 2}).help == "ranks count from 0 to 1"


def test_a_rank_that_the_way_out_has_not_is_named() -> None:
    with pytest.raises(LayoutError) as caught:
        compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": 4, "i": 512, "h": 512}, ep=8, ep_rank=7)
    assert caught.value.help == "`--tp 2 --ep 4` works, as many ranks; its last rank is `--ep-rank 3`"
