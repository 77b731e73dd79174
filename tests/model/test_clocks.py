"""Intervals of clocks: what two proofs say together, and the order of stamps by clocks that disagree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model.timestamps import EXACT, Bound, Moment, first_of, order, preceded

NS = 1_000_000_000
offsets = st.integers(-200 * NS, 200 * NS)
slacks = st.integers(0, 5 * NS)
times = st.integers(0, 1000 * NS)


@st.composite
def around(draw, offset):
    """Any true bound of an offset; either side may be missing."""
    lo, hi = draw(st.none() | slacks), draw(st.none() | slacks)
    return Bound(None if lo is None else offset - lo, None if hi is None else offset + hi)


@st.composite
def stamped(draw, *, clock):
    """A moment as its clock has it, and when it truly was."""
    true, offset = draw(times), draw(offsets)
    return true, Moment(at=true + offset, clock=clock, bound=draw(around(offset)))


@given(st.data(), offsets)
def test_true_proofs_put_together_stay_true_and_never_say_less(data, offset):
    one, other = data.draw(around(offset)), data.draw(around(offset))
    both = one.meet(other)
    assert both == other.meet(one)
    assert both.lo is None or both.lo <= offset
    assert both.hi is None or both.hi >= offset
    for known in (one.lo, other.lo):
        assert known is None or (both.lo is not None and both.lo >= known)
    for known in (one.hi, other.hi):
        assert known is None or (both.hi is not None and both.hi <= known)


@given(st.data(), offsets, offsets)
def test_offsets_of_two_steps_add_up(data, first, second):
    both = data.draw(around(first)).plus(data.draw(around(second)))
    assert both.lo is None or both.lo <= first + second
    assert both.hi is None or both.hi >= first + second


def test_proofs_that_contradict_each_other_allow_what_either_does():
    assert Bound(5, 9).meet(Bound(-9, -5)) == Bound(-9, 9)
    assert Bound(5, None).meet(Bound(None, -5)) == Bound(None, None)


@given(stamped(clock="a"), stamped(clock="b"))
def test_what_is_said_of_two_clocks_is_true_whatever_they_are_off(one, other):
    """However far two clocks are off inside their bounds: "before" and "after" are never said of the other order."""
    said = order(one[1], other[1])
    assert said != "before" or one[0] < other[0]
    assert said != "after" or one[0] > other[0]
    assert order(other[1], one[1]) == {"before": "after", "after": "before", "unknown": "unknown"}[said]


@given(times, times, offsets, st.data())
def test_of_one_clock_its_offset_does_not_matter(first, second, offset, data):
    bound = data.draw(around(offset))
    one, other = (Moment(at=at + offset, clock="n1", bound=bound) for at in (first, second))
    assert order(one, other) == ("before" if first < second else "after" if first > second else "unknown")


@given(stamped(clock="a"), st.integers(-90, 90))
def test_a_bound_that_holds_for_a_shifted_clock_tells_no_other_order(one, seconds):
    """A shift that its bound follows changes nothing that is said."""
    shift, here = seconds * NS, Moment(at=500 * NS, clock="here")
    lo, hi = one[1].bound.lo, one[1].bound.hi
    moved = Moment(
        at=one[1].at + shift,
        clock="a",
        bound=Bound(None if lo is None else lo + shift, None if hi is None else hi + shift),
    )
    assert order(moved, here) == order(one[1], here)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (Moment(at=None), Moment(at=5), "unknown"),
        (Moment(at=5 * NS), Moment(at=6 * NS), "before"),
        (Moment(at=5 * NS, uncertainty=0.6), Moment(at=6 * NS, uncertainty=0.6), "unknown"),
        # 90 s ahead and said so: its 95 was 5.
        (Moment(at=95 * NS, bound=Bound(90 * NS, 90 * NS)), Moment(at=6 * NS), "before"),
        # At least 80 s ahead: it can only have been earlier still.
        (Moment(at=85 * NS, bound=Bound(80 * NS, None)), Moment(at=6 * NS), "before"),
        (Moment(at=95 * NS, bound=Bound(80 * NS, None)), Moment(at=6 * NS), "unknown"),
    ],
)
def test_before_after_or_cannot_be_told(one, other, said):
    assert order(one, other) == said


def test_a_stamp_is_told_by_the_common_clock_with_what_it_may_be_off():
    assert Moment(at=100 * NS, uncertainty=0.5, bound=Bound(90 * NS, 92 * NS)).common == (9 * NS, 1.5)
    assert Moment(at=100 * NS, bound=Bound(90 * NS, None)).common == (100 * NS, 90.0)
    assert Moment(at=100 * NS, bound=Bound()).common == (100 * NS, 0.0)
    assert Moment(at=100 * NS, bound=EXACT).common == (100 * NS, 0.0)
    assert Moment(at=None).common == (None, 0.0)


bounds = st.tuples(st.none() | st.integers(-3 * NS, 0), st.none() | st.integers(0, 3 * NS)).map(lambda two: Bound(*two))
moments = st.lists(
    st.builds(
        Moment,
        at=st.none() | st.integers(0, 20).map(lambda n: n * NS // 2),
        uncertainty=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
        clock=st.sampled_from(["", "a", "b", "c"]),
        bound=bounds,
    ),
    max_size=12,
)


@given(moments)
def test_i18_whom_another_one_precedes_is_found_without_asking_all_pairs(given_moments):
    pairs = [any(order(other, one) == "before" for other in given_moments if other is not one) for one in given_moments]
    assert preceded(given_moments) == pairs


@given(moments)
def test_i18_who_is_before_all_others_is_found_without_asking_all_pairs(given_moments):
    firsts = [
        number
        for number, one in enumerate(given_moments)
        if all(order(one, other) == "before" for each, other in enumerate(given_moments) if each != number)
    ]
    assert first_of(given_moments) == (firsts[0] if firsts else None)
