"""transformers: `from_pretrained` reads a quantized checkpoint, and the model gets a kernel's tensors.

    model = AutoModelForCausalLM.from_pretrained("model", config=kernel_config("model", tp=2, rank=1))

Its loader collects the tensors of the checkpoint that belong together by the patterns of a WeightConverter, and hands
them to the converter's operations. Ours runs a plan on them. Around it stands a quantizer of the method `layoutdsl`,
known to transformers once this module is imported: without one, what is read is cast to the model's dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from layoutdsl.checkpoints.binding import Job
from layoutdsl.checkpoints.load import planned
from layoutdsl.checkpoints.run import Conversion
from layoutdsl.checkpoints.storing import output_name
from layoutdsl.errors import LayoutError
from layoutdsl.plan import Plan

METHOD = "layoutdsl"
"""The name of our quantization method."""

EACH = "*"
"""Stands in a pattern for the number of an expert."""

Names = dict[str, str]
"""Pattern of names -> the plan's name of the tensor."""

Modules = Callable[[str, Plan], torch.nn.Module | None]
"""From a unit's name and plan the module that computes with it, or None."""


@dataclass(frozen=True, repr=False, eq=False)
class _Run(ConversionOps):
    """Runs a plan. `sources` and `targets`: pattern -> name in the plan."""

    plan: Plan
    sources: Names
    targets: Names
    backend: str = "torch"

    supports_many_to_many = True
    # A quantizer has what is read cast to the dtype of the model's tensor, unless an operation has this attribute.
    hf_quantizer = METHOD

    def __deepcopy__(self, memo: dict[int, Any]) -> _Run:
        # Each source tensor has the converter copied anew; nothing in here ever changes.
        return self

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        given = {
            name: _given(input_dict.pop(pattern), EACH in pattern)
            for pattern, name in self.sources.items()
            if pattern in input_dict
        }
        made = self.plan.run(given, backend=self.backend)
        # The first key is the one by which transformers finds what stands before and after the pattern.
        return {pattern: made[name] for pattern, name in self.targets.items()}


class ToKernel(_Run):
    """An operation for a WeightConverter: a plan's outputs, from its inputs.

    sources: pattern -> input of the plan, such as {"q_proj.qweight": "linear.qweight"}; one with a `*` has a tensor for
    each expert, in their order. targets: pattern -> output of the plan. The patterns are those of the converter, in its
    order. The tensors come whole, and stay on the device where they come; of several ranks each has a plan of its own.

    Raises LayoutError as Plan.run does: transformers reports it with the name of the first tensor.
    """

    @property
    def reverse_op(self) -> FromKernel:
        """What `save_pretrained` asks for. LayoutError where the checkpoint's tensors would not be what they were."""
        if self.plan.ranks.tp * self.plan.ranks.ep > 1:
            raise _not_saved(self.plan.inputs[0].name, "a rank has only its slice of it")
        for name, reason in self.plan.irreversible():
            raise _not_saved(name, reason)
        return FromKernel(self.plan.inverse(), self.targets, self.sources, self.backend)


class FromKernel(_Run):
    """The way back, byte for byte: by the plan's inverse. A target with a `*` becomes a tensor for each expert."""

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        made = super().convert(input_dict, source_patterns, target_patterns, **kwargs)
        found: dict[str, torch.Tensor] = {}
        for pattern, tensor in made.items():
            if EACH in pattern:
                found |= {pattern.replace(EACH, str(at)): one.clone() for at, one in enumerate(tensor)}
            else:
                found[pattern] = tensor
        return found


def _given(tensors: Any, is_each: bool) -> Any:
    """What a plan takes: a list has one for each expert, where the pattern says so."""
    return tensors if is_each or not isinstance(tensors, list) else tensors[0]


def _not_saved(name: str, reason: str) -> LayoutError:
    return LayoutError(
        f"`{name}` cannot be saved as it was: {reason}",
        code="LP370",
        name="not-saved",
        help="keep the checkpoint that was loaded; Plan.inverse makes what can be made of a kernel's tensors",
    )


def converter(plan: Plan, sources: Names, targets: Names, *, backend: str = "torch") -> WeightConverter:
    """A WeightConverter that makes one plan's outputs; see ToKernel."""
    return WeightConverter(list(sources), list(targets), [ToKernel(plan, sources, targets, backend)])


def converters(conversion: Conversion) -> list[WeightConverter]:
    """What makes every tensor of `layoutdsl.load`, for the conversion's one rank. Tensors that are copied need none.

    Layers that look alike share a converter, whose patterns begin after the layer's number; others have their own. The
    model must have the tensors: see `prepare`.
    """
    found: dict[str, WeightConverter] = {}
    units = [_Unit.of(job, plan) for job, (plan,) in conversion.jobs()]
    users: dict[str, set[tuple[Any, ...]]] = {}
    for unit in units:
        for pattern in unit.sources:
            users.setdefault(pattern, set()).add(unit.look)
    for unit in units:
        before = "" if all(len(users[pattern]) == 1 for pattern in unit.sources) else unit.prefix
        sources, targets = ({before + key: name for key, name in side.items()} for side in (unit.sources, unit.targets))
        first = next(iter(sources))
        if first not in found:
            found[first] = converter(unit.plan, sources, targets, backend=conversion.backend)
    return list(found.values())


