"""How kernels become libraries: joined texts, compilers found or missed, a cache that several processes share; and that
every device primitive compiles for every GPU architecture."""

import importlib.util
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from host_kernels import FAULTY, PRIMITIVES, Kernel, aligned, launched

from layoutdsl import LayoutError
from layoutdsl.backends.host import build as host_build
from layoutdsl.backends.host import launch as host_launch
from layoutdsl.backends.host.launch import Launcher
from layoutdsl.backends.kernel_sources import folder, joined

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
EMPTY = '#include "device.cuh"\nnamespace ld {\nLD_KERNEL(empty, 32)() {}\n}\n'


WAITING = EMPTY.replace("empty", "waiting").replace("32", "64").replace("{}", "{ sync_block(); }")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for kept in (host_build._folder, host_launch._loaded):
        kept.cache_clear()
    yield tmp_path / "cache" / "layoutdsl"
    for kept in (host_build._folder, host_launch._loaded):
        kept.cache_clear()


# ---------------------------------------------------------------- texts


def test_joined_pastes_each_file_once():
    text = joined('// one\n#include "device.cuh"\n#include "types.cuh"\n#include "host/device.h"\n// five\n', "mine.cu")
    lines = text.splitlines()
    assert text.count("using u8") == 1 and "#pragma once" not in text
    assert lines[:3] == ['#line 1 "mine.cu"', "// one", '#line 1 "device.cuh"']
    assert lines[-4:] == ['#line 3 "mine.cu"', '#line 4 "mine.cu"', '#include "host/device.h"', "// five"]


def test_lines_of_messages_are_those_of_the_files():
    """__LINE__ and __FILE__ of a text are its own, after all that was pasted into it."""
    text = '#include "device.cuh"\n\n#include "types.cuh"\nstatic_assert(__LINE__ == 4 && __FILE__[0] == \'k\');\n'
    host_build.kernel_library(text)
    with pytest.raises(LayoutError, match=r"kernel\.cu:5:"):
        host_build.kernel_library(text + "wrong\n")


# ---------------------------------------------------------------- compilers


def test_no_compiler(monkeypatch, cache):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LayoutError) as refusal:
        Launcher().launch(Kernel("empty", EMPTY), 1, [])
    assert str(refusal.value).splitlines() == [
        "LP300 no-compiler: running kernels on the CPU needs a C++ compiler, and there is no `g++` or `clang++`",
        "  = help: install g++ or clang++, or name another compiler's command in CXX; every other backend does without",
    ]


def test_a_compiler_that_is_named_but_not_there(monkeypatch, cache):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(LayoutError, match="there is no `no-such-compiler`\n"):
        Launcher().launch(Kernel("empty", EMPTY), 1, [])


def test_a_kernel_that_does_not_compile():
    for body, said in (
        ("Global{0}.load<u32>();", "no matching (member )?function"),
        ("u32* p = Global{0};", "cannot convert|no viable conversion"),
    ):
        text = f'#include "device.cuh"\nnamespace ld {{\nLD_KERNEL(wrong, 32)() {{\n    {body}\n}}\n}}\n'
        with pytest.raises(LayoutError) as refusal:
            host_build.kernel_library(text)
        assert refusal.value.diagnostics[0].code == "LP301"
        assert re.search(f"kernel.cu:4:.*({said})", refusal.value.message)


def test_frames_that_no_stack_holds_are_refused():
    body = "volatile u32 all[60000]; for (u32 i = 0; i < 60000; ++i) all[i] = i; out.store<u32>(0, all[thread()]);"
    text = f'#include "device.cuh"\nnamespace ld {{ LD_KERNEL(large, 32)(Global out) {{ {body} }} }}\n'
    with pytest.raises(LayoutError, match="frame size"):
        host_build.kernel_library(text)


def test_ucontext_gives_the_same(monkeypatch):
    """The switch of other CPUs, made to be used on this one."""
    given, out, other = aligned((2, 64, 64)), aligned((2, 64, 64)), aligned((2, 64, 64))
    given[:] = np.random.default_rng(0).integers(0, 256, given.shape)
    of = Kernel("check_release", '#include "primitives_check.cu"\n', shared=4096)
    launched(of, 2, {"in": given}, {"out": out})
    monkeypatch.setenv("CXX", f"{shlex.join(host_build.compiler())} -DLD_UCONTEXT")
    monkeypatch.setattr(host_launch, "_loaded", host_launch._loaded.__wrapped__)
    launched(of, 2, {"in": given}, {"out": other})
    assert out.any() and np.array_equal(out, other)


# ---------------------------------------------------------------- the cache


