"""Kernels compiled without a GPU: for every arch, kept and found again by many processes, and refused in words."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from cuda.pathfinder import DynamicLibNotFoundError, find_nvidia_binary_utility

from layoutdsl import LayoutError
from layoutdsl.backends import kernel_sources
from layoutdsl.backends.cuda import compile as cuda_compile
from layoutdsl.backends.cuda import toolkit as cuda_toolkit
from layoutdsl.backends.cuda.compile import compiled

ROOT = Path(__file__).resolve().parent.parent
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
HEAD = '#include "device.cuh"\nusing namespace ld;\n'


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str
    threads: int = 256
    shared: int = 0


COPY = Kernel("copy", HEAD + """
LD_KERNEL(copy, 256)(Global to, Global of, i64 size) {
    for (i64 at = 16 * (block() * threads() + thread()); at < size; at += 16 * blocks() * threads())
        to.store(at, of.load<Quad>(at));
}
""")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "layoutdsl" / "cuda"


def entries(cache: Path) -> list[Path]:
    return [path for path in (cache / "entries").rglob("*") if path.is_file()]


def refusal(work, *arguments) -> LayoutError:
    with pytest.raises(LayoutError) as caught:
        work(*arguments)
    return caught.value


# --- compiled, and kept -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_compiles_for_every_arch(arch):
    found = compiled(COPY, arch)
    machine = int.from_bytes(found.code[18:20], "little")
    assert found.code[:4] == b"\x7fELF" and machine == 190  # EM_CUDA


def test_the_second_time_it_is_there(cache):
    first = compiled(COPY, "sm_90a")
    second = compiled(COPY, "sm_90a")
    assert (first.cached, second.cached, second.code) == (False, True, first.code)
    assert [path.read_bytes() for path in entries(cache)] == [first.code]
    assert not compiled(COPY, "sm_80").cached
    assert not compiled(replace(COPY, source=COPY.source + "// more\n"), "sm_90a").cached


def test_our_own_headers_are_part_of_what_is_compiled(tmp_path, monkeypatch):
    compiled(COPY, "sm_80")
    changed = tmp_path / "kernels"
    for path in kernel_sources.folder().rglob("*.cuh"):
        copy = changed / path.relative_to(kernel_sources.folder())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text() + "// changed\n")
    kernel_sources._read.cache_clear()
    monkeypatch.setattr(kernel_sources, "folder", lambda: changed)
    assert not compiled(COPY, "sm_80").cached
    kernel_sources._read.cache_clear()


def test_sums_of_products_are_rounded_twice():
    """A fused multiplication and addition would give other bytes than the CPU."""
    kernel = Kernel("sum", HEAD + """
LD_KERNEL(sum, 32)(Global to, Global of) {
    to.store(0, of.load<float>(0) * of.load<float>(4) + of.load<float>(8));
    to.store(8, of.load<double>(16) * of.load<double>(24) + of.load<double>(32));
}
""")
    shown = disassembled(compiled(kernel, "sm_90a").code)
    assert "FMUL" in shown and "DMUL" in shown and "FFMA" not in shown and "DFMA" not in shown


def disassembled(code: bytes) -> str:
    tool = find_nvidia_binary_utility("nvdisasm")
    path = Path(os.environ["XDG_CACHE_HOME"]).parent / "kernel.cubin"
    path.write_bytes(code)
    return subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [compiled(COPY, "sm_80").cached for _ in range(2)] == [False, False]


def test_a_full_disk_is_no_reason_to_stop(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cuda_compile.FileStreamProgramCache, "__setitem__", full)
    assert compiled(COPY, "sm_80").code[:4] == b"\x7fELF" and entries(cache) == []


# --- many processes, and killed ones ----------------------------------------------------------------------------------


def child(text: str) -> subprocess.Popen:
    head = "import sys; sys.path.insert(0, sys.argv[1]); from tests.test_cuda_compile import *\n"
    command = [sys.executable, "-c", head + text, str(ROOT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_four_processes_at_once(cache):
    others = [child("print(hashlib.sha256(compiled(COPY, 'sm_90a').code).hexdigest())") for _ in range(4)]
    said = {other.communicate()[0].strip() for other in others}
    assert [other.returncode for other in others] == [0] * 4
    assert said == {hashlib.sha256(compiled(COPY, "sm_90a").code).hexdigest()}
    assert len(entries(cache)) == 1 and list((cache / "tmp").iterdir()) == []


WRITER = """
def large(name, text, options):
    body = os.urandom(1 << 22)
    return hashlib.sha256(body).digest() + body

