"""When the silence of an open log is doubted: late where little is known of it, soon where it spoke all the time, seldom where that was in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankfall.collect.pods.log_tailer import IDLE_TIMEOUT_S, KNOWN_S, QUIET_S, TIMES, IdleTimeout


def spoken(*moments: float) -> IdleTimeout:
    made = IdleTimeout()
    for moment in moments:
        made.heard(moment)
    return made


def test_a_log_that_has_hardly_spoken_is_given_the_longest_time():
    assert IdleTimeout().limit() == IDLE_TIMEOUT_S
    assert spoken(100.0).limit() == IDLE_TIMEOUT_S
    assert spoken(100.0, 100.0 + KNOWN_S - 1).limit() == IDLE_TIMEOUT_S


def test_one_that_speaks_all_the_time_is_doubted_soon():
    assert spoken(*range(121)).limit() == QUIET_S


def test_its_longest_silence_counts():
    assert spoken(*range(121), 150, 151).limit() == TIMES * 30
    assert spoken(*range(121), 1000, 1001).limit() == IDLE_TIMEOUT_S


def test_each_doubt_in_vain_doubles_the_time_until_it_speaks_again():
    made = spoken(*range(121))
    found = []
    for _ in range(6):
        found.append(made.limit())
        made.doubted()
    assert found == [20, 40, 80, 160, 240, 240]
    made.heard(125.0)
    assert made.limit() == QUIET_S


@given(st.lists(st.floats(0, 1e6), max_size=30), st.integers(0, 100))
def test_the_time_is_always_within_its_bounds(pauses, vain):
    made, now = IdleTimeout(), 0.0
    for pause in pauses:
        now += pause
        made.heard(now)
    for _ in range(vain):
        made.doubted()
    assert QUIET_S <= made.limit() <= IDLE_TIMEOUT_S
