"""The arithmetic of proofs against brute force: sums of powers, runs that follow a view, runs that cover a stretch."""

import itertools
import time
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_layout import CHAINS, LAWS, VIEWS, all_runs, chain_of, elements

from layoutdsl import laws
from layoutdsl.laws import DST, PRIME, SRC, Point, X
from layoutdsl.layout import Chain, Run, View

POINTS = st.integers(2, PRIME - 2).map(Point)
NUMBERS = st.integers(0, 60)
STEPS = st.integers(0, 20)
LOOPS = st.lists(st.tuples(st.integers(2, 5), st.integers(1, 20), STEPS, STEPS), max_size=3).map(tuple)
RUNS = st.builds(Run, st.just(0), NUMBERS, NUMBERS, NUMBERS, LOOPS, st.booleans())


def column(run: Run, at: int) -> list[int]:
    return [element[at - 1] for element in elements(run)]


# --- sums of powers ---------------------------------------------------------------------------------------------------


@LAWS
@given(st.integers(0, PRIME - 1), st.integers(0, 300))
def test_a_geometric_sum(z: int, count: int) -> None:
    assert laws.geometric(z, count) == sum(pow(z, i, PRIME) for i in range(count)) % PRIME


def test_a_geometric_sum_of_any_length_is_quick() -> None:
    z, count = 3, 10**18
    assert laws.geometric(z, count) * (z - 1) % PRIME == (pow(z, count, PRIME) - 1) % PRIME
    assert laws.geometric(1, count) == count


@LAWS
@given(POINTS, st.lists(RUNS, max_size=4), st.sampled_from([X, DST, SRC]))
def test_the_total_of_a_column(point: Point, runs: list[Run], at: int) -> None:
    assert point.total(runs, at) == sum(point.power(number) for run in runs for number in column(run, at)) % PRIME


@LAWS
@given(POINTS, st.lists(RUNS, max_size=4))
def test_what_runs_write_counts_shared_elements_once_and_joined_runs_not(point: Point, runs: list[Run]) -> None:
    written = 0
    for run in runs:
        indices = itertools.product(*(range(loop[0] if loop[DST] else 1) for loop in run.loops))
        addresses = [run.dst + sum(i * loop[DST] for i, loop in zip(index, run.loops)) for index in indices]
        written += 0 if run.join else sum(map(point.power, addresses))
    assert point.written(runs) == written % PRIME


@LAWS
@given(POINTS, CHAINS, st.integers(0, 300))
def test_the_prefix_of_a_chain(point: Point, chain: Chain, count: int) -> None:
    assert point.prefix(chain, count) == sum(point.power(chain.at(x)) for x in range(count)) % PRIME


def test_the_prefix_of_no_chain_counts() -> None:
    assert Point(7).prefix(Chain(()), 12) == 12