FAKE = """#!/bin/sh
# Says a version; else waits for the file `go`, writes half of the output, waits again, and writes the rest.
[ "$1" = --version ] && echo fake 1 && exit
while [ "$1" != -o ]; do shift; done
echo "$$" >> {place}/started
printf first > "$2"
while [ ! -e {place}/go ]; do sleep 0.02; done
printf second >> "$2"
"""
BUILD = "from layoutdsl.backends.host.build import runtime_library; print(runtime_library())"


@pytest.fixture
def fake(monkeypatch, cache, tmp_path):
    """A compiler whose work can be held up: it goes on when the file `go` is there."""
    path = tmp_path / "fake"
    path.write_text(FAKE.format(place=tmp_path))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(path))
    return tmp_path


def building() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    )


def wait_for(place: Path, starts: int) -> None:
    """Until so many runs of the fake compiler have written half of their output."""
    deadline = time.monotonic() + 60
    while not (place / "started").exists() or len((place / "started").read_text().split()) < starts:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_that_build_the_same(fake, cache):
    several = [building() for _ in range(3)]
    wait_for(fake, 3)
    assert not list(cache.glob("*.so"))
    (fake / "go").touch()
    paths = {process.communicate()[0].strip() for process in several}
    assert [process.returncode for process in several] == [0, 0, 0]
    assert paths == {str(path) for path in cache.iterdir()} and len(paths) == 1
    assert Path(paths.pop()).read_text() == "firstsecond"


def test_a_build_that_was_killed(fake, cache):
    """Half of a library is there, but not under the name of one."""
    process = building()
    wait_for(fake, 1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(cache.glob("*.so"))
    (fake / "go").touch()
    assert host_build.runtime_library().read_text() == "firstsecond"


def test_built_once(fake, cache, monkeypatch):
    (fake / "go").touch()
    built = host_build.runtime_library()
    assert host_build.runtime_library() == built
    assert len((fake / "started").read_text().split()) == 1
    assert host_build.runtime_library("undefined") != built
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -O1")
    assert host_build.runtime_library() != built
    assert len((fake / "started").read_text().split()) == 3


def test_a_cache_that_cannot_be_written(fake, cache, monkeypatch):
    (fake / "go").touch()
    (fake / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fake / "file"))
    host_build._folder.cache_clear()
    built = host_build.runtime_library()
    assert built.read_text() == "firstsecond" and not built.is_relative_to(fake)


def test_a_sanitizer_that_is_not_loaded():
    for build in ("address", "thread"):
        with pytest.raises(LayoutError, match=f"build `{build}` needs its sanitizer loaded before Python"):
            Launcher(build=build).launch(Kernel("empty", EMPTY, 32), 1, [])


# ---------------------------------------------------------------- GPUs


@pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="cuda.core is not installed")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_primitive_compiles(arch):
    """With no header beside our own. Kernels of the tests too: what the host runs must be CUDA."""
    from cuda.core import Program, ProgramOptions

    for text in ((folder() / "primitives_check.cu").read_text(), FAULTY):
        made = Program(joined(text), "c++", ProgramOptions(arch=arch, name="kernel.cu")).compile("cubin")
        names = PRIMITIVES if "check_global" in text else ("multiply", "reach", "meet", "chain")
        for name in names:
            assert (name.encode() in made.code) == (arch not in ("sm_80", "sm_86") or "e4m3" not in name)


@pytest.mark.parametrize(("command", "said"), [
    ("g++ 'x", "LP300 no-compiler: CXX is `g++ 'x`, which is no command: No closing quotation"),
    ("true", "`true` ended with status 0, said nothing and made nothing"),
    ("false", "`false` ended with status 1, said nothing and made nothing"),
])  # fmt: skip
def test_a_command_that_is_no_compiler(monkeypatch, cache, command, said):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(LayoutError, match=re.escape(said)):
        host_build.kernel_library("// nothing")



def launched_elsewhere(**environment: str) -> subprocess.CompletedProcess[str]:
    """A launch in a process that has no library loaded yet."""
    text = "from test_host_build import WAITING, Kernel, Launcher; Launcher().launch(Kernel('waiting', WAITING), 1, [])"
    there = os.pathsep.join(map(str, (Path(__file__).parent, *sys.path)))
    where = {**os.environ, "PYTHONPATH": there, **environment}
    return subprocess.run([sys.executable, "-c", text], env=where, capture_output=True, text=True)


@pytest.mark.parametrize("broken", ["waiting", "runtime"])
def test_a_library_that_cannot_be_loaded_is_built_anew(cache, broken):
    path = host_build.kernel_library(WAITING) if broken == "waiting" else host_build.runtime_library()
    path.write_bytes(b"junk")
    done = launched_elsewhere()
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_bytes() != b"junk"


def test_a_compiler_whose_libraries_cannot_be_loaded(cache):
    """gcc compiles C++, and does not link its library."""
    done = launched_elsewhere(CXX="gcc")
    assert "LP301" in done.stderr and "cannot be loaded" in done.stderr and "g++ and not gcc" in done.stderr
