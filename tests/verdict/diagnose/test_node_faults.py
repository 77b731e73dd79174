"""A fault of a node is the cause only of what failed on that node, and of nothing that was surely first elsewhere."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.model import Case, Evidence, RankFacts, SlotFacts, Verdict
from rankfall.model.evidence import SlotClock
from rankfall.model.timestamps import Bound
from rankfall.render.verdict import render_verdict
from rankfall.verdict.diagnose import diagnose
from support.cases import S, at, case, died, left, piece, rank

XID = "gpu_fallen_off_bus"
# What can become of a rank. Those of REAL fail by themselves.
REAL = ("raises", "killed", "device", "lost")
STOPPED_AT = 40.0


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What truly became of the only rank of a node: how, when (seconds), and when its node had a fault."""

    how: str
    seconds: float = 10.0
    fault: float | None = None
    ahead: float = 0.0
    slack: tuple[float, float] = (0.0, 0.0)


def story(*fates: Fate, **fields: Any) -> Case:
    """The evidence of these fates, as the observers make it; each stamp by the clock of its node."""
    ranks, slots, found, clocks = [], [], [], []
    for number, fate in enumerate(fates):
        facts, slot, own = _of(number, fate)
        ranks.append(facts)
        slots.append(slot)
        found += own
        # A fault is joined to the time at which something ended; of what was lost nobody knows it.
        if fate.fault is not None and fate.how != "lost":
            found.append(_fault(number, fate))
        low, high = (round((fate.ahead + off) * S) for off in (-fate.slack[0], fate.slack[1]))
        clocks.append(SlotClock(number, Bound(low, high)))
    return case(ranks, found, slots=tuple(slots), clocks=tuple(clocks), **fields)


def _of(number: int, fate: Fate) -> tuple[RankFacts, SlotFacts, list[Evidence]]:
    when = fate.seconds + fate.ahead
    slot = SlotFacts(slot=number, node=f"node{number}", state="ended", exit_code=1, launcher="plain")
    if fate.how == "stopped":
        ended = died(number, 15, by="wrapper", seconds=STOPPED_AT + fate.ahead, per_node=1)
        return ended, msgspec.structs.replace(slot, exit_code=None, signal=15, killed_by="wrapper"), []
    if fate.how == "lost":
        running = rank(number, per_node=1, state="running", last_line_at=at(when))
        away = _piece("node_lost", number, seconds=when + 20, source="node", trust="platform", specificity=82)
        away = msgspec.structs.replace(away, rank=None)
        return running, msgspec.structs.replace(slot, state="lost", exit_code=None), [away]
    if fate.how == "killed":
        return died(number, 9, seconds=when, per_node=1), slot, []
    if fate.how == "device":
        own = _piece("native_abort", number, seconds=when, line="CUDA error: unknown error")
    elif fate.how == "raises":
        own = _piece("user_code_exception", number, seconds=when, line=f"KeyError: 'column_{number}'")
    else:
        own = _piece("peer_lost", number, seconds=when, role="secondary", line="Connection closed by peer")
    return left(number, 1, seconds=when + 0.01, per_node=1), slot, [own]


def _piece(slug: str, number: int, **fields: Any) -> Evidence:
    return piece(slug, number, **({"slot": number, "node": f"node{number}"} | fields))


def _fault(number: int, fate: Fate) -> Evidence:
    """As ``around_nodes`` makes it: at the rank that failed, else at the slot."""
    assert fate.fault is not None
    failed = fate.how in {"raises", "killed", "device", "victim"}
    made = _piece(
        XID,
        number,
        seconds=fate.fault + fate.ahead,
        source="event",
        trust="platform",
        uncertainty=1.0,
        pid=None,
        specificity=80,
        line=f"XidError: node{number} has lost its GPU",
        where=f"event of node/node{number}",
    )
    return made if failed else msgspec.structs.replace(made, rank=None)


def told(*fates: Fate, **fields: Any) -> Verdict:
    return diagnose(story(*fates, **fields)).verdict


@st.composite
def clocked(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "ahead": draw(st.sampled_from([0.0, 0.0, 90.0, -3.0])),
        "slack": (draw(st.sampled_from([0.0, 0.5, 30.0])), draw(st.sampled_from([0.0, 0.5, 30.0]))),
    }


@st.composite
def stories(draw: st.DrawFn) -> tuple[Fate, ...]:
    """Three nodes; victims fall after the first failure, as does Rankfall's stop."""
    seconds = draw(st.permutations([2.0, 5.0, 5.2, 9.0, 20.0]))[:3]
    hows = [draw(st.sampled_from([*REAL, "stopped", "victim"])) for _ in range(3)]
    if not set(hows) & set(REAL):
        hows[0] = "raises"
    first = min(s for s, how in zip(seconds, hows, strict=True) if how in REAL)
    return tuple(
        Fate(
            how=how,
            seconds=max(when, first + 0.2) if how == "victim" else when,
            fault=draw(st.none() | st.sampled_from([-30.0, 1.0, 4.9, 8.0, 19.0, 25.0])),
            **draw(clocked()),
        )
        for how, when in zip(hows, seconds, strict=True)
    )


