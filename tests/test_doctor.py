"""`layoutdsl doctor`: a line for each thing, with its remedy, whatever is missing or broken, and never a traceback."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from layoutdsl import doctor
from layoutdsl.cli import main

ITEMS = ["cuda-python", "NVRTC", "headers", "driver", "arch", "torch", "cache"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """What the command says of each thing, and its exit status."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call() -> tuple[int, dict[str, str]]:
        status = main(["doctor"])
        out, err = capsys.readouterr()
        lines = [line.split(maxsplit=1) for line in out.splitlines()]
        assert err == "" and [item for item, _ in lines] == ITEMS
        return status, dict(lines)

    return call


@pytest.fixture
def toolkit():
    pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")
    from layoutdsl.backends.cuda import toolkit as cuda_toolkit

    return cuda_toolkit


@pytest.fixture
def gpu(toolkit, monkeypatch, tmp_path):
    """A machine with a driver, one GPU and a torch for it."""
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    monkeypatch.setattr(doctor, "find_spec", lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    monkeypatch.setattr(toolkit, "driver", lambda: (13, 0))
    monkeypatch.setattr(toolkit, "gpus", lambda: (toolkit.Gpu("NVIDIA H200", "sm_90a"),))
    return toolkit


def test_all_is_there(run, gpu):
    status, said = run()
    assert status == 0 and all(words.startswith("ok  ") for words in said.values())
    assert "sm_90a (NVIDIA H200)" in said["arch"] and "libnvrtc" in said["NVRTC"] and "CUDA 13.0" in said["torch"]
    assert "kernels; none of a CUDA toolkit" in said["headers"] and "layoutdsl/cuda, kernels: 0" in said["cache"]


def test_what_was_compiled_is_counted(run, gpu, tmp_path):
    folder = tmp_path / "cache" / "layoutdsl" / "cuda" / "entries" / "ab"
    folder.mkdir(parents=True)
    (folder / "cd").write_bytes(bytes(4300))
    assert "kernels: 1, 4.3 kB" in run()[1]["cache"]


def test_this_machine(run, toolkit):
    """Whatever it has, NVRTC and what ships with us are found, and the status says whether all is."""
    status, said = run()
    assert all(said[item].startswith("ok  ") for item in ("cuda-python", "NVRTC", "headers", "cache"))
    assert status == (0 if all(words.startswith("ok  ") for words in said.values()) else 1)


def test_no_driver(run, toolkit, monkeypatch):
    def absent():
        raise toolkit.DynamicLibNotFoundError("cuda")

    monkeypatch.setattr(toolkit.cuda_driver, "cuDriverGetVersion", absent)
    status, said = run()
    words = "no  there is no NVIDIA driver on this machine: install one, or use the backend `cpu`"
    assert status == 1 and said["driver"].startswith(words) and said["arch"].startswith(words)


def test_a_gpu_that_nvrtc_does_not_know(run, gpu, monkeypatch):
    monkeypatch.setattr(gpu, "gpus", lambda: (gpu.Gpu("NVIDIA X1", "sm_300a"),))
    status, said = run()
    assert status == 1 and said["arch"].startswith("no  kernels are not compiled for `sm_300a`: ")


def test_cuda_python_that_is_not_installed(run, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("layoutdsl.backends.cuda")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)
    status, said = run()
    words = "no  cuda-python is not installed: pip install 'layoutdsl[torch,cuda]'"
    assert status == 1 and set(said.values()) == {words}


def test_libraries_that_do_not_fit_each_other(run, toolkit, monkeypatch):
    def broken():
        raise RuntimeError("Function not found:\n nvrtcGetCUBIN")

    monkeypatch.setattr(toolkit, "compiler", broken)
    status, said = run()
    assert status == 1
    assert said["NVRTC"].startswith("no  RuntimeError: Function not found: nvrtcGetCUBIN: pip install --upgrade")


def test_torch_without_cuda(run, gpu, tmp_path):
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\nhip: Optional[str] = None\n")
    status, said = run()
    assert status == 1 and "is a build without CUDA: pip install" in said["torch"]


def test_no_torch(run, gpu, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    status, said = run()
    assert (status, said["torch"]) == (1, "no  torch is not installed: pip install 'layoutdsl[torch,cuda]'")


def test_a_cache_that_cannot_be_written(run, gpu, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    status, said = run()
    assert status == 1 and "cannot be written" in said["cache"] and "let XDG_CACHE_HOME name" in said["cache"]


def test_torch_is_not_imported():
    text = "import sys; from layoutdsl.doctor import examine; list(examine()); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout == "False\n"
