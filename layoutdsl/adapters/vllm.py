"""vLLM: what a quantization method's `process_weights_after_loading` can call.

    def process_weights_after_loading(self, layer):
        plan = process_weights(layer, "gptq", params={"bits": 4, "group": 128})

The layer's parameters, this rank's own in the shapes of `create_weights`, give way to those of a Marlin kernel. What
vLLM calls things stands in data/vllm.yaml; vLLM itself is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from layoutdsl import source
from layoutdsl.adapters.explained import Explained, Params, Sizes, explained
from layoutdsl.choose import kernel_for
from layoutdsl.compile import compile_plan
from layoutdsl.errors import LayoutError, did_you_mean
from layoutdsl.library import load_spec
from layoutdsl.model import Checkpoint, Kernel, Module, ParamValue
from layoutdsl.plan import Plan, TensorInfo
from layoutdsl.recodes import Habits

TARGET = "target."
"""Begins the names of the kernel's parameters."""


def process_weights(
    layer: torch.nn.Module,
    method: str,
    *,
    params: Mapping[str, ParamValue] | None = None,
    target: str = "",
    habits: Habits | None = None,
    specs: tuple[str, ...] = (),
    backend: str = "torch",
) -> Plan:
    """Replace the parameters of one layer by those of a kernel, and return the plan that made them.

    method: one of data/vllm.yaml, such as gptq, fp8_block or compressed_tensors_nvfp4. params: what the quantization
    config states, as the checkpoint's spec has it, such as {"bits": 4, "group": 128, "zero_points": False}, and with
    `target.` before them parameters of the kernel; what the tensors tell (a bias, a scale for each fused part) need not
    be said. target: a kernel spec; without it the one for the codes, with 16-bit activations.

    The sizes are the layer's own attributes. No source tensor is kept; what the method does not name, such as
    activation scales, stays. The plan's `duties` say what is left to who calls the kernel: vLLM pads the inputs and
    slices the outputs of dense layers; expert layers are in its own contract, w13 and w2 padded alike.

    Raises LayoutError, before anything is replaced, where the tensors are not those of the method at these sizes, or no
    kernel takes them.
    """
    given = dict(params or {})
    names = _Names.of(layer, method, specs)
    own = {name: getattr(layer, attribute).data for name, attribute in names.attributes.items()}
    stated = {name: value for name, value in given.items() if not name.startswith(TARGET)}
    found = explained(own, names.spec, names.modules(specs), {**names.params, **stated}, names.dtype)
    asked = {name.removeprefix(TARGET): value for name, value in given.items() if name.startswith(TARGET)}
    plan = _plan(found, target, names.dtype, asked, habits, specs)
    made = plan.run(own, backend=backend)
    own.clear()
    for attribute in names.attributes.values():
        delattr(layer, attribute)
    for name, tensor in made.items():
        _register(layer, names.after(plan.output[name], found), tensor)
    for attribute in names.empty:
        if not hasattr(layer, attribute):
            _register(layer, attribute, torch.empty(0, dtype=torch.int32, device=tensor.device))
    return plan


def _plan(
    found: Explained, target: str, dtype: Params, asked: Params, habits: Habits | None, specs: tuple[str, ...]
) -> Plan:
    named = (target,) if target else ()
    name = kernel_for(found.spec, found.params, found.matrices, asked=named, stated={**dtype, **asked}, specs=specs)
    kernel = load_spec(name, specs=specs, kind="kernel")
    assert isinstance(kernel, Kernel)
    wanted = {**{name: value for name, value in dtype.items() if name in kernel.params}, **asked}
    params: Params = {f"source.{name}": value for name, value in found.params.items()}
    params |= {f"module.{name}": value for name, value in found.module_params.items()}
    params |= {f"{TARGET}{name}": value for name, value in wanted.items()}
    if found.in_parts:
        params[f"{TARGET}parts"] = found.params["parts"]
    return compile_plan(found.spec, kernel, found.module, found.sizes, params=params, habits=habits, specs=specs)


def _register(layer: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    if hasattr(layer, name):  # an attribute without a tensor, such as None
        delattr(layer, name)
    layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))


# --- what vLLM calls things -------------------------------------------------------------------------------------------


@cache
def _table() -> dict[str, Any]:
    return source.read_file(Path(__file__).resolve().parent.parent / "data" / "vllm.yaml").data


