"""Results of `lint` that are kept, and files that processes share: what is found is the same as one after the other."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from layoutdsl import folders
from layoutdsl.lint import kept, record, shares
from layoutdsl.lint.outcome import Examined
from layoutdsl.lint.run import each, run

SPEC = """\
version: "1"
checkpoint: {name}
doc: a spec
source: made up
params: {{act_order: {{type: bool, default: false}}}}
parts: {{orders: [[gate, up]]}}
tensors:
  w: {{role: codes, dtype: int32, code: u4b8, split: "k = kw kp:8", order: "kw, n {{kp}}"}}
  s: {{role: scale, dtype: float16, split: "k = g gi:32", order: "g, n (gi)"}}
value: w * s
try: [{{n: 64, k: 128}}, {{n: 64, k: 128}}]  # layoutdsl: ignore[LD904]
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "layoutdsl" / "lint"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are examined, not remembered."""
    found: list[str] = []

    def examined(paths: Sequence[Path], specs: tuple[str, ...]) -> list[Examined]:
        found.extend(path.name for path in paths)
        return each(paths, specs)

    monkeypatch.setattr(shares, "examined", examined)
    return found


def write(path: Path, old: str = "", new: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = SPEC.format(name=path.stem)
    assert old in text
    path.write_text(text.replace(old, new) if old else text)
    return path


def bad(folder: Path) -> Path:
    write(folder / "suppressed.yaml")
    write(folder / "refused.yaml", "doc: a spec", "dok: a spec")
    write(folder / "unread.yaml", "version:", "version")
    write(folder / "mended.yaml", '"1"', "1")
    write(folder / "named.yaml", "named", "another")
    write(folder / "unproven.yaml", "n {kp}", "m {kp}")
    write(folder / "unworded.yaml", "int32, code: u4b8", "int32, code: u4b9x")
    return folder


def test_what_is_kept_is_what_was_found(tmp_path: Path, cache: Path, made: list[str]) -> None:
    folder = bad(tmp_path / "specs")
    plain = run([str(folder)])
    assert len(plain.findings) >= 6 and any(finding.fix for finding in plain.findings)
    assert run([str(folder)], examine=kept.examined) == plain
    assert len(made) == len(list(cache.iterdir())) == 7
    assert run([str(folder)], examine=kept.examined) == plain
    assert len(made) == 7


def test_where_nothing_changed_nothing_is_imported(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "a.yaml", "  # layoutdsl: ignore[LD904]", "")
    lines = f"import sys\nfrom layoutdsl.cli import main\nmain(['lint', {str(path)!r}, '--exit-zero'])\n"
    lines += "print(sorted({'pydantic', 'yaml', 'torch', 'layoutdsl.model', 'layoutdsl.compile'} & {*sys.modules}))"
    outs = [subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True).stdout for _ in range(2)]
    first, second = (out.splitlines() for out in outs)
    assert first[:-1] == second[:-1] and "LD904" in outs[1]
    assert "pydantic" in first[-1] and second[-1] == "[]"


@pytest.mark.parametrize("changed", ["text", "beside", "shipped", "folder", "code", "library"])
def test_a_change_is_noticed(
    changed: str, tmp_path: Path, cache: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, own = write(tmp_path / "specs" / "one.yaml", "a spec", "may name a base"), tmp_path / "own"
    write(own / "two.yaml")
    for name in ("shipped", "package"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(folders, name, lambda name=name: tmp_path / name)
    kept._code.cache_clear()
    paths, specs = (one,), (str(own),)
    monkeypatch.setattr(shares, "examined", lambda paths, specs: made.append("again") or each(paths, ()))
    kept.examined(paths, specs)
    kept.examined(paths, specs)
    assert made == ["again"]
    if changed == "text":
        write(one, "a spec", "another with a base")
    elif changed == "beside":
        write(one.with_name("base.yaml"))
    elif changed == "shipped":
        write(tmp_path / "shipped" / "kernel" / "three.yaml")
    elif changed == "folder":
        write(own / "two.yaml", "a spec", "another")
    elif changed == "code":
        (tmp_path / "package" / "rule.py").write_text("")
        kept._code.cache_clear()
    else:
        monkeypatch.setattr(kept, "_versions", lambda: iter(["pydantic-99.dist-info"]))
    kept.examined(paths, specs)
    kept._code.cache_clear()
    assert made == ["again", "again"]


def test_what_a_file_does_not_depend_on_is_not_read(tmp_path: Path, cache: Path, made: list[str]) -> None:
    """A folder may hold all there is of a user; a pipe in it would keep us waiting for ever."""
    alone, build = write(tmp_path / "alone.yaml"), write(tmp_path / "build.yaml", "a spec", "has a base")
    os.mkfifo(tmp_path / "pipe.yaml")
    kept.examined((alone, build), ())
    write(tmp_path / "below" / "c.yaml")
    kept.examined((alone, build), ())
    assert made == ["alone.yaml", "build.yaml"]
    write(tmp_path / "beside.yaml")
    kept.examined((alone, build), ())
    assert made == ["alone.yaml", "build.yaml", "build.yaml"]


def test_what_changes_meanwhile_is_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.yaml")

    def examined(paths: Sequence[Path], specs: tuple[str, ...]) -> list[Examined]:
        found = each(paths, specs)
        write(path, "a spec", "another")
        return found

    monkeypatch.setattr(shares, "examined", examined)
    kept.examined((path,), ())
    assert not list(cache.iterdir())


@pytest.mark.parametrize("text", ["", "{}", "\0", "0" * 64 + " {}"])
def test_a_broken_entry_is_none(text: str, tmp_path: Path, cache: Path, made: list[str]) -> None:
    path = write(tmp_path / "a.yaml")
    whole = kept.examined((path,), ())
    (entry,) = cache.iterdir()
    for broken in (text, entry.read_text()[:-9], entry.read_text().replace("a.yaml", "b.yaml")):
        entry.write_text(broken)
        assert kept.examined((path,), ()) == whole
    assert made == ["a.yaml"] * 4
    entry.write_bytes(b"\xff\xfe")
    assert kept.examined((path,), ()) == whole


def test_the_newest_are_kept(tmp_path: Path, cache: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT", 3)
    paths = [write(tmp_path / name / "a.yaml") for name in "abcde"]
    for path in paths:
        kept.examined((path,), ())
        for entry in cache.iterdir():
            os.utime(entry, (0, entry.stat().st_mtime - 10))
    assert len(list(cache.iterdir())) == 3
    made.clear()
    kept.examined(paths[2:], ())
    assert made == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept.examined((write(tmp_path / "a.yaml"),), ())[0].name == "a"


def test_a_relative_cache_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for stated in ("cache", "", "./cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", stated)
        assert folders.cache() == tmp_path / ".cache" / "layoutdsl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folders.cache() == tmp_path / "cache" / "layoutdsl"


def test_failures_of_our_own_are_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.yaml")
    with monkeypatch.context() as patch:
        patch.setattr("layoutdsl.logical.prove_spec", lambda *_: 1 // 0)
        assert kept.examined((path,), ())[0].faults
    assert not kept.examined((path,), ())[0].faults


def test_a_record_is_one_line(tmp_path: Path) -> None:
    (one,) = each((write(tmp_path / "a.yaml", "a spec", "\u00e4 spec"),), ())
    text = record.written(one)
    assert len(text.splitlines()) == 1 and record.read(text) == one
    assert json.loads(text.partition(" ")[2])["name"] == "a"


# --- shares -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    def have(count: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
        monkeypatch.setattr("threading.active_count", lambda: 1)
        monkeypatch.setattr(shares, "FEWEST", 1)

    return have


@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_find_the_same(count: int, tmp_path: Path, cores: Any) -> None:
    folder = bad(tmp_path / "specs")
    cores(count)
    assert run([str(folder)], examine=shares.examined) == run([str(folder)])


def test_what_a_process_leaves_undone_is_done(tmp_path: Path, cores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ended says nothing, and a failure of our own is raised here, where it can be shown."""
    folder, here = bad(tmp_path / "specs"), os.getpid()
    plain = run([str(folder)])
    cores(3)
    monkeypatch.setattr(record, "written", lambda _: os._exit(1) if os.getpid() != here else "")
    assert run([str(folder)], examine=shares.examined) == plain
    monkeypatch.undo()
    cores(3)
    monkeypatch.setattr("layoutdsl.lint.examine.suppressions", lambda _: 1 // 0)
    faults = run([str(folder)], examine=shares.examined).faults
    assert len(faults) == 6 and all(isinstance(fault.error, ZeroDivisionError) for fault in faults)


def test_no_process_is_left(tmp_path: Path, cores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bad(tmp_path / "specs")
    cores(4)
    monkeypatch.setattr(shares, "_answers", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run([str(folder)], examine=shares.examined)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_process_with_threads_is_not_doubled(tmp_path: Path, cores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cores(4)
    monkeypatch.setattr("threading.active_count", lambda: 2)
    monkeypatch.setattr(os, "fork", lambda: 1 // 0)
    assert len(run([str(bad(tmp_path / "specs"))], examine=shares.examined).files) == 7
