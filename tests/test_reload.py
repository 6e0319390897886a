"""`layoutdsl.Reload`: tensors of a new checkpoint in any order, and the live ones are those of a fresh `load`."""

import doctest
import gc
import random
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import FIXTURES, NAMES, bytes_of, config_of, copied, same, source_of, written
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from layoutdsl import LayoutError, MarlinMoE, Reload, load, reload
from layoutdsl.checkpoints.load import planned
from layoutdsl.reloading import folding
from layoutdsl.reloading.report import Report

Tensors = dict[str, torch.Tensor]

MOE, SORTED, FP4 = "qwen3_moe_w4a16", "llama_gptq_desc_act", "llama_nvfp4a16"
APPLY = ("arrival", "unit", "layer")

# ---------------------------------------------------------------- checkpoints and models


def changed(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Another checkpoint of the same shapes: words and scales in another order, scales of a whole tensor times 2."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith("_shape") or (name.endswith("g_idx") and bool((tensor.diff() >= 0).all())):
            found[name] = tensor.clone()
        elif tensor.numel() > 1:
            found[name] = tensor.view(-1).view(words(tensor)).roll(17).view(tensor.dtype).view(tensor.shape)
        else:
            found[name] = tensor * 2
    return found


def words(tensor: torch.Tensor) -> torch.dtype:
    return torch.uint8 if tensor.element_size() == 1 else tensor.dtype


@cache
def source(name: str, step: int) -> Tensors:
    """The tensors of a training step; those of step 0 are the fixture's."""
    return changed(source(name, step - 1)) if step else source_of(FIXTURES / name)


@cache
def loaded(name: str, step: int, home: Path, options: tuple) -> Tensors:
    """What a fresh load gives, by another way than Reload: from files."""
    folder = home / f"{name}-{step}"
    if not folder.exists():
        copied(name, folder)
        written(folder, source(name, step))
    return dict(load(folder, **{"rank": 0, **dict(options)}))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def copy(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def shuffled(tensors: Mapping[str, torch.Tensor], seed: int) -> list[tuple[str, torch.Tensor]]:
    return random.Random(seed).sample([*tensors.items()], len(tensors))


def buckets(tensors: Mapping[str, torch.Tensor], seed: int) -> Iterator[Any]:
    """All tensors in a random order, in some lists, dicts and generators."""
    dice, left = random.Random(seed), shuffled(tensors, seed)
    while left:
        count = dice.choice([1, 5, 40])
        bucket, left = left[:count], left[count:]
        yield dice.choice([list, tuple, dict, reused])(bucket)


def reused(bucket: list[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor in the same storage, as trainers send them."""
    room = torch.empty(max(tensor.nbytes for _, tensor in bucket) + 16, dtype=torch.uint8)
    for name, tensor in bucket:
        there = room[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        there.copy_(tensor)
        yield name, there
        room.fill_(0xA5)


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(bytes_of(one), bytes_of(other))


# ---------------------------------------------------------------- the law


SIDES = st.sampled_from([
    *((name, ()) for name in NAMES),
    *((name, (("tp", 3), ("rank", 1))) for name in NAMES),
    *((name, (("tp", 2), ("ep", 2), ("rank", 3))) for name in NAMES if "moe" in name),
    (MOE, (("target", "marlin_int4_a8int8"),)),
    (MOE, (("target", "marlin_int4_a8fp8"), ("tp", 2))),
    (MOE, (("experts", (3, 0, 1, 2, 0, 3)), ("ep", 2))),
])  # fmt: skip


@settings(max_examples=16, deadline=None, phases=(Phase.generate,))
@given(SIDES, st.sampled_from(APPLY), st.sampled_from(["torch", "cpu"]), st.integers(0, 1 << 32))
def test_any_order_makes_what_a_fresh_load_does(
    home: Path, side: tuple, apply: str, backend: str, seed: int
) -> None:
    name, options = side
    live = copy(loaded(name, 0, home, options))
    places = {name: tensor.data_ptr() for name, tensor in live.items()}
    reload = Reload(live, FIXTURES / name, apply=apply, backend=backend, **{"rank": 0, **dict(options)})
    for step in (1, 2):
        before, wanted = copy(live), loaded(name, step, home, options)
        if seed % 3 == step:  # a trainer that fails, and begins anew
            reload.begin()
            reload.update(shuffled(source(name, 3), seed)[::2])
            before = copy(live)
        reload.begin()
        tensors = source(name, step)
        due = set(reload.report.missing)
        assert due <= tensors.keys() and sorted(reload.report.old) == sorted(before)
        for bucket in buckets(tensors, seed + step):
            last, report = copy(live), reload.update(bucket)
            assert {name for name in live if not equal(live[name], last[name])} <= {*report.written}
            assert set(report.waiting).isdisjoint(report.missing) and set(report.missing) <= due
            check(report, live, before, wanted)
        assert reload.finish().complete and not report.missing and report.held == 0
        same(live, wanted)
    assert {name: tensor.data_ptr() for name, tensor in live.items()} == places


def check(report: Report, live: Tensors, before: Tensors, wanted: Tensors) -> None:
    """What is called old has not been touched, what is called new is final, and all that is there has one of these."""
    assert sorted([*report.old, *report.mixed, *report.new]) == sorted(live)
    assert [name for name in report.old if not equal(live[name], before[name])] == []
    assert [name for name in report.new if not equal(live[name], wanted[name])] == []
    assert report.complete is (len(report.new) == len(live) and not report.missing)


@pytest.mark.parametrize("apply", APPLY)
def test_what_is_written_together(apply: str, home: Path) -> None:
    """Of all names with one key, none is new before the last of them is."""
    live, wanted = copy(loaded(MOE, 0, home, ())), loaded(MOE, 1, home, ())
    reload = Reload(live, FIXTURES / MOE, apply=apply)
    keys = {
        "arrival": lambda name: name,
        "unit": lambda name: name.rsplit(".", 2 if "experts" in name else 1)[0],
        "layer": lambda name: ".".join(name.split(".")[: 3 if "layers" in name else 9]),
    }
    groups: dict[str, list[str]] = {}
    for name in live:
        groups.setdefault(keys[apply](name), []).append(name)
    for pair in shuffled(source(MOE, 1), 5):
        report = reload.update([pair])
        for group, names in groups.items():
            new = [name for name in names if name in report.new]
            assert apply == "arrival" or len(new) in (0, len(names)), group
            assert apply == "arrival" or not report.mixed
    assert len(groups) == {"arrival": 29, "unit": 19, "layer": 5}[apply]
    same(live, wanted)


# ---------------------------------------------------------------- models


class Layer(torch.nn.Module):
    """Kernel tensors as parameters, but for those of integers."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        super().__init__()
        for name, tensor in tensors.items():
            *above, last = name.split(".")
            module: torch.nn.Module = self
            for step in above:
                if step not in module._modules:
                    module.add_module(step, torch.nn.Module())
                module = module.get_submodule(step)
            if tensor.is_floating_point() and tensor.dtype.itemsize > 1:
                module.register_parameter(last, torch.nn.Parameter(tensor.clone()))
            else:
                module.register_buffer(last, tensor.clone())


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_module_is_reloaded(mode: Any, home: Path) -> None:
    with mode():
        model = Layer(loaded(SORTED, 0, home, ()))
    model.register_buffer("cache", torch.ones(3))
    reload = Reload(model, FIXTURES / SORTED)
    for step in (1, 0):
        reload.begin()
        reload.update(source(SORTED, step))
        reload.finish()
        state = model.state_dict()
        assert torch.equal(state.pop("cache"), torch.ones(3))
        same(state, loaded(SORTED, step, home, ()))
        if mode is torch.enable_grad:
            for parameter in model.parameters():  # moved between two rounds
                parameter.data = parameter.data.clone()


def test_modules_that_compute_are_reloaded(home: Path) -> None:
    """A mixture of experts, whose buffers are the tensors that its kernels read."""
    wanted = loaded(MOE, 1, home, ())
    model = Layer({name: tensor for name, tensor in loaded(MOE, 0, home, ()).items() if "experts" not in name})
    for job, (plan,) in planned(FIXTURES / MOE, rank=0).jobs():
        if job.unit.name.endswith("experts"):
            layer = model.get_submodule(job.unit.name.removesuffix(".experts"))
            layer.add_module("experts", MarlinMoE(plan, activation="silu"))
    assert reload(model, iter(source(MOE, 1).items()), FIXTURES / MOE, apply="layer").complete
    same({name: tensor for name, tensor in model.state_dict().items() if "_extra_state" not in name}, wanted)


def replaced(model: Layer, path: str, how: str) -> None:
    """Another tensor of the same values, and the storage of the old one is what it was."""
    module, _, last = path.rpartition(".")
    owner, tensor = model.get_submodule(module), model.get_parameter(path)
    if how == "parameter":
        setattr(owner, last, torch.nn.Parameter(tensor.detach().clone()))
    elif how == "data":
        tensor.data = tensor.data.clone()
    elif how == "freed":
        tensor.untyped_storage().resize_(0)
    else:
        delattr(owner, last)


@pytest.mark.parametrize("how", ["parameter", "data", "freed", "gone"])
@pytest.mark.parametrize("apply", APPLY)
def test_a_live_tensor_that_is_replaced_within_a_round(apply: str, how: str, home: Path) -> None:
    """What would be written where the model no longer reads is refused; the next round finds what is there."""
    model, path = Layer(loaded(MOE, 0, home, ())), "model.layers.1.self_attn.o_proj.weight_scale"
    one, tensors = Reload(model, FIXTURES / MOE, apply=apply), [*source(MOE, 1).items()]
    one.update(tensors[:20])
    kept = model.get_parameter(path)
    replaced(model, path, how)
    due = [pair for pair in tensors[20:] if "layers.1.self_attn" in pair[0] or "norm" in pair[0]]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if tensor.untyped_storage().nbytes()}
    with pytest.raises(LayoutError, match=f"LP380 live-tensor: `{path}` of the model is no longer the tensor that"):
        one.update(due)
    same({name: tensor for name, tensor in model.state_dict().items() if name in before}, before)

    if how == "gone":
        model.get_submodule(path.rpartition(".")[0]).weight_scale = kept  # put back
        one.update(tensors[20:])
    else:
        if how == "freed":
            kept.data = torch.empty_like(loaded(MOE, 0, home, ())[path])
        one.begin()
        one.update(tensors)
    assert one.finish().complete
    same(model.state_dict(), loaded(MOE, 1, home, ()))


@pytest.mark.parametrize("apply", APPLY)
def test_a_live_tensor_that_is_replaced_when_it_was_new(apply: str, home: Path) -> None:
    live, name = copy(loaded(MOE, 0, home, ())), "lm_head.weight"
    one = Reload(live, FIXTURES / MOE, apply=apply)
    assert one.update(source(MOE, 1)).complete
    written, live[name] = live[name], loaded(MOE, 0, home, ())[name].clone()
    with pytest.raises(LayoutError, match=f"`{name}` of the model is no longer the tensor that this round writes to"):
        one.finish()
    live[name] = written
    assert one.finish().complete
    live[name] = written.clone()  # between two rounds
    assert one.finish().complete
    same(live, loaded(MOE, 1, home, ()))


def test_gradients_of_what_is_given_do_not_matter(home: Path) -> None:
    live = copy(loaded(MOE, 0, home, ()))
    tensors = {
        name: tensor.requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in copy(source(MOE, 1)).items()
    }
    report = reload(live, tensors, FIXTURES / MOE)
    assert report.complete and set(report.written) == set(live)
    same(live, loaded(MOE, 1, home, ()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "LP380 live-tensor: the model has no tensor `NAME`, expected int32 [8, 1024]"),
        (lambda tensor: tensor.float(), "`NAME` of the model is float32 [8, 1024], expected int32 [8, 1024]"),
        (lambda tensor: tensor[:4], "`NAME` of the model is int32 [4, 1024], expected int32 [8, 1024]"),
        (lambda tensor: tensor.t().contiguous().t(), "`NAME` of the model is not contiguous"),
        (lambda tensor: tensor.to("meta"), "`NAME` of the model is a meta tensor"),
        (lambda tensor: [1], "`NAME` of the model is of type list"),
    ],
)
def test_a_live_tensor_that_is_wrong(change: Any, message: str, home: Path) -> None:
    live, name = copy(loaded(SORTED, 0, home, ())), "model.layers.0.self_attn.o_proj.weight"
    tensor = live.pop(name)
    if change is not None:
        live[name] = change(tensor)
    with pytest.raises(LayoutError) as refusal:
        Reload(live, FIXTURES / SORTED)
    rows, columns = tensor.shape
    expected = message.replace("NAME", name).replace("[8, 1024]", str([rows, columns]))
    assert expected.replace("[4, 1024]", str([4, columns])) in str(refusal.value)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (torch._neg_view, "a negated view"),
        (lambda tensor: torch.nested.nested_tensor([tensor], layout=torch.jagged), "a nested tensor"),
        (lambda tensor: FakeTensorMode().from_tensor(tensor), "without memory"),
        (lambda tensor: torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype), "without memory"),
    ],
    ids=["negated", "nested", "fake", "zero"],
)
def test_a_live_tensor_that_cannot_be_written(change: Any, found: str, home: Path) -> None:
    live, name = copy(loaded(MOE, 0, home, ())), "model.layers.1.mlp.experts.w2.weight_scale"
    live[name] = change(live[name])
    with pytest.raises(LayoutError, match=f"LP166 no-tensor: `{name}` of the model is {found}, a dense one"):
        Reload(live, FIXTURES / MOE)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
