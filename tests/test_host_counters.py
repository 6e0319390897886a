"""What the host counts: against counts by hand, and against their definition for addresses of all kinds."""

import pytest
from host_kernels import FAULTS, FAULTY, Kernel, aligned, launched
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdsl.backends.host.counters import Counters, Line, Traffic
from layoutdsl.backends.host.launch import schedules

SIZE = 4096
WIDTHS = (1, 2, 4, 8, 16)
TABLE_LINE = next(number for number, text in enumerate(FAULTY.splitlines(), 1) if "places.load<i64>" in text)


def touched(places: list[int], width: int, space: str) -> Traffic:
    """The traffic of one warp whose lane l loads `width` bytes at places[l]; nothing where that is negative."""
    table, memory = aligned(32, "i8"), aligned(SIZE)
    table[:] = places + [-1] * (32 - len(places))
    of_shared = space == "shared"
    given = {"places": table, "bytes": memory}
    launcher = launched(Kernel("touch", threads=32, shared=SIZE), 1, given, {}, int(of_shared), width)
    found = launcher.counters["touch"]
    (traffic,) = (t for line, t in found.lines if line.space == space and (of_shared or line.line != TABLE_LINE))
    return traffic


@pytest.mark.parametrize(
    "places, width, transactions, sectors",
    [
        (range(0, 128, 4), 4, 1, 4),
        (range(4, 132, 4), 4, 2, 5),  # not aligned to a line
        (range(0, 1024, 32), 4, 8, 32),  # a sector for each lane
        (range(0, 512, 16), 16, 4, 16),
        (range(496, -16, -16), 16, 4, 16),  # backwards
        (range(16, 528, 16), 16, 5, 17),
        (range(0, 256, 8), 8, 2, 8),
        (range(32), 1, 1, 1),
        ([64] * 32, 4, 1, 1),  # all the same word
        ([0, 2048], 2, 2, 2),  # two lanes of 32
        ([0, 128, 0, 128], 16, 2, 2),
    ],
)
def test_global_accesses_by_hand(places, width, transactions, sectors):
    wanted = Traffic(1, int(width == 16), width * len(list(places)), transactions, sectors, 0)
    assert touched(list(places), width, "global") == wanted


@pytest.mark.parametrize(
    "places, width, conflicts",
    [
        (range(0, 128, 4), 4, 0),
        (range(0, 256, 8), 4, 1),  # every second word: two in each bank
        (range(0, 4096, 128), 4, 31),  # a column of rows of 128 bytes
        (range(0, 32 * 132 - 132, 132), 4, 0),  # the same with rows of 132
        ([256] * 32, 4, 0),  # all the same word
        (range(32), 1, 0),  # four lanes to a word
        (range(0, 64, 2), 2, 0),
        (range(0, 256, 8), 8, 0),
        (range(0, 512, 16), 8, 2),  # in each half of the warp, two in each bank
        (range(0, 512, 16), 16, 0),
        (range(0, 4096, 128), 16, 28),  # in each quarter, eight in each bank
        ([lane * 128 + lane % 8 * 16 for lane in range(32)], 16, 0),  # swizzled
    ],
)
def test_shared_accesses_by_hand(places, width, conflicts):
    places = list(places)
    wanted = Traffic(1, int(width == 16), width * len(places), 0, 0, conflicts)
    assert touched(places, width, "shared") == wanted


