"""The listed GEMM kernels compiled for every arch, without a GPU: no main loop spills, and their page is up to date."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.core", reason="cuda-python is not there; it is not made for macOS")

from gemm_listed import kernels
from script_modules import script

from layoutdsl.gemm.instance import Instance

gemm_tables = script("gemm_tables")
PAGE = gemm_tables.PAGE.read_text(encoding="utf-8")
SAME = f"\nNVRTC {gemm_tables.version()} makes" in PAGE
"""Whether the page's numbers are those of this NVRTC: they are held against no other."""


def cells(heading: str) -> dict[str, list[str]]:
    """A table of the page: name of the kernel -> the other cells."""
    rows = [line.strip("|").split("|") for line in PAGE.split(heading)[1].split("\n## ")[0].splitlines() if "|" in line]
    return {name.strip(): [cell.strip() for cell in more] for name, *more in rows[2:]}


@pytest.mark.parametrize("arch", gemm_tables.ARCHS)
def test_every_listed_kernel_compiles_and_spills_nothing_in_its_loop(arch):
    table = cells("## Registers and sizes")
    assert [*table] == [kernel.name for kernel in kernels()]
    for kernel in kernels():
        made = gemm_tables.measured(kernel, arch) if gemm_tables.exists(kernel, arch) else None
        if made is not None and made.stack:
            assert not gemm_tables.main_loop(kernel, arch).of("LDL", "STL"), kernel.name
        assert made is None or made.registers * kernel.threads <= 65536, kernel.name
        found = table[kernel.name][1 + gemm_tables.ARCHS.index(arch)]
        assert not SAME or found == gemm_tables.cell(made), "run: python scripts/gemm_tables.py"


def test_main_loops():
    table = cells("## Main loops")
    gemms = [kernel for kernel in kernels() if isinstance(kernel, Instance)]
    assert [*table] == [kernel.name for kernel in gemms]
    for kernel in gemms:
        loop = gemm_tables.main_loop(kernel)
        assert loop.of("LDSM") and loop.of("LDGSTS") and not loop.of("LDL", "STL", "LDG", "STG"), kernel.name
        assert not SAME or table[kernel.name] == gemm_tables.loop_cells(loop), "run: python scripts/gemm_tables.py"