def first_of(fates: tuple[Fate, ...]) -> int:
    return min((fate.seconds, n) for n, fate in enumerate(fates) if fate.how in REAL)[1]


@settings(max_examples=400)
@given(fates=stories())
def test_i19_p5_no_node_is_named_for_a_fault_on_which_nothing_failed_by_itself(fates):
    verdict = told(*fates)
    if verdict.cause.slug not in {XID, "node_lost"}:
        assert (verdict.node_action, verdict.retry == "elsewhere") == ("none", False)
        return
    assert verdict.slot is not None
    assert fates[verdict.slot].how in REAL
    assert verdict.node == f"node{verdict.slot}"


@settings(max_examples=400)
@given(fates=stories())
def test_i19_p5_a_fault_elsewhere_never_outweighs_the_exception_that_was_first(fates):
    first = first_of(fates)
    verdict = told(*fates)
    if fates[first].how == "raises" and fates[first].fault is None:
        assert verdict.cause.slug not in {XID, "node_lost"}
        assert (verdict.node_action, verdict.retry != "elsewhere") == ("none", True)
    elif verdict.cause.slug == XID and verdict.slot != first:
        # Only what the clocks cannot order is left: no node is tainted for that, and no controller is told.
        assert verdict.cause.confidence != "proven"
        assert verdict.node_action != "taint"


@settings(max_examples=300)
@given(fates=stories())
def test_i19_p5_with_clocks_that_agree_a_fault_is_named_only_where_the_first_failure_was(fates):
    exact = tuple(msgspec.structs.replace(fate, ahead=0.0, slack=(0.0, 0.0)) for fate in fates)
    verdict = told(*exact)
    # When a node was lost is known no better than between its last line and the word of the platform.
    if verdict.cause.slug == XID and all(fate.how != "lost" for fate in exact):
        assert verdict.slot == first_of(exact)


@settings(max_examples=300)
@given(fates=stories())
def test_i19_p5_no_exception_of_a_ranks_own_code_is_a_consequence(fates):
    # What nobody can tell from an echo of a death that came before is another matter.
    fates = tuple(f if f.how not in {"killed", "lost"} else msgspec.structs.replace(f, how="device") for f in fates)
    verdict = told(*fates)
    raised = {number for number, fate in enumerate(fates) if fate.how == "raises" and fate.fault is None}
    assert not raised & {one.rank for one in verdict.consequences}
    also = {fault.rank for fault in verdict.independent or ()}
    assert raised - {verdict.rank} <= also


def test_i19_p5_the_story_of_the_issue():
    verdict = told(Fate(how="stopped", fault=9.0), Fate(how="raises"))
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("user_code_exception", "proven", 1)
    assert (verdict.retry, verdict.node_action) == ("no", "none")
    assert [(one.rank, one.slug) for one in verdict.consequences] == [(0, "peer_teardown")]
    (fault,) = verdict.independent
    assert (fault.slug, fault.node, fault.slot) == (XID, "node0", 0)
    assert "nothing on node node0 had failed by itself" in fault.because
    text = render_verdict(verdict)
    assert "Separate failures, not caused by the first one" in text
    assert text.count("gpu_fallen_off_bus") == 1


def test_i19_p5_a_fault_that_felled_its_own_rank_first_stays_the_cause_and_a_later_exception_stands_beside_it():
    verdict = told(Fate(how="device", seconds=5, fault=4.0), Fate(how="raises", seconds=9))
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.node) == (XID, "proven", "node0")
    assert (verdict.retry, verdict.node_action) == ("elsewhere", "taint")
    assert verdict.consequences == ()
    assert [(fault.slug, fault.rank) for fault in verdict.independent] == [("user_code_exception", 1)]


def test_i19_p5_what_came_after_an_exception_of_the_same_rank_is_not_its_cause():
    verdict = told(Fate(how="raises", seconds=5, fault=15.0), Fate(how="stopped"))
    assert (verdict.cause.slug, verdict.node_action) == ("user_code_exception", "none")
    verdict = told(Fate(how="raises", seconds=5, fault=4.0), Fate(how="stopped"))
    assert (verdict.cause.slug, verdict.node_action) == (XID, "taint")


