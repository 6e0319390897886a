"""What others put into their CI: the pre-commit hooks and the GitHub action, of which the scripts are run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from layoutdsl import cli
from layoutdsl.library import shipped

ROOT = Path(__file__).resolve().parent.parent
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
BAD = ROOT / "tests" / "lint" / "bad" / "ld904_tried_twice.yaml"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hooks(hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(hook) == {"id", "name", "description", "entry", "language", "files", "types"}
    program, *argv = shlex.split(hook["entry"])
    assert (program, hook["language"]) == ("layoutdsl", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ld904_tried_twice.yaml").write_bytes(BAD.read_bytes())
    assert cli.main([*argv, "ld904_tried_twice.yaml"]) == (0 if "--fix" in argv else 1)
    specs = [path.relative_to(shipped().parent).as_posix() for path in shipped().rglob("*.yaml")]
    taken = {path for path in specs if re.search(hook["files"], path)}
    assert taken == {path for path in specs if not path.startswith("specs/names/")}


def test_the_action_is_composite_and_every_input_is_used() -> None:
    assert ACTION["runs"]["using"] == "composite"
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{\{ inputs\.([a-z-]+) \}\}", text)) == set(ACTION["inputs"])
    for step in ACTION["runs"]["steps"]:
        assert "uses" in step or step["shell"] == "bash"
        assert "${{" not in step.get("run", ""), "an input in the text of a script is run by it"


@pytest.fixture
def act(tmp_path: Path) -> Any:
    """Runs the last step of the action in an empty folder, as GitHub does."""
    step = ACTION["runs"]["steps"][-1]
    program = tmp_path / "bin" / "layoutdsl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m layoutdsl "$@"\n')
    program.chmod(0o755)
    here = tmp_path / "checkout"
    here.mkdir()

    def call(**inputs: str) -> subprocess.CompletedProcess[str]:
        given = {name: inputs.get(name, one["default"]) for name, one in ACTION["inputs"].items()}
        names = {key: re.fullmatch(r"\$\{\{ inputs\.(.+) \}\}", value) for key, value in step["env"].items()}
        variables = {key: given[name[1]] for key, name in names.items() if name is not None}
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, **variables, "PATH": path, "PYTHONPATH": str(ROOT), "GITHUB_WORKSPACE": str(here)}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)

    return call


def test_the_action_without_inputs(act: Any) -> None:
    done = act()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_action(act: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkout" / "my specs"
    folder.mkdir()
    (folder / "ld904_tried_twice.yaml").write_bytes(BAD.read_bytes())
    done = act(paths="my specs\n", sarif="found.sarif")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("::error file=my specs/ld904_tried_twice.yaml,line=19,")
    log = (tmp_path / "checkout" / "found.sarif").read_text()
    assert '"uri": "my%20specs/ld904_tried_twice.yaml"' in log
    assert act(paths="my specs", args="--ignore\nLD904").returncode == 0


def test_the_action_mends_nothing(act: Any, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "pyproject.toml").write_text("[tool.layoutdsl.lint]\nfix = true\n")
    path = checkout / "ld904_tried_twice.yaml"
    path.write_bytes(BAD.read_bytes())
    done = act(paths=path.name, sarif="found.sarif")
    assert done.returncode == 1 and "LD904" in done.stdout and "LD904" in (checkout / "found.sarif").read_text()
    assert path.read_bytes() == BAD.read_bytes()


def test_the_action_runs_no_input(act: Any, tmp_path: Path) -> None:
    done = act(paths="$(touch owned); `touch owned`\n'; touch owned", args="--exit-zero")
    assert done.returncode == 0 and "::error" in done.stdout
    assert [path.name for path in (tmp_path / "checkout").iterdir()] == []
