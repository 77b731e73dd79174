from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.cli import values
from rankfall.model import UsageError

NOW = 1_790_000_000_000_000_000


@pytest.mark.parametrize(("text", "nodes"), [("2", (2, None)), ("2:4", (2, 4)), ("3:3", (3, 3))])
def test_nodes(text: str, nodes: tuple[int, int | None]) -> None:
    assert values.parse_nnodes(text) == nodes


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "4:2", "1:", ":2", "1:2:3", "1.5", "99999999", "²"])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--nnodes") as error:
        values.parse_nnodes(text)
    assert "MIN:MAX" in str(error.value)


def test_ranks_mix_numbers_ranges_and_words() -> None:
    found = values.parse_ranks(["0,8-10", "last", "failed"])
    assert found == values.Ranks(numbers=frozenset({0, 8, 9, 10}), last=True, failed=True)
    assert values.parse_ranks(["first"]).numbers == {0}
    assert values.parse_ranks([]).everything


@pytest.mark.parametrize("text", ["", "x", "-1", "3-1", "1,,2", "0-99999999", "1-2-3"])
def test_what_is_no_rank_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="first, last, failed"):
        values.parse_ranks([text])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400)]
)
def test_spans(text: str, seconds: float) -> None:
    assert values.parse_span(text, flag="--timeout") == seconds


@given(st.text(max_size=20))
def test_any_text_is_a_span_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert values.parse_span(text, flag="--timeout") >= 0


def test_never_switches_a_limit_off_and_zero_is_refused() -> None:
    assert values.parse_span_or_never("never", flag="--hang-timeout") is None
    with pytest.raises(UsageError, match="never"):
        values.parse_span_or_never("0", flag="--hang-timeout")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10m", NOW - 600 * 10**9),
        ("2026-09-21T14:13:20Z", NOW),
        ("2026-09-21T16:13:20+02:00", NOW),
        ("2026-09-21T14:13:20", NOW),
        ("2026-09-21", NOW - (14 * 3600 + 13 * 60 + 20) * 10**9),
    ],
)
def test_since_takes_ages_and_times(text: str, at: int) -> None:
    assert values.parse_since(text, now=NOW) == at


@pytest.mark.parametrize("text", ["", "yesterday", "2026-99-99", "10 m", "-5m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        values.parse_since(text, now=NOW)


def test_variables_take_values_from_here_when_they_name_none() -> None:
    assert values.parse_env(["A=1", "B=", "C==x", "HOME"], environ={"HOME": "h"}) == {
        "A": "1",
        "B": "",
        "C": "=x",
        "HOME": "h",
    }


@pytest.mark.parametrize("text", ["=1", "", "MISSING"])
def test_a_variable_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--env"):
        values.parse_env([text], environ={})


def test_budgets_name_causes_or_families() -> None:
    assert values.parse_budgets(["network=5", "host_oom=0"]) == {"network": 5, "host_oom": 0}


@pytest.mark.parametrize("text", ["network", "network=", "network=-1", "network=x", "nonsense=1", "host_om=1"])
def test_a_wrong_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        values.parse_budgets([text])


def test_a_mistyped_cause_is_answered_with_the_near_one() -> None:
    with pytest.raises(UsageError, match="host_oom"):
        values.parse_budgets(["host_om=1"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("64K", 65536), ("10M", 10 << 20), ("1.5G", 3 << 29), ("2 MiB", 2 << 20), ("7kb", 7168)],
)
def test_sizes(text: str, size: int) -> None:
    assert values.parse_size(text, flag="--max-bytes") == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1T", "1,5M", "ten", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no size"):
        values.parse_size(text, flag="--max-bytes")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("all", {"policy": "all"}),
        ("rank0", {"policy": "rank0"}),
        ("0.8", {"policy": "fraction", "fraction": 0.8}),
        ("80%", {"policy": "fraction", "fraction": 0.8}),
        ("1", {"policy": "fraction", "fraction": 1.0}),
    ],
)
def test_success_policies(text: str, found: dict[str, object]) -> None:
    assert values.parse_success(text) == found


@pytest.mark.parametrize("text", ["", "some", "0", "0%", "101%", "1.1", "-0.5", "80 %"])
def test_what_is_no_success_policy_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="rank0"):
        values.parse_success(text)
