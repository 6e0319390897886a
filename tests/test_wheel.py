"""What a user gets from `pip install layoutdsl`: the built wheel, alone in an empty environment, run from elsewhere."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("specs", "kernels")  # top-level folders that travel inside the package
PLAN = (
    "plan gptq marlin_int4_a16 --module moe_gated --size e=8 --size i=1536 --size h=2048"
    " --param group=128 --tp 2 --rank 1"
)
# The environment of a user's shell: nothing that leads back to this repository.
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LAYOUTDSL_", "VIRTUAL_ENV"))}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_alone_lints_and_plans(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("layoutdsl-*.whl")

    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [p for folder in SHIPPED for p in (ROOT / folder).rglob("*.*") if "__pycache__" not in p.parts]
    missing = {f"layoutdsl/{p.relative_to(ROOT).as_posix()}" for p in shipped} - names
    assert not missing, f"the wheel lacks {sorted(missing)}"
    assert any(n.endswith(".dist-info/licenses/LICENSE") for n in names)
    strangers = {n.split("/")[0] for n in names if ".dist-info/" not in n} - {"layoutdsl"}
    assert not strangers, f"the wheel would install {sorted(strangers)} beside layoutdsl"

    venv, elsewhere = tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    bin = venv / ("Scripts" if os.name == "nt" else "bin")
    run(bin / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)

    where = run(bin / "python", "-c", "import layoutdsl; print(layoutdsl.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(venv)
    find = "import importlib.util as u; print([m for m in ('torch', 'numpy', 'cuda', 'numba') if u.find_spec(m)])"
    assert run(bin / "python", "-c", find, cwd=elsewhere).strip() == "[]"

    run(bin / "layoutdsl", "lint", cwd=elsewhere)
    assert run(bin / "layoutdsl", *PLAN.split(), cwd=elsewhere).strip()
