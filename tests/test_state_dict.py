"""The state_dict adapter: a dict of tensors in memory becomes what `layoutdsl.load` makes of a folder of them."""

import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import torch
from converted import FIXTURES, NAMES, config_of, same, source_of

from layoutdsl import LayoutError, load
from layoutdsl.adapters.state_dict import convert_state_dict
from layoutdsl.checkpoints import memory

MOE = FIXTURES / "qwen3_moe_w4a16"
SIDES = [*((name, 1, 1, 0) for name in NAMES), *((name, 3, 1, 1) for name in NAMES),
         *((name, 2, 2, 3) for name in NAMES if "moe" in name)]  # fmt: skip


@pytest.mark.parametrize(("name", "tp", "ep", "rank"), SIDES)
def test_what_comes_out_is_what_load_gives(name: str, tp: int, ep: int, rank: int) -> None:
    tensors, config = source_of(FIXTURES / name), config_of(FIXTURES / name)
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    found = convert_state_dict(tensors, config, tp=tp, ep=ep, rank=rank)
    wanted = dict(load(FIXTURES / name, tp=tp, ep=ep, rank=rank))
    same(found, wanted)
    assert [*found] == [*wanted]
    same(tensors, before)
    assert config == config_of(FIXTURES / name)


def test_arguments_are_those_of_load() -> None:
    options: dict[str, Any] = {
        "target": ("marlin_int8_a16", "marlin_int4_a8fp8"), "dtype": "float16", "backend": "cpu", "device": "cpu",
        "params": {"group": 128}, "experts": (3, 0, 1, 2, 0, 3), "ep": 2, "rank": 1,
    }  # fmt: skip
    same(convert_state_dict(source_of(MOE), config_of(MOE), **options), dict(load(MOE, **options)))


def test_parameters_are_converted_and_nothing_is_recorded() -> None:
    tensors = {
        name: torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor
        for name, tensor in source_of(MOE).items()
    }
    for backend in ("torch", "cpu"):
        found = convert_state_dict(tensors, config_of(MOE), backend=backend)
        assert not any(tensor.requires_grad for tensor in found.values())
        same(found, dict(load(MOE)))


def test_the_older_name_of_the_quantization() -> None:
    config = config_of(MOE)
    config["compression_config"] = config.pop("quantization_config")
    same(convert_state_dict(source_of(MOE), config), dict(load(MOE)))


# ---------------------------------------------------------------- what is kept


class Watched(MutableMapping[str, torch.Tensor]):
    """A state dict that notes how many of the tensors that it gave up are still alive."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        self.tensors, self.gone, self.alive = tensors, dict[str, weakref.ref](), list[set[str]]()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        raise AssertionError("nothing is put in")

    def __delitem__(self, name: str) -> None:
        self.alive.append({name for name, ref in self.gone.items() if ref() is not None})
        self.gone[name] = weakref.ref(self.tensors[name].untyped_storage())
        del self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_sources_are_let_go_unit_by_unit() -> None:
    tensors = source_of(MOE)
    state = Watched({name: tensor.clone() for name, tensor in tensors.items()})
    found = convert_state_dict(state, config_of(MOE), sources="released")
    assert not state and {*state.gone} == {*tensors}
    for alive in state.alive:
        units = {name.split("_proj")[0].rsplit(".", 1)[0].split("experts.")[0] for name in alive if name not in found}
        assert len(units) <= 1, "of one unit at a time, and of tensors that are copied"
    same(found, dict(load(MOE)))


def test_copied_tensors_are_the_given_ones() -> None:
    tensors = source_of(MOE)
    found = convert_state_dict(tensors, config_of(MOE))
    assert found["lm_head.weight"].data_ptr() == tensors["lm_head.weight"].data_ptr()


# ---------------------------------------------------------------- what is refused


def refusal(tensors: Any, config: Any, **options: Any) -> str:
    kept = dict(tensors) if isinstance(tensors, dict) else {}
    with pytest.raises(LayoutError) as caught:
        convert_state_dict(tensors, config, sources="released", **options)
    assert not kept or [*tensors] == [*kept]
    return str(caught.value)


def test_all_is_checked_before_anything_is_released() -> None:
    tensors, config = source_of(MOE), config_of(MOE)
    name = "model.layers.1.mlp.experts.2.up_proj.weight_packed"
    tensor = tensors[name]

    def said(**change: Any) -> str:
        return refusal(tensors | change, config)

    lacking = {key: one for key, one in tensors.items() if key != name}
    assert f"LP217 missing-tensor: tensor `{name}` is in no file" in refusal(lacking, config)
    assert f"LP216 unmatched-tensor: tensor `{name}s` of `state_dict`" in said(**{f"{name}s": tensor})
    differs = f"LP219 tensor-differs: tensor `{name}` of `state_dict` is int32 [512, 8], expected int32 [512, 16]"
    assert differs in said(**{name: tensor[:, :8]})
    assert f"LP166 no-tensor: `{name}` is a meta tensor" in said(**{name: tensor.to("meta")})
    assert f"LP166 no-tensor: `{name}` is of type list" in said(**{name: [1]})
    assert f"LP163 wrong-dtype: `{name}` is complex64, which no checkpoint holds" in said(**{name: tensor.cfloat()})
    assert "LP210 bad-checkpoint: the config is of type NoneType, a mapping is needed" in refusal(tensors, None)
    assert "LP210 bad-checkpoint: the state dict is of type list" in refusal([], config)
    assert "rank 1 of 1 ranks does not exist" in refusal(tensors, config, rank=1)
    assert "LP215 bad-config: config.json states no single architecture" in refusal(tensors, {})
    with pytest.raises(LayoutError, match="`sources` is 'gone', expected kept or released"):
        convert_state_dict(tensors, config, sources="gone")  # type: ignore[arg-type]


def test_a_value_that_no_kernel_holds_names_its_unit() -> None:
    src = FIXTURES / "llama_nvfp4a16"
    tensors = source_of(src)
    tensors["model.layers.0.mlp.up_proj.weight_global_scale"] *= 3
    with pytest.raises(LayoutError, match=r"LP171 global-scales-differ: `model\.layers\.0\.mlp`"):
        convert_state_dict(tensors, config_of(src))


def test_the_place_is_named_in_messages() -> None:
    assert str(memory.described({}, {}).path) == "state_dict"
