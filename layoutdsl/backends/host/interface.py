"""The C interface of the host's runtime: the structures of kernels/host/request.h, and the libraries loaded."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_uint32, c_uint64, c_void_p
from pathlib import Path

from layoutdsl.backends.host.counters import Counters, Line, Traffic

ORDERS = ("forward", "reverse", "random", "ahead")
COPYING = ("early", "late", "mixed")
FAULTS = ("none", "bounds", "alignment", "divergence", "deadlock", "race", "memory")
_SPACES, _WAYS = ("global", "shared"), ("load", "store")


class Buffer(Structure):
    _fields_ = [("start", c_uint64), ("bytes", c_uint64), ("name", c_char_p), ("writable", c_uint64)]


class Request(Structure):
    _fields_ = [
        ("entry", c_void_p),
        ("arguments", POINTER(c_uint64)),
        ("buffers", POINTER(Buffer)),
        ("buffer_count", c_uint64),
        ("seed", c_uint64),
        ("blocks", c_uint32),
        ("threads", c_uint32),
        ("shared", c_uint32),
        ("resident", c_uint32),
        ("order", c_uint32),
        ("copying", c_uint32),
    ]


class _Tally(Structure):
    _fields_ = [
        ("file", c_char_p),
        ("line", c_uint32),
        ("space", c_uint32),
        ("way", c_uint32),
        ("width", c_uint32),
        ("accesses", c_uint64),
        ("bytes", c_uint64),
        ("transactions", c_uint64),
        ("sectors", c_uint64),
        ("conflicts", c_uint64),
    ]


class Result(Structure):
    _fields_ = [
        ("fault", c_uint32),
        ("block", c_uint32),
        ("thread", c_uint32),
        ("line", c_uint32),
        ("file", c_char_p),
        ("tallies", POINTER(_Tally)),
        ("tally_count", c_uint64),
        ("atomics", c_uint64),
        ("text", c_char * 1024),
    ]


class Loaded:
    """A kernel that can be called: its `entry`, how many parameters it has, the most threads that it is made for, and
    `launch`, which takes a Request and fills a Result."""

    def __init__(self, path: Path, name: str):
        library = ctypes.CDLL(str(path))
        self.entry = ctypes.cast(getattr(library, f"{name}_entry"), c_void_p)
        self.parameters, self.max_threads = (c_uint32 * 2).in_dll(library, f"{name}_facts")
        self.launch = library.layoutdsl_launch  # of the runtime that this library is bound to, and of no other one
        self.launch.argtypes = [POINTER(Request), POINTER(Result)]
        self.launch.restype = None


def counters(result: Result) -> Counters:
    """What a launch counted. Requires that no other launch was made since."""
    found = Counters(atomics=result.atomics)
    for tally in result.tallies[: result.tally_count]:
        line = Line(tally.file.decode(), tally.line, _SPACES[tally.space], _WAYS[tally.way], tally.width)
        wide = tally.accesses if tally.width == 16 else 0
        traffic = Traffic(tally.accesses, wide, tally.bytes, tally.transactions, tally.sectors, tally.conflicts)
        found += Counters(((line, traffic),))
    return found
