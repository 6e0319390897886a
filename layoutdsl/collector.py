"""Python's garbage collector, set aside where much is made and nothing is garbage.

It looks through all objects again and again, which takes as long as to make them; only rings of objects wait for it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector; after it, as it was."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