def conflicts_of(places: list[int], width: int) -> int:
    """Lanes are served 128 bytes at a time; each bank of four bytes gives one word for each wavefront."""
    part, extra = min(32, 128 // width), 0
    for first in range(0, len(places), part):
        served = [place for place in places[first : first + part] if place >= 0]
        words = {word for place in served for word in range(place // 4, (place + width + 3) // 4)}
        if words:
            extra += max(sum(word % 32 == bank for word in words) for bank in range(32)) - 1
    return extra


@st.composite
def accesses(draw):
    width = draw(st.sampled_from(WIDTHS))
    spread = draw(st.sampled_from([64, 512, SIZE]))
    place = st.integers(0, spread // width - 1).map(lambda index: index * width) | st.just(-1)
    places = draw(st.lists(place, min_size=32, max_size=32).filter(lambda places: max(places) >= 0))
    return places, width


@settings(max_examples=150, deadline=None)
@given(accesses())
def test_accesses_of_all_kinds(access):
    places, width = access
    active = [place for place in places if place >= 0]
    size, wide = width * len(active), int(width == 16)
    sectors, lines = len({place // 32 for place in active}), len({place // 128 for place in active})
    assert touched(places, width, "global") == Traffic(1, wide, size, lines, sectors, 0)
    assert touched(places, width, "shared") == Traffic(1, wide, size, 0, 0, conflicts_of(places, width))


# ---------------------------------------------------------------- which accesses of lanes are one of the warp


PATHS = Kernel(
    "paths",
    """#include "device.cuh"
namespace ld {
LD_KERNEL(paths, 64)(Global in, i64 meeting) {
    const i64 at = 4 * thread();
    if (lane() % 2)
        in.load<u32>(at);
    else
        in.load<u32>(at);
    for (u32 turn = 0; turn <= lane() % 4; ++turn) in.load<u32>(at);
    if (warp() == 1 && meeting) {
        sync_warp();
        in.load<u32>(at);
        sync_warp();
    }
    in.load<Quad>(0), in.load<u64>(0);
}
}""",
    64,
)


def test_lanes_on_several_paths():
    """Odd and even lanes stand in two lines; the loop has as many accesses as its longest path; two warps."""
    for schedule in schedules():
        launcher = launched(PATHS, 1, {"in": aligned(256)}, {}, 1, schedule=schedule)
        found = {(line.line, line.width): traffic for line, traffic in launcher.counters["paths"].lines}
        assert found == {
            (6, 4): Traffic(2, 0, 2 * 16 * 4, 2, 2 * 4, 0),
            (8, 4): Traffic(2, 0, 2 * 16 * 4, 2, 2 * 4, 0),
            (9, 4): Traffic(8, 0, 2 * 32 * 4 * (1 + 2 + 3 + 4) // 4, 8, 8 * 4, 0),
            (12, 4): Traffic(1, 0, 32 * 4, 1, 4, 0),
            (15, 16): Traffic(2, 2, 64 * 16, 2, 2, 0),
            (15, 8): Traffic(2, 0, 64 * 8, 2, 2, 0),
        }


def test_sums_over_lines_launches_and_kernels():
    line, other = Line("a.cu", 1, "global", "load", 4), Line("a.cu", 2, "global", "load", 16)
    a, b = Counters(((line, Traffic(1, 0, 128, 1, 4, 0)),), 3), Counters(((other, Traffic(2, 2, 64, 2, 2, 0)),), 4)
    assert (a + b + a).global_loads == Traffic(4, 2, 320, 4, 10, 0)
    assert (a + b).atomics == 7 and (a + b).shared_stores == Traffic()

    numbers, out = aligned(64, "u4"), aligned(1, "u4")
    launcher = launched(Kernel("add_up", threads=32), 2, {"in": numbers}, {"out": out}, 0)
    arguments = [numbers.ctypes.data, out.ctypes.data, FAULTS["LOST_UPDATE"]]
    launcher.launch(Kernel("add_up", threads=32), 1, arguments)
    found = launcher.counters["add_up"]
    assert found.atomics == 64
    assert found.global_loads == Traffic(3 + 1, 0, 3 * 128 + 128, 3 + 1, 3 * 4 + 1, 0)
    assert found.global_stores == Traffic(1, 0, 128, 1, 1, 0)


def test_copies_count_what_they_read_and_what_they_fill():
    """Five of sixteen rows of A are there: the others are zeros that nobody reads from global memory."""
    a, b, out = aligned((5, 64), "u2"), aligned((16, 64), "u2"), aligned((5, 16), "f4")
    launcher = launched(Kernel("multiply", shared=8192), 1, {"a": a, "b": b}, {"out": out}, 5, 64, 0)
    found = launcher.counters["multiply"]
    assert found.global_loads.bytes == 32 * found.global_loads.sectors == a.nbytes + b.nbytes
    assert found.shared_stores.bytes == 2 * 16 * 64 * 2
    assert 2 * found.global_stores.bytes == 32 * found.global_stores.sectors == 2 * out.nbytes  # every second word
    warps, steps = 2, 4
    assert found.shared_loads == Traffic(warps * steps * 2, warps * steps * 2, warps * steps * (32 + 16) * 16, 0, 0, 0)
