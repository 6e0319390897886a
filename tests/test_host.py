"""Kernels on the host: what is wrong with one is found and said, and a right one gives the same in every order of its
threads. What a kernel moves is counted: test_host_counters.py."""

import re
import threading

import numpy as np
import pytest
import torch
from host_kernels import FAULTS, FAULTY, Kernel, aligned, launched
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError
from layoutdsl.backends.host.launch import FORWARD, ORDERS, Launcher, Schedule, schedules

MULTIPLY = Kernel("multiply", shared=8192)


def refused(code: str, said: str, run) -> None:
    with pytest.raises(LayoutError) as refusal:
        run()
    assert refusal.value.diagnostics[0].code == code, refusal.value
    assert re.search(said, refusal.value.message) and refusal.value.help, refusal.value


# ---------------------------------------------------------------- tensor cores, two stages of asynchronous copies


def factors(rows: int = 5, depth: int = 192) -> tuple[np.ndarray, np.ndarray]:
    """All sums of products are exact."""
    random = np.random.default_rng(rows)
    a, b = aligned((rows, depth), "f2"), aligned((16, depth), "f2")
    a[:], b[:] = random.integers(-8, 9, a.shape) / 8, random.integers(-8, 9, b.shape) / 8
    return a, b


def multiplied(schedule: Schedule = FORWARD, fault: str = "", rows: int = 5) -> tuple[np.ndarray, Launcher]:
    a, b = factors(rows)
    out = aligned((rows, 16), "f4")
    numbers = rows, a.shape[1], FAULTS.get(fault, 0)
    return out, launched(MULTIPLY, 1, {"a": a, "b": b}, {"out": out}, *numbers, schedule=schedule)


def test_a_product_in_every_schedule():
    for rows in (5, 16):
        a, b = factors(rows)
        for schedule in schedules(seeds=2):
            out, launcher = multiplied(schedule, rows=rows)
            assert np.array_equal(out, a.astype("f8") @ b.astype("f8").T), schedule
            assert launcher.counters["multiply"].shared_loads.conflicts == 0


OF_MULTIPLY = {
    "PAST_THE_ROWS": ("LP303", r"asynchronous copy of 16 bytes at offset \d+ of `a`, which has 1920 bytes"),
    "WEAK_WAIT": ("LP307", r"ldmatrix of 16 bytes at offset \d+ of shared memory races with the copy under way"),
    "NO_SYNC_AFTER_WAIT": ("LP307", r"of 16 bytes at offset \d+ of shared memory races with the"),
    "NO_SYNC_BEFORE_REUSE": ("LP307", r"of 16 bytes at offset \d+ of shared memory races with the"),
    "SYNC_IN_ONE_WARP": ("LP305", r"`sync_block`, while thread \d+ waits in `sync_block` at kernel.cu:\d+"),
    "ROW_NOT_ALIGNED": ("LP304", r"ldmatrix of 16 bytes at offset \d+ of shared memory: no multiple of 16"),
}


@pytest.mark.parametrize("fault", OF_MULTIPLY)
def test_its_faults_are_found_in_every_schedule(fault):
    code, said = OF_MULTIPLY[fault]
    for schedule in schedules():
        where = r"^kernel `multiply`, block 0, thread \d+, kernel.cu:\d+: "
        refused(code, f"{where}.*{said}", lambda s=schedule: multiplied(s, fault))


def test_a_forgotten_swizzle_shows_in_the_result_and_in_conflicts():
    """Eight rows of 128 bytes begin in one bank: each matrix of A takes eight wavefronts instead of one."""
    out, launcher = multiplied(fault="NO_SWIZZLE")
    a, b = factors()
    assert not np.array_equal(out, a.astype("f8") @ b.astype("f8").T)
    steps, warps, matrices = 192 // 16, 2, 4
    assert launcher.counters["multiply"].shared_loads.conflicts == steps * warps * matrices * 7


# ---------------------------------------------------------------- memory


