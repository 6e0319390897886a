"""Write the parts of the documentation that stand somewhere else already: in the models, the modules and the specs.

    python scripts/generate_docs.py            write them
    python scripts/generate_docs.py --check    exit 1 where a file is not as it would be written

docs/spec-reference.md, docs/rules.md, docs/formats.md, docs/gallery.md, docs/choices.md and the pictures in docs/img
are written whole; README.md, CONTRIBUTING.md and docs/laws.md have a part between two comments. Nothing is listed
twice: a new key, code, recode, rule, finding or spec shows up by itself.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import terminal_picture

from layoutdsl import LayoutError, Plan, cli, codes, compile_plan, grammar, recodes, schema, source
from layoutdsl.diff.compare import difference
from layoutdsl.diff.picture import drawing_of
from layoutdsl.diff.versions import version_of
from layoutdsl.library import files, kind_of, read_spec, tree_of
from layoutdsl.lint import ink
from layoutdsl.lint.rule import FAMILIES, Rule, rule_of, rules
from layoutdsl.model import KINDS, ROLES, Checkpoint, Format, Kernel, Module, Param, Spec
from layoutdsl.plan import Duty
from layoutdsl.show import cuts, drawing, module
from layoutdsl.show.picture import picture_of

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "img"
WIDTH = 116
NOTE = "<!-- Written by scripts/generate_docs.py: change what it reads, not this text. -->"
PART = ("<!-- {name}: written by scripts/generate_docs.py -->", "<!-- end of {name} -->")

ROLE_MEANING = {
    "codes": "the weights' codes; every format has this tensor",
    "zero_point": "integer subtracted from the codes before they are scaled",
    "scale": "factor of a weight, mostly shared by a group or a block",
    "global_scale": "second factor, of a whole matrix or of a part",
    "bias": "one value per output, added to the result; split over n alone",
    "act_order": "the group of each input, where these do not stand in the order of the groups",
    "input_scale": "scale of the activations; passed on as it is",
    "weight_shape": "a small tensor that holds n and k",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something is stale")
    check = parser.parse_args().check
    stale = [path for path, text in wanted() if not path.exists() or path.read_text(encoding="utf-8") != text]
    left = sorted(set(IMAGES.glob("*")) - {path for path, _ in wanted()})
    for path in left:
        if not check:
            path.unlink()
        print(f"{path.relative_to(ROOT)} {'belongs to no spec' if check else 'removed'}")
    for path, text in wanted():
        if path in stale and not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        if path in stale:
            print(f"{path.relative_to(ROOT)} {'is stale' if check else 'written'}")
    return 1 if check and (stale or left) else 0


@cache
def wanted() -> tuple[tuple[Path, str], ...]:
    """Every file with its text."""
    return (
        (ROOT / "docs" / "spec-reference.md", text_of(reference())),
        (ROOT / "docs" / "formats.md", text_of(gallery())),
        (ROOT / "docs" / "gallery.md", text_of(pictures())),
        (ROOT / "docs" / "choices.md", text_of(planner())),
        (ROOT / "docs" / "rules.md", text_of(rule_pages())),
        *((IMAGES / f"choice_{one.name}.svg", one.picture) for one in EXAMPLES),
        *((IMAGES / f"{spec.name}.svg", picture(spec)) for spec in map(read_spec, files()) if base_of(spec) is None),
        (IMAGES / "session.svg", session()),
        (IMAGES / "coverage.svg", heat_map()),
        (IMAGES / "lint.svg", report()),
        (IMAGES / "diff.svg", change()),
        *(
            (path, filled(path.read_text(encoding="utf-8"), name, list(lines)))
            for path, name, lines in (
                (ROOT / "README.md", "formats", reach_table()),
                (ROOT / "CONTRIBUTING.md", "modules", module_list()),
                (ROOT / "docs" / "laws.md", "recodes", recode_table()),
            )
            if path.exists()
        ),
    )


def text_of(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def filled(text: str, name: str, lines: Sequence[str]) -> str:
    """`text` with `lines` between the two comments of that name."""
    begin, end = (mark.format(name=name) for mark in PART)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"expected `{begin}` and `{end}` once each")
    head, rest = text.split(begin)
    return "\n".join([head + begin, "", *lines, "", end + rest.split(end)[1]])


def table(*rows: Sequence[str]) -> Iterator[str]:
    """A Markdown table; the first row is its head."""
    head, *body = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in body:
        yield "| " + " | ".join(row).rstrip() + " |"


def code(value: Any) -> str:
    """A value as a spec writes it, set as code."""
    text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
    return f"`{text}`"


# --- spec reference ---------------------------------------------------------------------------------------------------

INTRO = """\
# Spec reference

What a spec file may say, key by key. [How a layout is written](how-a-layout-is-written.md) explains the ideas,
[add a format](add-a-format.md) is the quick way in, [the shipped formats](formats.md) are the examples.

A spec is a YAML file of one of three kinds, told by the key that names it: `checkpoint: NAME`, `kernel: NAME` or
`module: NAME`. NAME is also the name of the file. Keys that begin with `x-` are free for your own use; any other
unknown key is an error. The reader is strict: it refuses what YAML readers disagree about, such as `no`, `1:30`, `0.10`
and a key that stands twice. For completion in an editor, let the first line name the schema that
`layoutdsl schema --out` writes:

    # yaml-language-server: $schema=../../docs/schema/checkpoint.json"""


