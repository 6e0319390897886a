"""What `--dry-run` says of memory is what converting and loading take, above the interpreter with torch.

Each run is a process of its own; a unit has so many bytes that all else is small beside it.
"""

import gc
import json
import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from layoutdsl import convert

FIXTURES = Path(__file__).resolve().parent / "fixtures"
TENTH = 0.1

HIDDEN, INNER, MOE_INNER, EXPERTS = 2048, 32768, 1024, 24

CHILD = """
import sys, torch
torch.set_num_threads(2)
torch.randn(64, 64) @ torch.randn(64, 64)
from layoutdsl import convert, load
from layoutdsl.checkpoints import load as loading, run, writing

def kilobytes(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])

how, src, dst, tp = *sys.argv[1:4], int(sys.argv[4])
before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the high-water mark begins anew
if how == "convert":
    stated = convert(src, dst, tp=tp, dry_run=True).peak
    assert convert(src, dst, tp=tp).peak == stated
else:
    stated = loading.planned(src, tp=tp, rank=0).peak
    for name, tensor in load(src, tp=tp, rank=0):
        pass
print(stated, (kilobytes("VmHWM") - before) * 1024)
"""


def int4(n: int, k: int) -> dict[str, torch.Tensor]:
    return {
        "weight_packed": torch.randint(-(2**31), 2**31 - 1, (n, k // 8), dtype=torch.int32),
        "weight_scale": torch.rand(n, k // 128).to(torch.bfloat16),
        "weight_shape": torch.tensor([n, k]),
    }


def fp8(n: int, k: int) -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randint(0, 0x7F, (n, k), dtype=torch.uint8).view(torch.float8_e4m3fn),
        "weight_scale": torch.rand(n, 1).to(torch.bfloat16),
    }


def nvfp4(n: int, k: int) -> dict[str, torch.Tensor]:
    return {
        "weight_packed": torch.randint(0, 256, (n, k // 2), dtype=torch.uint8),
        "weight_scale": torch.randint(0x60, 0x70, (n, k // 16), dtype=torch.uint8).view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([700.0]),
    }


CASES = {
    "llama_w4a16": (int4, 0),
    "llama_fp8_dynamic": (fp8, 0),
    "qwen3_moe_nvfp4a16": (nvfp4, EXPERTS),
}


@pytest.fixture(scope="module", params=list(CASES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of such a model, 80 to 220 MB."""
    layer, experts = CASES[request.param]
    folder = tmp_path_factory.mktemp("checkpoint") / request.param
    return written(folder, request.param, layer, experts, hidden=HIDDEN, inner=MOE_INNER if experts else INNER)


Layer = Callable[[int, int], dict[str, torch.Tensor]]


def written(folder: Path, like: str, layer: Layer, experts: int, *, hidden: int, inner: int) -> Path:
    """A checkpoint of one layer, with the rest of its config.json as a fixture has it."""
    config = json.loads((FIXTURES / like / "config.json").read_text())
    config |= {
        "hidden_size": hidden, "intermediate_size": inner, "moe_intermediate_size": inner, "num_hidden_layers": 1,
        "num_experts": experts, "num_local_experts": experts, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 128,
    }  # fmt: skip
    tensors = {
        "model.embed_tokens.weight": (64, hidden),
        "lm_head.weight": (64, hidden),
        "model.norm.weight": (hidden,),
    }
    layers = {f"self_attn.{part}_proj": (hidden, hidden) for part in "qkvo"}
    for mlp in [f"mlp.experts.{e}." for e in range(experts)] or ["mlp."]:
        layers |= {
            mlp + "gate_proj": (inner, hidden),
            mlp + "up_proj": (inner, hidden),
            mlp + "down_proj": (hidden, inner),
        }
    own = {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    if experts:
        own |= {"self_attn.q_norm": (128,), "self_attn.k_norm": (128,), "mlp.gate": (experts, hidden)}
    tensors |= {f"model.layers.0.{name}.weight": shape for name, shape in own.items()}
    held = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in tensors.items()}
    for name, (n, k) in layers.items():
        held |= {f"model.layers.0.{name}.{tensor}": value for tensor, value in layer(n, k).items()}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(held, folder / "model.safetensors")
    return folder


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a high-water mark anew")
@pytest.mark.parametrize("how", ["convert", "load"])
def test_the_peak_is_what_was_said(checkpoint: Path, how: str, tmp_path: Path) -> None:
    tp = 1 if "nvfp4" in checkpoint.name else 2
    command = [sys.executable, "-c", CHILD, how, str(checkpoint), str(tmp_path / "out"), str(tp)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stated, seen = map(int, done.stdout.split())
    assert stated / 3 <= seen <= stated * (1 + TENTH), f"said {stated / 1e6:.1f} MB, took {seen / 1e6:.1f} MB"


INTO = """
import sys, torch
torch.set_num_threads(2)
torch.randn(64, 64) @ torch.randn(64, 64)
from layoutdsl import load
from layoutdsl.checkpoints import filling, pipeline
from layoutdsl.checkpoints.load import planned

def kilobytes(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])

for name, tensor in load(sys.argv[2]):
    pass  # what is loaded when it is first needed
pipeline.BUDGET = 32 << 20
conversion = planned(sys.argv[1], rank=0)
into = {name: torch.ones(shape).to(dtype) for name, (dtype, shape) in filling.outputs(conversion).items()}
before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
for name, tensor in load(sys.argv[1], into=into):
    pass
print(conversion.peak, (kilobytes("VmHWM") - before) * 1024, sum(tensor.nbytes for tensor in into.values()))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a high-water mark anew")
def test_a_layer_of_512_experts_is_loaded_a_few_at_a_time(tmp_path: Path) -> None:
    """Into storage that is there: with neither the layer's source nor what it becomes in memory as a whole."""
    folder = written(tmp_path / "src", "qwen3_moe_nvfp4a16", nvfp4, 512, hidden=HIDDEN, inner=128)
    command = [sys.executable, "-c", INTO, str(folder), str(FIXTURES / "qwen3_moe_nvfp4a16")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stated, seen, layer = map(int, done.stdout.split())
    assert layer > 200 << 20 and 4 * stated < layer
    assert seen <= stated * (1 + TENTH), f"said {stated / 1e6:.1f} MB, took {seen / 1e6:.1f} MB"


RUN = """
import json, sys, torch
torch.set_num_threads(2)
sys.path.insert(0, sys.argv[1])
from plans import inputs_of
from layoutdsl import compile_plan
from layoutdsl.backends import scratch

def kilobytes(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])

def plan_of(sizes):
    source, target, params = json.loads(sys.argv[2])
    return compile_plan(source, target, "linear", sizes, params=params)

def empty(plan):
    return {info.name: torch.ones(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}

small = plan_of({"n": 256, "k": 256})
given, out = inputs_of(small), empty(small)
small.run(given, out=out)  # what is loaded when it is first needed
plan = plan_of({"n": 8192, "k": 1024})
large = {}
for info in plan.inputs:
    tensor = given[info.name]
    if info.role == "act_order":
        k = torch.randperm(1024) if dict(plan.source.params)["act_order"] else torch.arange(1024)
        large[info.name] = (k // 128).to(tensor.dtype)
        continue
    turns = [-(-size // of) for size, of in zip(info.full_shape, tensor.shape)]
    cut = tuple(slice(size) for size in info.full_shape)
    large[info.name] = tensor.repeat(turns)[cut].contiguous()
out = empty(plan)
before = kilobytes("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
plan.run(large, out=out)
print(scratch("torch", plan), (kilobytes("VmHWM") - before) * 1024)
"""

MEGABYTE = 1 << 20
SLACK = 1.5 * MEGABYTE
"""What the allocator keeps beside what is asked of it."""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a high-water mark anew")
@pytest.mark.parametrize(
    ("source", "target", "params", "most"),
    [
        ("gptq", "marlin_int4_a16", {"group": 128}, 3),
        ("awq", "marlin_int4_a16", {"group": 128, "zero_points": True}, 7.5),
        ("gptq", "marlin_int4_a16", {"group": 128, "act_order": True}, 7),  # the 4 MB of the weight sorted among them
        ("nvfp4", "marlin_nvfp4_a16", {}, 7.5),
    ],
    ids=str,
)
def test_a_run_takes_no_more_than_its_scratch(source, target, params, most) -> None:
    """The weight has 4 MB, and 8 million codes."""
    case = json.dumps([source, target, params])
    command = [sys.executable, "-c", RUN, str(Path(__file__).parent), case]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stated, seen = map(int, done.stdout.split())
    assert stated <= most * MEGABYTE
    assert seen <= stated + SLACK, f"said {stated / 1e6:.1f} MB, took {seen / 1e6:.1f} MB"


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_the_collector_is_not_missed(backend: str, tmp_path: Path) -> None:
    """It is set aside for as long as a conversion takes: none of its memory waits for it."""
    gc.collect()
    gc.disable()
    try:
        convert(FIXTURES / "qwen3_moe_w4a16", tmp_path / "out", tp=2, backend=backend)
        assert not gc.isenabled()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [one for one in gc.garbage if isinstance(one, (torch.Tensor, memoryview, mmap.mmap))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    convert(FIXTURES / "qwen3_moe_w4a16", tmp_path / "again", dry_run=True)
    assert gc.isenabled()
