"""Packages for a machine that reaches no index: fetched here into build/wheels, unpacked there into build/site.

The versions are those of constraints.txt. torch, with numpy and NVRTC, is the machine's own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WHEELS, SITE = ROOT / "build" / "wheels", ROOT / "build" / "site"
PYTHON = "3.12"

NAMES = (
    "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions", "PyYAML", "safetensors",
    "cuda-bindings", "cuda-core", "cuda-pathfinder",
)  # fmt: skip


def fetch() -> int:
    """Download the wheels, in the place of earlier ones; pip's exit status."""
    for folder in (WHEELS, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + ["manylinux2014_x86_64"]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation=cp",
        f"--python-version={PYTHON}", *(f"--platform={one}" for one in platforms),
        "--constraint", ROOT / "constraints.txt", "--dest", WHEELS, *NAMES,
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command))).returncode
    found = sorted(WHEELS.glob("*.whl"))
    size = sum(path.stat().st_size for path in found) / 1e6
    print(f"{len(found)} wheels for Python {PYTHON}, {size:.0f} MB in {WHEELS.relative_to(ROOT)}")
    return done


def unpack() -> None:
    """Put the wheels that were brought along before what the machine has, for this process."""
    if not WHEELS.is_dir():
        return
    if not SITE.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
                   "--target", SITE, *WHEELS.glob("*.whl")]
        subprocess.run(list(map(str, command)), check=True)
    sys.path.insert(0, str(SITE))
