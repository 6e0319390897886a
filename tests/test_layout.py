"""The algebra of layouts against brute force: chains, views, refinement and runs."""

import itertools
import math
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given, reject, settings
from hypothesis import strategies as st

from layoutdsl.errors import LayoutError
from layoutdsl.layout import Chain, Run, View, refine, runs

LAWS = settings(derandomize=True, deadline=None, database=None, max_examples=200)


def chain_of(*digits: tuple[int, int]) -> Chain:
    """A chain from (extent, stride), least significant first; the last digit is the top one and never wraps."""
    weights = itertools.accumulate((extent for extent, _ in digits[:-1]), lambda a, b: a * b, initial=1)
    tops = [extent for extent, _ in digits[:-1]] + [0]
    return Chain(tuple((w, extent, stride) for w, extent, (_, stride) in zip(weights, tops, digits)))


EXTENTS = st.sampled_from([1, 2, 2, 4, 4, 8, 3, 6])
STRIDES = st.integers(0, 40) | st.sampled_from([1, 2, 4, 8, 16, 32, 64])
CHAINS = st.lists(st.tuples(EXTENTS, STRIDES), min_size=1, max_size=5).map(lambda digits: chain_of(*digits))
VIEWS = st.builds(View, CHAINS, st.integers(0, 50), st.sampled_from([1, 1, 1, 2, 4]), st.integers(0, 100))


