"""The generated repack compiled for every arch, without a GPU: no kernel spills, and their page is up to date."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from script_modules import ROOT, script

from layoutdsl.backends.cuda import toolkit as cuda_toolkit

kernel_tables = script("kernel_tables")


@pytest.mark.parametrize("arch", kernel_tables.ARCHS)
def test_every_listed_kernel_compiles_and_spills_nothing(arch):
    """The numbers are those of NVRTC's version: the page says which, and is held against it alone."""
    page = kernel_tables.PAGE.read_text(encoding="utf-8")
    same = f"what NVRTC {'.'.join(map(str, cuda_toolkit.compiler().version))}\n" in page
    column = 3 + kernel_tables.ARCHS.index(arch)
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ")][1:]
    kernels = kernel_tables.kernels()
    assert [row[:2] for row in rows] == [[what, kernel_tables.done_by(kernel)] for what, kernel in kernels]
    for row, (_, kernel) in zip(rows, kernels):
        made = kernel_tables.compiled(kernel, arch)
        assert made.spilled == 0, kernel.source
        assert not same or row[column] == kernel_tables.cell(made), "run: python scripts/kernel_tables.py"


def test_constants_of_the_kernels_are_those_of_the_lowering():
    from layoutdsl.backends.repack import axes

    text = (ROOT / "kernels" / "grids.cuh").read_text(encoding="utf-8")
    assert re.search(rf"KEPT = {axes.KEPT}, DATA = {axes.DATA};", text)
