"""The command line: lint, rule, schema for specs; plan, show, coverage, conform; inspect, convert, verify, identify for
checkpoints; doctor, warmup for GPUs.

    layoutdsl plan gptq marlin_int4_a16 --module linear --size n=4096 --size k=4096 --tp 2

Exit status: 0 clean, 1 findings or a refusal, 2 wrong usage or a fault of our own. Findings of `lint` and results go to
stdout, refusals and faults to stderr. What a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from layoutdsl import flags, settings
from layoutdsl.errors import LayoutError

Item = TypeVar("Item")

CLEAN, FINDINGS, FAILED = 0, 1, 2
_BROKEN_PIPE, _INTERRUPTED, _TERMINATED = 141, 130, 143  # 128 and the signal's number, as a shell reports it

_ROW = re.compile(r'\[(?:[^][{}"]|"(?:[^"\\\n]|\\.)*")*\]')
_BREAK = re.compile(r"\n\s*")
_EMITTED = {"cpu": "cpu", "cuda": "repack"}
_HELP_SPECS = "a folder of your own specs, searched before the shipped ones; may be repeated"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    # A stream that was closed is None, and the next file that is opened would have its number.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    with suppress(ValueError):  # only the main thread may; a terminated run clears up after itself like any other
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        status = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        if argv is None:
            gc.freeze()  # the process ends: nothing of it need be collected before
        return status
    except BrokenPipeError:
        # Whoever read our output has enough; nothing may be written when the interpreter closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (KeyboardInterrupt, SystemExit) as stop:  # by Ctrl-C, or terminated; a note says what is kept
        for note in getattr(stop, "__notes__", ()):
            print(note, file=sys.stderr)
        if isinstance(stop, SystemExit):
            raise
        return _INTERRUPTED
    except LayoutError as error:
        print(error, file=sys.stderr)
        return FINDINGS
    except (_Usage, settings.BadSettings) as error:
        print(f"layoutdsl: {error}", file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("layoutdsl"):
            return _fault(error)
        print(f"layoutdsl: this needs {error.name}, which is not installed: pip install 'layoutdsl[torch]'",
              file=sys.stderr)
        return FAILED
    except OSError as error:  # a full disk, a file one may not read: LayoutError speaks of what the user named
        print(f"layoutdsl: {error}", file=sys.stderr)
        return FAILED
    except Exception as error:
        return _fault(error)


def _run(argv: list[str]) -> int:
    parser = _parser(argv)
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has said what is wrong
        return stop.code if isinstance(stop.code, int) else CLEAN
    if args.version:
        from importlib.metadata import version

        print(f"layoutdsl {version('layoutdsl')}")
        return CLEAN
    if args.command is None:
        parser.print_help()
        return FAILED
    return _COMMANDS[args.command](args)


class _Usage(Exception):
    """Something outside our hands that stops the command, in one sentence."""


def _fault(error: Exception) -> int:
    if os.environ.get("LAYOUTDSL_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    what = " ".join(str(error).split()) or "no reason given"
    print(f"this is a fault of layoutdsl: {type(error).__name__}: {what} "
          "(LAYOUTDSL_TRACEBACK=1 shows where; please report it)", file=sys.stderr)
    return FAILED


# --- arguments --------------------------------------------------------------------------------------------------------


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="layoutdsl", allow_abbrev=False, description=(
        "Describe how a weight format is laid out, and get every conversion between formats: planned and proved."))
    parser.add_argument("--version", action="store_true", help="show the version of layoutdsl")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def command(name: str, help: str, **options: Any) -> argparse.ArgumentParser:
        about = f"{help[0].upper()}{help[1:]}."
        return commands.add_parser(name, help=help, description=about, allow_abbrev=False, **options)

    plan = command("plan", "show how the tensors of one format become those of another")
    plan.add_argument("source", help="format of the tensors at hand: a spec's name or path")
    plan.add_argument("target", help="format wanted: a spec's name or path")
    plan.add_argument("--module", required=True, help="which matrices and axes: a spec's name or path")
    plan.add_argument("--size", action="append", required=True, type=flags.size, metavar="AXIS=N", help=(
        "extent of one of the module's axes before sharding: e, i, h of moe_gated and moe_plain, i, h of mlp_gated and "
        "mlp_plain, q, kv, d, h of attention, n, k of linear; AXIS=N,N,... where parts have their own widths, as those "
        "of linear_fused. docs/spec-reference.md lists the axes of every module"))
    plan.add_argument("--param", action="append", default=[], type=flags.param, metavar="NAME=VALUE", help=(
        "a parameter of the specs; source.NAME, target.NAME and module.NAME set it for one of them"))
    plan.add_argument("--tp", type=int, default=1, metavar="N", help="how many tensor-parallel ranks share the module")
    plan.add_argument("--rank", type=int, default=0, metavar="R", help="which of them, from 0")
    plan.add_argument("--ep", type=int, default=1, metavar="N", help="how many expert-parallel ranks share the experts")
    plan.add_argument("--ep-rank", type=int, default=0, metavar="R", help="which of them, from 0")
    plan.add_argument("--only", action="append", default=[], metavar="MATRIX", help=(
        "convert this matrix of the module, and no other that is not named so; may be repeated"))
    plan.add_argument("--experts-map", type=_places, default=(), metavar="E,E,...", help=(
        "the expert of each place that ranks have for one, where some experts have several: 0,1,2,3,0"))
    shown = plan.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the plan itself, which Plan.from_json reads")
    shown.add_argument("--emit", choices=tuple(_EMITTED), help="print the kernels that this backend makes of the plan")

    conform = command("conform", "hold recorded cases of another engine against ours, byte for byte")
    conform.add_argument("folder", type=Path, metavar="DIR", help="folder with index.json, policy.json and the cases")
    conform.add_argument("--backend", default="torch", metavar="B", help="what runs the plans (default: torch)")

    schema = command("schema", "write the JSON Schema of specs, for editors")
    schema.add_argument("--out", type=Path, metavar="DIR", help="write a file per kind of spec there (default: print)")

    command("doctor", "say what the backend `cuda` needs, and whether it is here; exit status 1 where something is not")

    apart = {name: command(name, help) for name, (_, help) in _APART.items()}
    for reader in (plan, conform, *(parser for name, parser in apart.items() if name != "rule")):
        reader.add_argument("--specs", action="append", metavar="DIR", help=_HELP_SPECS)
    for name in set(argv) & set(apart):
        import_module(_APART[name][0]).add_arguments(apart[name])
    return parser


def _places(text: str) -> tuple[int, ...]:
    if not re.fullmatch("[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(f"expected experts apart by commas, such as 0,1,2,3,0, found `{text}`")
    return tuple(map(int, text.split(",")))


def _once(pairs: Sequence[tuple[str, Item]], flag: str) -> dict[str, Item]:
    found: dict[str, Item] = {}
    for name, value in pairs:
        if name in found:
            raise _Usage(f"{flag} {name}=... is given twice")
        found[name] = value
    return found


def folders(given: Sequence[str] | None) -> tuple[str, ...]:
    """The user's folders of specs: those given, else those of the nearest pyproject.toml that speaks of us."""
    for folder in given or ():
        if not Path(folder).is_dir():
            raise LayoutError(f"`{folder}` is no folder of specs", code="LP105", name="no-such-folder", help=(
                "--specs names folders of YAML files"))
    return tuple(given) if given else settings.folders()


