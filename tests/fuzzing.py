"""Input from a stranger by the million: valid specs, plans, config.json and safetensors headers, changed a little.

`KINDS` says of each kind where its seeds come from and what reads it; `changed` makes input number i of a seed;
`tried` reads one input and says what became of it. The same number always makes the same input. A short run is
tests/test_fuzz.py, a long one scripts/fuzz.
"""

from __future__ import annotations

import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plans import CASES, plan_named

from layoutdsl import LayoutError, Plan, library
from layoutdsl.checkpoints.folder import read_header
from layoutdsl.checkpoints.identify import identify
from layoutdsl.checkpoints.json_text import parse
from layoutdsl.checkpoints.opening import opened
from layoutdsl.checkpoints.quantization import declared
from layoutdsl.logical import prove_spec
from layoutdsl.prove import prove

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

BOUND = 1.0
"""Seconds of processor time that one input may take."""

HANG = 10.0
"""Seconds of processor time after which an input is stopped."""

Stages = Iterator[None]
"""What reads an input: it yields once the schema lets the input pass, and goes on."""


@dataclass(frozen=True)
class Kind:
    """One kind of input: `seeds` are valid, `odd` is what may be put anywhere, `read` reads one."""

    seeds: Callable[[], tuple[str, ...]]
    read: Callable[[str], Stages]
    odd: tuple[str, ...]
    sound: Callable[[random.Random, str], str] | None = None


# --- what reads them --------------------------------------------------------------------------------------------------


def _spec(text: str) -> Stages:
    _shipped()
    known = set(library._BY_DIGEST)
    try:
        try:
            spec = library.spec_of(text, str(ROOT / "specs" / "kernel" / "fuzzed.yaml"))
        except LayoutError as error:
            if any(found.code.startswith("LD0") for found in error.diagnostics):
                raise
            yield
            raise
        yield
        if zlib.crc32(text.encode()) % 8 == 0:
            for entry in spec.try_:
                prove_spec(spec, entry)
    finally:
        for digest in set(library._BY_DIGEST) - known:  # a process that reads a million specs keeps none
            library._DIGESTS.pop(id(library._BY_DIGEST.pop(digest)))


@functools.cache
def _shipped() -> None:
    """All shipped specs are known, so that what becomes known later came from a fuzzed one."""
    for path in library.files():
        library.read_spec(path)


def _plan(text: str) -> Stages:
    plan = Plan.from_json(text, prove=False)
    yield
    prove(plan)


def _config(text: str) -> Stages:
    config = parse(text.encode("utf-8", "surrogatepass"), "config.json")
    found = declared(config)
    yield
    for layer in _layers():
        found.of(layer)
    if zlib.crc32(text.encode("utf-8", "surrogatepass")) % 128 == 0:
        folder = _folder()
        (folder / "config.json").write_text(text, encoding="utf-8", errors="surrogatepass")
        opened(folder, ())


def _header(text: str) -> Stages:
    content = text.encode("utf-8", "surrogatepass")
    path = _scratch() / "model.safetensors"
    ends = [int(end) for end in re.findall(r'"data_offsets":\s*\[\d+,\s*(\d{1,9})\]', text)]
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(content)) + content)
        file.truncate(8 + len(content) + max(ends, default=0))  # a hole: nobody reads the weights
    read_header(path)
    yield
    if zlib.crc32(content) % 512 == 0:
        str(identify(path))


@functools.cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="layoutdsl-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    return folder


@functools.cache
def _folder() -> Path:
    folder = _scratch() / "llama"
    shutil.copytree(FIXTURES / "llama_w4a16", folder)
    return folder


@functools.cache
def _layers() -> tuple[str, ...]:
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "mlp.experts.1.up_proj")
    return ("lm_head", *(f"model.layers.{layer}.{name}" for layer in (0, 7, 11) for name in names))


# --- valid ones -------------------------------------------------------------------------------------------------------


@functools.cache
def _specs() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted(library.files()))


@functools.cache
def _plans() -> tuple[str, ...]:
    return tuple(plan_named(name).to_json() for name in CASES)


@functools.cache
def _configs() -> tuple[str, ...]:
    found = [path.read_text(encoding="utf-8") for path in sorted(FIXTURES.glob("*/config.json"))]
    return tuple(text for text in found if '"quantization_config"' in text) + tuple(
        json.dumps({"architectures": ["LlamaForCausalLM"], "quantization_config": one}) for one in QUANTIZATIONS
    )


QUANTIZATIONS: tuple[dict[str, Any], ...] = (
    {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
        "dynamic": {r"-:.*\.20\..*gate.*": {}, r"+:.*\.(?:1[0-5])\..*": {"bits": 8}, r".*\.19\..*": {"group_size": 64}},
    },
    {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 128,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": ["visual", "lm_head"],
    },
    {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
        "ignored_layers": ["model.layers.0.mlp.down_proj", "model.layers.*.self_attn"],
    },
    {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": [
            "lm_head",
            r"re:.*(?:^|\.)embed_tokens$",
            r"re:^(?!.*shared_experts).*gate$",
            "re:.*self_attn.(q|k)_proj",
        ],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "group_size": 128, "strategy": "group", "symmetric": True},
            },
            "group_1": {
                "targets": [r"re:model\.layers\.\d+\.mlp\.gate$"],
                "weights": {"num_bits": 8, "type": "int", "group_size": 128, "strategy": "group", "symmetric": True},
            },
        },
    },
)