@LAWS
@given(CHAINS, st.integers(0, 10**6))
def test_floors_give_the_addresses_of_the_chain(chain: Chain, x: int) -> None:
    assert sum(factor * (x // weight) for weight, factor in laws.floors(chain.digits)) == chain.at(x)


def test_digits_that_continue_the_one_below_vanish() -> None:
    assert laws.floors(chain_of((4, 1), (2, 4), (8, 8), (0, 100)).digits) == ((1, 1), (64, 100 - 64))
    assert laws.floors(chain_of((4, 0), (0, 0)).digits) == ()


# --- runs that follow a view ------------------------------------------------------------------------------------------


def is_followed(run: Run, view: View, at: int) -> bool:
    return all(view.at(element[0]) == element[at - 1] for element in elements(run))


def check_follows(run: Run, view: View, at: int) -> None:
    wrong = laws.follows(run, view, at)
    assert (wrong is None) == is_followed(run, view, at)
    if wrong is not None:
        assert any(element[0] == wrong and view.at(wrong) != element[at - 1] for element in elements(run))


@LAWS
@given(RUNS, VIEWS, st.sampled_from([DST, SRC]))
def test_a_run_follows_exactly_where_all_its_elements_do(run: Run, view: View, at: int) -> None:
    check_follows(run, view, at)


@LAWS
@given(NUMBERS, st.lists(st.tuples(st.integers(2, 4), st.integers(1, 24)), max_size=3), VIEWS)
def test_a_run_with_the_right_first_step_of_each_loop(x: int, loops: list[tuple[int, int]], view: View) -> None:
    """Right at the first element and at the second of each loop: whether it is right elsewhere is the question."""
    steps = tuple((count, step, view.at(x + step) - view.at(x), 0) for count, step in loops)
    check_follows(Run(0, x, view.at(x), 0, steps), view, DST)


@LAWS
@given(NUMBERS, st.integers(3, 6), st.integers(1, 24), VIEWS)
def test_a_run_with_right_corners(x: int, count: int, step: int, view: View) -> None:
    """Right at both ends of its loop, as far as a whole step allows."""
    moved = (view.at(x + (count - 1) * step) - view.at(x)) // (count - 1)
    check_follows(Run(0, x, view.at(x), 0, ((count, step, moved, 0),)), view, DST)


def test_right_at_the_corners_alone() -> None:
    """A(x) of digits 4 by 25 and a top digit by 100: 0 25 50 75, 100; against 0 1 2 3, 100 the corners agree."""
    run = Run(0, 0, 0, 0, ((5, 1, 25, 0),))
    assert laws.follows(run, View(chain_of((4, 25), (0, 100))), DST) is None
    assert laws.follows(run, View(chain_of((4, 1), (0, 100))), DST) == 1


@LAWS
@given(st.integers(1, 100), VIEWS, VIEWS, st.data())
def test_the_runs_of_two_views_follow_them_and_no_other_number_does(
    length: int, target: View, source: View, data: st.DataObject
) -> None:
    found = all_runs(length, target, source, 0)
    for run in found:
        assert laws.follows(run, target, DST) is None
        assert laws.follows(run, source, SRC) is None
    run = data.draw(st.sampled_from(found))
    field = data.draw(st.sampled_from(["x", "dst", "src", "loops"] if run.loops else ["x", "dst", "src"]))
    by = data.draw(st.sampled_from([-1, 1]))
    if field == "loops":
        loop, place = data.draw(st.integers(0, len(run.loops) - 1)), data.draw(st.integers(0, 3))
        numbers = list(run.loops[loop])
        numbers[place] += by
        edited = replace(run, loops=(*run.loops[:loop], tuple(numbers), *run.loops[loop + 1 :]))
    else:
        edited = replace(run, **{field: getattr(run, field) + by})
    if all(loop[1] > 0 for loop in edited.loops) and edited.x >= 0:
        check_follows(edited, target, DST)
        check_follows(edited, source, SRC)


def test_a_run_that_is_irregular_and_long_counts_as_wrong() -> None:
    """Steps of 3 over a digit of 2 that changes nothing: right, but only a look at every element shows it."""
    view = View(Chain(((1, 2, 1), (2, 2, 2), (4, 0, 5))))
    steps = view.at(3) - view.at(0)
    assert laws.follows(Run(0, 0, 0, 0, ((2, 3, steps, 0),)), view, DST) is None
    start = time.perf_counter()
    assert laws.follows(Run(0, 0, 0, 0, ((10**18, 3, steps, 0), (10**18, 10**20, 0, 0))), view, DST) is not None
    assert time.perf_counter() - start < 1


# --- runs that cover a stretch ----------------------------------------------------------------------------------------


@LAWS
@given(POINTS, st.lists(RUNS, min_size=1, max_size=3), st.integers(0, 60), st.integers(0, 60))
def test_random_runs_hardly_ever_cover(point: Point, runs: list[Run], low: int, size: int) -> None:
    expected = sorted(x for run in runs for x in column(run, X)) == list(range(low, low + size))
    assert laws.covers(runs, low, low + size, point) == expected


@LAWS
@given(POINTS, st.integers(1, 100), VIEWS, st.integers(0, 30), st.data())
@example(Point(3), 40, View(chain_of((8, 1), (0, 64)), 3), 0, None)
def test_the_runs_of_a_view_cover_their_stretch_and_others_do_not(
    point: Point, length: int, view: View, start: int, data: st.DataObject | None
) -> None:
    runs = all_runs(length, view, None, start)
    assert laws.covers(runs, start, start + length, point)
    assert laws.uncovered(runs, start, start + length) is None
    assert not laws.covers(runs, start, start + length + 1, point)
    assert laws.uncovered(runs, start, start + length + 1) == start + length
    if data is not None:
        at = data.draw(st.integers(0, len(runs) - 1))
        without, twice = runs[:at] + runs[at + 1 :], [*runs, runs[at]]
        assert not laws.covers(without, start, start + length, point)
        assert not laws.covers(twice, start, start + length, point)
        assert laws.uncovered(without, start, start + length) == runs[at].x
        assert laws.uncovered(twice, start, start + length) in column(runs[at], X)


def test_unbroken_runs_are_joined_end_to_end() -> None:
    runs = [Run(0, 10, 0, 0, ((2, 1, 0, 0), (5, 2, 0, 0))), Run(0, 7, 0, 0, ((3, 1, 0, 0),)), Run(0, 20, 0, 0, ())]
    assert laws.covers(runs, 7, 21, Point(5))
    assert not laws.covers(runs, 7, 20, Point(5))
    assert not laws.covers(runs, 6, 21, Point(5))
    assert not laws.covers(runs[:2], 7, 21, Point(5))
    assert laws.covers([], 4, 4, Point(5)) and not laws.covers([], 4, 5, Point(5))


def test_interleaved_runs_cover_together() -> None:
    even, odd = Run(0, 0, 0, 0, ((50, 2, 0, 0),)), Run(0, 1, 0, 0, ((50, 2, 0, 0),))
    assert laws.covers([even, odd], 0, 100, Point(5))
    assert not laws.covers([even, even], 0, 100, Point(5))
    assert laws.uncovered([even, even], 0, 100) == 0


# --- messages ---------------------------------------------------------------------------------------------------------


@LAWS
@given(st.lists(RUNS, min_size=1, max_size=2), st.lists(RUNS, min_size=1, max_size=2), st.integers(1, 60))
def test_the_element_that_is_written_not_once(n: list[Run], k: list[Run], total: int) -> None:
    point = Point(11)
    right = (point.written(n) * point.written(k) - point.series(1, total)) % PRIME == 0
    wrong = laws.miswritten([(n, k)], total)
    assert (wrong is None) == right
    if wrong is not None:
        address, times = wrong
        assert times != (1 if 0 <= address < total else 0)


def test_messages_look_at_no_more_than_they_can_list() -> None:
    huge = Run(0, 0, 0, 0, ((10**18, 1, 1, 1), (10**18, 10**18, 10**18, 1)))
    start = time.perf_counter()
    assert laws.uncovered([huge], 0, 10**36 + 1) is None
    assert laws.uncovered([huge], 0, 8) is None
    assert laws.miswritten([([huge], [huge])], 10**18) is None
    assert laws.miswritten([([huge], [huge])], 8) is None
    assert not laws.covers([huge], 0, 8, Point(5))
    assert laws.covers([huge], 0, 10**36, Point(5))
    assert laws.span(huge) == (0, 10**36 - 1) and laws.size(huge) == 10**36
    assert time.perf_counter() - start < 1


@settings(LAWS, max_examples=50)
@given(RUNS)
def test_the_span_and_size_of_a_run(run: Run) -> None:
    assert laws.span(run) == (min(column(run, X)), max(column(run, X)))
    assert laws.size(run) == len(column(run, X))