BUILD = """\
### A build of a kernel

The same source gives kernels that read the same tensors and yet take other shapes, groups or machines. Each is a spec
of its own, which names another as its base and states what differs:

    version: "1"
    kernel: marlin_int4_a16_n128
    base: marlin_int4_a16
    doc: A build of Marlin without tiles of 64 outputs
    source: where that is written down
    accepts: {tiles: [{n: 128, k: 64}], groups: [-1, 32, 64, 128], capability: 80}
    try: [{n: 128, k: 256}]

A build always states `version`, `kernel`, `doc`, `source` and `try` itself. Of `params`, `accepts`, `parts`, `tensors`
and `value` it has what it does not state from its base, and what it states takes the place of all that the base says
under that key: nothing is merged inside. The base is another kernel, by name: a file next to this one, in a folder of
`--specs`, or shipped. It may be a build itself. Findings in what comes from it point into its file. Plans remember a
build by its text and its base's, so that a change of either is noticed. Where nobody names a kernel, no build is
taken."""


def reference() -> Iterator[str]:
    yield from (NOTE, "", INTRO)
    shared: dict[str, Mapping[str, Any]] = {}
    for kind in KINDS:
        made = schema.schema(kind)
        shared |= made["definitions"]
        yield from ("", f"## {kind.capitalize()} spec", "", f"{made['description']}", "", *keys(made))
        yield from ("", BUILD) if kind == "kernel" else ()
    yield from ("", "## Keys within")
    for name, definition in sorted(shared.items()):
        said = [definition["description"], ""] if "description" in definition else []
        yield from ("", f"### {name}", "", *said, *keys(definition))
    yield from roles()
    yield from strings()
    yield from element_codes()
    yield from value_changes()
    yield from findings()


def keys(definition: Mapping[str, Any]) -> Iterator[str]:
    needed, alone = definition.get("required", ()), definition.get("else", {}).get("required", ())
    rows = [("key", "holds", "default", "meaning")]
    for name, value in definition["properties"].items():
        default = "needed" if name in needed else "needed without `base`" if name in alone else defaulted(value)
        rows.append((f"`{name}`", holds(value), default, value.get("description", "")))
    yield from table(*rows)


def defaulted(value: Mapping[str, Any]) -> str:
    given = value.get("default")
    if given in (None, [], {}) or isinstance(given, dict):
        return ""
    return ", ".join(map(code, given)) if isinstance(given, list) else code(given)


def holds(value: Mapping[str, Any]) -> str:
    """The type of a value of the schema in words."""
    name = value.get("$ref") or next((part["$ref"] for part in value.get("allOf", ()) if "$ref" in part), None)
    if name:
        name = name.rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in value:
        return " or ".join(sorted(dict.fromkeys(map(holds, value["anyOf"])), key=lambda words: "list" in words))
    if "const" in value:
        return f'`"{value["const"]}"`'
    if "enum" in value:
        return " or ".join(map(code, value["enum"]))
    kind = value.get("type")
    if kind == "array":
        return f"list of {bracketed(holds(value['items']))}" if "items" in value else "list"
    if kind == "object" and "properties" in value:
        return "mapping of " + ", ".join(f"`{key}`" for key in value["properties"])
    if kind == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {bracketed(holds(inner))}" if isinstance(inner, dict) else "mapping"
    if kind == ["string", "integer", "boolean"]:
        return "expression"
    names = {"string": "text", "integer": "integer", "boolean": "boolean", "array": "list"}
    return " or ".join(names[one] for one in (kind if isinstance(kind, list) else [kind]))


def bracketed(words: str) -> str:
    return f"({words})" if " or " in words else words


def roles() -> Iterator[str]:
    assert set(ROLE_MEANING) == set(ROLES), "a role without a meaning"
    yield from ("", "## Roles", "", "Tensors of two formats meet by their role; a format has at most one of each.", "")
    yield from table(("role", "meaning"), *((f"`{role}`", ROLE_MEANING[role]) for role in ROLES))


EXPRESSIONS = """\
Functions: {calls}; `up(a, b)` is the least multiple of b not below a. A division must leave no rest. In a
comparison with `==` or `!=` a name that is no parameter stands for itself.

An expression knows the spec's parameters and, of the very matrix it is evaluated for, `n`, `k`, `group` (0 for one
group) and `groups`, how many groups there are along k. The `n` and `k` of a kernel are padded ones. A string has at
most {most} characters. Every error shows its place inside the string."""


def strings() -> Iterator[str]:
    yield from ("", "## The strings", "", *fenced(about(grammar)), "")
    yield from table(
        ("string", "form"),
        *(
            (name, first_line(parse))
            for name, parse in (
                ("`split`", grammar.parse_split),
                ("`order`", grammar.parse_order),
                ("`value`", grammar.parse_value),
                ("expression", grammar.parse_expr),
                ("`code`, `dtype`", grammar.parse_template),
                ("names", grammar.parse_names),
            )
        ),
    )
    calls = ", ".join(f"`{name}`" for name in grammar._CALLS)
    yield from ("", EXPRESSIONS.format(calls=calls, most=grammar.MAX_LENGTH))