@functools.cache
def _headers() -> tuple[str, ...]:
    _shipped()  # what reads the first header would pay for reading them
    found = []
    for path in sorted(FIXTURES.glob("**/*.safetensors")):
        with path.open("rb") as file:
            text = file.read(int.from_bytes(file.read(8), "little")).decode()
        header = json.loads(text)
        few, at = dict(list(header.items())[:5]), 0
        for entry in (entry for name, entry in few.items() if name != "__metadata__"):
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            entry["data_offsets"], at = [at, at + size], at + size
        found.append(json.dumps(few, separators=(",", ":")))
    return tuple(found)


_SAME_WIDTH = (("F16", "BF16", "I16", "U16"), ("F32", "I32", "U32"), ("U8", "I8", "BOOL", "F8_E4M3", "F8_E5M2"))


def _sound_header(dice: random.Random, text: str) -> str:
    """Another header that is as good: other names, dtypes of the same width, shapes of as many elements."""
    header = json.loads(text)
    for _ in range(dice.randint(1, 4)):
        name = dice.choice(list(header))
        entry = header[name]
        what = dice.randrange(4)
        if name == "__metadata__" or what == 0:
            header["__metadata__"] = {dice.choice(_WORDS): dice.choice(_ODD_TEXT) for _ in range(dice.randint(0, 3))}
        elif what == 1:
            renamed = f"{name}{dice.choice(_WORDS)}" if dice.random() < 0.5 else dice.choice(_WORDS)
            header = {renamed if key == name else key: value for key, value in header.items() if key != renamed}
            if len(header) == 0:
                return text
        elif what == 2:
            others = next((row for row in _SAME_WIDTH if entry["dtype"] in row), (entry["dtype"],))
            entry["dtype"] = dice.choice(others)
        else:
            ones = [1] * dice.randint(0, 3)
            entry["shape"] = dice.sample(entry["shape"], len(entry["shape"])) + ones
    return json.dumps(header)


# --- how they are changed ---------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[A-Za-z_]\w*|-?\d+|\n *|.', re.DOTALL)

_NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "4",
    "7",
    "8",
    "15",
    "16",
    "31",
    "32",
    "63",
    "64",
    "65",
    "96",
    "128",
    "255",
    "256",
    "4096",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "1099511627776",
    "1099511627777",
    "4611686018427387904",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "999999999999999999",
    "1" + "0" * 30,
    "9" * 400,
    "9" * 5000,
)
_WORDS = ("a", "k", "n", "e", "p", "weight", "qweight", "scales", "x" * 300, "model.layers.0.mlp.down_proj.weight", "·")
_ODD_TEXT = (
    "",
    "a",
    "\u202e",
    "\ud800",
    "\0",
    "\x1b[31m",
    "../../etc/passwd",
    "/dev/zero",
    "x" * 5000,
    "9" * 5000,
    "·\u20ac",
)

_ODD_JSON = (
    "null",
    "true",
    "false",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "1.5",
    "-0",
    "[]",
    "{}",
    '""',
    '"\\ud800"',
    '"\\u0000"',
    '"\\u001b[2J"',
    "[" * 200 + "]" * 200,
    "[" * 5000,
    '{"a":' * 300 + "1" + "}" * 300,
    '"../../x"',
    "[[[]]]",
    '{"a":1,"a":2}',
    '"re:(a+)+$"',
    '"re:(.*)*x"',
    '"re:((("',
    '"re:a{99999}"',
    '"re:(?P<x>a)(?P=x)"',
    '"re:[z-a]"',
    '"-:(.*a){20}"',
    '"*"',
    '"****"',
    "\0",
    "\ufeff",
    "\ud800",
    "//",
    ",",
    ":",
)
_ODD_YAML = (
    "&a ",
    "*a",
    "!!python/object:os.system ",
    "!x ",
    "<<: ",
    "? ",
    "| ",
    "> ",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "\t",
    "\r",
    "\0",
    "\ufeff",
    "\u2028",
    "\x85",
    "\u202e",
    "{",
    "}",
    "[",
    "]",
    "[" * 40,
    "~",
    "yes",
    "1.0",
    "0x10",
    "1:30",
    "2020-01-01",
    "'",
    '"',
    '"\\UFFFFFFFF"',
    "# ",
    ": ",
    "- ",
    "2^62",
    "2^63",
    "(1)",
    "1/0",
    "7%0",
    "lcm(2^40,2^39)",
    "up(n,0)",
    "n*n*n",
    "--------1",
    "x-a: 1\n",
    "base: ../x\n",
    "{bits}",
    "{2^62}",
    "{",
    "not " * 30,
    "(" * 30,
    "k0:2 ",
    "k0:0 ",
    "k0:1099511627776 ",
    "max(k,n)",
    "scaled: 10000\n",
    "group",
    "{when: 1/0, ",
    "{scaled: 2^62, ",
    "{plus: -7, ",
    "{shape: [0], ",
    ", when: n/0}",
)