# --- commands ---------------------------------------------------------------------------------------------------------


def _plan(args: Any) -> int:
    from layoutdsl.compile import compile_plan

    specs = folders(args.specs)
    plan = compile_plan(
        args.source, args.target, args.module, _once(args.size, "--size"), params=_once(args.param, "--param"),
        tp=args.tp, rank=args.rank, ep=args.ep, ep_rank=args.ep_rank, only=tuple(dict.fromkeys(args.only)),
        experts=args.experts_map, specs=specs,
    )
    if args.emit:
        print(import_module(f"layoutdsl.backends.{_EMITTED[args.emit]}.source").listing(plan))
        return CLEAN
    if not args.json:
        print(plan.explain(specs=specs))
        return CLEAN
    # A row of scalars is one line. Strings stay as they are: a line break within one is written `\n`.
    print(_ROW.sub(lambda row: f"[{re.sub(_BREAK, ' ', row[0][1:-1]).strip()}]", plan.to_json(indent=1)))
    return CLEAN


def _conform(args: Any) -> int:
    from layoutdsl import backends, conform

    backends.load(args.backend)
    cases = conform.cases(args.folder, backend=args.backend, specs=folders(args.specs))
    passed, failed = _counted(cases, "failed")
    # A folder may hold cases alone; then its index names no table of rules.
    has_rules = "policy" in conform.index(args.folder) or (args.folder / "policy.json").exists()
    right, wrong = _counted(conform.policy(args.folder) if has_rules else (), "wrong")
    print(f"{right + wrong} policy rows checked, {wrong} wrong")
    print(f"{passed} passed, {failed} failed")
    return FINDINGS if failed or wrong or not passed + right else CLEAN