OF_REACH = {
    "LOAD_PAST_THE_END": ("LP303", "load of 8 bytes at offset 60 of `in`, which has 64 bytes"),
    "LOAD_BEFORE_THE_START": ("LP303", "load of 1 bytes at offset -1 of `in`, which has 64 bytes"),
    "LOAD_OF_NOTHING": ("LP303", r"load of 4 bytes at address 0x1000 \+ 8: no buffer of this launch is there"),
    "STORE_TO_AN_INPUT": ("LP303", "store of 1 bytes at offset 3 of `in`, which is not to be written"),
    "LOAD_NOT_ALIGNED": ("LP304", "load of 16 bytes at offset 8 of `in`: address 0x[0-9a-f]+8 is no multiple of 16"),
    "SHARED_LOAD_PAST_THE_END": ("LP303", "load of 2 bytes at offset 256 of shared memory, which has 256 bytes"),
    "SHARED_STORE_NOT_ALIGNED": ("LP304", "store of 4 bytes at offset 18 of shared memory: no multiple of 4"),
    "ATOMIC_PAST_THE_END": ("LP303", "atomic access of 4 bytes at offset 64 of `out`, which has 64 bytes"),
    "COPY_OF_TOO_MUCH": ("LP303", "asynchronous copy of 9 valid bytes out of 8"),
}


def reach(fault: str = "") -> None:
    given, out = aligned(64), aligned(64)
    given[:] = np.arange(64)
    launched(Kernel("reach", shared=256), 2, {"in": given}, {"out": out}, FAULTS.get(fault, 0))
    assert bytes(out[60:]) == bytes([60, 61, 62, 63])


def test_reach_without_a_fault():
    reach()


@pytest.mark.parametrize("fault", OF_REACH)
def test_accesses_that_are_refused(fault):
    """With the line that they stand in."""
    code, said = OF_REACH[fault]
    line = next(n for n, text in enumerate(FAULTY.splitlines(), 1) if f"case {fault}:" in text)
    refused(code, rf"^kernel `reach`, block 1, thread 40, kernel.cu:{line}: {said}$", lambda: reach(fault))


def test_a_base_in_one_buffer_does_not_reach_another():
    whole = aligned(128)
    launcher = Launcher()
    launcher.reads("in", whole[:64])
    launcher.writes("out", whole[64:])
    arguments = [whole.ctypes.data, whole.ctypes.data + 64, FAULTS["LOAD_PAST_THE_END"]]
    refused("LP303", "offset 60 of `in`", lambda: launcher.launch(Kernel("reach", shared=256), 2, arguments))


def test_buffers_that_overlap_are_one():
    whole = torch.zeros(64, dtype=torch.uint8)
    launcher = Launcher()
    launcher.reads("front", whole[:48])
    launcher.reads("in", whole[16:])
    launcher.reads("again", whole)
    both = torch.zeros(128, dtype=torch.uint8)
    launcher.reads("both", both)
    launcher.writes("out", out := both[64:])
    launcher.launch(Kernel("reach", shared=256), 2, [whole.data_ptr(), out.data_ptr(), 0])


def test_buffers_are_kept_alive_and_may_be_said_again():
    launcher = Launcher()
    given = np.arange(64, dtype=np.uint8)
    arguments = [given.ctypes.data, (out := aligned(64)).ctypes.data, 0]
    for _ in range(3):
        launcher.reads("in", given)
        launcher.reads("out", out)
        launcher.writes("out", out)
    del given
    launcher.launch(Kernel("reach", shared=256), 2, arguments)
    assert bytes(out[60:]) == bytes([60, 61, 62, 63])


