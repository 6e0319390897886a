"""Input that means harm, one case each: what it is, how it is made, and what is said of it.

The rows of docs/hostile-input.md: scripts/hostile_table.py makes the page, tests/test_hostile.py runs every case.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plans import plan_named

from layoutdsl import LayoutError, Plan, library
from layoutdsl.checkpoints.folder import read_folder, read_header
from layoutdsl.checkpoints.json_text import MAX_BYTES as MAX_JSON
from layoutdsl.checkpoints.json_text import parse
from layoutdsl.checkpoints.opening import opened
from layoutdsl.checkpoints.quantization import declared
from layoutdsl.lint.run import lint

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

READ = "read"
"""What is said of input that is odd and still means one thing."""


@dataclass(frozen=True)
class Case:
    """`made` puts the input into an empty folder and says what reads it; `says` is what the refusal must contain."""

    kind: str
    what: str
    made: Callable[[Path], Callable[[], Any]]
    says: str


def size(folder: Path) -> int:
    """Bytes of a case's files; what is a hole in a file counts."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def report(read: Callable[[], Any]) -> str:
    """What is said of a case: the text of its refusal, or READ."""
    try:
        found = read()
    except LayoutError as error:
        return str(error)
    return str(found) if isinstance(found, str) and found else READ


# --- specs ------------------------------------------------------------------------------------------------------------


def _linted(text: str | bytes) -> Callable[[Path], Callable[[], str]]:
    def made(folder: Path) -> Callable[[], str]:
        path = folder / "x.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return lambda: _findings(path)

    return made


def _findings(path: Path) -> str:
    return "\n\n".join(finding.render() for finding in lint([str(path)])[0])


def _changed(spec: str, *changes: tuple[str, str]) -> str:
    """A shipped spec called x, with some of its text changed."""
    path = next(path for path in library.files() if path.stem == spec)
    text = path.read_text(encoding="utf-8").replace(f": {spec}\n", ": x\n", 1)
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after, 1)
    return text


def _lines(row: str, count: int) -> str:
    return "".join(row.replace("#", str(at)) for at in range(count))


def _as(place: Callable[[Path], None]) -> Callable[[Path], Callable[[], str]]:
    """A spec file that something else takes the place of."""

    def made(folder: Path) -> Callable[[], str]:
        place(folder / "x.yaml")
        return lambda: _findings(folder / "x.yaml")

    return made


def _password(folder: Path) -> Path:
    secret = folder / "elsewhere" / "secret.yaml"
    secret.parent.mkdir()
    secret.write_text("password: hunter2\n")
    return secret


def _linked(folder: Path) -> Callable[[], str]:
    specs = folder / "specs"
    specs.mkdir()
    (specs / "x.yaml").symlink_to(_password(folder))
    return lambda: _findings(specs)


def _linked_inside(folder: Path) -> Callable[[], str]:
    (folder / "x.yaml").symlink_to("y.yaml")
    (folder / "y.yaml").write_text(_changed("moe_gated"))
    return lambda: _findings(folder / "x.yaml")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 9)
)
INNER = _lines("  m#: {n: i, k: h}\n", 30)
TILES = ", ".join(f"{{n: {64 * at}, k: {16 * (65 - at)}}}" for at in range(1, 65))