@pytest.mark.parametrize("apply", APPLY)
def test_live_tensors_that_were_made_in_inference_mode(apply: str, backend: str, home: Path) -> None:
    """Experts are written into parts of them, which torch refuses for such tensors as they are."""
    name = "qwen3_moe_nvfp4a16"
    with torch.inference_mode():
        live = copy(loaded(name, 0, home, ()))
    assert reload(live, [*source(name, 1).items()], FIXTURES / name, apply=apply, backend=backend).complete
    same(live, loaded(name, 1, home, ()))


def test_live_tensors_that_share_memory(home: Path) -> None:
    live = copy(loaded(SORTED, 0, home, ()))
    live["lm_head.weight"] = live["model.embed_tokens.weight"]
    with pytest.raises(LayoutError, match=r"`.*embed_tokens.weight` and `lm_head.weight` of the model share memory|"
                                          r"`lm_head.weight` and `.*embed_tokens.weight` of the model share memory"):
        Reload(live, FIXTURES / SORTED)


def test_what_is_no_model() -> None:
    with pytest.raises(LayoutError, match="the model is of type list"):
        Reload([], FIXTURES / SORTED)  # type: ignore[arg-type]
    for wrong in (None, 5, torch.nn.Linear(2, 2)):
        with pytest.raises(LayoutError, match=r"LP381 .* is given, pairs \(name, tensor\) are needed"):
            Reload(dict(load(FIXTURES / SORTED)), FIXTURES / SORTED).update(wrong)
    with pytest.raises(LayoutError, match="`apply` is 'units', expected arrival, unit or layer"):
        Reload({}, FIXTURES / SORTED, apply="units")  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is refused