def test_shared_memory_begins_as_nans():
    """In a float of every width, for each block anew."""
    out = aligned((3, 32), "u4")
    source = """#include "device.cuh"
namespace ld {
LD_KERNEL(fresh, 32)(Global out) {
    out.store<u32>(4 * (block() * threads() + thread()), shared_memory().load<u32>(4 * thread()));
    sync_block();
    shared_memory().store<u32>(4 * thread(), 0);
}
}"""
    launched(Kernel("fresh", source, 32, 128), 3, {}, {"out": out})
    assert np.isnan(out.view("f4")).all() and np.isnan(out.view("f2")).all() and (out == 0xFFFFFFFF).all()


# ---------------------------------------------------------------- races on shared memory

LOAD, STORE, SYNC_WARP, SYNC_BLOCK, BALLOT = 1, 2, 3, 4, 5


@st.composite
def scripts(draw):
    """What 64 threads do, step by step: a few access four bytes of shared memory, or all of a warp or of the block
    come to a barrier, or to a collective, which orders no memory. [steps][thread] of (what, place, width)."""
    access = st.tuples(st.sampled_from([LOAD, LOAD, STORE]), st.sampled_from([(0, 4), (0, 1), (2, 2)]))
    steps = []
    for _ in range(draw(st.integers(2, 8))):
        kind = draw(st.sampled_from(["accesses"] * 6 + ["ballot"] * 3 + ["warp", "block"]))
        step = [(0, 0, 1)] * 64
        if kind == "block":
            step = [(SYNC_BLOCK, 0, 1)] * 64
        elif kind == "ballot":
            step = [(BALLOT, 0, 1)] * 64
        elif kind == "warp":
            first = draw(st.sampled_from([0, 32]))
            step[first : first + 32] = [(SYNC_WARP, 0, 1)] * 32
        else:
            for thread in draw(st.lists(st.sampled_from([0, 1, 32, 33]), max_size=3, unique=True)):
                what, (place, width) = draw(access)
                step[thread] = (what, place, width)
        steps.append(step)
    return steps