def element_codes() -> Iterator[str]:
    yield from ("", "## Codes", "", *fenced(about(codes)), "")
    names = ["u4", "u8", "u4b8", "u8b128", *codes._FIXED]
    rows = [("code", "bits", "least value", "largest value")]
    for name in names:
        one = codes.code_named(name)
        zero = {"u4": 0, "u8": 0, "n4": 8}.get(name, one.bias)
        values = sorted(value for c in codes.samples(one) if abs(value := one.decode(c, zero)) < float("inf"))
        low, high = (-one.top if one.sign else 0, one.top) if one.kind == "float" else (values[0], values[-1])
        rows.append((f"`{name}`", str(one.bits), number(low, one.bits), number(high, one.bits)))
    yield from table(*rows)
    yield from ("", "`u4` and `u8` are shown with zero point 0, `n4` with 8.")
    unsaid = "bytes, as bitsandbytes, torchao and compressed-tensors' int-quantized hold weights, cannot be described"
    yield from ("", f"No code is two's complement in 8 bits: signed {unsaid} ([LD511](rules.md#ld511)).")
    yield from ("", "Storage types, and the code of a tensor that states none:", "")
    yield from table(
        ("dtype", "bits", "code"),
        *(
            (
                f"`{name}`",
                str(bits),
                code(codes.CODE_OF_DTYPE[name]) if name in codes.CODE_OF_DTYPE else "must be stated",
            )
            for name, bits in codes.DTYPE_BITS.items()
        ),
    )


def number(value: float, bits: int) -> str:
    if abs(value) < 1 << 17:
        return f"{value:g}"
    return f"{value:.6g}" if bits > 16 or value != int(value) else f"{value:.4g}"


def value_changes() -> Iterator[str]:
    yield from ("", "## Recodes", "", *fenced(about(recodes)), "")
    yield "Which of them are exact, and the bounds of the others, stand in [the laws](laws.md#recodes)."


FINDINGS = """\
The codes of what `lint` and the other commands report, with their names. Those that `lint` can report have a
[page](rules.md) each."""


def findings() -> Iterator[str]:
    yield from ("", "## Findings", "", FINDINGS, "")
    yield from table(("code", "names"), *((finding(number), ", ".join(names)) for number, names in finding_codes()))


def finding(number: str) -> str:
    """A code, with the way to its page."""
    return f"`{number}`" if rule_of(number) is None else f"[`{number}`](rules.md#{number.lower()})"


