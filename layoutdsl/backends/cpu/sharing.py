"""Threads that share the turns of a call."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch

from layoutdsl.backends.cpu.calls import Call
from layoutdsl.backends.cpu.forms import LINE
from layoutdsl.backends.cpu.machine import address

SHARE, PIECES = 1 << 20, 4
"""Bytes for which another thread is worth its start; pieces for each, so that one that is held up is helped out."""


def share(call: Call, jobs: np.ndarray, places: np.ndarray) -> np.ndarray:
    """All turns of a call among threads; what they found. jobs: its table, with what they are to do."""
    made, found = call.kernel, np.zeros(call.ends[-1], dtype=np.int64)
    worth = 1 if call.serial else sum(call.sizes) // SHARE
    count = min(threads(), worth) if worth > 1 else 1
    left = iter(call.cut(PIECES * count) if count > 1 else [(0, len(found))])

    def work() -> None:
        scratch = np.empty(call.scratch + LINE, dtype=np.uint8)
        lists = address(jobs), address(places), address(found)
        apart = -(-address(scratch) // LINE) * LINE
        for first, last in left:
            made(*lists, apart, first, last)

    if count == 1:
        work()
        return found

    # The thread that asks is one of them, and waits for none that has not begun: to wake one takes its time.
    others = [_pool(os.getpid(), count - 1).submit(work) for _ in range(count - 1)]
    work()
    for other in others:
        if not other.cancel():
            other.result()
    return found


@lru_cache(maxsize=4)
def _pool(_process: int, count: int) -> ThreadPoolExecutor:
    """Threads of a process: a fork of it has none."""
    return ThreadPoolExecutor(count, thread_name_prefix="layoutdsl")


def threads() -> int:
    """As many as torch takes: whoever wants fewer has told it."""
    return torch.get_num_threads()
