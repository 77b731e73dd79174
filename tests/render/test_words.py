from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.render import formatting


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([1, 0], "0, 1"), ([2, 0, 1], "0-2"), ([0, 1, 2, 3, 7, 9, 10], "0-3, 7, 9, 10")],
)
def test_ranks_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert formatting.ranks(numbers) == text


@given(st.sets(st.integers(0, 100_000), max_size=2000))
def test_a_list_of_ranks_stays_short(numbers: set[int]) -> None:
    assert len(formatting.ranks(numbers)) < 250


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0.0s"), (0.44, "0.4s"), (42, "42s"), (185, "3m05s"), (7800, "2h10m"), (4 * 86400 + 7200, "4d02h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert formatting.span(seconds) == text


def test_times_with_nanoseconds_are_read_and_nonsense_is_unknown() -> None:
    assert formatting.clock("2026-01-31T12:00:01.123456789Z") == "12:00:01.123"
    assert formatting.day("2026-01-31T12:00:01.123456789Z") == "2026-01-31"
    assert formatting.clock("yesterday") == formatting.day(None) == ""
    now = datetime(2026, 1, 31, 12, 1, 1, tzinfo=UTC)
    assert formatting.age("2026-01-31T12:00:01Z", now=now) == "1m00s"
    assert formatting.since(None, None, now=now) == "-"


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (0.001, ""), (0.2, "±0.2s"), (90.0, "±90s")])
def test_only_uncertainty_worth_reading_is_shown(seconds: float | None, text: str) -> None:
    assert formatting.plus_minus(seconds) == text