def finding_codes() -> list[tuple[str, list[str]]]:
    """Every code that the package's sources write down, with its names."""
    found: dict[str, dict[str, None]] = {key: {name: None} for key, name in source.CODES.items()}
    for path in sorted((ROOT / "layoutdsl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            named = {word.arg: word.value for word in node.keywords}
            pairs = [(named.get("code"), named.get("name")), *zip(node.args, node.args[1:])]
            for number, name in pairs:
                number, name = plain(number), plain(name)
                if re.fullmatch("L[DP][0-9]{3}", number):
                    found.setdefault(number, {})
                    if re.fullmatch("[a-z-]+(<.*>)?", name):
                        found[number][name] = None
    for rule in rules():
        found.setdefault(rule.code, {})[rule.name] = None
    return sorted((number, list(names)) for number, names in found.items())


def plain(node: ast.expr | None) -> str:
    """A literal's text; what an f-string fills in is shown as <...>."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(v.value) if isinstance(v, ast.Constant) else f"<{ast.unparse(v.value)}>"
            for v in node.values
            if isinstance(v, ast.Constant | ast.FormattedValue)
        )
    return ""


def about(module: Any) -> str:
    """A module's docstring from its first table to its last."""
    lines = inspect.getdoc(module)
    assert lines is not None
    indented = [at for at, line in enumerate(lines.splitlines()) if line.startswith("    ")]
    return inspect.cleandoc("\n" + "\n".join(lines.splitlines()[indented[0] : indented[-1] + 1]))


def fenced(text: str) -> Iterator[str]:
    yield from ("```text", *text.splitlines(), "```")


def first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").splitlines()[0]


# --- pairs of formats -------------------------------------------------------------------------------------------------

SIZES = {"n": 256, "k": 512}


@dataclass(frozen=True, eq=False)
class Variant:
    """A format, and where it has 4 and 8 bits, one of them."""

    spec: Format
    bits: int | None

    @property
    def name(self) -> str:
        return f"`{self.spec.name}`" if self.bits is None else f"`{self.spec.name}`, {self.bits} bit"


def base_of(spec: Spec) -> str | None:
    return spec.base if isinstance(spec, Kernel) else None


@cache
def variants(model: type[Format] = Format) -> tuple[Variant, ...]:
    """All shipped formats of one kind; other builds of a kernel are reached as it is."""
    if model is not Format:
        return tuple(variant for variant in variants() if isinstance(variant.spec, model))
    found = [spec for path in files() if isinstance(spec := read_spec(path), Format) and base_of(spec) is None]
    every: list[Variant] = []
    for spec in found:
        bits = spec.params["bits"].values if "bits" in spec.params else (None,)
        every += [Variant(spec, value if value is None else int(value)) for value in bits]
    return tuple(every)


@cache
def plans_of(a: Variant, b: Variant) -> tuple[Plan, ...]:
    """A plan from one to the other for each dtype and writer, with a group that both take; none where there is none."""
    return tuple(plan for choice in choices(a, b) if (plan := plan_with(a, b, choice)) is not None)


def choices(a: Variant, b: Variant) -> Iterator[dict[str, Any]]:
    sides = {"source": a.spec, "target": b.spec}
    own = {f"{side}.bits": v.bits for side, v in (("source", a), ("target", b)) if v.bits is not None}
    writers = [(f"{side}.writer", s.params["writer"].values) for side, s in sides.items() if "writer" in s.params]
    dtypes = dict.fromkeys(value for s in sides.values() for value in values_of(s, "dtype"))
    for dtype in sorted(map(str, dtypes), reverse=True):
        same = {f"{side}.dtype": dtype for side, spec in sides.items() if "dtype" in spec.params}
        for chosen in product(*(values for _, values in writers)):
            yield {**own, **same, **dict(zip([name for name, _ in writers], chosen))}


def values_of(spec: Format, name: str) -> tuple[Any, ...]:
    return spec.params[name].values if name in spec.params else ()


def plan_with(a: Variant, b: Variant, params: Mapping[str, Any]) -> Plan | None:
    for group in (None, 128, 32):
        groups = (
            {}
            if group is None
            else {f"{side}.group": group for side, v in (("source", a), ("target", b)) if "group" in v.spec.params}
        )
        try:
            return compile_plan(a.spec, b.spec, "linear", SIZES, params={**params, **groups})
        except LayoutError:
            continue
    return None


def narrows(plan: Plan) -> bool:
    """Whether the target can hold only some of what the source can say, so that the data decide: several scales must
    be one, or a scale must be a power of two."""
    for program in plan.programs:
        a, b = codes.code_named(program.recode.source), codes.code_named(program.recode.target)
        runs = [run for move in program.moves if move.kind == "data" for run in (*move.n, *move.k)]
        joined = any(run.join or any(not loop[2] and loop[3] for loop in run.loops) for run in runs)
        if joined or b.kind == "power" != a.kind:
            return True
    return False


def in_a_word(a: Variant, b: Variant) -> str:
    """What is true with every dtype and writer; empty where there is no plan."""
    plans = plans_of(a, b)
    if not plans:
        return ""
    return "checked" if any(map(narrows, plans)) else "rounds" if any(plan.losses for plan in plans) else "exact"


def reach_table() -> Iterator[str]:
    """Checkpoint formats against kernels."""
    kernels = variants(Kernel)
    prefix = "marlin_" if all(kernel.spec.name.startswith("marlin_") for kernel in kernels) else ""
    rows = [("checkpoint", *(kernel.name.replace(prefix, "") for kernel in kernels))]
    for checkpoint in variants(Checkpoint):
        words = [in_a_word(checkpoint, kernel) for kernel in kernels]
        if any(words):  # what is not quantized goes to no kernel
            rows.append((checkpoint.name, *words))
    yield from table(*rows)
    if prefix:
        yield from ("", f"Kernel names without their `{prefix}`.")


def recode_table() -> Iterator[str]:
    """Every recode that a plan between two shipped formats uses, with what it may lose."""
    found: dict[str, dict[tuple[str, str], set[str]]] = {}
    for plan in (plan for a in variants() for b in variants() for plan in plans_of(a, b)):
        losses = dict(plan.losses)
        for program in plan.programs:
            recode, loss = program.recode, losses.get(program.output, "").partition(": ")[2]
            found.setdefault(recode.name, {}).setdefault((recode.source, recode.target), set()).add(loss)
    rows = [("recode", "from and to", "loss")]
    for name, pairs in sorted(found.items()):
        by_loss: dict[tuple[str, ...], list[str]] = {}
        for (a, b), losses in sorted(pairs.items()):
            by_loss.setdefault(tuple(sorted(losses)), []).append(f"{a} to {b}" if a != b else a)
        for losses, names in by_loss.items():
            rows.append((f"`{name}`", ", ".join(names), said(losses)))
    yield from table(*rows)


def said(losses: Sequence[str]) -> str:
    stated = "; ".join(loss for loss in losses if loss)
    return "exact" if not stated else stated if "" not in losses else f"exact, or {stated}"


# --- modules ----------------------------------------------------------------------------------------------------------


def module_list() -> Iterator[str]:
    """The package's modules in the order of LAYERS in tests/test_house.py, each with the first sentence about it."""
    house = ast.parse((ROOT / "tests" / "test_house.py").read_text(encoding="utf-8"))
    found = next(node.value for node in house.body if isinstance(node, ast.Assign) and plain_name(node) == "LAYERS")
    rows = [("module", "what it is")]
    for name in ast.literal_eval(found):
        path = ROOT / "layoutdsl" / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentence = re.split(r"(?<=[.:])\s*\n\s*\n|(?<=\.) |(?<=\.)\n", docstring)[0]
        rows.append((f"`{name}`", " ".join(sentence.split()).rstrip(":.") + "."))
    yield from table(*rows)


def plain_name(node: ast.Assign) -> str:
    return node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""


# --- a session at the terminal ----------------------------------------------------------------------------------------

SESSION = (
    "inspect tests/fixtures/qwen3_moe_w4a16 --tp 4",
    "convert tests/fixtures/qwen3_moe_w4a16 {folder}/out --tp 4",
    "verify {folder}/out --against tests/fixtures/qwen3_moe_w4a16",
)
SECONDS = re.compile(r", \d+\.\d\d s$", re.MULTILINE)


def session() -> str:
    """What the commands of SESSION print, as a picture; without the seconds, which differ each time."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        for command in SESSION:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                if cli.main(command.format(folder=folder).split()):
                    raise SystemExit(f"`layoutdsl {command}` failed")
            lines += [f"$ layoutdsl {command.format(folder='').replace(' /', ' ')}", *out.getvalue().splitlines(), ""]
        lines = SECONDS.sub("", "\n".join(lines).rstrip().replace(f"{folder}/", "")).splitlines()
    return terminal_picture.picture("A conversion at the terminal", lines)


FAULT = "tests/lint/bad/ld406_order_of_another_extent.yaml"


def report() -> str:
    """What `layoutdsl lint` says at a terminal of scales in the order of one group where there are several."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
        if cli.main(["lint", FAULT]) != 1:
            raise SystemExit(f"`layoutdsl lint {FAULT}` has nothing to find")
    lines = [f"$ layoutdsl lint {FAULT}", *ink.inked(out.getvalue()).splitlines()]
    return terminal_picture.picture("A finding at the terminal", lines, columns=124)


CHANGE = ("when: groups > 1", "when: group > 0 and n / 2 > group")


def change() -> str:
    """What `layoutdsl diff` draws of the same fault as a change to the shipped kernel."""
    file = "specs/kernel/marlin_int4_a16.yaml"
    text = (ROOT / file).read_text(encoding="utf-8")
    if CHANGE[0] not in text:
        raise SystemExit(f"`{file}` has no `{CHANGE[0]}`")
    before = version_of(tree_of(text, f"main:{file}"), f"main:{file}")
    after = version_of(tree_of(text.replace(*CHANGE), file), file)
    return drawing_of(difference(before, after, {"n": 128, "k": 256}, {"group": 64}))


COVERAGE = "coverage --models tests/fixtures/models.yaml --source gptq --param group=128 --svg {file}"


def heat_map() -> str:
    """The picture that `layoutdsl coverage` draws of all public families."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        file = Path(folder) / "coverage.svg"
        with contextlib.redirect_stdout(io.StringIO()):
            if cli.main(COVERAGE.format(file=file).split()):
                raise SystemExit(f"`layoutdsl {COVERAGE}` failed")
        return file.read_text(encoding="utf-8")


# --- the planner's choices --------------------------------------------------------------------------------------------

PLANNER = """\
# How ranks share a module

A kernel takes whole tiles and whole groups of scales; a checkpoint has groups of its own; ranks are as many as there
are. `compile_plan` weighs all ways to bring these together and takes the one that stores the fewest bytes on a rank.
Every rank stores as much as the widest. This page shows the choices, each with the plans of all ranks drawn.

How to read the pictures: above the bars stands the whole axis with the groups of the checkpoint, and for attention the
heads. A bar stands below the elements that its rank holds. What is hatched is padding: it does no harm, for a reason
that [the plan states and the proofs check](laws.md). Lines in a bar are the borders of the kernel's groups (of its
tiles where ranks do not cut the axis). On the right is what a rank stores, piece by piece. The commands print rank 0;
`--rank` names another. A caller of `compile_plan` says the same with `params`, `tp` and `rank`, and finds the choice
in `plan.choice`.

In all of these `k` counts the inputs of a matrix, `n` its outputs, and `i` is the inner axis of an MLP: the outputs of
gate and up (w13), and the inputs of down (w2)."""


@dataclass(frozen=True)
class Example:
    """One choice: where it is met, what it is, the commands whose plans are drawn (each below its heading), which axes
    of them, and what other ways would store."""

    name: str
    title: str
    when: str
    text: str
    commands: Mapping[str, str]
    axes: tuple[str, ...]
    choice: str
    instead: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> str:
        return next(iter(self.commands.values()))

    @property
    def picture(self) -> str:
        scenes = [cuts.Scene(headed(*one), ranks_of(one[1]), self.axes) for one in self.commands.items()]
        if (found := scenes[0].plans[0].choice) != self.choice:
            raise SystemExit(f"`{self.first}` is no longer served by `{self.choice}`, but by `{found}`")
        return cuts.drawing_of(self.title, scenes)


MOE = "gptq marlin_int4_a16 --module moe_gated --size e=8 --size i={} --size h=2048 --param group={} --tp {}"
HEADS = "gptq marlin_int4_a16 --module attention {} --param group=128 --tp 4"
LINEAR = "gptq {} --module linear --size n={} --size k={} --param group=-1"

EXAMPLES = (
    Example(
        "even",
        "Even shares",
        "the axis divides into groups and tiles",
        "All ranks hold the same share. It is the plainest way and wins where no other stores less: 1,536 inner "
        "features are 12 groups of 128, three for each of 4 ranks, and nothing is padded.",
        {"": MOE.format(1536, 128, 4)},
        ("w2 k", "w13 n"),
        "even",
    ),
    Example(
        "finer",
        "Finer groups",
        "equal shares end inside a group",
        "A share that ends inside a group of the checkpoint is read with smaller groups: each scale is stored for two "
        "or four groups of the kernel, which changes no value. It wins where more scales cost less than padding to "
        "whole groups: 704 features are 5.5 groups of 128, but 11 of 64. Only w2 needs it, so w13 keeps its 128.",
        {"": MOE.format(1408, 128, 2)},
        ("w2 k", "w13 n"),
        "finer groups",
        {"groups of 128, six for one rank and five for the other": "--param target.group=128"},
    ),
    Example(
        "uneven",
        "Uneven shares",
        "equal shares would end inside a kernel's group, in an axis that nobody outside sees",
        "Ranks hold whole groups of the kernel, dealt as evenly as can be, and every rank is padded to the widest: "
        "1,408 features are 22 groups of 64, three for six ranks and two for the other two. This is for the inner axis "
        "of an MLP, whose cuts nobody sees outside. Ranks together store at least the groups that there are, so "
        "that no other cut at their borders stores less.",
        {"": MOE.format(1408, 128, 8)},
        ("w2 k", "w13 n"),
        "uneven",
        {"groups of 128": "--param target.group=128", "groups of 32": "--param target.group=32"},
    ),
    Example(
        "one_group",
        "One group a rank",
        "ranks outnumber the groups",
        "Each rank's share lies inside one group of the checkpoint: the kernel reads it as a matrix with one scale per "
        "output, and pads it to a tile rather than a group. No other way has fewer scales. Here two ranks share each "
        "of 3 groups and the other two hold nothing, as 48 features for each of 8 ranks would fill a tile of 64 too.",
        {"": MOE.format(384, 128, 8)},
        ("w2 k", "w13 n"),
        "one group a rank",
        {"groups of 64": "--param target.group=64", "groups of 32": "--param target.group=32"},
    ),
    Example(
        "front",
        "Padding in front",
        "cuts between heads end inside groups",
        "The inputs of an o_proj are cut between heads, because that is how attention leaves them, and a head need not "
        "end where a group does. Zeros in front of a rank's inputs bring all later borders of groups onto those of the "
        "kernel, and the caller puts as many zeros before x. Heads of 72 make shares of 288, which are 4.5 groups of "
        "64: each rank stores 320, as it would with groups of 32, but half as many scales.",
        {"": HEADS.format("--size q=16 --size d=72 --size h=1152")},
        ("o k",),
        "front pad",
        {"groups of 32": "--param target.group=32"},
    ),
    Example(
        "heads",
        "Zero heads and shared key-value heads",
        "ranks do not divide the heads, or outnumber the key-value heads",
        "Where ranks outnumber key-value heads, several hold the same one and share its query heads. A rank that lacks "
        "a query head stores zeros in its place, in q and in o. Here 2 key-value heads serve 7 query heads each, for 4 "
        "ranks: two ranks hold each key and value, one with four of the queries and one with three. Some rank has four "
        "of 14 heads however they are dealt, so no cut between heads stores less.",
        {"": HEADS.format("--size q=14 --size kv=2 --size d=64 --size h=896")},
        ("qkv n", "o k"),
        "uneven",
    ),
    Example(
        "hidden",
        "A padded hidden size",
        "the hidden size is no multiple of a tile",
        "Each matrix is padded apart: 2,880 inputs of w13 need 64 zeros to fill tiles of 128, while 2,880 outputs of "
        "w2 fill tiles of 64 as they are. What is seen outside is for the caller to pad or cut, and the plan says so: "
        "here w13's input, and nothing about w2's output.",
        {"": "mxfp4 marlin_mxfp4_a16 --module moe_gated --size e=32 --size i=2880 --size h=2880 --tp 4"},
        ("w13 k", "w2 n"),
        "uneven",
    ),
    Example(
        "tiles",
        "Tile families",
        "the kernel has tiles of several shapes",
        "Marlin takes tiles of 64 outputs by 128 inputs, or of 128 by 64; all of a matrix is of one kind. The kind is "
        "taken that stores less, for each matrix anew: 320 by 256 fits the first, 256 by 192 the second. A build "
        "without the first kind has to pad.",
        {
            "320 x 256": LINEAR.format("marlin_int4_a16", 320, 256),
            "256 x 192": LINEAR.format("marlin_int4_a16", 256, 192),
            "320 x 256 in a build without tiles of 64 outputs": LINEAR.format("marlin_int4_a16_n128", 320, 256),
        },
        ("linear n", "linear k"),
        "even",
    ),
    Example(
        "tight",
        "Tight padding between two matrices",
        "the matrices of an MLP have tiles of different sizes",
        "Gate and up are padded to whole tiles of outputs, here 32 of each, and down to whole tiles of inputs, here "
        "64. With `contract=tight`, the default, each gets its own, and the activation between them writes zeros for "
        "the inputs of down that nobody computes, which the plan lists as a duty. An activation that does not, as "
        "vLLM's, needs `contract=vllm`, which pads both alike.",
        {
            "contract=tight": MOE.format(640, 32, 4),
            "contract=vllm": MOE.format(640, 32, 4) + " --param contract=vllm",
        },
        ("w13 n", "w2 k"),
        "even",
    ),
)


def headed(heading: str, command: str) -> str:
    """What stands above the bars of one of several commands."""
    each = " on each rank" * (plan_of(command).ranks.tp > 1)
    return f"{heading}: {stored(command)} stored{each}" if heading else ""


@cache
def ranks_of(command: str) -> tuple[Plan, ...]:
    """The plans of all ranks that `layoutdsl plan` makes of these words."""
    first = plan_of(command)
    return (first, *(plan_of(f"{command} --rank {rank}") for rank in range(1, first.ranks.tp)))


@cache
def plan_of(command: str) -> Plan:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if cli.main(["plan", *command.split(), "--json"]):
            raise SystemExit(f"`layoutdsl plan {command}` failed")
    return Plan.from_json(out.getvalue(), prove=False)  # it is proven when it is compiled


def stored(command: str) -> str:
    return f"{cuts.stored_bytes(plan_of(command)):,} bytes"


def planner() -> Iterator[str]:
    yield from (NOTE, "", *PLANNER.splitlines(), "")
    rows = [(f"[{one.title}](#{anchor(one.title)})", one.when, f"`{one.choice}`") for one in EXAMPLES]
    yield from table(("choice", "where it is met", "`plan.choice` of the example"), *rows)
    for one in EXAMPLES:
        yield from ("", f"## {one.title}", "", *textwrap.wrap(one.text, WIDTH), "")
        yield from (f"    layoutdsl plan {command}" for command in one.commands.values())
        yield from ("", f"![{one.title}: what each rank holds and stores](img/choice_{one.name}.svg)")
        if len(one.commands) == 1:
            yield from ("", *prices(one))
        if duties := dict.fromkeys(f"- {duty}" for plan in ranks_of(one.first) for duty in owed(plan)):
            yield from ("", "The caller's duties, of all ranks:", "", *duties)


def owed(plan: Plan) -> Iterator[Duty]:
    """What a caller has to do that is owed to a choice, and not to there being ranks."""
    yield from (duty for duty in plan.duties if duty.kind != "sum_over_ranks")


def prices(one: Example) -> Iterator[str]:
    """What is stored, and what would be otherwise."""
    yield f"- Stored on each rank: {stored(one.first)}"
    for what, flags in one.instead.items():
        yield f"- {what[0].upper()}{what[1:]}, with `{flags}`: {stored(f'{one.first} {flags}')}"


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# --- gallery ----------------------------------------------------------------------------------------------------------

GALLERY = """\
# Shipped formats

The checkpoint formats, kernels and modules that come with layoutdsl. Each is one YAML file in [specs](../specs); its
keys are explained in the [spec reference](spec-reference.md). `layoutdsl lint` proves each at the sizes listed last."""


def gallery() -> Iterator[str]:
    yield from (NOTE, "", GALLERY)
    for kind, model in KINDS.items():
        found = [(path, spec) for path in files() if isinstance(spec := read_spec(path), model)]
        yield from ("", f"## {kind.capitalize()} specs", "")
        yield from table(("name", "what it is"), *((f"[`{spec.name}`](#{spec.name})", spec.doc) for _, spec in found))
        for path, spec in found:
            yield from ("", f"### {spec.name}", "", *entry(path, spec))


def entry(path: Path, spec: Spec) -> Iterator[str]:
    raw: Any = source.read_file(path).data
    kind = kind_of(spec)
    yield f"{spec.doc}."
    yield from ("", f"Source: {spec.source}. File: [{path.name}](../specs/{kind}/{path.name}).")
    if base := base_of(spec):
        yield from ("", f"A build of [`{base}`](#{base}): what is not said here is as there.")
    if raw.get("params"):
        head = ("parameter", "values", "default", "in config.json", "meaning")
        yield from ("", *table(head, *map(parameter, spec.params.items())))
    if isinstance(spec, Format) and "tensors" in raw:
        yield from ("", *tensor_table(raw["tensors"]))
    if isinstance(spec, Format) and "value" in raw:
        yield from ("", f"Value: `{raw['value']}`. Fused parts: {', '.join(spec.parts.stored)}.")
    if isinstance(spec, Checkpoint) and spec.detect:
        words = "; or ".join(map(facts, spec.detect))
        yield from ("", f"Detected in config.json by `quantization_config` with {words}.")
    if isinstance(spec, Kernel):
        yield from ("", accepted(spec))
    if isinstance(spec, Module):
        yield from ("", *module_table(raw))
    if isinstance(spec, Format) and base_of(spec) is None:
        yield from ("", reached(spec))
    tried = "; ".join(" ".join(f"{name}={shown(value)}" for name, value in line.items()) for line in raw["try"])
    yield from ("", f"Tried at: {tried}.")


def facts(entries: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(fact(key, values) for key, values in entries.items())


def fact(key: str, values: Sequence[str]) -> str:
    """An entry of config.json in words: `key: this` or `that` or none."""
    words = [f"`{value}`" for value in values if value not in ("null", "*")]
    if not words:
        return f"any `{key}`" if "*" in values else f"no `{key}`"
    return f"`{key}: {' or '.join(words)[1:]}{' or none' if 'null' in values else ''}"


def parameter(item: tuple[str, Param]) -> tuple[str, str, str, str, str]:
    name, param = item
    values = (
        ", ".join(map(code, param.values))
        or {
            "bool": "`true`, `false`",
            "int": "a positive integer",
            "group": "a positive integer or `-1`",
            "names": "names",
        }[param.type]
    )
    default = "" if param.default is None else code(param.default)
    ways = (param.config,) if isinstance(param.config, str) else param.config or ()
    first = code(param.values[0]) if param.values else ""
    return f"`{name}`", values, default or first, ", ".join(f"`{way}`" for way in ways), param.doc or ""


def tensor_table(tensors: Mapping[str, Any]) -> Iterator[str]:
    rows = [("tensor", "role", "dtype", "code", "split", "order", "where")]
    for name, tensor in tensors.items():
        rows.append((f"`{name}`", tensor["role"].replace("_", " "), *storage(tensor), condition(tensor)))
        for case in tensor.get("cases", ()):
            rows.append((f"also `{case['name']}`" if "name" in case else "", "", *storage(case), condition(case)))
    yield from table(*rows)


def storage(tensor: Mapping[str, Any]) -> Iterator[str]:
    for key in ("dtype", "code", "split", "order"):
        value = tensor.get(key, "")
        yield " or ".join(map(code, value)) if isinstance(value, list) else code(value) if value else ""


def condition(tensor: Mapping[str, Any]) -> str:
    facts = [code(tensor["when"])] if "when" in tensor else []
    for key in ("scaled", "plus", "reciprocal", "derive"):
        if key in tensor:
            facts.append(f"{key}: {code(tensor[key])}")
    if "shape" in tensor:
        facts.append("shape: " + code(", ".join(map(str, tensor["shape"]))))
    return "; ".join(facts)


def accepted(spec: Kernel) -> str:
    tiles = ", or ".join(f"n to a multiple of {tile.n} and k to one of {tile.k}" for tile in spec.accepts.tiles)
    groups = ", ".join("one group" if group == -1 else str(group) for group in spec.accepts.groups)
    high, low = divmod(spec.accepts.capability, 10)
    return f"Pads {tiles}. Groups along k: {groups}. Compute capability from {high}.{low}."


def module_table(raw: Mapping[str, Any]) -> Iterator[str]:
    yield "Axes: " + "; ".join(f"`{axis}`, {what}" for axis, what in raw["axes"].items()) + "."
    cut = "; ".join(f"{kind} ranks cut `{axis}`" for kind, axis in raw.get("ranks", {}).items())
    seen = ", ".join(f"`{axis}`" for axis in raw.get("visible", ()))
    yield from ("", f"{cut[0].upper() + cut[1:] if cut else 'No ranks'}. Visible outside: {seen or 'nothing'}.", "")
    rows = [("matrix", "n", "k", "parts", "padded")]
    for name, matrix in raw["matrices"].items():
        padded = {"part": "each part at its end", "tail": "once, at the end"}[matrix.get("pad", "part")]
        rows.append((f"`{name}`", f"`{matrix['n']}`", f"`{matrix['k']}`", shown(matrix.get("parts", "")), padded))
    yield from table(*rows)


def reached(spec: Format) -> str:
    """Where a format leads, in one paragraph."""
    lines = []
    for variant in variants():
        if variant.spec is not spec:
            continue
        found: dict[str, list[str]] = {"exact": [], "rounds": [], "checked": []}
        for target in variants():
            if word := in_a_word(variant, target):
                found[word].append(f"`{target.spec.name}`")
        how = {"exact": "exactly", "rounds": "with rounded scales", "checked": "where the data allow it"}
        words = [f"{how[word]} to {', '.join(names)}" for word, names in found.items() if names]
        bits = f" ({variant.bits} bit)" if variant.bits else ""
        lines.append(f"Converts{bits} " + "; ".join(words) + ".")
    return " ".join(lines)


def shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- rules ------------------------------------------------------------------------------------------------------------

RULES = """\
# Rules

What `layoutdsl lint` finds, a page each: why it is bad, an example, what to write instead. `layoutdsl rule CODE` prints
a page at the terminal, `layoutdsl rule` lists them. [Lint](lint.md) says how findings are selected, suppressed and
mended.

A code is never given to another rule, and its meaning stays. Codes that begin with LP are refusals of the compiler and
the prover, met at a spec's sizes to try."""


def rule_pages() -> Iterator[str]:
    yield from (NOTE, "", RULES)
    for family, about_it in FAMILIES.items():
        if own := [rule for rule in rules() if rule.code.startswith(family)]:
            yield from ("", f"## {family}: {about_it}", "")
            yield from table(("code", "name", "finds"), *(rule_row(rule) for rule in own))
            for rule in own:
                text = re.sub("^## ", "#### ", rule.doc, flags=re.MULTILINE)
                yield from ("", f"### {rule.code}", "", f"**{rule.name}.** {text}")


def rule_row(rule: Rule) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (rule.name, *rule.also))
    return f"[{rule.code}](#{rule.code.lower()})", names, rule.finds