def corners(start: int, loops: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each element of a box: its coordinate and its index in every loop."""
    for index in itertools.product(*(range(count) for count, _ in loops)):
        yield start + sum(i * step for i, (_, step) in zip(index, loops)), index


def elements(run: Run) -> Iterator[tuple[int, int, int]]:
    """(coordinate, target, source) of each element of a run."""
    for index in itertools.product(*(range(loop[0]) for loop in run.loops)):
        moved = [sum(i * loop[column] for i, loop in zip(index, run.loops)) for column in (1, 2, 3)]
        yield run.x + moved[0], run.dst + moved[1], run.src + moved[2]


def refined(start: int, size: int, views: list[View]) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """`refine`, where the views have a common refinement."""
    try:
        return list(refine(start, size, views))
    except LayoutError as error:
        assert error.diagnostics[0].code == "LD110"
        reject()


# --- chains and views -------------------------------------------------------------------------------------------------


def test_the_address_of_gptq_by_hand() -> None:
    """Eight k in a word, words `kw n {kp}`, 64 columns: k 11 is nibble 3 of word 1, which stands 64 words further."""
    assert chain_of((8, 1), (0, 512)).at(11) == 3 * 1 + 1 * 512


def test_the_top_digit_never_wraps_and_none_is_no_address() -> None:
    assert chain_of((4, 1), (2, 10)).at(4 * 1000 + 3) == 3 + 1000 * 10
    assert Chain(()).at(17) == 0


@LAWS
@given(CHAINS, st.integers(0, 50), st.integers(1, 4), st.integers(0, 99), st.integers(0, 200))
def test_a_view_is_the_chain_seen_through_an_offset_and_a_step(
    chain: Chain, offset: int, step: int, base: int, x: int
) -> None:
    assert View(chain, offset, step, base).at(x) == base + chain.at(offset + step * x)


# --- refine -----------------------------------------------------------------------------------------------------------


@LAWS
@given(st.integers(0, 60), st.integers(0, 150), st.lists(VIEWS, min_size=1, max_size=3))
def test_boxes_hold_each_element_once_and_all_views_are_affine_in_them(
    start: int, size: int, views: list[View]
) -> None:
    seen: list[int] = []
    for first, loops in refined(start, size, views):
        assert all(count > 1 and step > 0 for count, step in loops)
        for x, index in corners(first, loops):
            seen.append(x)
            for view in views:
                steps = [view.at(first + step) - view.at(first) for _, step in loops]
                assert view.at(x) == view.at(first) + sum(i * step for i, step in zip(index, steps))
    assert sorted(seen) == list(range(start, start + size))


@LAWS
@given(st.integers(0, 60), st.integers(0, 40), st.lists(VIEWS, min_size=1, max_size=2), st.integers(1, 10**6))
def test_how_many_boxes_there_are_does_not_depend_on_the_extent(
    start: int, rest: int, views: list[View], periods: int
) -> None:
    period = math.lcm(*(weight for view in views for weight, _, _ in view.chain.digits))
    few = refined(start, rest + 2 * period, views)
    many = refined(start, rest + (2 + periods) * period, views)
    assert len(many) == len(few)


def test_a_stretch_between_cuts_is_one_box() -> None:
    view = View(chain_of((8, 1), (4, 100), (0, 7)))
    assert list(refine(32, 64, [view])) == [(32, ((8, 1), (4, 8), (2, 32)))]
    assert list(refine(5, 1, [view])) == [(5, ())]
    assert list(refine(5, 0, [view])) == []


def test_a_cut_inside_a_word_costs_boxes_not_a_table() -> None:
    """From 3 to 20 in words of 8: the rest of word 0, all of word 1, the begin of word 2."""
    boxes = list(refine(3, 17, [View(chain_of((8, 1), (0, 64)))]))
    assert boxes == [(3, ((5, 1),)), (8, ((8, 1),)), (16, ((4, 1),))]


def test_an_offset_moves_the_cuts() -> None:
    """A front pad of 3 zeros: element 0 stands at 3, so words end at 5, 13, ..."""
    boxes = list(refine(0, 16, [View(chain_of((8, 1), (0, 64)), offset=3)]))
    assert boxes == [(0, ((5, 1),)), (5, ((8, 1),)), (13, ((3, 1),))]


def test_a_step_that_divides_no_digit_is_refused() -> None:
    with pytest.raises(LayoutError) as caught:
        list(refine(0, 10, [View(chain_of((8, 1), (0, 64)), step=3)]))
    assert str(caught.value) == (
        "LD110 no-common-refinement: a step of 3 meets a digit of weight 8, which it does not divide\n"
        "  = help: let the number of alternating parts divide the digits of the axis"
    )


def test_digits_that_need_too_many_cuts_are_refused() -> None:
    """Groups of 584 inputs have no common refinement with tiles of 640. One group that is the whole axis needs none."""
    views = [View(chain_of((584, 0), (0, 1))), View(chain_of((640, 0), (0, 1)))]
    assert list(refine(0, 584, views)) == [(0, ((584, 1),))]
    with pytest.raises(LayoutError) as caught:
        list(refine(0, 2000, views))
    assert str(caught.value) == (
        "LD110 no-common-refinement: digits of weight 640 and 584 on one axis need 73 cuts in 46720 elements\n"
        "  = help: one side's digits should divide the other's: check the group size and the tile"
    )


# --- runs -------------------------------------------------------------------------------------------------------------


def all_runs(length: int, target: View, source: View | None, start: int) -> list[Run]:
    try:
        return list(runs(length, target, source, part=2, start=start))
    except LayoutError as error:
        assert error.diagnostics[0].code == "LD110"
        reject()


@LAWS
@given(st.integers(0, 120), VIEWS, st.none() | VIEWS, st.integers(0, 30))
@example(48, View(chain_of((8, 1), (0, 64)), 3), View(chain_of((4, 16), (3, 1), (0, 100)), 1, 2, 9), 0)
def test_runs_are_the_elements_of_both_views(length: int, target: View, source: View | None, start: int) -> None:
    found = all_runs(length, target, source, start)
    expected = [(x, target.at(x), source.at(x) if source else 0) for x in range(start, start + length)]
    assert sorted(element for run in found for element in elements(run)) == expected
    assert all(run.part == 2 and not run.join for run in found)
    assert [run.x for run in found] == sorted(run.x for run in found)


@LAWS
@given(st.integers(1, 120), VIEWS, VIEWS)
def test_loops_stand_innermost_first_and_join_where_they_can(length: int, target: View, source: View) -> None:
    for run in all_runs(length, target, source, 0):
        for inner, outer in zip(run.loops, run.loops[1:]):
            assert inner[1] < outer[1]
            assert [inner[0] * step for step in inner[1:]] != list(outer[1:])
        assert all(loop[0] > 1 for loop in run.loops)


@LAWS
@given(CHAINS, CHAINS, st.integers(1, 9), st.integers(2, 5))
def test_alternating_parts_are_runs_of_their_own(target: Chain, source: Chain, length: int, parts: int) -> None:
    """Rows of several parts in turn: each part is a view with that step, and together they are all rows."""
    assume(all(weight % parts == 0 or parts % weight == 0 for weight, _, _ in source.digits))
    seen: list[int] = []
    for part in range(parts):
        for run in all_runs(length, View(target), View(source, part, parts), 0):
            for x, dst, src in elements(run):
                assert (dst, src) == (target.at(x), source.at(part + parts * x))
                seen.append(part + parts * x)
    assert sorted(seen) == list(range(parts * length))


@LAWS
@given(VIEWS, VIEWS, st.integers(1, 40))
def test_how_many_runs_there_are_does_not_depend_on_the_extent(target: View, source: View, rest: int) -> None:
    period = math.lcm(*(weight for view in (target, source) for weight, _, _ in view.chain.digits))
    few = all_runs(rest + 3 * period, target, source, 0)
    many = all_runs(rest + 3_000_000 * period, target, source, 0)
    assert len(many) == len(few)