@pytest.mark.parametrize(
    ("waits", "confidence", "retry", "action"),
    [("collective_timeout", "proven", "elsewhere", "taint"), ("peer_lost", "suspected", "once", "none")],
)
def test_i19_p5_where_nothing_failed_by_itself_a_fault_explains_only_that_others_waited(
    waits, confidence, retry, action
):
    made = story(Fate(how="stopped", fault=9.0), Fate(how="victim"))
    changed = [msgspec.structs.replace(e, slug=waits) if e.slug == "peer_lost" else e for e in made.evidence]
    verdict = diagnose(msgspec.structs.replace(made, evidence=tuple(changed))).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry, verdict.node_action) == (
        XID,
        confidence,
        retry,
        action,
    )


def test_i19_p5_a_node_that_was_lost_while_its_ranks_still_wrote_was_not_first():
    later = told(Fate(how="raises", seconds=5), Fate(how="lost", seconds=9))
    assert (later.cause.slug, later.node_action) == ("user_code_exception", "none")
    sooner = told(Fate(how="lost", seconds=2), Fate(how="killed", seconds=40))
    assert (sooner.cause.slug, sooner.node) == ("node_lost", "node0")


def test_i19_p5_of_two_faults_the_one_counts_whose_node_failed():
    verdict = told(Fate(how="stopped", fault=4.0), Fate(how="device", seconds=10, fault=9.5))
    assert (verdict.cause.slug, verdict.node, verdict.cause.confidence) == (XID, "node1", "proven")
    assert [fault.node for fault in verdict.independent] == ["node0"]


def test_i19_p13_a_kill_for_memory_that_counter_and_platform_both_show_is_proven():
    counter = _piece("host_oom", 1, source="kernel", trust="wrapper", specificity=85, uncertainty=0.5)
    label = _piece("host_oom", 1, source="pod", trust="platform", specificity=85, uncertainty=1.0, pid=None)
    item = story(Fate(how="stopped"), Fate(how="killed", seconds=1.0))
    item = msgspec.structs.replace(item, evidence=(counter, msgspec.structs.replace(label, rank=None)))
    verdict = diagnose(item).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("host_oom", "proven", 1)


def test_i19_p5_where_only_slots_are_known_their_own_ends_count():
    """As of a job without a recorder: no rank is known."""

    def seen(faulty: SlotFacts, *more: Evidence) -> Verdict:
        item = story(Fate(how="stopped", fault=9.0), Fate(how="raises"))
        other = msgspec.structs.replace(item.slots[1], state="ended", exit_code=1, ended_at=at(10))
        fault, raised = (msgspec.structs.replace(e, rank=None, pid=None) for e in item.evidence)
        return diagnose(
            msgspec.structs.replace(
                item, ranks=(), world_size=None, slots=(faulty, other), evidence=(fault, raised, *more)
            )
        ).verdict

    ended = SlotFacts(slot=0, node="node0", state="ended", exit_code=7, ended_at=at(9.5), ended_uncertainty=0.1)
    assert seen(ended).node == "node0"
    for faulty in (
        msgspec.structs.replace(ended, ended_at=at(20)),
        msgspec.structs.replace(ended, exit_code=None, signal=15, killed_by="foreign"),
        msgspec.structs.replace(ended, state="running", exit_code=None, ended_at=None),
    ):
        assert (seen(faulty).cause.slug, seen(faulty).node_action) == ("user_code_exception", "none")
    words = msgspec.structs.replace(_piece("peer_lost", 0, role="secondary", seconds=9.4), rank=None, pid=None)
    assert seen(ended, words).cause.slug == "user_code_exception"
    assert seen(msgspec.structs.replace(ended, state="unknown")).cause.slug in {XID, "user_code_exception"}


def test_i19_p5_a_doubtful_fault_of_a_node_yields_to_a_proven_one_of_the_same_time() -> None:
    """A power cut beside it, noticed late: which was first the clocks do not show, and both stand in the verdict."""
    found = told(
        Fate(how="lost", seconds=9.0), Fate(how="killed", seconds=10.0, fault=9.9), Fate(how="victim", seconds=10.4)
    )
    assert (found.cause.slug, found.slot, found.node) == (XID, 1, "node1")
    assert [(one.slug, one.node) for one in found.independent or ()] == [("node_lost", "node0")]
    assert "Separate failures" in render_verdict(found)


def test_i19_p5_a_node_that_still_printed_was_not_lost_before() -> None:
    """Its silence is noticed half a minute later; the last line of its ranks is the bound."""
    lost = story(
        Fate(how="lost", seconds=10.5), Fate(how="killed", seconds=9.9, fault=9.0), Fate(how="victim", seconds=10.4)
    )
    wide = [
        msgspec.structs.replace(e, at=at(12.0), uncertainty=31.0) if e.slug == "node_lost" else e for e in lost.evidence
    ]
    found = diagnose(msgspec.structs.replace(lost, evidence=tuple(wide))).verdict
    assert (found.cause.slug, found.slot, found.node) == (XID, 1, "node1")
    (other,) = found.independent or ()
    assert (other.slug, other.node) == ("node_lost", "node0")