cuda_compile._compile = large
at = 0
while True:
    compiled(replace(COPY, source=COPY.source + f"// {os.getpid()} {at}\\n"), "sm_80")
    at += 1
"""


def test_a_killed_writer_leaves_nothing_half_written(cache):
    """Killed at any point of many writes of 4 MiB: each entry is whole, and what was left behind is never read."""
    for _ in range(4):
        before, writer = len(entries(cache)), child(WRITER)
        while len(entries(cache)) < before + 3:
            time.sleep(0.001)
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    kept = [path.read_bytes() for path in entries(cache)]
    assert len(kept) >= 12
    assert all(hashlib.sha256(code[32:]).digest() == code[:32] for code in kept)
    assert compiled(COPY, "sm_80").code[:4] == b"\x7fELF"


# --- refused ----------------------------------------------------------------------------------------------------------


def test_a_text_that_does_not_compile():
    error = refusal(compiled, replace(COPY, source=COPY.source + "nonsense;\n"), "sm_80")
    assert "NVRTC" in error.message and "does not compile kernel `copy` for sm_80" in error.message
    assert "kernel.cu(8)" in error.message and "\0" not in str(error), "the place in the kernel's own text"


@pytest.mark.parametrize(
    ("arch", "message", "help"),
    [
        ("sm_75", "sm_75 is older than sm_80, the first with asynchronous copies", "NVRTC 13"),
        ("sm_90", "kernels are not compiled for `sm_90`", "did you mean `sm_90a`?"),
        ("sm_999", "kernels are not compiled for `sm_999`", ""),
        ("ampere", "kernels are not compiled for `ampere`", "knows sm_80, sm_86"),
        ("", "kernels are not compiled for ``", "knows sm_80, sm_86"),
    ],
)
def test_an_arch_that_is_not_supported(arch, message, help):
    error = refusal(compiled, COPY, arch)
    assert error.message.startswith(message) and help in error.help


def test_nvrtc_that_is_not_installed(monkeypatch):
    def nowhere(name):
        raise DynamicLibNotFoundError(name)

    cuda_toolkit.compiler.cache_clear()
    monkeypatch.setattr(cuda_toolkit, "load_nvidia_dynamic_lib", nowhere)
    assert str(refusal(compiled, COPY, "sm_80")) == (
        "LP320 no-nvrtc: NVRTC, which compiles CUDA kernels, is not installed\n  = help: pip install 'layoutdsl[cuda]'"
    )


def test_headers_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_sources, "folder", lambda: tmp_path)
    assert "no device.cuh" in refusal(compiled, COPY, "sm_80").message


def test_headers_of_a_toolkit_are_never_read():
    """A toolkit that happens to be installed cannot mix with the NVRTC that compiles."""
    error = refusal(compiled, replace(COPY, source="#include <cuda_fp16.h>\n" + COPY.source), "sm_80")
    assert 'could not open source file "cuda_fp16.h" (no directories in search list)' in error.message


# --- the driver -------------------------------------------------------------------------------------------------------


def absent(*_):
    raise DynamicLibNotFoundError("cuda")


def answer(name: str, *values):
    return lambda *_: (getattr(cuda_toolkit.cuda_driver.CUresult, name), *values)


@pytest.mark.parametrize(
    ("version", "init", "message"),
    [
        (absent, absent, "LP322 no-driver: there is no NVIDIA driver on this machine"),
        (
            answer("CUDA_SUCCESS", 12080),
            absent,
            "LP323 old-driver: the NVIDIA driver runs CUDA up to 12.8, 13.0 is needed",
        ),
        (answer("CUDA_SUCCESS", 13000), answer("CUDA_ERROR_NO_DEVICE"), "LP324 no-gpu: the NVIDIA driver shows no GPU"),
        (
            answer("CUDA_SUCCESS", 13000),
            answer("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
            "LP325 cuda-error: CUDA answers CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
    ],
)
def test_drivers_that_will_not_do(monkeypatch, version, init, message):
    driver = SimpleNamespace(CUresult=cuda_toolkit.cuda_driver.CUresult, cuDriverGetVersion=version, cuInit=init)
    monkeypatch.setattr(cuda_toolkit, "cuda_driver", driver)
    assert str(refusal(cuda_toolkit.gpus)).splitlines()[0] == message
