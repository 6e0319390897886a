"""What is refused before a launch, and what a launch hands to the driver. No kernel runs here."""

import ctypes
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from cuda import core
from cuda.core._kernel_arg_handler import ParamHolder
from cuda.pathfinder import DynamicLibNotFoundError
from plans import inputs_of, plan_named
from test_cuda_compile import COPY

from layoutdsl import LayoutError, backends
from layoutdsl.backends.cuda import backend as cuda_backend
from layoutdsl.backends.cuda import launch as cuda_launch
from layoutdsl.backends.cuda import toolkit as cuda_toolkit

PLAN = plan_named("gptq_moe_padded")


@pytest.fixture(autouse=True)
def asked_anew():
    cuda_backend._ready.cache_clear()
    yield
    cuda_backend._ready.cache_clear()


@pytest.fixture
def no_driver(monkeypatch):
    def absent():
        raise DynamicLibNotFoundError("cuda")

    monkeypatch.setattr(cuda_toolkit.cuda_driver, "cuDriverGetVersion", absent)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU, as far as it is asked."""
    monkeypatch.setattr(cuda_toolkit, "gpus", lambda: (cuda_toolkit.Gpu("NVIDIA H200", "sm_90a"),))
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def refusal(work, *arguments, **options) -> str:
    with pytest.raises(LayoutError) as caught:
        work(*arguments, **options)
    return f"{caught.value.diagnostics[0].code} {caught.value.message}"


class Placed(torch.Tensor):
    """A tensor without data that says that it is on a GPU."""

    @staticmethod
    def __new__(cls, shape, dtype, device, strides=None):
        return torch.Tensor._make_wrapper_subclass(cls, shape, strides=strides, dtype=dtype, device=device)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} looks at its data")


def placed(tensors: dict, device: str = "cuda:0") -> dict:
    return {name: Placed(tensor.shape, tensor.dtype, torch.device(device)) for name, tensor in tensors.items()}


# --- before a launch --------------------------------------------------------------------------------------------------


def test_no_driver(no_driver):
    said = "LP322 there is no NVIDIA driver on this machine"
    assert refusal(PLAN.run, inputs_of(PLAN), backend="cuda") == said
    assert refusal(backends.device, "cuda") == said


def test_torch_without_cuda(gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert refusal(PLAN.run, inputs_of(PLAN), backend="cuda").endswith("is a build without CUDA")


def test_tensors_of_the_cpu(gpu):
    said = "LP329 `w13.gate.qweight` stands on cpu, the backend `cuda` needs it on a GPU"
    assert refusal(PLAN.run, inputs_of(PLAN), backend="cuda") == said
    apart = {name: list(tensor) for name, tensor in inputs_of(PLAN).items()}
    said = "LP329 `w13.gate.qweight`, expert 0 stands on cpu, the backend `cuda` needs it on a GPU"
    assert refusal(PLAN.run, apart, backend="cuda") == said


def test_one_tensor_elsewhere(gpu):
    tensors = placed(inputs_of(PLAN))
    tensors["w2.scales"] = placed(inputs_of(PLAN), "cuda:1")["w2.scales"]
    assert refusal(PLAN.run, tensors, backend="cuda") == "LP165 `w2.scales` stands on cuda:1, others stand on cuda:0"


def test_out_elsewhere(gpu):
    out = {info.name: torch.zeros(info.full_shape) for info in PLAN.outputs}
    said = "LP329 `w13.weight` of `out` stands on cpu, the backend `cuda` needs it on a GPU"
    assert refusal(PLAN.run, placed(inputs_of(PLAN)), backend="cuda", out=out) == said


def test_a_tensor_that_is_not_contiguous(gpu):
    tensors = placed(inputs_of(PLAN))
    tensors["w2.qweight"] = Placed((2, 12, 96), torch.int32, torch.device("cuda:0"), (1152, 1, 12))
    assert refusal(PLAN.run, tensors, backend="cuda") == "LP330 `w2.qweight` is not contiguous"


def test_a_backend_has_its_device(gpu):
    assert [backends.device("cuda", wanted) for wanted in ("cpu", "cuda", "cuda:1")] == ["cuda", "cuda", "cuda:1"]
    assert [backends.device(name) for name in ("reference", "torch", "cpu")] == ["cpu"] * 3


def test_cuda_python_that_is_not_installed(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("layoutdsl.backends.cuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(backends, "cuda")
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(LayoutError) as caught:
        PLAN.run(inputs_of(PLAN), backend="cuda")
    assert str(caught.value) == (
        "LP151 not-installed: backend `cuda` needs cuda-python, which is not installed\n"
        "  = help: pip install 'layoutdsl[torch,cuda]'"
    )


# --- the launch -------------------------------------------------------------------------------------------------------


class Recorded:
    """Stands in for torch.cuda, cuda.core and the driver; `said` is what they were told, in order."""

    def __init__(self, monkeypatch, capability=(9, 0)):
        self.said: list[tuple] = []
        said = self.said.append
        stream = SimpleNamespace(cuda_stream=0xABC)
        monkeypatch.setattr(cuda_launch.torch, "cuda", SimpleNamespace(
            device=lambda device: said(("current", str(device))) or nullcontext(),
            current_stream=lambda device: said(("stream of", str(device))) or stream,
            current_device=lambda: 0,
            get_device_capability=lambda device: capability,
            is_current_stream_capturing=lambda: self.capturing,
        ))
        self.capturing = False
        kernel = SimpleNamespace(handle="handle")
        code = SimpleNamespace(get_kernel=lambda name: said(("kernel", name)) or kernel)
        monkeypatch.setattr(cuda_launch, "core", SimpleNamespace(
            Stream=SimpleNamespace(from_handle=lambda handle: ("stream", handle)),
            LaunchConfig=lambda **config: config,
            ObjectCode=SimpleNamespace(from_cubin=lambda code: said(("cubin", code[:4])) or self.code),
            launch=lambda stream, config, kernel, *arguments: said(("launch", stream, config, arguments)),
            Device=lambda index: SimpleNamespace(set_current=lambda: said(("context", index))),
        ))
        self.code = code
        names = cuda_launch.driver.CUfunction_attribute
        monkeypatch.setattr(cuda_launch, "driver", SimpleNamespace(
            CUfunction_attribute=names,
            cuDeviceGet=lambda index: (0, f"device {index}"),
            cuKernelSetAttribute=lambda *told: said(("attribute", *told)) or (0,),
        ))


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cuda_launch._loaded.cache_clear()
    yield Recorded(monkeypatch)
    cuda_launch._loaded.cache_clear()


def test_a_launch_is_on_the_stream_of_the_tensors_gpu(recorded):
    launcher = cuda_launch.Launcher(torch.device("cuda:1"))
    launcher.launch(COPY, 7, [2**47, 2**64 - 1, 4096])
    launch = ("launch", ("stream", 0xABC), {"grid": 7, "block": 256, "shmem_size": 0}, (2**47, -1, 4096))
    assert recorded.said == [("current", "cuda:1"), ("context", 1), ("cubin", b"\x7fELF"), ("kernel", "copy"),
                             ("stream of", "cuda:1"), launch]


def test_each_launch_has_the_context_of_its_gpu(recorded):
    """Also on a thread where nothing has run yet, once the kernel is loaded."""
    launcher = cuda_launch.Launcher(torch.device("cuda:1"))
    launcher.launch(COPY, 1, [0, 0, 0])
    recorded.said.clear()
    launcher.launch(COPY, 1, [0, 0, 0])
    assert [what for what, *_ in recorded.said] == ["current", "context", "stream of", "launch"]


def test_a_kernel_that_is_captured_is_loaded_before(recorded):
    launcher = cuda_launch.Launcher(torch.device("cuda:1"))
    recorded.capturing = True
    said = "LP348 kernel `copy` is captured, and is not loaded on GPU 1 yet"
    assert refusal(launcher.launch, COPY, 1, [0, 0, 0]) == said
    assert not any(what in ("cubin", "kernel", "launch") for what, *_ in recorded.said)
    recorded.capturing = False
    launcher.launch(COPY, 1, [0, 0, 0])
    recorded.capturing = True
    launcher.launch(COPY, 1, [0, 0, 0])
    assert recorded.said[-1][0] == "launch"


def test_a_kernel_is_loaded_once_for_each_gpu(recorded):
    for device in ("cuda", "cuda:0", "cuda:1", "cuda:1"):
        cuda_launch.Launcher(torch.device(device)).launch(COPY, 1, [0, 0, 0])
    assert recorded.said.count(("kernel", "copy")) == 2


@pytest.mark.parametrize(("shared", "told"), [(48 << 10, 0), (100 << 10, 1)])
def test_much_shared_memory_is_asked_for(recorded, shared, told):
    cuda_launch.Launcher(torch.device("cuda:1")).launch(replace(COPY, shared=shared), 1, [0, 0, 0])
    most = cuda_launch.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert recorded.said.count(("attribute", most, shared, "handle", "device 1")) == told
    assert recorded.said[-1][2]["shmem_size"] == shared


def test_a_gpu_that_is_too_old(monkeypatch):
    Recorded(monkeypatch, capability=(7, 5))
    assert refusal(cuda_launch.Launcher, torch.device("cuda")).startswith("LP321 sm_75 is older than sm_80")


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=20))
def test_arguments_are_eight_bytes_each(values):
    """What cuda.core lays out for the driver: an array of pointers to the arguments."""
    made = ParamHolder(tuple(map(cuda_launch._signed, values)))
    pointers = (ctypes.c_void_p * len(values)).from_address(made.ptr)
    assert [ctypes.c_uint64.from_address(at).value for at in pointers] == [value % 2**64 for value in values]


def test_cuda_core_takes_what_it_is_handed():
    """Its real types, as far as they work without a driver."""
    assert core.Stream.from_handle(0).__cuda_stream__() == (0, 0), "torch's default stream"
    assert core.Stream.from_handle(0xABC).__cuda_stream__() == (0, 0xABC)
    config = core.LaunchConfig(grid=7, block=256, shmem_size=100 << 10)
    assert (config.grid, config.block, config.shmem_size) == ((7, 1, 1), (256, 1, 1), 100 << 10)


def test_gpus_as_the_driver_tells_them(monkeypatch):
    known = cuda_toolkit.cuda_driver
    major = known.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    monkeypatch.setattr(cuda_toolkit, "cuda_driver", SimpleNamespace(
        CUresult=known.CUresult,
        CUdevice_attribute=known.CUdevice_attribute,
        cuDriverGetVersion=lambda: (0, 13000),
        cuInit=lambda flags: (0,),
        cuDeviceGetCount=lambda: (0, 2),
        cuDeviceGet=lambda index: (0, index),
        cuDeviceGetName=lambda size, device: (0, f"NVIDIA {device}".encode().ljust(size, b"\0")),
        cuDeviceGetAttribute=lambda which, device: (0, 9 - device if which == major else 6 * device),
    ))
    assert cuda_toolkit.gpus() == (cuda_toolkit.Gpu("NVIDIA 0", "sm_90a"), cuda_toolkit.Gpu("NVIDIA 1", "sm_86"))
