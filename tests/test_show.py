"""`layoutdsl show`: what it draws is read back from text and pictures, and held against facts from elsewhere."""

import os
import re
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from decoders import marlin

from layoutdsl import LayoutError, Plan, cli, compile_plan
from layoutdsl.library import files, load_spec, read_spec
from layoutdsl.model import Format, Kernel, Module
from layoutdsl.resolve import Matrix, Ranks, Side, bind, matrices, tensors
from layoutdsl.show import cuts, module, svg
from layoutdsl.show.drawing import drawing_of
from layoutdsl.show.picture import picture_of
from layoutdsl.show.sheet import Sheet
from layoutdsl.show.text import text_of

ROOT = Path(__file__).resolve().parent.parent
SPECS = [read_spec(path) for path in files()]
FORMATS = [spec for spec in SPECS if isinstance(spec, Format)]
NAMES = [spec.name for spec in FORMATS]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    def call(*argv: Any) -> SimpleNamespace:
        status = cli.main(["show", *map(str, argv)])
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return call


# --- reading back -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """A code as a drawing shows it. `n` and `k` are (first, last), or None for all; `pad` is what padding is along."""

    row: tuple[int, ...]
    word: int
    bit: int
    n: tuple[int, int] | None = None
    k: tuple[int, int] | None = None
    pad: str = ""
    lane: int | None = None
    group: str = ""
    part: str = ""
    rank: str = ""


HOVER = re.compile(
    r"(?:padding along (?P<pad>[nk and]+)|(?:n (?P<n>[0-9 to]+)|all n), (?:k (?P<k>[0-9 to]+)|all k)); "
    r"(?:row (?P<row>[0-9,]+), )?(?P<what>word|byte|element) (?P<word>\d+)(?:, bits (?P<bit>\d+) to (?P<last>\d+))?"
    r"(?:; lane (?P<lane>\d+))?(?:; group (?P<group>[0-9 to]+))?(?:; (?P<part>(?!rank )[a-z][a-z0-9, ]*?))?"
    r"(?:; rank (?P<rank>[0-9 to]+))?"
)


def read(hover: str) -> Read:
    found = HOVER.fullmatch(hover)
    assert found, hover
    n, k = (ends(found[axis]) for axis in "nk")
    row = tuple(map(int, found["row"].split(","))) if found["row"] else ()
    lane = int(found["lane"]) if found["lane"] else None
    bit, rest = int(found["bit"] or 0), [found[name] or "" for name in ("group", "part", "rank")]
    return Read(row, int(found["word"]), bit, n, k, found["pad"] or "", lane, *rest)


def ends(text: str | None) -> tuple[int, int] | None:
    numbers = [int(number) for number in re.split(" to |-", text)] if text else []
    return (numbers[0], numbers[-1]) if numbers else None


def drawn(text: str, panel: str) -> list[Read]:
    """The codes of a panel of a picture, stored or matrix, in the order of the file."""
    panels = [group for group in ElementTree.fromstring(text).iter(f"{SVG}g") if group.get("class") == panel]
    return [read(title.text or "") for group in panels for title in group.iter(f"{SVG}title")]


def told(text: str) -> Iterator[Read]:
    """The codes of the table of stored words in a text of one tensor; the letters behind coordinates are left out."""
    lines = text[text.index("Stored:") :].splitlines()[1:]
    head = lines[0].split()
    names = [name for name in head if name.isalpha()]
    inside = re.search(r"(?:in it|in each) ([nk,]+) of", text)
    assert inside
    for line in lines[1:]:
        cells = line.split()
        if not line.startswith("  "):
            return
        known = dict(zip(names, cells))
        word = int(next(known[name] for name in ("word", "byte", "element") if name in known))
        row = tuple(map(int, known["row"].split(","))) if "row" in known else ()
        for column, cell in zip(head[len(names) :], cells[len(names) :]):
            more, _, bit = column.removeprefix("+").partition(":") if "+" in column else ("0", "", column)
            at = {axis: ends(known[axis]) for axis in "nk" if known.get(axis, ".") != "."}
            at |= (
                dict(zip(inside[1].split(","), map(ends, cell.rstrip(string.ascii_uppercase).split(","))))
                if cell != "."
                else {}
            )
            pad = "any" if cell == "." else ""
            lane = int(known["lane"]) if "lane" in known else None
            yield Read(row, word + int(more), int(bit or 0), at.get("n"), at.get("k"), pad, lane)


def is_window(codes: list[Read], rows: int, words: int, bits: list[int]) -> bool:
    """Whether the codes are those of the first rows and words, each once and in the order of memory."""
    wanted = [((row,), word, bit) for row in range(rows) for word in range(words) for bit in bits]
    return [(code.row, code.word, code.bit) for code in codes] == wanted


def cells(text: str, panel: str) -> Iterator[tuple[Read, tuple[float, float], list[str]]]:
    """Each code of a panel, the place of its cell, and what is written in it."""
    for group in ElementTree.fromstring(text).iter(f"{SVG}g"):
        if group.get("class") != panel:
            continue
        for cell in group.iter(f"{SVG}g"):
            if cell[0].tag == f"{SVG}title":
                place = float(cell[1].get("x", "nan")), float(cell[1].get("y", "nan"))
                yield read(cell[0].text or ""), place, [said.text or "" for said in cell[2:]]


@pytest.mark.parametrize("spec", FORMATS, ids=NAMES)
def test_cells_show_what_they_say(spec: Any) -> None:
    """Codes stand in the order of memory, elements in that of n and k, and what is written in a cell is its own."""
    text = drawing_of(picture_of(spec, {"n": 64, "k": 128}), None)
    stored = list(cells(text[: text.index('<g class="matrix">')] + "</svg>", "stored"))
    assert stored
    for (one, (x, y), _), (other, (next_x, next_y), _) in zip(stored, stored[1:]):
        assert (one.row, one.word, one.bit) < (other.row, other.word, other.bit)
        assert (y, x) < (next_y, next_x)
    for code, _, said in stored:
        assert code.n and code.k
        assert said in ([str(code.n[0]), str(code.k[0])], [str(code.n[0])], [str(code.k[0])])
    grid = list(cells(text, "matrix"))
    columns = {code.k: x for code, (x, _), _ in grid}
    lines = {code.n: y for code, (_, y), _ in grid}
    assert sorted(columns, key=columns.__getitem__) == sorted(columns) and len(set(columns.values())) == len(columns)
    assert sorted(lines, key=lines.__getitem__) == sorted(lines) and len(set(lines.values())) == len(lines)
    for code, place, said in grid:
        assert place == (columns[code.k], lines[code.n])
        row = ",".join(map(str, code.row))
        assert said in ([str(code.word)], [f"{row}:{code.word}"])