def refused(one: Reload, live: Tensors, tensors: Any) -> str:
    """Nothing is written, nothing counts as given."""
    before, parts = copy(live), one.report.parts
    with pytest.raises(LayoutError) as refusal:
        one.update(tensors)
    same(live, before)
    assert one.report.parts == parts
    return str(refusal.value)


@pytest.mark.parametrize("apply", APPLY)
def test_what_does_not_fit(apply: str, home: Path) -> None:
    live, tensors = copy(loaded(MOE, 0, home, ())), source(MOE, 1)
    one = Reload(live, FIXTURES / MOE, apply=apply)
    good, name = ("model.norm.weight", tensors["model.norm.weight"]), "model.layers.0.self_attn.o_proj.weight_packed"
    tensor = tensors[name]
    rows, columns = tensor.shape

    def said(wrong: Any) -> str:
        return refused(one, live, [good, wrong])

    assert "LP381 no-such-tensor: the checkpoint has no tensor `lm_heat.weight`" in said(("lm_heat.weight", tensor))
    assert "did you mean `lm_head.weight`?" in said(("lm_heat.weight", tensor))
    assert "LP382 given-twice: `model.norm.weight` is given twice in one round" in said(good)
    assert f"LP163 wrong-dtype: `{name}` is float32, expected int32" in said((name, tensor.float()))
    assert f"`{name}` has the shape [{rows // 2}, {columns}], expected [{rows}, {columns}]" in said(
        (name, tensor[: rows // 2])
    )
    assert "gather a sharded one" in said((name, tensor[: rows // 2]))
    assert f"LP166 no-tensor: `{name}` is a meta tensor" in said((name, tensor.to("meta")))
    assert f"LP166 no-tensor: `{name}` is of type list" in said((name, [1, 2]))
    assert "`model.norm.weight` is float32, expected bfloat16" in refused(one, live, {good[0]: good[1].float()})
    for wrong in (name, (name,), (1, tensor), None):
        assert "a pair (name, tensor) is needed" in said(wrong)

    one.update([good])
    assert "LP382 given-twice: `model.norm.weight`" in refused(one, live, iter([good]))
    with pytest.raises(LayoutError) as refusal:
        one.finish()
    assert "LP383 round-incomplete: the round is not complete: 108 tensors were not given" in str(refusal.value)
    assert "`model.layers.{0..1}.mlp.experts.{0..3}.{gate_proj,up_proj,down_proj}.{weight_packed,weight_scale," in str(
        refusal.value
    )
    one.update(dict(pair for pair in tensors.items() if pair[0] != good[0]))
    same(live, loaded(MOE, 1, home, ()))
    assert one.finish().complete


def test_a_generator_that_fails_leaves_what_came_before(home: Path) -> None:
    live = copy(loaded(MOE, 0, home, ()))
    one = Reload(live, FIXTURES / MOE)

    def trainer() -> Iterator[tuple[str, torch.Tensor]]:
        assert torch.is_grad_enabled()  # what it does is its own
        yield "model.norm.weight", source(MOE, 1)["model.norm.weight"]
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        one.update(trainer())
    assert one.report.new == ("model.norm.weight",)
    assert "model.norm.weight" not in one.report.missing


@pytest.mark.parametrize("apply", APPLY)
def test_a_value_that_no_kernel_holds(apply: str, home: Path) -> None:
    """Global scales of gate and up that differ by no power of two."""
    live, tensors = copy(loaded(FP4, 0, home, ())), source(FP4, 1)
    one = Reload(live, FIXTURES / FP4, apply=apply)
    name = "model.layers.0.mlp.up_proj.weight_global_scale"
    one.update([pair for pair in shuffled(tensors, 3) if pair[0] != name])
    said = refused(one, live, [(name, tensors[name] * 3)])
    assert "LP171 global-scales-differ: `model.layers.0.mlp`: `gate_up.up.weight_global_scale`" in said
    if apply != "arrival":
        own = [key for key in live if ".mlp." in key]
        assert own and all(equal(live[key], loaded(FP4, 0, home, ())[key]) for key in own)
        assert set(own) <= set(one.report.old)
    one.update([(name, tensors[name])])
    one.finish()
    same(live, loaded(FP4, 1, home, ()))


def test_a_sharded_tensor(home: Path, tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor

    live, name = copy(loaded(MOE, 0, home, ())), "lm_head.weight"
    one = Reload(live, FIXTURES / MOE)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        sharded = distribute_tensor(source(MOE, 1)[name], mesh, [Replicate()])
        said = refused(one, live, {name: sharded})
        with pytest.raises(LayoutError, match=f"`{name}` of the model is a DTensor"):
            Reload(live | {name: sharded}, FIXTURES / MOE)
        one.update({name: sharded.full_tensor()})
    finally:
        dist.destroy_process_group()
    assert f"LP166 no-tensor: `{name}` is a DTensor, of which this process has a part, a whole tensor is needed" in said
    assert "call full_tensor() on it, on all of its ranks" in said
    assert one.report.new == (name,)


# ---------------------------------------------------------------- what is held


def test_what_is_held_is_what_waits(home: Path) -> None:
    """Without act-order nothing waits; with it, the weights for their order."""
    one = Reload(copy(loaded(MOE, 0, home, ())), FIXTURES / MOE)
    for pair in shuffled(source(MOE, 1), 1):
        assert one.update([pair]).held == 0
    one = Reload(copy(loaded(SORTED, 0, home, ())), FIXTURES / SORTED)
    tensors = source(SORTED, 1)
    layer = "model.layers.0.self_attn.o_proj"
    report = one.update([(f"{layer}.qweight", tensors[f"{layer}.qweight"])])
    assert (report.waiting, report.held) == ((f"{layer}.qweight",), tensors[f"{layer}.qweight"].nbytes)
    report = one.update([(f"{layer}.g_idx", tensors[f"{layer}.g_idx"])])
    assert (report.waiting, report.held) == ((), 0)


def test_layers_that_come_in_order_are_staged_one_at_a_time(home: Path) -> None:
    live = copy(loaded(MOE, 0, home, ()))
    one = Reload(live, FIXTURES / MOE, apply="layer")
    tensors = source(MOE, 1)
    most = max(
        sum(tensor.nbytes for name, tensor in live.items() if name.startswith(f"model.layers.{at}.")) for at in (0, 1)
    )
    held = [one.update([(name, tensors[name])]).held for name in sorted(tensors)]
    assert 0 < max(held) <= most and held[-1] == 0


def test_a_tensor_is_let_go(home: Path) -> None:
    one = Reload(copy(loaded(MOE, 0, home, ())), FIXTURES / MOE, apply="layer")
    alive: list[int] = []

    def trainer() -> Iterator[tuple[str, torch.Tensor]]:
        seen: list[weakref.ref] = []
        for name, tensor in source(MOE, 1).items():
            given = tensor.clone()
            seen.append(weakref.ref(given))
            yield name, given
            del given
            gc.collect(0)
            alive.append(sum(ref() is not None for ref in seen))

    one.update(trainer())
    assert max(alive) <= 1


def test_experts_of_other_ranks_are_passed_over(home: Path) -> None:
    options = (("ep", 2), ("rank", 1))
    live = copy(loaded(MOE, 0, home, options))
    one = Reload(live, FIXTURES / MOE, **dict(options))
    due = one.report.missing
    others = {name: tensor for name, tensor in source(MOE, 1).items() if name not in due}
    assert {name.split(".")[5] for name in others} == {"0", "1"}
    assert one.update(others).written == () and len(others) == 2 * 2 * 9
    assert "LP382 given-twice" in refused(one, live, others)
    assert one.update({name: source(MOE, 1)[name] for name in due}).complete
    same(live, loaded(MOE, 1, home, options))


@pytest.mark.parametrize("apply", APPLY)
def test_a_finished_round_holds_nothing_of_the_model(apply: str, home: Path) -> None:
    """So that what is offloaded is let go; and what other ranks need comes after all that this one does."""
    live = copy(loaded(MOE, 0, home, (("ep", 2),)))
    one = Reload(live, FIXTURES / MOE, apply=apply, ep=2, rank=0)
    due = one.report.missing
    one.update({name: source(MOE, 1)[name] for name in due})
    assert one.update({name: tensor for name, tensor in source(MOE, 1).items() if name not in due}).written == ()
    report = one.finish()
    storages = [weakref.ref(tensor.untyped_storage()) for tensor in live.values()]
    for name, tensor in live.items():
        live[name] = tensor.clone()
    del tensor
    gc.collect()
    assert [ref() for ref in storages] == [None] * len(live)
    assert report.complete and one.report.complete
    one.begin()
    one.update(source(MOE, 2))
    same(live, loaded(MOE, 2, home, (("ep", 2),)))


@pytest.mark.parametrize("change", [lambda one: one[:, None], lambda one: one[None]])
def test_a_copy_of_another_shape(change: Any, home: Path) -> None:
    live = copy(loaded(MOE, 0, home, ()))
    one = Reload(live, FIXTURES / MOE)
    with pytest.raises(LayoutError, match=r"`model\.norm\.weight` has the shape") as caught:
        one.update([("model.norm.weight", change(source(MOE, 1)["model.norm.weight"]))])
    assert caught.value.diagnostics[0].code == "LP162"
    same(live, loaded(MOE, 0, home, ()))


# ---------------------------------------------------------------- the report


def test_the_report_in_words(home: Path) -> None:
    live = copy(loaded(MOE, 0, home, (("tp", 2),)))
    one = Reload(live, FIXTURES / MOE, tp=2, rank=0)
    tensors = source(MOE, 1)
    late = ("k_proj.weight_scale", "experts.1.up_proj.weight_packed", "experts.2.up_proj.weight_packed")
    report = one.update([pair for pair in tensors.items() if not pair[0].endswith(late)])
    assert str(report).splitlines() == [
        "not complete: 25 tensors are new, 4 half new, 0 old",
        "half new: model.layers.{0..1}.self_attn.qkv_proj.weight_scale",
        "half new: model.layers.{0..1}.mlp.experts.w13.weight",
        "missing: model.layers.{0..1}.self_attn.k_proj.weight_scale",
        "missing: model.layers.{0..1}.mlp.experts.{1..2}.up_proj.weight_packed",
    ]
    one.update([pair for pair in tensors.items() if pair[0].endswith(late)])
    assert str(one.report) == "complete: 29 tensors are new"


@example([["0", "a"], ["1", "a"], ["b", "a"]])  # numbers that are folded stay apart from words
@given(st.lists(st.lists(st.sampled_from(["0", "1", "2", "10", "01", "a", "b", "q_proj"]), min_size=1, max_size=5)))
def test_no_name_is_folded_that_was_not_given(names: list[list[str]]) -> None:
    spelled = [".".join(name) for name in names]
    assert sorted(one for line in folding.fold(spelled) for one in unfolded(line)) == sorted({*spelled})


def unfolded(line: str) -> Iterator[str]:
    head, brace, rest = line.partition("{")
    if not brace:
        yield line
        return
    inside, _, tail = rest.partition("}")
    for one in inside.split(","):
        low, dots, high = one.partition("..")
        for step in range(int(low), int(high) + 1) if dots else [one]:
            yield from unfolded(f"{head}{step}{tail}")


def test_the_examples() -> None:
    assert doctest.testmod(folding).failed == 0


def test_no_weight_is_read(tmp_path: Path, home: Path) -> None:
    """The folder has headers, and no bytes that could be weights."""
    src = copied(FP4, tmp_path / "src")
    path = src / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: 8 + int.from_bytes(whole[:8], "little")].ljust(len(whole), b"\xff"))
    live = copy(loaded(FP4, 0, home, ()))
    reload(live, source(FP4, 1), src)
    same(live, loaded(FP4, 1, home, ()))
    assert config_of(src) == config_of(FIXTURES / FP4)
