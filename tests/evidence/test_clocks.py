"""Clocks of an attempt's nodes: what lines, records and stamps on objects prove together, and what counts as ours."""

from __future__ import annotations

import pytest

from rankfall.evidence.node_clocks import NodeClocks
from rankfall.model import RankFacts, SlotFacts
from rankfall.model.evidence import SlotClock
from rankfall.model.timestamps import EXACT, Bound

NS = 1_000_000_000


def clocks(*nodes: str | None) -> NodeClocks:
    return NodeClocks(lambda slot: nodes[slot] if slot is not None and slot < len(nodes) else None)


def test_what_came_almost_at_once_is_by_our_own_clock():
    made = clocks("n1")
    made.came(0, NS // 50)
    made.proved(0, Bound(None, 2 * NS))
    assert (made.ahead(0), made.off(), made.table()) == (EXACT, {}, ())
    assert made.ours(0, 1000) == 1000


def test_the_clock_of_a_node_is_that_of_all_its_slots():
    made = clocks("n1", "n1", "n2")
    made.came(0, -90 * NS)
    made.proved(1, Bound(None, 91 * NS))
    assert made.ahead(0) == made.ahead(1) == Bound(90 * NS, 91 * NS)
    assert made.ahead(2) is EXACT
    assert list(made.off()) == [0, 1]
    assert made.table() == (SlotClock(0, Bound(90 * NS, 91 * NS)), SlotClock(1, Bound(90 * NS, 91 * NS)))


@pytest.mark.parametrize("seconds", [90, -90])
def test_a_clock_that_is_off_is_bounded_by_two_proofs_and_its_times_told_by_ours(seconds):
    made = clocks("n1")
    made.came(0, NS // 20 - seconds * NS)
    made.proved(0, Bound(None, (seconds + 1) * NS))
    ahead = made.ahead(0)
    assert (ahead.lo, ahead.hi) == (seconds * NS - NS // 20, (seconds + 1) * NS)
    rank = made.retimed(RankFacts(rank=0, slot=0, started_at=None, ended_at=(1000 + seconds) * NS))
    slot = made.retimed(SlotFacts(slot=0, started_at=(990 + seconds) * NS))
    assert rank.started_at is None
    assert rank.ended_at == pytest.approx(1000 * NS, abs=NS)
    assert slot.started_at == pytest.approx(990 * NS, abs=NS)
    # What it stamped after our own request it surely stamped after it.
    assert made.late(0) == -ahead.lo


def test_a_slow_link_is_no_clock_that_is_behind_but_cannot_be_told_from_one():
    made = clocks("n1")
    made.came(0, 20 * NS)
    made.proved(0, Bound(None, NS))
    assert made.ahead(0) == Bound(-20 * NS, NS)


def test_without_lines_whole_seconds_make_no_clock_wrong_and_90_do():
    made = clocks("n1", "n2")
    made.proved(0, Bound(-30 * NS, 2 * NS))
    made.proved(1, Bound(-30 * NS, -88 * NS // 10))
    assert made.ahead(0) is EXACT
    assert made.ahead(1) == Bound(-30 * NS, -88 * NS // 10)


def test_a_clock_that_was_set_in_between_says_nothing_any_more():
    made = clocks("n1")
    made.came(0, -90 * NS)
    made.proved(0, Bound(None, NS))
    assert made.ahead(0) == Bound(None, None)
    assert made.late(0) > 1 << 60


def test_a_lease_bounds_the_clock_of_all_slots_on_its_node():
    made = clocks("n1", "n1")
    made.came(0, 90 * NS)
    made.proved_of_node("n1", Bound(-91 * NS, -85 * NS))
    assert made.ahead(0) == made.ahead(1) == Bound(-90 * NS, -85 * NS)


def test_a_writer_that_stood_still_before_it_wrote_is_not_behind():
    made = clocks("n1")
    made.written(0, at=100 * NS, arrived=103 * NS)
    made.written(0, at=110 * NS, arrived=110 * NS + 1000)
    assert made.ahead(0) is EXACT


@pytest.mark.parametrize(
    ("ahead", "off"),
    [
        (Bound(-NS, NS // 10), False),
        (Bound(59 * NS, 60 * NS), True),
        (Bound(-60 * NS, -59 * NS), True),
        (Bound(), False),
    ],
)
def test_a_servers_clock_is_named_when_it_is_not_ours(ahead, off):
    made = clocks()
    made.server(ahead)
    assert made.table() == ((SlotClock(None, ahead),) if off else ())
