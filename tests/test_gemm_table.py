"""Which tile a GEMM gets: every shape that a kernel takes has one, that fits the shared memory of every GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml

from layoutdsl import LayoutError
from layoutdsl.gemm import checks, launch, table
from layoutdsl.gemm.facts import KINDS, Facts, Stretch
from layoutdsl.gemm.table import FAMILIES, Table, choose

ROWS = (1, 15, 16, 17, 33, 48, 49, 64, 65, 128, 1000, 8192)
PROCESSORS = (1, 4, 46, 108, 132, 188)
EXTENTS = (1, 2, 3, 5, 8, 32, 224)


def facts() -> list[Facts]:
    """One for every kernel: code, scales, group and activations."""
    found = []
    for (code, scale), groups in checks.GROUPS.items():
        for (dtype, kind), group in product(KINDS.items(), groups):
            name = dtype if scale == "float" else "s0e5m3b" if (scale, kind) == ("s0e5m3", "bf16") else scale
            one = Facts(code, name, kind, dtype, group, 128, 128, 0, 128, (Stretch(0, 128),))
            try:
                checks.facts_fit(one)
            except LayoutError:
                assert scale == "e8m0z" and kind == "f16"
                continue
            found.append(one)
    return found


FACTS = facts()


@pytest.mark.parametrize("of", sorted({(one.code, one.kind) for one in FACTS}))
def test_every_shape_has_a_tile(of: tuple[str, str]) -> None:
    for (n, k), rows, processors in product(FAMILIES, ROWS, PROCESSORS):
        for many_n, many_k in product(EXTENTS, EXTENTS):
            size = n * many_n, k * many_k
            choice = choose(*of, rows=rows, n=size[0], k=size[1], multiprocessors=processors)
            tile = choice.tile
            assert size[0] % tile.n == size[1] % tile.k == 0
            assert 1 <= choice.splits <= max(1, size[1] // tile.k // 4)
            blocks = -(-rows // tile.m) * (size[0] // tile.n)
            assert choice.splits == 1 or blocks * choice.splits <= 2 * processors


def test_matrices_of_no_family_have_none() -> None:
    with pytest.raises(LayoutError, match="n is a multiple of 64"):
        choose("u4b8", "f16", rows=1, n=64, k=64, multiprocessors=1)


@pytest.mark.parametrize("one", FACTS, ids=str)
def test_every_tile_fits_every_gpu(one: Facts) -> None:
    for tile in table.tiles(one.code, one.kind):
        kernel = launch.instance(one, tile)
        assert kernel.shared <= table.shipped().shared and kernel.threads <= 256, kernel.name


def test_kernels_of_another_text_have_another_name() -> None:
    found = {
        launch.instance(replace(one, **change), tile.model_copy(update=stages), rows)
        for one, rows in product(FACTS, ("dense", "experts"))
        for tile in table.tiles(one.code, one.kind)
        for change in ({}, {"kind": "s8"}, {"kind": "e4m3"})
        for stages in ({}, {"stages": 2}, {"stages": 3})
    }
    assert len({of.name for of in found}) == len({of.source for of in found}) == len(found)


def test_few_rows_and_few_columns_are_split() -> None:
    """A matrix that has too few tiles for a GPU shares their inputs out; one with enough does not."""
    assert choose("u4b8", "f16", rows=1, n=4096, k=4096, multiprocessors=108).splits > 1
    assert choose("u4b8", "f16", rows=4096, n=4096, k=4096, multiprocessors=108).splits == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["tiles"]["4x16"][0]["tiles"][0].update(m=17), "m"),
        (lambda data: data["tiles"]["4x16"][0]["tiles"][0].update(m=32), "differ in m"),
        (lambda data: data["tiles"]["4x16"][0]["tiles"].pop(1), "64 x 128"),
        (lambda data: data["tiles"]["4x16"][0].update(rows=32), "grow from row to row"),
        (lambda data: data["tiles"]["4x16"].pop(), "only the last has none"),
        (lambda data: data["tiles"].pop("8x8"), "no tiles for 8x8"),
        (lambda data: data["tiles"]["8x16"][0].update(rows=8), "4x16 and 8x16 differ in `rows`"),
        (lambda data: [tile.update(m=32) for tile in data["tiles"]["4x8"][0]["tiles"]], "4x8 and 8x8 differ in"),
        (lambda data: data.update(stages=3), "stages"),
        (lambda data: data["splits"].update(steps="4"), "splits.steps"),
    ],
)
def test_what_is_no_table(change, words: str, tmp_path: Path) -> None:
    data = yaml.safe_load(table._FILE.read_text())
    Table.model_validate(data)
    change(data)
    file = tmp_path / "gemm.yaml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(LayoutError, match="is no table of tiles") as caught:
        table.read(file)
    assert words in str(caught.value) and caught.value.help and caught.value.diagnostics[0].code == "LP357"
