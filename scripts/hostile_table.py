"""Write docs/hostile-input.md: every case of tests/hostile.py as it went here, and the figures of a fuzz run.

python scripts/hostile_table.py [--fuzz build/fuzz]      # without a run the figures on the page stay
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from hostile import CASES, READ, Case, report, size

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "hostile-input.md"
ROWS = ("<!-- cases -->\n", "<!-- end of cases -->\n")
FUZZ = ("<!-- fuzz -->\n", "<!-- end of fuzz -->\n")
REPEATS = 3


def row(case: Case) -> str:
    """One case, tried some times: the least time counts, as the others are what else the machine did."""
    seconds, bytes_, says = [], 0, ""
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            read = case.made(Path(folder))
            bytes_ = size(Path(folder))
            start = time.process_time()
            says = report(read).replace(f"{folder}/", "").replace(folder, "")
            seconds.append(time.process_time() - start)
    return f"| {case.what.replace('|', '&#124;')} | {shown_size(bytes_)} | {shown(says)} | {shown_time(min(seconds))} |"


def shown(says: str) -> str:
    """The first line of a report, as it stands in a table."""
    if says == READ:
        return "read, as what it is"
    line = re.sub(r"\s+", " ", says.split("\n")[0])
    line = line if len(line) <= 160 else line[:159] + "…"
    return line.replace("|", "&#124;").replace("<", "&lt;")


def shown_size(count: int) -> str:
    for unit, name in ((10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def shown_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def table() -> str:
    lines: list[str] = []
    for kind in dict.fromkeys(case.kind for case in CASES):
        lines += [f"\n### {kind}\n", "| input | size | what happens | time |", "|---|---:|---|---:|"]
        lines += [row(case) for case in CASES if case.kind == kind]
    return "\n".join(lines) + "\n\n"


def between(page: str, marks: tuple[str, str], text: str) -> str:
    before, _, rest = page.partition(marks[0])
    _, _, after = rest.partition(marks[1])
    return before + marks[0] + text + marks[1] + after


def figures(folder: Path) -> str:
    """The figures of a fuzz run."""
    command = [sys.executable, str(ROOT / "scripts" / "fuzz"), "--report", "--into", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuzz", type=Path, help="folder of a run of scripts/fuzz")
    parser.add_argument("--only-fuzz", action="store_true", help="leave the cases as they stand on the page")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    if not args.only_fuzz:
        page = between(page, ROWS, table())
    if args.fuzz is not None:
        page = between(page, FUZZ, "\n" + figures(args.fuzz))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