def races(steps: list) -> bool:
    """Whether two threads access a byte, one of them storing, and no barrier of both stands between them."""

    def between(a: int, b: int, first: int, second: int) -> bool:
        for step in range(min(a, b) + 1, max(a, b)):
            what = {steps[step][first][0], steps[step][second][0]}
            if what == {SYNC_BLOCK} or (what == {SYNC_WARP} and first // 32 == second // 32):
                return True
        return False

    made = [(at, thread, *one) for at, step in enumerate(steps) for thread, one in enumerate(step) if one[0] in (1, 2)]
    return any(
        first != second and STORE in (a, b) and p < q + v and q < p + w and not between(i, j, first, second)
        for i, first, a, p, w in made
        for j, second, b, q, v in made
    )


def step(*loads: int, store: int | None = None) -> list:
    return [(LOAD, 0, 4) if t in loads else (STORE, 0, 4) if t == store else (0, 0, 1) for t in range(64)]


APART, IN_WARP_0 = [(BALLOT, 0, 1)] * 64, [(SYNC_WARP, 0, 1)] * 32 + [(0, 0, 1)] * 32


@settings(max_examples=300, deadline=None)
@given(scripts(), st.integers(0, 1 << 16))
@example([step(0, 1), APART, step(store=0)], 0)  # another lane has read it too
@example([step(0, 32), APART, step(store=0)], 0)  # another warp
@example([step(0, 32), APART, IN_WARP_0, step(store=0)], 0)
@example([step(0, 32), APART, IN_WARP_0, step(0), APART, step(store=0)], 0)
def test_races_are_found_where_they_are_and_only_there(steps, seed):
    """By the definition of a race, in every order of threads."""
    table = np.array(steps, dtype="u4")
    words = aligned(len(steps) * 64, "u4")
    words[:] = (table[..., 0] | table[..., 1] << 8 | table[..., 2] << 16).reshape(-1)
    wanted = races(steps)
    for order in ORDERS:
        launcher = Launcher(Schedule(order, seed=seed))
        launcher.reads("steps", words)
        try:
            launcher.launch(Kernel("script", shared=4), 1, [words.ctypes.data, len(steps)])
            found = False
        except LayoutError as error:
            assert error.diagnostics[0].code == "LP307", error
            found = True
        assert found == wanted, order


# ---------------------------------------------------------------- threads


OF_MEET = {
    "RETURN_BEFORE_SYNC": ("LP305", "`shfl`"),
    "WARP_RETURNS_BEFORE_SYNC": ("LP305", "`sync_block`"),
    "SHFL_IN_A_BRANCH": ("LP305", "`shfl_xor`, while thread .* `shfl`|`shfl`, while thread .* `shfl_xor`"),
    "TWO_COLLECTIVES": ("LP305", "`shfl_xor`, while thread .* `ballot`|`ballot`, while thread .* `shfl_xor`"),
    "SYNC_WHILE_OTHERS_SHFL": ("LP305", "`shfl_xor`, while thread .* `sync_block`|`sync_block`, while .* `shfl_xor`"),
    "NO_SYNC_WARP": ("LP307", "load of .* with the store of thread|store of .* with the load of thread"),
}


def meet(fault: str, schedule: Schedule) -> np.ndarray:
    given, out = aligned(64, "u4"), aligned(64, "u4")
    given[:] = np.arange(64)
    launched(Kernel("meet", shared=256), 1, {"in": given}, {"out": out}, FAULTS.get(fault, 0), schedule=schedule)
    return out


def test_meet_in_every_schedule():
    assert len({meet("", schedule).tobytes() for schedule in schedules(seeds=3)}) == 1


@pytest.mark.parametrize("fault", OF_MEET)
def test_threads_that_part_ways(fault):
    code, said = OF_MEET[fault]
    for schedule in schedules():
        where = r"^kernel `meet`, block 0, thread \d+, kernel.cu:\d+: "
        refused(code, f"{where}.*({said})", lambda s=schedule: meet(fault, s))


def chain(blocks: int, backwards: int, fault: str = "", schedule: Schedule = FORWARD) -> np.ndarray:
    numbers, out, turn = aligned(blocks, "u4"), aligned(blocks, "u4"), aligned(1, "u4")
    numbers[:] = np.arange(1, blocks + 1)
    of, given, made = Kernel("chain", threads=32), {"numbers": numbers}, {"out": out, "turn": turn}
    launched(of, blocks, given, made, backwards, FAULTS.get(fault, 0), schedule=schedule)
    return out


def test_blocks_that_wait_for_each_other():
    """In the order in which they begin, a block after the other; against it, all at once."""
    for against, resident in ((0, 1), (0, 3), (1, 8)):
        for schedule in schedules(resident):
            backwards = against ^ (schedule.order == "reverse")
            assert list(chain(8, backwards, schedule=schedule)) == [1, 3, 6, 10, 15, 21, 28, 36], schedule


def test_deadlocks():
    waits = r"all wait: .*threads? in (load_acquire|pause) at kernel.cu:\d+"
    for schedule in schedules(resident=3):
        against = int(schedule.order != "reverse")
        started = rf"{waits}.*; 5 of 8 blocks have not started$"
        refused("LP306", started, lambda s=schedule, against=against: chain(8, against, schedule=s))
    for schedule in schedules(resident=8):
        refused("LP306", rf"{waits}[^;]*$", lambda s=schedule: chain(8, 0, "NEVER_RELEASED", s))


def test_a_loop_without_end():
    """Plain loads give no other thread its turn: on a GPU they may never see what another block writes."""
    refused(
        "LP306", r"^kernel `chain`, .* accesses since this thread last met others", lambda: chain(2, 0, "PLAIN_LOADS")
    )


def test_a_source_overwritten_under_a_copy_shows_where_copies_are_held_back():
    def copied(fault: str, schedule: Schedule) -> list[int]:
        words, out = aligned(32, "u4"), aligned(32, "u4")
        words[:] = np.arange(32)
        made = {"words": words, "out": out}
        launched(Kernel("copy", threads=32, shared=128), 1, {}, made, FAULTS.get(fault, 0), schedule=schedule)
        return out.tolist()

    numbers = list(range(32))
    for schedule in schedules():
        assert copied("", schedule) == numbers
        if schedule.copying != "mixed":
            assert (copied("SOURCE_OVERWRITTEN", schedule) == numbers) == (schedule.copying == "early")


def test_a_lost_update_shows_in_some_schedule():
    numbers = aligned(128, "u4")
    numbers[:] = np.arange(128)

    def sums(fault: str) -> set[int]:
        found, number = set(), FAULTS.get(fault, 0)
        for schedule in schedules(resident=4, seeds=4):
            out = aligned(1, "u4")
            launched(Kernel("add_up", threads=32), 4, {"in": numbers}, {"out": out}, number, schedule=schedule)
            found.add(int(out[0]))
        return found

    assert sums("") == {127 * 64}
    assert len(sums("LOST_UPDATE")) > 1


def test_launches_of_many_python_threads():
    found = []
    threads = [threading.Thread(target=lambda: found.append(multiplied()[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len({out.tobytes() for out in found}) == 1


def test_a_fault_leaves_nothing_behind():
    """Threads that were in the midst of something when a launch ended are forgotten."""
    wanted = multiplied()[0]
    for schedule in schedules():
        refused("LP305", "", lambda s=schedule: multiplied(s, "SYNC_IN_ONE_WARP"))
        assert np.array_equal(multiplied(schedule)[0], wanted)


# ---------------------------------------------------------------- launches


@pytest.mark.parametrize(
    "of, grid, arguments, said",
    [
        (Kernel("reach", threads=48), 1, 3, "48 threads per block: a block has whole warps of 32, at most 1024"),
        (Kernel("reach", threads=2048), 1, 3, "2048 threads per block: a block has whole warps"),
        (Kernel("reach", threads=128), 1, 3, "128 threads per block: LD_KERNEL allows it 64"),
        (Kernel("reach", shared=232449), 1, 3, "232449 bytes of shared memory: a block has at most 232448"),
        (Kernel("reach"), 0, 3, "0 blocks: a grid has 1 to 2147483647"),
        (Kernel("reach"), 1, 2, "2 arguments: it has 3 parameters"),
        (Kernel("reaches"), 1, 3, "`reaches` is not in its source: no line of it begins with `LD_KERNEL.reaches,`"),
    ],
    ids=["warps", "many", "bounds", "shared", "grid", "arguments", "name"],
)
def test_launches_that_no_gpu_would_take(of, grid, arguments, said):
    refused("LP302", said, lambda: Launcher().launch(of, grid, [0] * arguments))


@pytest.mark.parametrize(
    "options, said",
    [
        ({"order": "rnd"}, "there is no order 'rnd'"),
        ({"copying": "never"}, "there is no way of copying 'never'"),
        ({"resident": 0}, "0 blocks side by side"),
        ({"resident": -1}, "-1 blocks side by side"),
        ({"resident": 1.5}, "1.5 blocks side by side"),
        ({"seed": -1}, "-1 is no seed"),
    ],
)
def test_schedules_that_are_none(options, said):
    refused("LP302", said, lambda: Schedule(**options))


def test_a_build_that_there_is_not():
    refused("LP302", "there is no build 'plane'", lambda: Launcher(build="plane"))


def test_buffers_that_are_none():
    wide = np.zeros((4, 6), np.float32)
    refused("LP302", "`x` is not contiguous", lambda: Launcher().reads("x", wide.T))
    refused("LP302", "`x` is a list", lambda: Launcher().writes("x", [1, 2]))


@pytest.mark.parametrize("value, kind", [(64.5, "float"), (None, "NoneType"), ("3", "str")])
def test_arguments_are_whole_numbers(value, kind):
    refused("LP302", f"argument 1 is of type {kind}", lambda: Launcher().launch(Kernel("reach"), 1, [0, value, 0]))