SPECS = [
    Case(
        "spec",
        "aliases of aliases, 9^9 values when written out",
        _linted(BOMB),
        "values once the aliases are written out",
    ),
    Case("spec", "an alias inside what it refers to", _linted("a: &a [*a]\n"), "stands inside what it refers to"),
    Case("spec", "half a million brackets", _linted("[" * 500_000), "nested deeper than 32 levels"),
    Case(
        "spec",
        "a tag that builds a Python object",
        _linted("a: !!python/object/apply:os.system [id]\n"),
        "is not allowed",
    ),
    Case("spec", "a merge key", _linted("a: &a {b: 1}\nc: {<<: *a}\n"), "merge keys are not allowed"),
    Case("spec", "a megabyte and one byte", _linted("#" * ((1 << 20) + 1)), "is larger than 1048576 bytes"),
    Case("spec", "a megabyte of one number", _linted("a: " + "9" * 1_000_000), "integer of more than 18 digits"),
    Case(
        "spec", "a megabyte of quotes that never close", _linted("a: '" + "''" * 500_000), "this quote is never closed"
    ),
    Case("spec", "300,000 values", _linted("[" + "1," * 300_000), "more than 20000 values"),
    Case("spec", "9,000 unknown keys", _linted(_changed("gptq") + _lines("key#: 1\n", 9000)), "unknown key `key99`"),
    Case(
        "spec",
        "2,400 tensors without a dtype",
        _linted(_changed("gptq", ("tensors:\n", "tensors:\n" + _lines("  t#: {role: codes, order: k}\n", 2400)))),
        "missing key `dtype` in `t99`",
    ),
    Case(
        "spec",
        "4,000 sizes to try",
        _linted(_changed("gptq") + _lines("  - {n: 64, k: 128, group: #}\n", 4000)),
        "expected a length of at most 64 for `try`",
    ),
    Case("spec", "null characters", _linted(b"a: \0\n"), "the character U+0000 cannot stand in a spec"),
    Case("spec", "text that turns the order of letters", _linted("a: \u202ekcatta\n"), "the character U+202E"),
    Case("spec", "half a character", _linted(b"a: \xed\xa0\x80\n"), "is not UTF-8"),
    Case(
        "spec",
        "a byte order mark and CR LF",
        _linted(b"\xef\xbb\xbf" + _changed("moe_gated").replace("\n", "\r\n").encode()),
        "`x` says the same as the module `moe_gated`",
    ),
    Case(
        "spec",
        "a base that is a path",
        _linted(_changed("marlin_int4_a16", ("doc:", "base: ../../etc/passwd\ndoc:"))),
        "expected the name of a kernel spec",
    ),
    Case("spec", "a link to a password elsewhere", _linked, "it is a link out of its folder"),
    Case("spec", "a link inside its folder", _linked_inside, "`x` says the same as the module `moe_gated`"),
    Case("spec", "a pipe", _as(lambda path: os.mkfifo(path)), "it is no regular file"),
    Case("spec", "a device", _as(lambda path: path.symlink_to("/dev/zero")), "cannot read"),
    Case("spec", "a directory", _as(lambda path: path.mkdir()), "holds no spec"),
    Case(
        "spec",
        "a matrix of 2^40 by 2^40",
        _linted(_changed("gptq", ("n: 256, k: 512", "n: 1099511627776, k: 1099511627776"))),
        "more than 64 bits can address",
    ),
    Case("spec", "a size of 18 digits", _linted(_changed("gptq", ("n: 256", "n: 999999999999999999"))), "LP111 sizes"),
    Case(
        "spec",
        "an axis that is the product of 3,000",
        _linted(_changed("moe_gated", ("w2: {n: h, k: i}", f'w2: {{n: h, k: "{"i " * 3000}"}}'))),
        "the product of the axes",
    ),
    Case(
        "spec",
        "a division by zero",
        _linted(_changed("moe_gated", ("w2: {n: h, k: i}", "w2: {n: h, k: i, when: 1/0}"))),
        "division by zero",
    ),
    Case(
        "spec",
        "powers of powers",
        _linted(_changed("gptq", ("plus: zero_offset", "plus: 2^62^62"))),
        "LD104 bad-expression",
    ),
    Case(
        "spec",
        "a scale of 2^(2^62)",
        _linted(_changed("gptq", ("role: scale\n", "role: scale\n    scaled: 2^62\n"))),
        "is beyond 2^40",
    ),
    Case(
        "spec",
        "2^31 ways to choose tiles",
        _linted(_changed("moe_gated", ("matrices:\n", "matrices:\n" + INNER))),
        "LP127 too-many-choices",
    ),
    Case(
        "spec",
        "64 families of tiles",
        _linted(_changed("marlin_int4_a16", ("{n: 64, k: 128}, {n: 128, k: 64}", TILES))),
        "LP127 too-many-choices",
    ),
    Case(
        "spec",
        "scales without the global scale that they need",
        _linted(_changed("marlin_int4_a8int8", ("when: groups > 1\n", "when: groups > 4\n"))),
        "cannot be made: the source has no global scale",
    ),
    Case(
        "spec",
        "an expression 200 deep",
        _linted(_changed("moe_gated", ("tight: contract", f"tight: {'(' * 100}1{')' * 100} == contract"))),
        "nested deeper than 24",
    ),
]


# --- plans ------------------------------------------------------------------------------------------------------------


def _plan(change: Callable[[str], str]) -> Callable[[Path], Callable[[], Any]]:
    def made(folder: Path) -> Callable[[], Any]:
        path = folder / "plan.json"
        path.write_text(change(plan_named("gptq_moe_padded").to_json()), encoding="utf-8")
        text = path.read_text(encoding="utf-8")
        return lambda: Plan.from_json(text) and None

    return made