def _counted(outcomes: Iterable[Any], word: str) -> tuple[int, int]:
    """How many outcomes are right and how many are not; each of the latter is printed as it comes."""
    right = wrong = 0
    for outcome in outcomes:
        right, wrong = right + (outcome.wrong is None), wrong + (outcome.wrong is not None)
        if outcome.wrong is not None:
            print(f"{word}: {outcome.name}: {outcome.wrong}", flush=True)
    return right, wrong


def _schema(args: Any) -> int:
    from layoutdsl import schema

    if args.out is None:
        import json

        print(json.dumps({kind: schema.schema(kind) for kind in schema.KINDS}, indent=2, ensure_ascii=False))
        return CLEAN
    try:
        for path in schema.write(args.out):
            print(path)
    except OSError as error:
        raise _Usage(f"cannot write to {args.out}: {(error.strerror or 'unknown reason').lower()}") from None
    return CLEAN


def _doctor(_: Any) -> int:
    from layoutdsl.doctor import examine

    lines = tuple(examine())
    print(*lines, sep="\n")
    return CLEAN if all(line.ok for line in lines) else FINDINGS


def _apart(args: Any) -> int:
    if "specs" in args:
        args.specs = folders(args.specs)
    return import_module(_APART[args.command][0]).command(args)


_APART = {
    "lint": ("layoutdsl.lint.command", "check specs: text, schema, rules, and the proofs at their sizes to try"),
    "rule": ("layoutdsl.lint.pages", "say what a finding means and what to write instead"),
    "inspect": ("layoutdsl.checkpoints.inspect", "say what a checkpoint folder is, and what would become of it"),
    "convert": ("layoutdsl.checkpoints.convert", "convert a checkpoint folder for a number of ranks"),
    "verify": ("layoutdsl.checkpoints.verify", "hold every value of a converted folder against its source"),
    "identify": ("layoutdsl.checkpoints.identify", "say which formats a lone safetensors file could be"),
    "coverage": ("layoutdsl.coverage", "say which models are served, on how many ranks and at what price"),
    "show": ("layoutdsl.show", "draw which element of a spec stands where"),
    "diff": ("layoutdsl.diff", "say which elements move between two versions of a spec"),
    "warmup": ("layoutdsl.warmup", "compile the kernels of the backend `cuda` ahead, with or without a GPU"),
}
"""Commands that are modules of their own, with `add_arguments(parser)` and `command(args)`, and their help."""

_COMMANDS: dict[str, Callable[[Any], int]] = {
    "plan": _plan, "conform": _conform, "schema": _schema, "doctor": _doctor,
    **dict.fromkeys(_APART, _apart),
}
