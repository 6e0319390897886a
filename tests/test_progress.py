"""The line that shows how far long work has come."""

import io
import re
import sys

import pytest

from layoutdsl.checkpoints import progress
from layoutdsl.checkpoints.progress import Progress, clock, in_bytes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_says_share_bytes_rate_time_left_and_what_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = Terminal(), [100.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda: type("Size", (), {"columns": 120}))
    with Progress(4_000_000) as bar:
        bar.at("model.layers.0", 1_000_000)
        now[0] += 2
        bar.at("model.layers.1", 3_000_000)
    first, second, end = re.split(r"\r\x1b\[K", screen.getvalue())[1:]
    assert first == f"  0 % {'░' * 20}  0 B of 4.0 MB  0 B/s  starting  model.layers.0"
    assert second == f" 25 % {'█' * 5}{'░' * 15}  1.0 MB of 4.0 MB  500.0 kB/s  6 s left  model.layers.1"
    assert end == "", "the line is gone when the work is done"
    assert bar.line("x" * 300, 80) == bar.line("x" * 300, 300)[:79]


def test_it_is_silent_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(10) as bar:
        bar.at("model.layers.0", 10)
    assert screen.getvalue() == ""


@pytest.mark.parametrize(("seconds", "text"), [(3.4, "3 s"), (185, "3 min 05 s"), (4800, "1 h 20 min")])
def test_times_read_like_times(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e12, "2.5 TB")])
def test_sizes_read_like_sizes(count: float, text: str) -> None:
    assert in_bytes(count) == text