def _put(*steps: str | int, value: Any) -> Callable[[Path], Callable[[], Any]]:
    """The plan with another value at one place."""

    def change(text: str) -> str:
        tree = node = json.loads(text)
        for step in steps[:-1]:
            node = node[step]
        node[steps[-1]] = value
        return json.dumps(tree)

    return _plan(change)


RUN = ("programs", 0, "moves", 0, "n", 0)
PLANS = [
    Case("plan", "100,000 brackets", _plan(lambda _: "[" * 100_000), "this is no plan"),
    Case("plan", "33 megabytes", _plan(lambda text: text + " " * 33_000_000), "longer than 32000000 bytes"),
    Case(
        "plan",
        "a number of a million digits",
        _plan(lambda text: text.replace('"form":2', f'"form":{"9" * 1_000_000}')),
        "this is no plan",
    ),
    Case("plan", "NaN", _plan(lambda text: text.replace('"form":2', '"form":NaN')), "this is no plan"),
    Case(
        "plan",
        "40,000 runs in one move",
        _put(*RUN[:-1], value=[{"part": 0, "x": 0, "dst": 0, "src": 0, "loops": []}] * 40_000),
        "law `",
    ),
    Case(
        "plan",
        "200,000 loops in one run",
        _put(*RUN, "loops", value=[[2, at + 1, 1, 1] for at in range(200_000)]),
        "law `",
    ),
    Case("plan", "a loop of 10^18 elements", _put(*RUN, "loops", 0, 0, value=10**18), "law `"),
    Case("plan", "a target address of 2^62", _put(*RUN, "dst", value=1 << 62), "law `meaning`"),
    Case("plan", "a source address below 0", _put(*RUN, "src", value=-1), "law `meaning`"),
    Case(
        "plan", "an output shape of 2^40 by 2^40", _put("outputs", 0, "shape", value=[1 << 40, 1 << 40]), "law `header`"
    ),
    Case("plan", "an axis of no size", _put("sizes", 0, 1, value=[]), "0 were given"),
    Case("plan", "10^18 ranks", _put("ranks", "tp", value=10**18), "LP1"),
    Case(
        "plan",
        "a spec that is a path",
        _put("source", "spec", value="../../../etc/passwd"),
        "is not the one that the plan was made from",
    ),
    Case(
        "plan",
        "a key that clears the screen",
        _plan(lambda text: text.replace("{", '{"\\u001b[2J":0,', 1)),
        "unexpected keyword argument",
    ),
]


# --- config.json ------------------------------------------------------------------------------------------------------

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
LAYERS = [f"model.layers.{layer}.mlp.down_proj" for layer in range(100)]


def _config(change: Callable[[str], str] = str, **quantization: Any) -> Callable[[Path], Callable[[], Any]]:
    """What config.json declares of a hundred layers."""

    def made(folder: Path) -> Callable[[], Any]:
        text = change(json.dumps({"quantization_config": {**GPTQ, **quantization}}))
        path = folder / "config.json"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")

        def read() -> None:
            found = declared(parse(path.read_bytes(), "config.json"))
            for layer in LAYERS:
                found.of(layer)

        return read

    return made


def _checkpoint(change: Callable[[Path], None]) -> Callable[[Path], Callable[[], Any]]:
    """A checkpoint's folder, changed."""

    def made(folder: Path) -> Callable[[], Any]:
        inside = folder / "model"
        shutil.copytree(FIXTURES / "qwen3_moe_fp8_dynamic", inside)
        change(inside)
        return lambda: opened(inside, ()) and None

    return made


