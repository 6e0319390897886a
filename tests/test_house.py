"""The rules of the house that a machine can check: imports, spec budgets, no `eval`, no path of one machine.

The tables at the top are the rules. A new module is one more line in LAYERS.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "layoutdsl"

# A module imports only from lines above its own. A line stands for a module or for a whole subpackage, whose modules
# may import each other; of several lines that fit, the longest counts.
LAYERS = (
    "collector",
    "flags",
    "folders",
    "errors",
    "settings",
    "files",
    "source",
    "codes",
    "grammar",
    "layout",
    "laws",
    "model",
    "checks",
    "library",
    "resolve",
    "recodes",
    "plan",
    "prove",  # above pairs and compile, so that it cannot ask the compiler what it meant
    "pairs",
    "arguments",
    "builder",
    "planner",
    "choose",
    "nearest",  # tries settings for the compiler, which hands it the means
    "compile",
    "irreversible",
    "strips",
    "reads",
    "spans",
    "partial",
    "ledger",
    "logical",
    "lint",
    "schema",
    "backends",
    "gemm",  # imports torch, and is imported by what asks for a GEMM alone
    "doctor",
    "price",
    "explain",
    "decode",
    "peer",
    "conform",
    "show",
    "diff",
    "checkpoints",
    "reloading",
    "adapters",  # each imports what it adapts to, and nothing of ours imports them
    "coverage",
    "warmup",
    "cli",
    "__main__",
    "__init__",  # the public API, of lazy attributes; no module of ours imports from it
)
# Against that order on purpose, inside a function or for types: the methods of a Plan open the doors of later stages.
AGAINST = {
    ("plan", later)
    for later in (
        "prove",
        "compile",
        "irreversible",
        "explain",
        "reads",
        "spans",
        "partial",
        "backends",
        "backends.update",
    )
}

HEAVY = ("torch", "numpy", "cuda", "numba", "safetensors", "transformers", "ray")
# The only layers that may import one of them, but for types.
HEAVY_IN = ("backends", "gemm", "decode", "conform", "checkpoints", "reloading", "adapters")

SPEC_KINDS = ("checkpoint", "kernel", "module")
SPEC_LINES = 60
SPEC_KEYS = ("doc", "source", "try")  # what it is, where that is written down, sizes to prove it at

COMMANDS = (
    "lint",
    "plan gptq marlin_int4_a16 --module moe_gated --size e=8 --size i=1536 --size h=2048 --param group=128 --tp 2",
    "coverage --models tests/fixtures/models_small.yaml --source fp8 --tp 1 --jobs 1",
)

MODULES = sorted(PACKAGE.rglob("*.py"))
SPECS = sorted(path for kind in SPEC_KINDS for path in (ROOT / "specs" / kind).rglob("*.yaml"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ---------------------------------------------------------------- what a command loads


# Runs one command in a fresh interpreter and tells, for each heavy module it imported, from which line.
WATCH = """
import importlib.abc, json, sys, traceback

heavy, seen = json.loads(sys.argv[1]), {}

class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in heavy and name not in seen:
            frames = [f for f in traceback.extract_stack() if "importlib" not in f.filename][:-1]
            seen[name] = f"{frames[-1].filename}:{frames[-1].lineno}"

sys.meta_path.insert(0, Watch())
import layoutdsl, layoutdsl.cli
sys.argv = ["layoutdsl", *sys.argv[2:]]
code = 0
if sys.argv[1:]:
    try:
        code = layoutdsl.cli.main()
    except SystemExit as stop:
        code = stop.code
print(json.dumps([code or 0, {name: seen.get(name, "?") for name in heavy if name in sys.modules}]))
"""


@pytest.mark.parametrize("command", ["", *COMMANDS], ids=lambda c: c.split()[0] if c else "import")
def test_core_loads_nothing_heavy(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH, json.dumps(HEAVY), *command.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, f"`layoutdsl {command}` ended with {code}\n{done.stdout}\n{done.stderr}"
    assert not loaded, f"`layoutdsl {command}` imports {loaded}"


# ---------------------------------------------------------------- import direction


def module_name(path: Path) -> str:
    """`layoutdsl/backends/torch/__init__.py` is `backends.torch`, a subpackage's `__init__.py` is the subpackage."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


NAMES = {module_name(path): path for path in MODULES}