@dataclass(frozen=True)
class _Names:
    """What a layer's tensors and sizes are called under one method. `attributes`: plan name -> attribute."""

    layer: torch.nn.Module
    spec: Checkpoint
    kind: str
    method: Mapping[str, Any]
    attributes: dict[str, str]

    @staticmethod
    def of(layer: torch.nn.Module, name: str, specs: tuple[str, ...]) -> _Names:
        methods = _table()["methods"]
        if name not in methods:
            raise LayoutError(
                f"there is no quantization method `{name}`",
                code="LP371",
                name="no-such-method",
                help=did_you_mean(name, methods) or f"methods: {', '.join(methods)}",
            )
        method = methods[name]
        spec = load_spec(method["checkpoint"], specs=specs, kind="checkpoint")
        assert isinstance(spec, Checkpoint)
        renamed = {tensor: attribute for attribute, tensor in method.get("names", {}).items()}
        for kind, about in _table()["kinds"].items():
            attributes = {
                f"{matrix}.{tensor}": f"{prefix}{renamed.get(tensor, tensor)}"
                for matrix, prefix in about["matrices"].items()
                for tensor in _tensor_names(spec)
            }
            there = {name: attribute for name, attribute in attributes.items() if _is_there(layer, attribute)}
            if all(any(name.startswith(f"{matrix}.") for name in there) for matrix in about["matrices"]):
                return _Names(layer, spec, kind, method, there)
        raise LayoutError(
            f"the layer has no tensors of `{name}`",
            code="LP372",
            name="layer-differs",
            help=f"expected such as `{next(iter(_tensor_names(spec)))}`, with w13_ and w2_ before it for experts",
        )

    @property
    def params(self) -> Params:
        return self.method.get("params", {})

    @property
    def empty(self) -> Sequence[str]:
        return self.method.get("empty", ()) if self.kind == "dense" else ()

    @property
    def dtype(self) -> Params:
        """That of the activations."""
        return {"dtype": str(self._first(_table()["dtype"])).removeprefix("torch.")}

    def modules(self, specs: tuple[str, ...]) -> list[tuple[Module, Params, Sizes]]:
        """Modules that may explain the layer, with parameters and sizes."""
        about = _table()["kinds"][self.kind]
        sizes = {axis: self._first(attributes) for axis, attributes in about["sizes"].items()}
        found: list[tuple[Module, Params, Sizes]] = []
        for name, params in about["modules"].items():
            module = load_spec(name, specs=specs, kind="module")
            assert isinstance(module, Module)
            widths = next((size for size in sizes.values() if isinstance(size, Sequence)), ())
            if "names" not in module.params:
                whole = {axis: sum(n) if isinstance(n, Sequence) else int(n) for axis, n in sizes.items()}
                found.append((module, params, whole))
            elif len(widths) > 1:
                parts = ",".join(f"p{at}" for at in range(len(widths)))
                apart = {axis: tuple(n) if isinstance(n, Sequence) else int(n) for axis, n in sizes.items()}
                found.append((module, {**params, "names": parts}, apart))
        return found

    def after(self, info: TensorInfo, found: Explained) -> str:
        """The attribute for an output of the plan."""
        matrix, _, tensor = info.name.partition(".")
        prefix = _table()["kinds"][self.kind]["matrices"][matrix]
        renamed = self.method.get("after", {}).get(self.kind, {})
        if info.role in renamed:
            return f"{prefix}{renamed[info.role]}"
        same = (name for name, one in found.inputs.items() if name.startswith(f"{matrix}.") and one.role == info.role)
        return self.attributes.get(next(same, ""), f"{prefix}{tensor}")

    def _first(self, attributes: Sequence[str]) -> Any:
        """What the first of these attributes says that the layer has."""
        found = (getattr(self.layer, name, None) for name in attributes)
        value = next((value for value in found if value is not None), None)
        if value is None:
            raise LayoutError(
                f"the layer has no attribute `{attributes[0]}`",
                code="LP372",
                name="layer-differs",
                help="give the layer that create_weights was called with",
            )
        return value


def _tensor_names(spec: Checkpoint) -> list[str]:
    """Every name that a tensor of the format can have, but for those that are no part of the weights."""
    own = {key: tensor for key, tensor in spec.tensors.items() if tensor.role not in _table()["left"]}
    names = (name for key, tensor in own.items() for name in (key, *(one.name for one in (tensor, *tensor.cases))))
    return [str(name) for name in dict.fromkeys(names) if name is not None]


def _is_there(layer: torch.nn.Module, attribute: str) -> bool:
    tensor = getattr(layer, attribute, None)
    return isinstance(tensor, torch.Tensor) and tensor.numel() > 0