# --- checkpoints, by hand ---------------------------------------------------------------------------------------------

AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""Which nibble of a word holds output 0, 1, ... of its eight."""

PLACES: dict[str, tuple[str, dict[str, Any], Callable[[int, int], tuple[int, int, int]], int]] = {
    "gptq": ("qweight", {}, lambda n, k: (k // 8, n, 4 * (k % 8)), 4),
    "gptq, 8 bit": ("qweight", {"bits": 8}, lambda n, k: (k // 4, n, 8 * (k % 4)), 8),
    "awq": ("qweight", {}, lambda n, k: (k, n // 8, 4 * AWQ_ORDER[n % 8]), 4),
    "ct_int": ("weight_packed", {}, lambda n, k: (n, k // 8, 4 * (k % 8)), 4),
    "fp8": ("weight", {}, lambda n, k: (n, k, 0), 8),
    "fp8_block": ("weight", {}, lambda n, k: (n, k, 0), 8),
    "mxfp8": ("weight", {}, lambda n, k: (n, k, 0), 8),
    "mxfp4": ("weight_packed", {}, lambda n, k: (n, k // 2, 4 * (k % 2)), 4),
    "nvfp4": ("weight", {}, lambda n, k: (n, k // 2, 4 * (k % 2)), 4),
}


def pairs(params: dict[str, Any]) -> list[str]:
    return [word for name, value in params.items() for word in ("--param", f"{name}={value}")]


@pytest.mark.parametrize("name", PLACES)
def test_words_of_checkpoints(show: Any, name: str, tmp_path: Path) -> None:
    tensor, params, place, bits = PLACES[name]
    command = [name.split(",")[0], "--tensor", tensor, *pairs(params), "--size", "n=96", "--size", "k=128"]
    command += ["--rows", "0:5", "--words", "0:12"]
    width = {"q": 32, "w": 8}[tensor[0]] if name != "ct_int" else 32
    file = tmp_path / "a.svg"
    assert show(*command, "--svg", file).status == 0
    pictured, text = drawn(file.read_text(), "stored"), list(told(show(*command).out))
    assert is_window(pictured, 5, 12, list(range(0, width, bits)))
    assert [(c.row, c.word, c.bit, c.n, c.k) for c in text] == [(c.row, c.word, c.bit, c.n, c.k) for c in pictured]
    grid = drawn(file.read_text(), "matrix")
    assert len(grid) > 64
    for code in (*pictured, *grid):
        assert code.n and code.k
        assert (*code.row, code.word, code.bit) == place(code.n[0], code.k[0])
    for codes in (pictured, grid):
        assert len({(code.n, code.k) for code in codes}) == len(codes)


def test_groups_of_checkpoints(tmp_path: Path) -> None:
    """Scales and zero points of GPTQ: a row per group, and where the last group is short."""
    picture = picture_of(load_spec("gptq"), {"n": 16, "k": 80}, {"group": 32})
    scales = drawn(drawing_of(picture, "scales"), "stored")
    assert [(code.row[0], code.word) for code in scales] == [(g, n) for g in range(3) for n in range(16)]
    for code in scales:
        group = code.row[0]
        assert (code.n, code.k) == ((code.word, code.word), (32 * group, min(32 * group + 31, 79)))
        assert code.group == str(group)
    for code in drawn(drawing_of(picture, "qzeros"), "stored"):
        n = 8 * code.word + code.bit // 4
        assert (code.n, code.group) == ((n, n), str(code.row[0]))
    for code in drawn(drawing_of(picture, "qweight"), "stored"):
        assert code.k and code.group == str(code.k[0] // 32)


# --- kernels, by a decoder that shares nothing with the package -------------------------------------------------------

KERNELS = {
    "marlin_int4_a16": (4, 16),
    "marlin_int4_a8fp8": (4, 8),
    "marlin_int4_a8int8": (4, 8),
    "marlin_int8_a16": (8, 16),
    "marlin_int8_a8int8": (8, 8),
    "marlin_fp8_a16": (8, 16),
    "marlin_mxfp4_a16": (4, 16),
    "marlin_mxfp4_a8fp8": (4, 8),
    "marlin_mxfp8_a16": (8, 16),
    "marlin_nvfp4_a16": (4, 16),
    "marlin_int4_a16_n128": (4, 16),
    "own_fp8_a16": (8, 16),
}


def places(decode: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], bits: int) -> np.ndarray:
    """The address of each element: the decoder is given the bits of every code's own address, one after the other."""
    codes = int(np.prod(shape)) * 32 // bits
    found = None
    for at in range(codes.bit_length()):
        ones = (np.arange(codes, dtype=np.int64) >> at & 1).reshape(-1, 32 // bits)
        words = (ones << bits * np.arange(32 // bits)).sum(axis=1).astype(np.uint32).view(np.int32).reshape(shape)
        seen = decode(words).astype(np.int64) << at
        found = seen if found is None else found + seen
    assert found is not None
    return found


def test_every_shipped_kernel_is_held_against_the_decoder() -> None:
    assert set(KERNELS) == {spec.name for spec in FORMATS if isinstance(spec, Kernel)}


@pytest.mark.parametrize("name", KERNELS)
def test_words_of_kernels(show: Any, name: str, tmp_path: Path) -> None:
    bits, activation = KERNELS[name]
    n, k = 128, 256
    shape = (k // 16, n * bits // 2)
    address = places(lambda w: marlin.weight_codes(w, n=n, k=k, bits=bits, activation_bits=activation), shape, bits)
    assert sorted(address.flatten()) == list(range(n * k))
    command = [name, "--size", f"n={n}", "--size", f"k={k}", "--tensor", "weight", "--rows", "0:2", "--words", "8:72"]
    file = tmp_path / "a.svg"
    assert show(*command, "--svg", file).status == 0
    pictured, text = drawn(file.read_text(), "stored"), list(told(show(*command).out))
    assert len(pictured) == 2 * 64 * 32 // bits == len(text) == len({(code.n, code.k) for code in pictured})
    grid = drawn(file.read_text(), "matrix")
    assert len(grid) == 256
    tile = bits * 32
    for code in (*pictured, *text, *grid):
        assert code.n and code.k and code.n[0] == code.n[1] and code.k[0] == code.k[1]
        word = code.row[0] * shape[1] + code.word
        assert word * 32 + code.bit == address[code.n[0], code.k[0]] * bits
        assert code.lane == word % tile // (tile // 32)
        # The fragments of the tensor cores: a lane holds column n % 8, and inputs apart by four pairs or quads.
        assert code.lane == code.n[0] % 8 * 4 + code.k[0] // (2 if activation == 16 else 4) % 4


@pytest.mark.parametrize("name", KERNELS)
def test_scales_of_kernels(name: str) -> None:
    spec = load_spec(name)
    group = {"marlin_nvfp4_a16": 16, "marlin_fp8_a16": 128}.get(name, 32)
    n, k = 64, 128 if group < 128 else 256
    picture = picture_of(spec, {"n": n, "k": k}, {"group": group})
    byte = "mx" in name or "nvfp4" in name
    stored = np.arange(k // group * n, dtype=np.uint8 if byte else np.uint16).reshape(-1, n)
    wanted = marlin.scale_bits(stored, n=n, activation_bits=KERNELS[name][1])
    codes = drawn(drawing_of(picture, "weight_scale", None, range(n)), "stored")
    assert len(codes) == min(3, k // group) * n
    for code in codes:
        assert code.n and code.k
        assert code.k == (group * code.row[0], group * code.row[0] + group - 1)
        assert wanted[code.row[0], code.n[0]] == code.row[0] * n + code.word


@pytest.mark.parametrize("name", ["marlin_int4_a16", "marlin_int4_a8int8", "marlin_int8_a16"])
def test_zero_points_and_biases_of_kernels(name: str) -> None:
    bits, activation = KERNELS[name]
    picture = picture_of(load_spec(name), {"n": 128, "k": 128}, {"group": 64, "zero_points": True, "bias": True})

    def decode(words: np.ndarray) -> np.ndarray:
        return marlin.zero_points(words, n=128, bits=bits, activation_bits=activation)

    address = places(decode, (2, 128 * bits // 32), bits)
    codes = drawn(drawing_of(picture, "zero_point", range(2), range(128 * bits // 32)), "stored")
    assert len(codes) == 2 * 128
    for code in codes:
        assert code.n and (code.row[0] * 4 * bits + code.word) * 32 + code.bit == bits * address[code.row[0], code.n[0]]
    bias = marlin.bias_bits(np.arange(128), n=128)
    for code in drawn(drawing_of(picture, "bias", None, range(128)), "stored"):
        assert code.n and bias[code.n[0]] == code.word and code.k is None


# --- every shipped format, against resolve's views --------------------------------------------------------------------


def laid_out(spec: Any, params: dict[str, Any], sheet: Sheet) -> dict[int, set[tuple[int, int, int]]]:
    """Address -> (part, n, k) of one tensor of a matrix without padding, by asking the views for each element."""
    held: Matrix = sheet.matrix
    found: dict[int, set[tuple[int, int, int]]] = {}
    for tensor in tensors(Side(spec, bind(spec, params), "whole"), held):
        if tensor.name != sheet.stored.name:
            continue
        for part in tensor.parts:
            n_view, k_view = tensor.view(part)
            for n in range(held.n[part].length):
                for k in range(held.k.length):
                    found.setdefault(n_view.at(n) + k_view.at(k), set()).add((part, n, k))
    return found


@pytest.mark.parametrize("parts", [None, "stacked", "alternating"])
@pytest.mark.parametrize("name", [spec.name for spec in FORMATS if not isinstance(spec, Kernel)])
def test_cells_are_the_inverse_of_the_views(name: str, parts: str | None) -> None:
    spec: Any = load_spec(name)
    if parts and parts not in spec.parts.stored:
        pytest.skip("not stored like this")
    for entry in spec.try_:
        params = {key: value for key, value in entry.items() if key not in ("n", "k")} | (
            {"parts": parts} if parts else {}
        )
        sheets = picture_of(spec, {"n": 24, "k": 36}, params).sheets
        for sheet in (one for one in sheets if one.is_drawn):
            wanted = laid_out(spec, params, sheet)
            for cell in sheet.cells(0, sheet.stored.codes):
                elements = {(part, n, k) for part in cell.parts for n in cell.n for k in cell.k}
                assert elements == wanted.get(cell.address, set()), (sheet.name, cell)
                assert bool(cell.pad) == (not elements)


@pytest.mark.parametrize("spec", FORMATS, ids=NAMES)
def test_each_element_is_drawn_once(spec: Any) -> None:
    """Of a whole tensor of codes, padding included, in a kernel and in a checkpoint."""
    for params in ({}, {"tp": 2}, {"tp": 2, "rank": 1, "split": "k"}):
        chosen = {key: params[key] for key in ("tp", "rank") if key in params}
        named = {key: value for key, value in params.items() if key == "split"}
        picture = picture_of(spec, {"n": 40, "k": 512}, named, **chosen)
        sheet = picture.chosen(None)[0]
        cells = sheet.cells(0, sheet.stored.codes)
        elements = [(cell.n, cell.k) for cell in cells if not cell.pad]
        assert len(set(elements)) == len(elements) == sheet.matrix.n_length * sheet.matrix.k.length
        held = sheet.matrix
        assert {n for (n,), _ in elements} == set(range(held.n[0].start, held.n[0].start + held.n[0].length))
        assert {k for _, (k,) in elements} == set(range(held.k.start, held.k.start + held.k.length))
        for cell in cells[:: len(cells) // 97]:
            assert cell.pad or sheet.address(0, cell.n[0], cell.k[0]) == cell.address


@pytest.mark.parametrize("spec", FORMATS, ids=NAMES)
def test_digits_say_where_elements_stand(spec: Any) -> None:
    """The table of digits alone is enough to compute every address."""
    for entry in spec.try_:
        params = {key: value for key, value in entry.items() if key not in ("n", "k")}
        for sheet in picture_of(spec, {"n": 128, "k": 128}, params).sheets:
            for n, k in ((0, 0), (127, 127), (37, 27), (70, 101)):
                at = {"n": n, "k": k}
                digits = [(at[d.axis] // d.weight % (1 << 60 if d.top else d.size), d.stride) for d in sheet.digits]
                if sheet.is_drawn:
                    assert sum(value * stride for value, stride in digits) == sheet.address(0, n, k)
                    assert all(value < d.size for (value, _), d in zip(digits, sheet.digits))


# --- padding, ranks, parts --------------------------------------------------------------------------------------------


def test_padding_of_a_kernel(show: Any) -> None:
    finer = picture_of(load_spec("marlin_int4_a16"), {"n": 100, "k": 132}).sheets[0]
    assert finer.stored.shape == (12, 256) and finer.groups == 3  # as the planner has it: of 64, which store less
    picture = picture_of(load_spec("marlin_int4_a16"), {"n": 100, "k": 132}, {"group": 128})
    sheet = picture.sheets[0]
    assert sheet.stored.shape == (16, 256)  # 256 x 128
    cells = sheet.cells(0, sheet.stored.codes)
    kinds = {pad: sum(cell.pad == pad for cell in cells) for pad in ("", "n", "k", "n and k")}
    assert kinds == {"": 100 * 132, "n": 28 * 132, "k": 100 * 124, "n and k": 28 * 124}
    assert sheet.first_pad() == next(cell.address for cell in cells if cell.pad)
    command = ("marlin_int4_a16", "--size", "n=100", "--size", "k=132", "--param", "group=128", "--words", "128:144")
    text = show(*command).out
    assert "n: 0 to 99; padded from 100 to 128" in text
    assert "k: 0 to 131 in 2 groups of 128; padded from 132 to 256" in text
    assert "padding is shown as `.`; the first stands in row 0, word 130" in text
    stored = list(told(text))
    assert sum(code.pad != "" for code in stored) == 4 * (8 + 4)
    pictured = drawn(drawing_of(picture, "weight", None, range(128, 144)), "stored")
    assert [bool(code.pad) for code in pictured] == [bool(code.pad) for code in stored]
    assert {code.pad for code in pictured} == {"", "n"}


def test_partial_words_of_a_checkpoint() -> None:
    sheet = picture_of(load_spec("gptq"), {"n": 4, "k": 12}).sheets[0]
    cells = sheet.cells(0, sheet.stored.codes)
    assert [cell.address for cell in cells if cell.pad == "k"] == [
        32 + 8 * n + kp for n in range(4) for kp in range(4, 8)
    ]


@pytest.mark.parametrize(("split", "rank_of"), [("n", lambda n, k: n // 8), ("k", lambda n, k: k // 12)])
def test_ranks_of_a_checkpoint(split: str, rank_of: Any, show: Any) -> None:
    """A cut along k goes through a word here, and through a group, whose scale both ranks then need."""
    picture = picture_of(load_spec("gptq"), {"n": 16, "k": 24}, {"split": split, "group": 8}, tp=2)
    for panel in ("stored", "matrix"):
        codes = drawn(drawing_of(picture, "qweight"), panel)
        assert codes
        for code in codes:
            assert code.n and code.k and code.rank == str(rank_of(code.n[0], code.k[0]))
    for code in drawn(drawing_of(picture, "scales"), "stored"):
        assert code.n and code.k
        ranks = sorted({rank_of(code.n[0], k) for k in range(code.k[0], code.k[1] + 1)})
        assert code.rank == " to ".join(map(str, ranks))
    text = text_of(picture, "qweight", None, None)
    assert f"; {8 if split == 'n' else 12} elements on each of 2 ranks" in text
    if split == "k":
        assert re.search(r" 1 +0 +0 +8A +9A +10A +11A +12B +13B +14B +15B\n", text)
        assert "A rank 0; B rank 1" in text


def test_a_kernels_tensor_is_one_ranks() -> None:
    """Its elements are named by their place in the whole matrix."""
    window = (range(1), range(16))
    for rank in range(2):
        whole = picture_of(load_spec("marlin_int4_a16"), {"n": 256, "k": 128}, tp=2, rank=rank)
        codes = drawn(drawing_of(whole, "weight", *window), "stored")
        other = picture_of(load_spec("marlin_int4_a16"), {"n": 128, "k": 128})
        alone = drawn(drawing_of(other, "weight", *window), "stored")
        assert len(codes) == len(alone)
        for one, other in zip(codes, alone):
            assert one.n and other.n and one.n[0] == other.n[0] + 128 * rank
            assert (one.row, one.word, one.bit, one.k) == (other.row, other.word, other.bit, other.k)


@pytest.mark.parametrize(
    ("parts", "place"), [("stacked", lambda p, n: 16 * p + n), ("alternating", lambda p, n: 2 * n + p)]
)
def test_parts(parts: str, place: Any) -> None:
    picture = picture_of(load_spec("awq"), {"n": 16, "k": 16}, {"parts": parts})
    codes = drawn(drawing_of(picture, "qweight", range(16)), "stored")
    assert {(code.part, code.n, code.k) for code in codes} == {
        (part, (n, n), (k, k)) for part in ("gate", "up") for n in range(16) for k in range(16)
    }
    for code in codes:
        assert code.n and code.k
        column = place(("gate", "up").index(code.part), code.n[0])
        assert (code.row[0], code.word, code.bit) == (code.k[0], column // 8, 4 * AWQ_ORDER[column % 8])


def test_widths_name_as_many_parts(show: Any) -> None:
    done = show(
        "ct_int", "--size", "n=8,4,4", "--size", "k=16", "--param", "parts=stacked", "--tensor", "weight_packed"
    )
    assert done.status == 0
    assert [line for line in done.out.splitlines() if line.startswith("  n of ")] == [
        "  n of q: 0 to 7",
        "  n of k: 0 to 3",
        "  n of v: 0 to 3",
    ]


def test_tensors_of_a_module(show: Any) -> None:
    """Of a mixture of experts: padded per part, and each matrix with the layout of its own number of groups."""
    done = show("marlin_int4_a16", "--module", "moe_gated", "--size", "e=2", "--size", "i=128", "--size", "h=256")
    assert done.status == 0
    assert "w13.weight (codes): int32 [16, 512], order kt, nt c kq j {k0 b k3}" in done.out
    assert "w13.weight_scale (scale): float16 [2, 256], order g, nt i j (gi)" in done.out
    assert "w2.weight_scale (scale): float16 [1, 256], order g, nt i h l (gi)" in done.out


# --- text -------------------------------------------------------------------------------------------------------------


def test_the_text_of_a_small_matrix(show: Any) -> None:
    done = show("gptq", "--tensor", "qweight", "--size", "n=2", "--size", "k=16", "--param", "group=8")
    assert (done.status, done.err) == (0, "")
    assert (
        done.out
        == """\
gptq: GPTQ, 4 or 8 bit, symmetric or with zero points, in file order or act-order, as GPTQModel and
AutoGPTQ write it
drawn at n=2 k=16 group=8

qweight (codes): int32 [2, 2], order kw, n {kp}; 8 codes of 4 bits in a word

  digit  is      of  one more is
  kw     k // 8   2  1 row on
  n      n        2  1 word on
  kp     k % 8    8  4 bits up

  n: 0 to 1
  k: 0 to 15 in 2 groups of 8

Stored: a word a line, a column for the first bit of each code, in it k of the element
  row  word  group  n  0  4   8  12  16  20  24  28
    0     0      0  0  0  1   2   3   4   5   6   7
    0     1      0  1  0  1   2   3   4   5   6   7
    1     0      1  0  8  9  10  11  12  13  14  15
    1     1      1  1  8  9  10  11  12  13  14  15
This is all of it.

Matrix: the row:word of each W[n, k]
  n \\ k     0     1     2     3     4     5     6     7     8     9    10    11
      0  0:0A  0:0A  0:0A  0:0A  0:0A  0:0A  0:0A  0:0A  1:0B  1:0B  1:0B  1:0B
      1  0:1A  0:1A  0:1A  0:1A  0:1A  0:1A  0:1A  0:1A  1:1B  1:1B  1:1B  1:1B
A group 0; B group 1
"""
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_text_keeps_to_its_width(spec: Any, show: Any) -> None:
    done = show(spec.name)
    assert (done.status, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 100
    assert "\x1b" not in done.out
    if isinstance(spec, Format):
        assert all(f"\n{key} (" in done.out for key in (sheet.name for sheet in picture_of(spec).sheets))


def test_what_is_left_out_is_said_and_goes_on_alike(show: Any) -> None:
    out = show("marlin_int8_a8int8", "--tensor", "weight").out
    said = " ".join(out.split())
    assert "Shown: row 0 of 16, words 0 to 47 of 512." in said
    assert "It goes on alike: 256 words on, n is 32 more; 2 rows on, k is 32 more." in said
    sheet = picture_of(load_spec("marlin_int8_a8int8")).sheets[0]
    here, there, below = (sheet.cells(word * 4, word * 4 + 4) for word in (5, 5 + 256, 5 + 1024))
    for one, right, down in zip(here, there, below):
        assert (right.n[0], right.k) == (one.n[0] + 32, one.k)
        assert (down.n, down.k[0]) == (one.n, one.k[0] + 32)


def test_colours_only_on_a_terminal(show: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["gptq", "--size", "n=4", "--size", "k=12", "--param", "group=4", "--tp", "2"]
    plain = show(*command).out
    monkeypatch.setattr("layoutdsl.show._is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    painted = show(*command).out
    assert "\x1b[" in painted and re.sub(r"\x1b\[[0-9]*m", "", painted) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(*command).out == plain


# --- modules ----------------------------------------------------------------------------------------------------------


def titles_of(cut: module.Cut, group: str = "") -> list[str]:
    """What is told where a pointer rests; with a group's class, of its cells alone."""
    root = ElementTree.fromstring(module.drawing_of(cut))
    nodes = [root] if not group else [node for node in root.iter(f"{SVG}g") if node.get("class") == group]
    return [title.text or "" for node in nodes for title in node.iter(f"{SVG}title")]


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if isinstance(spec, Module)], ids=lambda spec: spec.name)
def test_modules_show_what_each_rank_holds(spec: Module, tp: int) -> None:
    """Who holds what of each matrix, as resolve has it: in the whole, and for the ranks of which there is a picture."""
    sizes = {axis: (12, 24, 36) if spec.name == "linear_fused" and axis == "n" else 12 for axis in spec.axes}
    cut = module.cut_of(spec, sizes, tp=tp)
    whole, all_of_it = titles_of(cut, "whole"), titles_of(cut)
    for at, matrix in enumerate(cut.whole):
        for part in range(len(matrix.n)):
            name = f"{matrix.parts[part]}; " if matrix.parts else ""
            outputs, inputs = cut.axes(matrix)
            held: dict[str, list[int]] = {}
            for rank in range(tp):
                mine = matrices(spec, bind(spec, dict(cut.params)), cut.sizes, Ranks(tp, rank))[at]
                stretches = (mine.n[part], mine.k)
                if all(stretch.length for stretch in stretches):
                    ends = [f"{s.start} to {s.start + s.length - 1}" for s in stretches]
                    said = f"{name}{outputs[part]} {ends[0]}, {inputs} {ends[1]}; "
                    held.setdefault(said, []).append(rank)
                    if rank in cut.shown(at, module.DRAWN):
                        assert f"{said}rank {rank}" in all_of_it
            for said, ranks in held.items():
                *others, last = map(str, ranks)
                who = f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"
                assert f"{said}{who if cut.is_cut(at) else 'all ranks'}" in whole


@pytest.mark.parametrize("split", ["n", "k", "none"])
def test_fields_of_a_module_tile_its_matrices(split: str) -> None:
    """Each field at the place of its rank: its share of the part, and no two on one another."""
    cut = module.cut_of(load_spec("linear_fused"), {"n": (40, 24), "k": 96}, {"split": split, "names": "a,b"}, tp=4)
    root = ElementTree.fromstring(module.drawing_of(cut))
    (whole,) = [group for group in root.iter(f"{SVG}g") if group.get("class") == "whole"]
    (frame,) = [box(rect) for rect in whole.iter(f"{SVG}rect") if rect.get("class") == "word"]
    fields = {(group[0].text or ""): box(group[1]) for group in whole.iter(f"{SVG}g") if group[0].tag == f"{SVG}title"}
    assert len(fields) == {"n": 8, "k": 8, "none": 2}[split]
    below = min(y for said, (_, y, _, _) in fields.items() if said.startswith("b"))
    tall = {"a": below - frame[1], "b": frame[1] + frame[3] - below}
    assert tall["a"] > tall["b"] > 0  # wider parts are taller
    for said, (x, y, width, height) in fields.items():
        found = re.fullmatch(r"([ab]); n (\d+) to (\d+), k (\d+) to (\d+); (?:all ranks|rank \d)", said)
        assert found
        size, top = {"a": (40, frame[1]), "b": (24, below)}[found[1]]
        n, n_last, k, k_last = (int(number) for number in found.groups()[1:])
        assert x == pytest.approx(frame[0] + frame[2] * k / 96, abs=0.01)
        assert width == pytest.approx(frame[2] * (k_last + 1 - k) / 96, abs=0.01)
        assert y == pytest.approx(top + tall[found[1]] * n / size, abs=0.01)
        assert height == pytest.approx(tall[found[1]] * (n_last + 1 - n) / size, abs=0.01)


def test_heads_that_ranks_share_and_lack() -> None:
    """14 query heads on 2 key-value heads for 4 ranks: two ranks hold each key, and two have a head less."""
    cut = module.cut_of(load_spec("attention"), {"q": 14, "kv": 2, "d": 64, "h": 256}, tp=4)
    whole = titles_of(cut, "whole")
    assert "q; q dq 256 to 447, h 0 to 255; rank 1" in whole
    assert (
        "k; kv d 0 to 63, h 0 to 255; ranks 0 and 1" in whole
        and "v; kv dv 64 to 127, h 0 to 255; ranks 2 and 3" in whole
    )
    assert titles_of(cut).count("padding of q dq, as the widest rank has") == 1  # rank 1 is the one shown of its size
    text = module.text_of(cut)
    assert "rank 0: 384 x 256" in text and "rank 1: 320 x 256" in text
    assert f" k 0 to 63 |{'AB' * 16}|" in text and "ranks outnumber them" in text
    alone = module.cut_of(load_spec("attention"), {"q": 3, "d": 8, "h": 16}, tp=4)
    assert dict(alone.sizes)["kv"] == 3 and "rank 3: 0 x 16" in module.text_of(alone)


@pytest.mark.parametrize("name", [spec.name for spec in FORMATS])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_tensors_of_attention_padded_in_front(name: str, rank: int) -> None:
    """Every stored code of an o_proj is an element of this rank or a pad, in front of its inputs or behind."""
    sizes = {"q": 8, "d": 72, "h": 64}
    picture = picture_of(load_spec(name), sizes, module="attention", tp=4, rank=rank)
    sheet = next(one for one in picture.sheets if one.name.startswith("o.") and one.role == "codes")
    cells = sheet.cells(0, sheet.stored.codes)
    assert {cell.k for cell in cells if not cell.pad} == {(k,) for k in range(144 * rank, 144 * rank + 144)}
    front = sheet.matrix.k.front
    assert sum(cell.pad == "k" for cell in cells) == (sheet.stored.k_end - 144) * 64
    if front:
        said = text_of(picture, sheet.name, None, None)
        assert f"padded from 144 to {sheet.matrix.k.padded}, {front} of it in front" in said
        assert all(cell.pad for cell in cells if cell.address == 0)


def test_a_rank_without_heads(show: Any) -> None:
    command = [
        "--module",
        "attention",
        "--size",
        "q=3",
        "--size",
        "d=64",
        "--size",
        "h=128",
        "--tp",
        "4",
        "--rank",
        "3",
    ]
    done = show("marlin_int4_a16", *command)
    assert done.status == 0 and "n of q: nothing of 192; padded from 0 to 64" in done.out


def test_kernels_are_cut_as_the_planner_cuts(show: Any) -> None:
    command = ["--module", "moe_gated", "--size", "e=8", "--size", "i=1408", "--size", "h=2048", "--tp", "8"]
    done = show("marlin_int4_a16", *command, "--rank", "7")
    assert done.status == 0 and "n of gate: 1280 to 1407 of 1408; padded from 128 to 192" in done.out


def box(rect: ElementTree.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))
    return x, y, width, height


def test_the_text_of_a_module(show: Any) -> None:
    out = show("moe_gated", "--size", "e=8", "--size", "i=64", "--size", "h=96").out
    assert "tensor-parallel ranks cut i; expert-parallel ranks share e" in out
    assert "w13: n = i, k = h, parts gate, up, for each of 8 experts" in out
    assert re.search(r" gate 0 to 31 \|A{32}\| .*\n.*\n +32 to 63 \|B{32}\|", out)
    assert re.search(r" h 0 to 95 \|A{16}B{16}\| +\|A{14}\.\.\|   \|B{14}\.\.\|", out)
    assert "a rank pads i behind each part and h at its end" in out
    assert re.search("rank 0: 64 x 96 +rank 1: 64 x 96", out)
    assert re.search("rank 0: 96 x 32 +rank 1: 96 x 32", out)


def test_a_module_that_nothing_cuts(show: Any) -> None:
    out = show("linear", "--size", "n=8", "--size", "k=8", "--param", "split=none").out
    assert "=" * 32 in out and "= all ranks" in out and "AA" not in out


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_pictures_stand_alone(spec: Any, show: Any, tmp_path: Path) -> None:
    file = tmp_path / "picture.svg"
    done = show(spec.name, "--svg", file)
    assert (done.status, done.err) == (0, "") and done.out.startswith(f"{file}: {spec.name} drawn at ")
    text = file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "desc",
        "style",
        "defs",
        "pattern",
        "path",
        "g",
        "rect",
        "text",
    }
    assert root[0].tag == f"{SVG}title" and root[1].tag == f"{SVG}desc" and root[0].text and root[1].text
    style = root[2].text or ""
    assert "@media (prefers-color-scheme:dark)" in style and "url(#hatch)" in style
    assert not re.search("http|@import|@font-face|<script", text.replace("http://www.w3.org/2000/svg", ""))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert x >= 0 and y >= 0
        assert x + float(box.get("width", 0)) <= width + 0.01 and y + float(box.get("height", 0)) <= height + 0.01
    assert os.listdir(tmp_path) == ["picture.svg"]
    assert file.stat().st_mode & 0o777 == 0o666 & ~svg._umask()


def test_ink_is_legible_on_every_colour() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(one: str, other: str) -> float:
        low, high = sorted((light(one), light(other)))
        return (high + 0.05) / (low + 0.05)

    for scheme in range(2):
        colours = {name: both[scheme] for name, both in svg.COLOURS.items()}
        grounds = ["page", "plain", "band", *(f"p{hue}" for hue in range(svg.HUES))]
        assert min(contrast(colours["ink"], colours[ground]) for ground in grounds) >= 7
        assert contrast(colours["muted"], colours["page"]) >= 4.5


def test_the_gallery_is_of_moderate_size() -> None:
    images = sorted((ROOT / "docs" / "img").glob("*.svg"))
    pictured = {spec.name for spec in SPECS if not isinstance(spec, Kernel) or spec.base is None}
    choices = set(re.findall(r"img/(choice_\w+)\.svg", (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")))
    assert {image.stem for image in images} == pictured | {"session", "coverage", "lint", "diff"} | choices
    assert sum(image.stat().st_size for image in images) < 1_800_000


# --- the planner's choices --------------------------------------------------------------------------------------------

PLANS = {
    "uneven": ("gptq", "marlin_int4_a16", "moe_gated", {"e": 2, "i": 1408, "h": 256}, 8, {"group": 128}),
    "empty": ("gptq", "marlin_int4_a16", "moe_plain", {"e": 2, "i": 384, "h": 256}, 8, {"group": 128}),
    "front": ("gptq", "marlin_int4_a16", "attention", {"q": 16, "d": 72, "h": 256}, 4, {"group": 128}),
    "heads": ("gptq", "marlin_int4_a16", "attention", {"q": 14, "kv": 2, "d": 64, "h": 896}, 4, {"group": 128}),
    "latent": ("fp8", "marlin_fp8_a16", "latent_attention", dict(zip(("q", "dq", "dkv", "dv", "rq", "akv", "rkv", "h"),
               (6, 96, 128, 64, 192, 160, 128, 256))), 4, {}),
    "mlp": ("mxfp4", "marlin_mxfp4_a16", "mlp_gated", {"i": 300, "h": 100}, 2, {}),
    "alone": ("gptq", "marlin_int4_a16", "linear", {"n": 100, "k": 132}, 1, {"group": 32}),
}  # fmt: skip


@cache
def plans_of(name: str) -> tuple[Plan, ...]:
    source, kernel, mod, sizes, tp, params = PLANS[name]
    return tuple(compile_plan(source, kernel, mod, sizes, params=params, tp=tp, rank=rank) for rank in range(tp))


def boxes(text: str) -> list[tuple[str, float, float, float]]:
    """(what is told of it, x, y, width) of every cell that a pointer can rest on."""
    cells = [group for group in ElementTree.fromstring(text).iter(f"{SVG}g") if group[0].tag == f"{SVG}title"]
    return [(group[0].text or "", *box(group[1])[:3]) for group in cells]


@pytest.mark.parametrize("name", PLANS)
def test_bars_stand_below_what_ranks_hold(name: str) -> None:
    """Each panel's cells, read back into elements, are the extents of the plans, pads in front and behind included."""
    plans = plans_of(name)
    panels = cuts.Scene("", plans).panels
    assert panels
    for panel in panels:
        found = boxes(cuts.drawing_of("a", [cuts.Scene("", plans, (f"{panel.matrix} {panel.role}",))]))
        heads = [one for one in found if re.fullmatch(r"(?:\w+ 0: )?0 to \d+", one[0])]
        lefts = list(dict.fromkeys(x for _, x, _, _ in heads))
        assert len(lefts) == len(panel.parts)
        wide, size = heads[0][3], int(heads[0][0].split()[-1]) + 1
        drawn = [(told, x, y, width / wide * size) for told, x, y, width in found if "rank" in told or "stored" in told
                 or told.startswith("padding")]  # fmt: skip
        wanted: list[tuple[str, float, float]] = []
        for row, rank in panel.rows:
            for (part, extents), left in zip(panel.parts.items(), lefts):
                e = extents[rank]
                rest, at = e.padded - e.front - e.length, left + (e.start - e.front) * wide / size
                said = "; ".join([row, *[part] * bool(part), f"{e.axis} {e.start} to {e.start + e.length - 1}"])
                pieces = (
                    (f"padding in front, {e.front}", e.front),
                    (said, e.length),
                    (f"padding behind, {rest}", rest),
                )
                for told, count in pieces:
                    wanted += [(told, at, count)] * (count > 0)
                    at += count * wide / size
            if panel.tail:
                wanted.append((f"padding behind all parts, {panel.tail}", drawn[len(wanted)][1], panel.tail))
        assert [told for told, *_ in drawn] == [told for told, *_ in wanted]
        for (_, x, _, count), (_, at, elements) in zip(drawn, wanted):
            assert x == pytest.approx(at, abs=0.02) and count == pytest.approx(elements, abs=size / wide / 10)
        assert len({y for _, _, y, _ in drawn}) == len(panel.rows)


@pytest.mark.parametrize("name", ["uneven", "front", "heads"])
def test_borders_of_kernel_groups_meet_those_of_the_checkpoint(name: str) -> None:
    """What the pictures are for: every border of a checkpoint's group inside a bar is one of a kernel's group."""
    plans = plans_of(name)
    panel = next(one for one in cuts.Scene("", plans).panels if one.role == "k" and one.is_cut)
    text = cuts.drawing_of("a", [cuts.Scene("", plans, (f"{panel.matrix} k",))])
    groups = [(x, width) for told, x, _, width in boxes(text) if told.startswith("group ")]
    marks: dict[float, list[float]] = {}
    for path in ElementTree.fromstring(text).iter(f"{SVG}path"):
        if path.get("class") == "word":
            x, y = map(float, re.findall(r"[\d.]+", path.get("d", ""))[:2])
            marks.setdefault(y, []).append(x)
    bars = {y: (x, x + width) for told, x, y, width in boxes(text) if told.startswith("rank ")}
    assert len(bars) == len(plans)
    met = 0
    for y, (left, right) in bars.items():
        for border, _ in groups:
            if left + 0.1 < border < right - 0.1:
                assert any(mark == pytest.approx(border, abs=0.05) for mark in marks[y])
                met += 1
    assert met >= len(plans) // 2


def test_what_ranks_store_adds_up() -> None:
    panels = {f"{panel.matrix} {panel.role}": panel for panel in cuts.Scene("", plans_of("front")).panels}
    assert panels["o k"].sum(1) == "32 pad + 288 = 320" and panels["o k"].sum(0) == "288 + 32 pad = 320"
    assert panels["qkv n"].sum(0) == "q 288 + k 288 + v 288 + 32 pad = 896"
    panels = {f"{panel.matrix} {panel.role}": panel for panel in cuts.Scene("", plans_of("empty")).panels}
    assert panels["w2 k"].sum(7) == "64 pad" and panels["w2 k"].span(7) == "nothing"
    assert cuts.stored_bytes(plans_of("alone")[0]) == 128 * 192 // 2 + 128 * 6 * 2


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "img").glob("choice_*.svg")), ids=lambda path: path.stem)
def test_words_in_pictures_of_choices_do_not_meet(path: Path) -> None:
    """Nor do they leave the picture: taken as wide as the widest letters of their fonts."""
    root = ElementTree.parse(path).getroot()
    width, lines = float(root.get("width", 0)), dict[float, list[tuple[float, float, str]]]()
    for text in root.iter(f"{SVG}text"):
        kind, said, x = (text.get("class") or "").split(), text.text or "", float(text.get("x", 0))
        letter = 8 if "title" in kind else 10 if "head" in kind else 6.2 if "said" in kind or "small" in kind else 6.8
        wide = letter * len(said)
        left = x if {"title", "head", "said", "left"} & {*kind} else x - wide if "right" in kind else x - wide / 2
        lines.setdefault(float(text.get("y", 0)), []).append((left, left + wide, said))
    for line in lines.values():
        ordered = sorted(line)
        assert ordered[0][0] >= 0 and max(right for _, right, _ in ordered) <= width
        for (_, right, one), (left, _, other) in zip(ordered, ordered[1:]):
            assert right <= left + 1, (one, other)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("gtpq", "LP107 no-such-spec: there is no spec `gtpq`\n  = help: did you mean `gptq`?"),
        ("gptq --size m=4", "LP111 sizes: module `linear` has no axis `m`"),
        ("gptq --size n=0", "LP111 sizes: size `n` of module `linear` cannot be 0"),
        (
            "gptq --param grup=4",
            "LP101 unknown-parameter: `gptq` has no parameter `grup`\n  = help: did you mean `group`?",
        ),
        (
            "gptq --param bits=3",
            "LP102 parameter-value: parameter `bits` of `gptq` cannot be 3\n  = help: expected 4, 8",
        ),
        (
            "gptq --tensor qwieght",
            "LP116 no-such-tensor: `gptq` has no tensor `qwieght` with these parameters\n"
            "  = help: did you mean `qweight`?",
        ),
        (
            "gptq --size n=2000000",
            "LP117 too-large-to-draw: size `n` is 2000000, more than the 262144 elements along an "
            "axis that are drawn\n  = help: a layout repeats: a few tiles show all of it",
        ),
        (
            "gptq --rows 0:9 --words 0:256",
            "LP117 too-large-to-draw: 18432 codes of `qweight` are asked for, 4096 can be "
            "drawn\n  = help: a layout repeats; --rows and --words choose what is drawn",
        ),
        ("gptq --rows 60:65", "LP118 outside-the-tensor: `qweight` has no rows 60 to 64: they count from 0 to 63"),
        ("gptq --words 256", "LP118 outside-the-tensor: `qweight` has no words 256 to 256: they count from 0 to 255"),
        (
            "gptq --tp 3",
            "LP120 uneven-cut: `linear`: axis `n` has 256 elements, which 3 tensor-parallel ranks do not divide evenly",
        ),
        ("gptq --tp 2 --rank 2", "LP110 ranks: rank 2 of 2 tp ranks does not exist"),
        ("gptq --tp 0", "LP110 ranks: rank 0 of 0 tp ranks does not exist"),
        (
            "marlin_int4_a16 --param group=48",
            "LP123 group-not-taken: `linear` has groups of 48 along `k`, which kernel "
            "`marlin_int4_a16` does not take\n  = help: it takes one group (-1), 32",
        ),
        (
            "marlin_int4_a16 --module moe_gated --size i=96 --param group=32 --param bits=8",
            "LP101 unknown-parameter: `marlin_int4_a16` has no parameter `bits`",
        ),
        (
            "attention --size q=5 --size kv=2",
            "LP112 groups: `attention` has 5 query heads for 2 key-value heads, which do not serve equally many\n"
            "  = help: `q` must be a multiple of `kv`",
        ),
        (
            "moe_gated --tensor w13",
            "LP106 wrong-kind: `moe_gated` is a module, which has no tensors for --tensor to choose",
        ),
        ("moe_gated --tp 9", "LP117 too-large-to-draw: 9 ranks are more than the 8 that are drawn of a module"),
        ("linear --tp 0", "LP110 ranks: rank 0 of 0 tp ranks does not exist"),
        ("gptq --module awq", "LP106 wrong-kind: `awq` is a checkpoint spec, a module spec is needed"),
    ],
)
def test_refusals(show: Any, tmp_path: Path, command: str, words: str) -> None:
    for more in ([], ["--svg", tmp_path / "a.svg"]):
        done = show(*command.split(), *more)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(words) and done.err.count("\n") <= 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("gptq --size n", "argument --size: expected NAME=VALUE, found `n`"),
        ("gptq --size n=-4", "argument --size: expected AXIS=N or AXIS=N,N,..., found `n=-4`"),
        ("gptq --size n=4 --size n=8", "argument --size: n=... is given twice"),
        ("gptq --rows 4:4", "argument --rows: expected FIRST:END with FIRST below END, or one number, found `4:4`"),
        ("gptq --words a", "argument --words: expected FIRST:END with FIRST below END, or one number, found `a`"),
    ],
)
def test_wrong_usage(show: Any, command: str, words: str) -> None:
    done = show(*command.split())
    assert (done.status, done.out) == (2, "")
    assert words in done.err


def test_a_tensor_without_elements(show: Any, tmp_path: Path) -> None:
    assert "it holds the numbers n and k themselves" in show("ct_int", "--tensor", "weight_shape").out
    done = show("ct_int", "--tensor", "weight_shape", "--svg", tmp_path / "a.svg")
    assert done.status == 1 and done.err.startswith("LP116 no-such-tensor: `weight_shape` holds the numbers n and k")


def test_a_file_that_cannot_be_written(show: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing" / "a.svg"
    done = show("linear", "--svg", missing)
    words = (
        f"LP115 cannot-write: `{missing}` cannot be written: no such file or directory\n  = help: --svg names a file "
    )
    assert (done.status, done.out) == (1, "") and done.err.startswith(words)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert show("linear", "--svg", folder).err.startswith(f"LP115 cannot-write: `{folder}` cannot be written: is a dir")
    old = tmp_path / "old.svg"
    old.write_text("as it was")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("layoutdsl.show.svg.os.replace", full)
    done = show("linear", "--svg", old)
    assert done.err.startswith(f"LP115 cannot-write: `{old}` cannot be written: no space left on device")
    assert old.read_text() == "as it was"
    assert sorted(os.listdir(tmp_path)) == ["folder", "old.svg"]


def test_names_are_escaped(tmp_path: Path) -> None:
    text = svg.document("a < b & c", 'of "d"', 10, 10, [svg.cell("p0", "n < 1", 0, 0, 10, 10, "<")])
    root = ElementTree.fromstring(text)
    assert root[0].text == "a < b & c" and root[-1][0].text == "n < 1" and root[-1][2].text == "<"


# --- specs of the user, and what is never loaded ----------------------------------------------------------------------

TILE = """\
version: "1"
kernel: tile
doc: 4-bit codes in tiles of two outputs by two inputs
source: made up
params: {group: {type: group, default: 2}}
accepts: {tiles: [{n: 2, k: 2}], groups: [2]}
parts: {orders: [[gate, up]]}
tensors:
  codes: {role: codes, dtype: uint8, code: u4b8, split: "k = kt k0:2 · n = nt n0:2", order: "nt, kt n0 {k0}"}
  scales: {role: scale, dtype: float16, split: "k = g gi:(group)", order: "g, n (gi)"}
value: "codes * scales"
try: [{n: 4, k: 4}]
"""


def test_a_spec_of_the_user(show: Any, tmp_path: Path) -> None:
    file = tmp_path / "tile.yaml"
    file.write_text(TILE, encoding="utf-8")
    by_path = show(file, "--tensor", "codes")
    assert (by_path.status, by_path.err) == (0, "")
    assert show("tile", "--specs", tmp_path, "--tensor", "codes").out == by_path.out
    codes = list(told(by_path.out))
    assert len(codes) == 16
    for code in codes:
        assert code.n and code.k and code.lane is None
        n, k = code.n[0], code.k[0]
        assert (code.row, code.word, code.bit) == ((n // 2,), k // 2 * 2 + n % 2, k % 2 * 4)


def test_nothing_heavy_is_loaded(tmp_path: Path) -> None:
    script = (
        "import sys; from layoutdsl import cli; "
        f"codes = [cli.main(['show', name, *more]) for name in ('gptq', 'moe_gated') "
        f"for more in ((), ('--svg', {str(tmp_path / 'a.svg')!r}))]; "
        "print(codes, sorted({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0] []", done.stderr


def test_pictures_are_made_for_callers_too() -> None:
    with pytest.raises(LayoutError, match="no tensor `nothing`"):
        drawing_of(picture_of(load_spec("awq")), "nothing")