def layer(name: str) -> str:
    fitting = [line for line in LAYERS if name == line or name.startswith(line + ".")]
    assert fitting, f"`layoutdsl.{name}` has no line in LAYERS: give it one, above all modules that import it"
    return max(fitting, key=len)


def imported(node: ast.Import | ast.ImportFrom, *, inside: str) -> Iterator[str]:
    """The modules one import statement reaches, in full: of `from layoutdsl import x` the submodule x, if it is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = [node.module] if node.module else []
    if node.level:
        package = ("layoutdsl", *NAMES[inside].relative_to(PACKAGE).parent.parts)
        base = [*package[: len(package) - node.level + 1], *base]
    for alias in node.names:
        inner = ".".join([*base, alias.name])
        yield inner if inner.removeprefix("layoutdsl.") in NAMES else ".".join(base)


def imports(name: str) -> Iterator[tuple[int, str, str]]:
    """Line, imported module, and when the statement runs: `loading`, `calling` a function, or `never` (for types)."""
    tree = ast.parse(NAMES[name].read_text(encoding="utf-8"))
    when = {}
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            when.update({id(node): "calling" for node in ast.walk(outer)})
        if isinstance(outer, ast.If) and ast.unparse(outer.test).endswith("TYPE_CHECKING"):
            when.update({id(node): "never" for child in outer.body for node in ast.walk(child)})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in imported(node, inside=name):
                yield node.lineno, target, when.get(id(node), "loading")


@pytest.mark.parametrize("name", NAMES)
def test_imports_come_from_above(name: str) -> None:
    own, wrong = layer(name), []
    for line, target, when in imports(name):
        if target.split(".")[0] != "layoutdsl":
            continue
        wanted = target.removeprefix("layoutdsl").removeprefix(".") or "__init__"
        theirs = layer(wanted)
        if (
            own == theirs
            or LAYERS.index(theirs) < LAYERS.index(own)
            or (when != "loading" and (name, wanted) in AGAINST)
        ):
            continue
        wrong.append(f"{relative(NAMES[name])}:{line} imports `{target}`, in LAYERS below `{own}`")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_heavy_imports_stay_in_backends(name: str) -> None:
    if name.split(".")[0] in HEAVY_IN:
        return
    found = [
        f"{target} in line {line}"
        for line, target, when in imports(name)
        if target.split(".")[0] in HEAVY and when != "never"
    ]
    assert not found, f"{relative(NAMES[name])} imports {', '.join(found)}; only {', '.join(HEAVY_IN)} may"


def test_layers_name_what_exists() -> None:
    """A line whose module is gone is a rule about nothing."""
    gone = [line for line in LAYERS if not any(f"{name}.".startswith(f"{line}.") for name in NAMES)]
    assert not gone, f"no module for {gone}"


# ---------------------------------------------------------------- specs


def test_specs_are_there() -> None:
    assert {path.relative_to(ROOT / "specs").parts[0] for path in SPECS} == set(SPEC_KINDS)


@pytest.mark.parametrize("path", SPECS, ids=relative)
def test_spec_is_short_and_says_where_it_comes_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines <= SPEC_LINES, f"{lines} lines, over {SPEC_LINES}: a concept is missing"
    missing = [key for key in SPEC_KEYS if not yaml.safe_load(text).get(key)]
    assert not missing, f"lacks {missing}"


# ---------------------------------------------------------------- text of the sources


@pytest.mark.parametrize("name", NAMES)
def test_no_eval_no_exec(name: str) -> None:
    for node in ast.walk(ast.parse(NAMES[name].read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        called = function.id if isinstance(function, ast.Name) else None
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) in ("builtins", "__builtins__"):
            called = function.attr
        assert called not in ("eval", "exec"), f"{relative(NAMES[name])}:{node.lineno} calls {called}"


LOCAL_PATH = re.compile(r"(?<![\w.~/])/(?:work|tmp|home|root|opt)/")


def tracked() -> list[Path]:
    """Every file of the repository that git knows or would add; without git, every file of its folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    folders = ("layoutdsl", "specs", "kernels", "docs", "benchmarks", "scripts")
    return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()] + [ROOT / "README.md"]


def test_no_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        data = path.read_bytes()
        if path.is_relative_to(ROOT / "tests") or b"\0" in data[:4096]:
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
            if LOCAL_PATH.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