# --- pictures ---------------------------------------------------------------------------------------------------------

PICTURES = """\
# Gallery

Where each element stands, for every shipped spec; other builds of a kernel store what it stores. The pictures are drawn
from the specs, as `layoutdsl show NAME --svg FILE` draws them; `layoutdsl show NAME` prints the same as text. Other
sizes, parameters, tensors and numbers of ranks are arguments. Opened by itself, a picture tells of each cell its
element, word, bits, lane and group where the pointer rests.

How ranks cut a module towards a kernel, and what they pad, is drawn in [How ranks share a module](choices.md).

First come the digits of the codes' tensor, those of a word in a frame; then its first words, what the digits make of
them, and the way back: the word of each element of the matrix. Below are the beginnings of the tensors beside it."""


def pictures() -> Iterator[str]:
    yield from (NOTE, "", PICTURES)
    for kind, model in KINDS.items():
        yield from ("", f"## {kind.capitalize()} specs")
        for spec in (spec for spec in map(read_spec, files()) if isinstance(spec, model) and base_of(spec) is None):
            yield from ("", f"### {spec.name}", "", f"[{spec.doc}.](formats.md#{spec.name})", "")
            yield f"![{spec.name}](img/{spec.name}.svg)"


def picture(spec: Spec) -> str:
    if isinstance(spec, Module):
        return module.drawing_of(module.cut_of(spec))
    assert isinstance(spec, Checkpoint | Kernel)
    return drawing.drawing_of(picture_of(spec), None)


if __name__ == "__main__":
    sys.exit(main())