@functools.lru_cache(maxsize=512)
def _tokens(text: str) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]]]:
    """A text cut into tokens, and where those of each kind stand."""
    tokens = tuple(_TOKEN.findall(text))
    at: dict[str, list[int]] = {"number": [], "word": [], "line": [], "any": list(range(len(tokens)))}
    for place, token in enumerate(tokens):
        if token[-1].isdigit() and token[0] in "-0123456789":
            at["number"].append(place)
        elif token[0].isalpha() or token[0] in '_"':
            at["word"].append(place)
        elif token[0] == "\n":
            at["line"].append(place)
    return tokens, {kind: tuple(places or at["any"]) for kind, places in at.items()}


def changed(kind: Kind, number: int) -> str:
    """Input number so many of a kind."""
    seeds = kind.seeds()
    dice = random.Random(number)
    seed = seeds[number % len(seeds)]
    if kind.sound is not None and dice.random() < 0.6:
        return kind.sound(dice, seed)
    return mutated(kind, dice, seed)


def mutated(kind: Kind, dice: random.Random, text: str) -> str:
    """A text with one to eight changes: mostly another number or word, at times of its structure."""
    tokens, places = _tokens(text)
    found = list(tokens)
    for _ in range(dice.choice((1, 1, 1, 1, 1, 2, 2, 3, 8))):
        _change(kind, dice, found, places)
    return "".join(found)


def _change(kind: Kind, dice: random.Random, found: list[str], places: dict[str, tuple[int, ...]]) -> None:
    what = dice.random()
    if what < 0.5:
        at = dice.choice(places["number"])
        found[at] = dice.choice(_NUMBERS) if dice.random() < 0.7 else _near(dice, found[at])
    elif what < 0.75:
        found[dice.choice(places["word"])] = found[dice.choice(places["word"])]
    elif what < 0.85:
        found[dice.choice(places["any"])] = dice.choice(kind.odd)
    elif what < 0.9:
        at = dice.choice(places["any"])
        found[at] = found[at] + dice.choice(kind.odd)
    elif what < 0.93:
        first, second = dice.choice(places["any"]), dice.choice(places["any"])
        found[first], found[second] = found[second], found[first]
    elif what < 0.96:
        found[dice.choice(places["any"])] = ""
    else:
        first = dice.choice(places["line"])
        length = dice.randint(1, 40)
        stretch = "".join(found[first : first + length])
        at = dice.choice(places["line"])
        found[at] = stretch * dice.choice((1, 1, 2, 20)) + found[at]


def _near(dice: random.Random, token: str) -> str:
    number = int(token) if re.fullmatch("-?[0-9]{1,19}", token) else 0
    return str(dice.choice((number + 1, number - 1, -number, number * 2, number // 2, number * 3 + 1)))


KINDS = {
    "spec": Kind(_specs, _spec, _ODD_YAML),
    "plan": Kind(_plans, _plan, _ODD_JSON),
    "config": Kind(_configs, _config, _ODD_JSON),
    "header": Kind(_headers, _header, _ODD_JSON, _sound_header),
}


# --- what becomes of one ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """past: the schema let it pass. fault: what is wrong with us, empty where nothing is."""

    past: bool
    seconds: float
    fault: str = ""


class _Hung(BaseException):
    """An input that did not end."""


@functools.cache
def _watch() -> None:
    signal.signal(signal.SIGPROF, _stop)


def _stop(*_: Any) -> NoReturn:
    raise _Hung


def tried(kind: Kind, text: str) -> Outcome:
    """Read one input. A fault is any exception but LayoutError, a report that cannot be shown, or too long a time."""
    past, fault = False, ""
    _watch()
    signal.setitimer(signal.ITIMER_PROF, HANG)
    start = time.process_time()
    try:
        for _ in kind.read(text):
            past = True
    except LayoutError as error:
        fault = _unfit(str(error))
    except _Hung:
        fault = "it does not end:\n" + traceback.format_exc()
    except Exception:
        fault = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - start
    if not fault and seconds > BOUND:
        fault = f"it takes {seconds:.2f} s, more than {BOUND} s"
    return Outcome(past, seconds, fault)


def _unfit(report: str) -> str:
    """Why a report cannot be shown on a terminal, if so."""
    try:
        report.encode()
    except UnicodeEncodeError:
        return f"the report cannot be printed: {report!a}"
    if not report.translate({ord("\n"): None, ord("\t"): None}).isprintable():
        return f"the report cannot be shown: {report!a}"
    return f"the report has {len(report)} characters" if len(report) > 200_000 else ""


def peak() -> int:
    """Most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
