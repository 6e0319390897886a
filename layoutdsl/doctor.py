"""What the backend `cuda` needs, and whether it is here: `layoutdsl doctor`, a line for each thing.

    NVRTC        ok  13.0, .../nvidia/cu13/lib/libnvrtc.so.13
    driver       no  there is no NVIDIA driver on this machine: install one, or use the backend `cpu`, ...

What is missing stands there with its remedy. Nothing is compiled, and neither torch nor a GPU's context is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from layoutdsl.errors import LayoutError


@dataclass(frozen=True)
class Line:
    """One thing: whether it will do, and what was found or, where it will not do, what is wrong and the remedy."""

    item: str
    ok: bool
    said: str

    def __str__(self) -> str:
        return f"{self.item:12} {'ok' if self.ok else 'no'}  {self.said}"


def examine() -> Iterator[Line]:
    """A line for each thing that the backend `cuda` needs."""
    for item, look in _ITEMS.items():
        try:
            yield Line(item, True, look())
        except LayoutError as error:
            yield Line(item, False, ": ".join(filter(None, (error.message, error.help))))
        except ModuleNotFoundError as error:
            missing = (error.name or "a module").split(".")[0].replace("cuda", "cuda-python")
            yield Line(item, False, f"{missing} is not installed: pip install 'layoutdsl[torch,cuda]'")
        except Exception as error:  # libraries that do not fit each other fail in any way, and that is to be told too
            what = " ".join(f"{type(error).__name__}: {error}".split())
            yield Line(item, False, f"{what}: pip install --upgrade 'layoutdsl[torch,cuda]'")


def _python() -> str:
    import layoutdsl.backends.cuda.compile  # noqa: F401 - whether it can be

    return f"cuda-bindings {version('cuda-bindings')}, cuda-core {version('cuda-core')}"


def _nvrtc() -> str:
    from layoutdsl.backends.cuda.toolkit import compiler

    found = compiler()
    return f"{found.version[0]}.{found.version[1]}, {found.path}; compiles for {', '.join(found.archs)}"


def _headers() -> str:
    from layoutdsl.backends.cuda.compile import headers

    return f"{headers()}; none of a CUDA toolkit is read"


def _driver() -> str:
    from layoutdsl.backends.cuda.toolkit import driver

    major, minor = driver()
    return f"runs CUDA up to {major}.{minor}"


def _arch() -> str:
    from layoutdsl.backends.cuda.toolkit import check_arch, gpus

    found = gpus()
    for gpu in found:
        check_arch(gpu.arch)
    return ", ".join(f"{gpu.arch} ({gpu.name})" for gpu in found)


def _torch() -> str:
    """Read from the file that says it: importing torch takes seconds."""
    from layoutdsl.backends.cuda.toolkit import check_torch

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    built = re.search(r"^cuda\b.*= *'([\d.]+)'", text, flags=re.M)
    cuda = None if built is None else built[1]
    check_torch(version("torch"), cuda)
    return f"{version('torch')}, for CUDA {cuda}"


def _cache() -> str:
    from layoutdsl.backends.cuda.compile import check_cache

    place = check_cache()
    sizes = [path.stat().st_size for path in (place / "entries").rglob("*") if path.is_file()]
    return f"{place}, kernels: {len(sizes)}, {sum(sizes) / 1e3:.1f} kB"


_ITEMS = {
    "cuda-python": _python, "NVRTC": _nvrtc, "headers": _headers, "driver": _driver, "arch": _arch, "torch": _torch,
    "cache": _cache,
}