def _instead(name: str, place: Callable[[Path], None]) -> Callable[[Path], Callable[[], Any]]:
    """Something else in the place of one file of a checkpoint."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "moved.json")
        place(folder / name)

    return _checkpoint(change)


CONFIGS = [
    Case(
        "config.json",
        "a pattern on which Python's `re` never ends",
        _config(modules_to_not_convert=["re:.*(\\w+)+!$"]),
        READ,
    ),
    Case("config.json", "another, of twenty `.*`", _config(modules_to_not_convert=["re:" + "(.*o)" * 20 + "$"]), READ),
    Case("config.json", "a wildcard of two hundred `*`", _config(modules_to_not_convert=["*o" * 200 + "*!"]), READ),
    Case(
        "config.json",
        "10^20 states of a pattern",
        _config(modules_to_not_convert=["re:((((((a{99}){99}){99}){99}){99}){99})"]),
        "states",
    ),
    Case("config.json", "a reference in a pattern", _config(modules_to_not_convert=[r"re:(a)\1"]), "bad escape"),
    Case("config.json", "a pattern of `dynamic` that hangs", _config(dynamic={"-:(.+)+!": {}}), READ),
    Case(
        "config.json",
        "2,000 patterns",
        _config(modules_to_not_convert=[f"re:.*{at}" for at in range(2000)]),
        "more than 1000 patterns",
    ),
    Case(
        "config.json",
        "100,000 layers left out",
        _config(modules_to_not_convert=[f"layers.{at}" for at in range(100_000)]),
        READ,
    ),
    Case(
        "config.json",
        "20,000 layers by patterns",
        _config(dynamic={f"+:layers.{at}$": {"bits": 8} for at in range(20_000)}),
        "more than 1000 patterns",
    ),
    Case(
        "config.json",
        "900 formats",
        _config(dynamic={f"+:layers.{at}$": {"group_size": at + 1} for at in range(900)}),
        "declares more than 64 formats",
    ),
    Case("config.json", "100,000 brackets", _config(lambda text: text.replace("128", "[" * 100_000)), "is no JSON"),
    Case(
        "config.json",
        "lists 900 deep",
        _config(lambda text: text.replace("128", "[" * 900 + "]" * 900)),
        "nested deeper than 64 levels",
    ),
    Case(
        "config.json", "a number of 5,000 digits", _config(lambda text: text.replace("128", "9" * 5000)), "is no JSON"
    ),
    Case(
        "config.json",
        "NaN",
        _config(lambda text: text.replace("128", "NaN")),
        "parameter `group` of `gptq` cannot be nan",
    ),
    Case(
        "config.json",
        "a key twice, among a million others",
        _config(lambda text: "{" + _lines('"k#":0,', 1_000_000) + '"k5":0,' + text[1:]),
        "`k5` stands twice",
    ),
    Case(
        "config.json",
        "20 million empty lists",
        _config(lambda text: text.replace("128", "[" + "[]," * 20_000_000 + "0]")),
        "more than 8000000 values",
    ),
    Case("config.json", "text that clears the screen", _config(bits="\x1b[2J"), "cannot be \ufffd[2J"),
    Case(
        "config.json",
        "half a character",
        _config(lambda text: text.replace("gptq", "\\ud800")),
        "no format that a spec detects",
    ),
    Case("config.json", "a pipe", _instead("config.json", lambda path: os.mkfifo(path)), "it is no regular file"),
    Case(
        "config.json",
        "a link out of the folder",
        _instead("config.json", lambda path: path.symlink_to("../moved.json")),
        "it is a link out of its folder",
    ),
]


# --- safetensors ------------------------------------------------------------------------------------------------------


def _file(header: Any, data: int = 0, length: int | None = None) -> Callable[[Path], Callable[[], Any]]:
    """A safetensors file with that header and so many bytes of data, which are a hole."""

    def made(folder: Path) -> Callable[[], Any]:
        text = header if isinstance(header, bytes) else json.dumps(header).encode("utf-8", "surrogatepass")
        path = folder / "model.safetensors"
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(text) if length is None else length) + text)
            file.truncate(8 + len(text) + data)
        return lambda: read_header(path) and None

    return made


def _one(dtype: Any = "I8", shape: Any = (4,), at: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": at}


def _many(count: int) -> bytes:
    return (
        "{"
        + ",".join(f'"t{at}":{{"dtype":"I8","shape":[1],"data_offsets":[{at},{at + 1}]}}' for at in range(count))
        + "}"
    ).encode()


HEADERS = [
    Case("safetensors", "a header of 2^60 bytes", _file({}, length=1 << 60), "is truncated or no safetensors file"),
    Case(
        "safetensors",
        "a header of 200 megabytes, a hole",
        _file(b"{", data=200_000_000, length=200_000_000),
        "too few for its header",
    ),
    Case("safetensors", "100,000 brackets", _file(b"[" * 100_000), "is no JSON"),
    Case("safetensors", "two tensors in the same bytes", _file({"a": _one(), "b": _one()}, 4), "begin at"),
    Case("safetensors", "bytes beyond the end", _file({"a": _one(at=(0, 4))}, 3), "is truncated"),
    Case("safetensors", "an offset below 0", _file({"a": _one(at=(-4, 0))}, 4), "lacks a dtype, a shape or its place"),
    Case(
        "safetensors",
        "an offset of 2^64",
        _file({"a": _one(at=(0, 1 << 64))}, 4),
        "lacks a dtype, a shape or its place",
    ),
    Case(
        "safetensors",
        "a shape whose product needs 126 bits",
        _file({"a": _one(shape=[(1 << 63) - 1] * 2)}, 4),
        "in 4 bytes, expected",
    ),
    Case(
        "safetensors",
        "100,000 dimensions of 2^62",
        _file({"a": _one(shape=[1 << 62] * 100_000)}, 4),
        "more than 16 dimensions",
    ),
    Case(
        "safetensors",
        "a dimension of 4,000 digits",
        _file(b'{"a":{"dtype":"I8","shape":[' + b"9" * 4000 + b'],"data_offsets":[0,4]}}', 4),
        "lacks a dtype, a shape or its place",
    ),
    Case(
        "safetensors",
        "`true` for a dimension",
        _file({"a": _one(shape=[True], at=(0, 1))}, 1),
        "lacks a dtype, a shape or its place",
    ),
    Case("safetensors", "an unknown dtype", _file({"a": _one(dtype="F8_E9M9")}, 4), "the unknown dtype `F8_E9M9`"),
    Case(
        "safetensors",
        "tensors of no elements",
        _file({"a": _one(shape=[0, 1 << 62], at=(0, 0)), "b": _one(shape=[], at=(0, 1))}, 1),
        READ,
    ),
    Case("safetensors", "a name that clears the screen", _file({"\x1b[2J": _one()}, 4), "has control characters"),
    Case(
        "safetensors",
        "a name of a million characters",
        _file({"x" * 1_000_000: _one()}, 4),
        "more than 1000 characters",
    ),
    Case(
        "safetensors",
        "half a character in a name",
        _file(b'{"\\ud800":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}', 4),
        "has control characters",
    ),
    Case(
        "safetensors",
        "metadata that are no texts",
        _file({"__metadata__": {"layoutdsl.tp": [1]}}),
        "its metadata are no texts",
    ),
    Case("safetensors", "a tensor twice", _file(b'{"a":{},"a":{}}'), "`a` stands twice"),
    Case("safetensors", "100,000 tensors", _file(_many(100_000), 100_000), READ),
    Case(
        "safetensors", "33 million values", _file(b'{"a":[' + b"[]," * 33_000_000 + b"0]}"), "more than 8000000 values"
    ),
]


# --- the index --------------------------------------------------------------------------------------------------------

INDEX = "model.safetensors.index.json"


def _index(change: Callable[[dict[str, str], Path], Any]) -> Callable[[Path], Callable[[], Any]]:
    """A checkpoint whose index has been changed."""

    def alter(folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        change(index["weight_map"], folder)
        (folder / INDEX).write_text(json.dumps(index))

    def made(folder: Path) -> Callable[[], Any]:
        _checkpoint(alter)(folder)
        return lambda: read_folder(folder / "model") and None

    return made


def _shard(name: str) -> Callable[[Path], Callable[[], Any]]:
    return _index(lambda names, _: names.update(dict.fromkeys(list(names)[:1], name)))


def _elsewhere(names: dict[str, str], folder: Path) -> None:
    shard = folder / next(iter(names.values()))
    shard.rename(folder.parent / shard.name)
    shard.symlink_to(folder.parent / shard.name)


def _in_the_cache(folder: Path) -> Callable[[], Any]:
    """As the Hugging Face hub keeps a model: the files of a revision are links to blobs beside it."""
    blobs, inside = folder / "models--a--b" / "blobs", folder / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    inside.mkdir(parents=True)
    for at, path in enumerate(sorted((FIXTURES / "qwen3_moe_fp8_dynamic").iterdir())):
        shutil.copy(path, blobs / str(at))
        (inside / path.name).symlink_to(f"../../blobs/{at}")
    return lambda: opened(inside, ()) and None


FOLDERS = [
    Case("index", "a file above the folder", _shard("../moved.safetensors"), "is no safetensors file of this folder"),
    Case("index", "an absolute path", _shard("/etc/passwd"), "is no safetensors file of this folder"),
    Case(
        "index",
        "a name of 5,000 characters",
        _shard("x" * 5000 + ".safetensors"),
        "is no safetensors file of this folder",
    ),
    Case("index", "a name with a null character", _shard("x\0.safetensors"), "is no safetensors file of this folder"),
    Case("index", "a file that is a link out of the folder", _index(_elsewhere), "it is a link out of its folder"),
    Case("index", "the links of the hub's cache", _in_the_cache, READ),
    Case(
        "index",
        "20,000 tensors that no file has",
        _index(
            lambda names, _: names.update(
                {f"model.layers.{at}.mlp.gate.weight": "model-00001-of-00002.safetensors" for at in range(100, 20_100)}
            )
        ),
        "more of this kind",
    ),
]

CASES = [*SPECS, *PLANS, *CONFIGS, *HEADERS, *FOLDERS]
"""All of them; names are unique within a kind."""

assert MAX_JSON == 100_000_000
