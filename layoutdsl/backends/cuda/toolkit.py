"""What of CUDA this machine has: NVRTC, the driver, GPUs. What is missing is refused in words, with a remedy.

Nothing is loaded onto a GPU and no context is made, so asking costs little and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from cuda import bindings
from cuda.bindings import driver as cuda_driver
from cuda.bindings import nvrtc
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

from layoutdsl.errors import LayoutError, did_you_mean

OLDEST = 80
"""Compute capability of the first GPUs with cp.async, and with tensor cores for bfloat16 and 16 elements along k."""

MAJOR = int(bindings.__version__.split(".")[0])
"""The CUDA that cuda-python is made for."""


@dataclass(frozen=True)
class Compiler:
    """NVRTC: its version, the file it was loaded from, and the archs that kernels are compiled for, oldest first."""

    version: tuple[int, int]
    path: str
    archs: tuple[str, ...]


@dataclass(frozen=True)
class Gpu:
    name: str
    arch: str


def arch_of(major: int, minor: int) -> str:
    """The arch of a compute capability. From sm_90 on it has an `a`: with what other GPUs do not have."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@cache
def compiler() -> Compiler:
    """LayoutError where NVRTC is not installed."""
    try:
        path = load_nvidia_dynamic_lib("nvrtc").abs_path
    except DynamicLibNotFoundError:
        raise LayoutError(
            "NVRTC, which compiles CUDA kernels, is not installed",
            code="LP320",
            name="no-nvrtc",
            help="pip install 'layoutdsl[cuda]'",
        ) from None
    major, minor = done(nvrtc.nvrtcVersion())
    (known,) = done(nvrtc.nvrtcGetSupportedArchs())
    archs = tuple(arch_of(*divmod(number, 10)) for number in sorted(known) if number >= OLDEST)
    return Compiler((major, minor), str(path), archs)


def check_arch(arch: str) -> None:
    """LayoutError for an arch that kernels are not compiled for."""
    found = compiler()
    if arch in found.archs:
        return
    digits = "".join(letter for letter in arch if letter.isdecimal())
    old = arch.startswith("sm_") and bool(digits) and int(digits) < OLDEST
    version = ".".join(map(str, found.version))
    raise LayoutError(
        f"{arch} is older than sm_{OLDEST}, the first with asynchronous copies and bfloat16 tensor cores" if old
        else f"kernels are not compiled for `{arch}`",
        code="LP321",
        name="unsupported-arch",
        help=(None if old else did_you_mean(arch, found.archs)) or f"NVRTC {version} knows {', '.join(found.archs)}",
    )


def driver() -> tuple[int, int]:
    """The newest CUDA that the driver runs. LayoutError where there is no driver, or one older than our CUDA."""
    try:
        (version,) = done(cuda_driver.cuDriverGetVersion())
    except DynamicLibNotFoundError:
        raise LayoutError(
            "there is no NVIDIA driver on this machine",
            code="LP322",
            name="no-driver",
            help="install one, or use the backend `cpu`, or `host`, which runs the same kernels",
        ) from None
    found = version // 1000, version % 1000 // 10
    if found[0] < MAJOR:
        raise LayoutError(
            f"the NVIDIA driver runs CUDA up to {found[0]}.{found[1]}, {MAJOR}.0 is needed",
            code="LP323",
            name="old-driver",
            help="install a newer driver: CUDA 13 needs 580 or later",
        )
    return found


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that the driver shows, in its order. LayoutError where there is no driver, or where it shows none."""
    driver()
    answer = cuda_driver.cuInit(0)
    if answer[0] == cuda_driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise LayoutError(
            "the NVIDIA driver shows no GPU",
            code="LP324",
            name="no-gpu",
            help="is CUDA_VISIBLE_DEVICES empty, or was the container started without its GPUs?",
        )
    done(answer)
    (count,) = done(cuda_driver.cuDeviceGetCount())
    return tuple(map(_gpu, range(count)))


def check_torch(version: str, cuda: str | None) -> None:
    """LayoutError for a torch that was built without CUDA."""
    if cuda is None:
        raise LayoutError(
            f"torch {version} is a build without CUDA",
            code="LP326",
            name="torch-without-cuda",
            help="pip install --force-reinstall torch, from PyPI, where torch for Linux is a build with it",
        )


def _gpu(index: int) -> Gpu:
    (device,) = done(cuda_driver.cuDeviceGet(index))
    (name,) = done(cuda_driver.cuDeviceGetName(128, device))
    known = cuda_driver.CUdevice_attribute
    wanted = known.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, known.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
    major, minor = (done(cuda_driver.cuDeviceGetAttribute(one, device))[0] for one in wanted)
    return Gpu(name.decode(errors="replace").partition("\0")[0], arch_of(major, minor))


def done(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call gave back besides its status."""
    status, *values = result
    if int(status) != 0:
        raise LayoutError(
            f"CUDA answers {status.name}",
            code="LP325",
            name="cuda-error",
            help="`layoutdsl doctor` says what works here; nvidia-smi says whether the driver does",
        )
    return tuple(values)
