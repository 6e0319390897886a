"""Write docs/coverage-tables.md: every public family, on 1 to 16 ranks, in nine formats; each cell a proven plan.

python scripts/coverage_tables.py            write it
python scripts/coverage_tables.py --check    exit 1 where it is not as it would be written
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from layoutdsl.coverage.families import families
from layoutdsl.coverage.report import last_line, markdown_of
from layoutdsl.coverage.table import Coverage, covered

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage-tables.md"
MODELS = ROOT / "tests" / "fixtures" / "models.yaml"
RANKS = [(tp, 1) for tp in (1, 2, 4, 8, 16)]
FORMATS = {
    "int4, groups of 32": ("gptq", {"group": 32}),
    "int4, groups of 64": ("gptq", {"group": 64}),
    "int4, groups of 128": ("gptq", {"group": 128}),
    "int4, per channel": ("gptq", {"group": -1}),
    "FP8, per channel": ("fp8", {}),
    "FP8, blocks of 128": ("fp8_block", {}),
    "MXFP8": ("mxfp8", {}),
    "NVFP4": ("nvfp4", {}),
    "MXFP4": ("mxfp4", {}),
}
HEAD = """# Every public family, on 1 to 16 ranks

<!-- Written by scripts/coverage_tables.py: change what it reads, not this text. -->

The shapes are those of [models.yaml](../tests/fixtures/models.yaml), the default values of transformers' configuration
classes; [Which models are served](coverage.md) says how to read a cell. Each cell is a plan that was compiled and
proven for every kind of rank, and whose ranks together hold everything.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the coverage tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where they are stale")
    check, text = parser.parse_args().check, page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is stale\nrun: python scripts/coverage_tables.py")
        return 1
    return 0


def page() -> str:
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    found = {title: _covered(*FORMATS[title]) for title in FORMATS}
    yield HEAD
    yield "| format | accepted | median padding | 95th percentile | most |"
    yield "|---|---:|---:|---:|---:|"
    for title, coverage in found.items():
        yield f"| [{title}](#{_anchor(title)}) | {last_line(coverage)} | {' | '.join(_padding(coverage))} |"
    for title, coverage in found.items():
        yield f"\n## {title}\n\n{markdown_of(coverage)}"


def _covered(source: str, params: dict[str, int]) -> Coverage:
    asked = families(str(MODELS), source, params, (), ())
    return covered(asked, RANKS, specs=(), jobs=len(os.sched_getaffinity(0)))


def _anchor(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-")


def _padding(coverage: Coverage) -> Iterator[str]:
    """Median, 95th percentile and maximum over all pairs."""
    over = sorted(cell.overhead for line in coverage.counted for cell in line.cells if cell.accepted)
    for share in (0.5, 0.95, 1.0):
        yield f"{100 * over[round(share * (len(over) - 1))]:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