def prepare(model: torch.nn.Module, conversion: Conversion, modules: Modules | None = None) -> None:
    """Give the model what `converters` makes, as buffers on the meta device, in place of the modules whose tensors it
    is made from.

    modules: from a unit's name and plan the module that stands there instead, or None; it has the plan's tensors under
    the names of the output, as a MarlinMoE or MarlinLinear does. What the model has already is left alone.
    """
    for job, (plan,) in conversion.jobs():
        wanted = {output_name(job, info.name): info for info in plan.outputs}
        if modules is not None and (module := modules(job.unit.name, plan)) is not None:
            _place(model, job.unit.name, module)
            has = {f"{job.unit.name}.{name}" for name in module.state_dict()}
            if lacks := [name for name in wanted if name not in has]:
                raise LayoutError(
                    f"the module for `{job.unit.name}` has no `{lacks[0]}`",
                    code="LP373",
                    name="module-lacks-tensor",
                    help="build it from the unit's plan",
                )
            _ignore(model, {name for name in has if name.endswith("_extra_state")})
        if wanted.keys() <= model.state_dict().keys():
            continue
        there = {path for path, _ in model.named_modules()}
        for path in {_deepest(there, entry.name) for entry in job.entries}:
            delattr(model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])
        for name, info in wanted.items():
            _place(model, name, torch.empty(info.full_shape, dtype=getattr(torch, info.dtypes[0]), device="meta"))


def _ignore(model: Any, names: set[str]) -> None:
    """Say that what a module of ours tells of itself stands in no checkpoint."""
    for attribute in ("_keys_to_ignore_on_load_missing", "_keys_to_ignore_on_save"):
        setattr(model, attribute, {*(getattr(model, attribute, None) or ()), *names})


@dataclass(frozen=True)
class _Unit:
    """A unit's patterns without what all its names begin with: the layer and its number."""

    plan: Plan
    prefix: str
    sources: Names
    targets: Names

    @staticmethod
    def of(job: Job, plan: Plan) -> _Unit:
        sources = {_pattern(job, info.name): info.name for info in plan.inputs}
        targets = {output_name(job, info.name): info.name for info in plan.outputs}
        number = f".{job.unit.at[-1][1]}." if job.unit.at else ""
        before, mark, _ = next(iter(targets)).partition(number) if number else ("", "", "")
        prefix = before + mark
        if not all(name.startswith(prefix) for name in (*sources, *targets)):
            prefix = ""
        return _Unit(plan, prefix, _without(prefix, sources), _without(prefix, targets))

    @property
    def look(self) -> tuple[Any, ...]:
        """Equal for units that one converter serves."""
        return self.plan.digest, *self.sources, "", *self.targets


def _pattern(job: Job, name: str) -> str:
    """The names in the checkpoint of an input of the plan, such as `w13.gate.qweight`."""
    matrix, *part, tensor = name.split(".")
    return job.unit.source(matrix, "".join(part), tensor, EACH if job.apart(name) else 0)


def _without(prefix: str, names: Names) -> Names:
    return {pattern.removeprefix(prefix): name for pattern, name in names.items()}


def _deepest(modules: set[str], name: str) -> str:
    """The module that holds a tensor of the checkpoint, or all experts of it."""
    path = name.rpartition(".")[0]
    while path not in modules:
        path = path.rpartition(".")[0]
    return path


def _place(model: torch.nn.Module, name: str, one: torch.nn.Module | torch.Tensor) -> None:
    """A module or a buffer under a name, through modules that are made where there are none."""
    *above, last = name.split(".")
    module = model
    for step in above:
        if step not in module._modules:
            module.add_module(step, torch.nn.Module())
        module = module.get_submodule(step)
    if isinstance(one, torch.nn.Module):
        module.add_module(last, one)
    else:
        module.register_buffer(last, one)


# --- a quantizer around it --------------------------------------------------------------------------------------------


def kernel_config(folder: str, *, modules: Modules | None = None, **options: Any) -> PretrainedConfig:
    """The configuration of a checkpoint, to be given to `from_pretrained` with the same folder. modules: see `prepare`.
    options: those of `layoutdsl.load` that shape tensors, such as target, tp, rank, ep, dtype, params."""
    config = AutoConfig.from_pretrained(folder)
    config.quantization_config = {"quant_method": METHOD, "folder": folder, "modules": modules, "options": options}
    return config


@register_quantization_config(METHOD)
class KernelConfig(QuantizationConfigMixin):
    """Where the checkpoint is, and what is to be made of it."""

    def __init__(self, folder: str, modules: Modules | None, options: dict[str, Any], quant_method: str = METHOD):
        self.quant_method, self.folder, self.modules, self.options = quant_method, folder, modules, options

    def to_dict(self) -> dict[str, Any]:
        # Without the modules: transformers writes it out as JSON.
        return {"quant_method": self.quant_method, "folder": self.folder, "options": self.options}


@register_quantizer(METHOD)
class KernelQuantizer(HfQuantizer):
    """Gives the model the kernels' tensors, and the loader the converters that make them."""

    conversion: Conversion

    def _process_model_before_weight_loading(self, model: torch.nn.Module, **kwargs: Any) -> None:
        config = self.quantization_config
        self.conversion = planned(config.folder, **{"rank": 0, **config.options})
        prepare(model, self.conversion, config.modules)

    def update_weight_conversions(self, weight_conversions: list[Any], model: torch.nn.Module) -> list[WeightConverter]:
        # Those of the model would fuse what the units of the conversion take apart.
        return converters(self.conversion)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        # What is saved is a checkpoint of the format that was read, and says so.
        model.config.quantization_config = self.conversion.folder.config.get("quantization_config")

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False
