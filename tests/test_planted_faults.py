"""scripts/planted_faults: its list fits the kernels and its page, and a sample of the faults is caught."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from host_kernels import folder

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "planted_faults"
PAGE = ROOT / "docs" / "gemm-faults.md"


@pytest.fixture(scope="module")
def faults():
    sys.path.insert(0, str(SCRIPT))
    import faults

    yield faults
    sys.path.remove(str(SCRIPT))


def test_every_fault_changes_a_kernel_of_today(faults):
    listed = faults.listed()
    assert len({fault.name for fault in listed}) == len(listed) >= 60
    for fault in listed:
        for file, text in fault.texts().items():
            assert text != (folder() / file).read_text(encoding="utf-8")
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8") or not name


def test_a_passage_is_found_whatever_its_line_breaks(faults):
    one = faults.Fault("x", (faults.Change("types.cuh", "#pragma  once namespace\n ld {", "new"),), ())
    assert "speak of.\nnew\n" in one.texts()["types.cuh"]
    with pytest.raises(ValueError, match="has 0 times"):
        faults.Fault("x", (faults.Change("types.cuh", "nowhere", ""),), ()).texts()


def test_the_page_is_of_this_list(faults):
    rows = re.findall(r"^\| (.*) \| `(.*)` \| `(test_\w+\.py::.*)` \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert [row[:2] for row in rows] == [(fault.name, fault.files) for fault in faults.listed()]


def test_a_sample_is_caught():
    done = subprocess.run([sys.executable, SCRIPT, "--sample"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "6 of 6 caught"
