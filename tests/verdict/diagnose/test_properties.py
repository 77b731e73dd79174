"""Properties of the reducer: order, names, duplicates and bounded clock shifts never change a verdict; a consequence never moves the root."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.model import Case, catalogue
from rankfall.model.evidence import SlotClock
from rankfall.model.timestamps import Bound
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.diagnose.cause_tables import NEVER_CAUSE
from support.cases import S, at, case, died, left, piece, rank

pytestmark = pytest.mark.steady

PRIMARY = sorted(s for s, i in catalogue().items() if i.role == "primary" and s not in {"cancelled", "unknown"})
SECONDARY = sorted(s for s, i in catalogue().items() if i.role == "secondary")
WORLD = 4


@st.composite
def facts(draw, number):
    kind = draw(st.sampled_from(["left", "died", "agent", "running", "ok"]))
    seconds = draw(st.none() | st.integers(0, 50))
    if kind == "left":
        return left(number, draw(st.sampled_from([1, 2, 3, 127])), seconds=seconds)
    if kind == "died":
        return died(number, draw(st.sampled_from([6, 7, 9, 11, 15])), seconds=seconds)
    if kind == "agent":
        return died(number, 15, by="agent", seconds=seconds)
    if kind == "running":
        return rank(number, state="running")
    return left(number, 0, seconds=seconds)


@st.composite
def pieces(draw):
    role = draw(st.sampled_from(["primary", "secondary"]))
    return piece(
        draw(st.sampled_from(PRIMARY if role == "primary" else SECONDARY)),
        draw(st.sampled_from([0, 1, 2, 3, None])),
        role=role,
        seconds=draw(st.none() | st.integers(0, 50)),
        line=draw(st.sampled_from(["a", "b", "c"])),
        specificity=draw(st.sampled_from([10, 20, 40, 60, 80])),
        source=draw(st.sampled_from(["log", "record", "kernel"])),
        trust=draw(st.sampled_from(["job", "inside", "wrapper"])),
        uncertainty=draw(st.sampled_from([0.0, 0.5, 3.0])),
    )


@st.composite
def cases(draw):
    ranks = [draw(facts(n)) for n in range(WORLD)]
    return case(ranks, draw(st.lists(pieces(), max_size=8)))


def answer(item: Case):
    verdict = diagnose(item).verdict
    return (
        verdict.cause.slug,
        verdict.rank,
        verdict.scope,
        verdict.slot,
        verdict.node,
        verdict.retry,
        verdict.node_action,
    )


@given(cases(), st.randoms(use_true_random=False))
def test_order_and_duplicates_never_change_a_verdict(item, rng):
    evidence, ranks = list(item.evidence), list(item.ranks)
    evidence += [e for e in evidence if rng.random() < 0.5]
    rng.shuffle(evidence)
    rng.shuffle(ranks)
    shuffled = msgspec.structs.replace(item, evidence=tuple(evidence), ranks=tuple(ranks))
    assert msgspec.json.encode(diagnose(shuffled).verdict) == msgspec.json.encode(diagnose(item).verdict)


@given(cases(), st.text(st.characters(codec="ascii"), min_size=1, max_size=8))
def test_names_of_files_never_change_a_verdict(item, prefix):
    renamed = tuple(msgspec.structs.replace(e, where=prefix + e.where, id=prefix + e.id) for e in item.evidence)
    assert answer(msgspec.structs.replace(item, evidence=renamed)) == answer(item)


@given(cases(), st.integers(0, 1), st.floats(-1.0, 1.0))
@settings(max_examples=200)
def test_a_clock_shift_inside_its_bound_never_changes_a_verdict(item, slot, share):
    """Stamps of one node are shifted by at most the bound that they state; times are whole seconds apart, so the bound decides alone."""
    bound = 0.4
    widen = [msgspec.structs.replace(e, uncertainty=bound) for e in item.evidence]
    ranks = [msgspec.structs.replace(r, ended_uncertainty=bound) for r in item.ranks]
    base = msgspec.structs.replace(item, evidence=tuple(widen), ranks=tuple(ranks))
    shift = round(share * 0.09e9)  # two intervals of 0.4 s leave 0.2 s between whole seconds
    moved = msgspec.structs.replace(
        base,
        evidence=tuple(
            msgspec.structs.replace(e, at=e.at + shift) if e.at is not None and e.slot == slot else e for e in widen
        ),
        ranks=tuple(
            msgspec.structs.replace(r, ended_at=r.ended_at + shift) if r.ended_at is not None and r.slot == slot else r
            for r in ranks
        ),
    )
    assert answer(moved) == answer(base)


@given(cases(), st.integers(0, 1), st.sampled_from([90, -90, 3600]), st.floats(-1.0, 1.0))
@settings(max_examples=200)
def test_a_node_whose_clock_is_90_s_off_changes_nothing(item, slot, seconds, share):
    """All that one node stamped is shifted, and what is known of its clock is an interval around that: rank, node, cause and retry stay."""
    bound = 0.4
    widen = [msgspec.structs.replace(e, uncertainty=bound) for e in item.evidence]
    ranks = [msgspec.structs.replace(r, ended_uncertainty=bound) for r in item.ranks]
    base = msgspec.structs.replace(item, evidence=tuple(widen), ranks=tuple(ranks))
    shift, slack = seconds * S, round(0.09 * S)  # two intervals of 0.4 s leave 0.2 s between whole seconds
    middle = shift + round(share * slack)
    moved = msgspec.structs.replace(
        base,
        evidence=tuple(
            msgspec.structs.replace(e, at=e.at + shift) if e.at is not None and e.slot == slot else e for e in widen
        ),
        ranks=tuple(
            msgspec.structs.replace(r, ended_at=r.ended_at + shift) if r.ended_at is not None and r.slot == slot else r
            for r in ranks
        ),
        clocks=(SlotClock(slot, Bound(middle - slack, middle + slack)),),
    )
    assert answer(moved) == answer(base)


@given(cases(), st.sampled_from(SECONDARY), st.integers(0, WORLD - 1), st.integers(0, 50))
@settings(max_examples=300)
def test_adding_a_consequence_never_changes_the_root(item, slug, number, seconds):
    before = diagnose(item).verdict
    facts_of = {r.rank: r for r in item.ranks}
    spoke = {e.rank for e in item.evidence if e.role == "primary"}
    bystander = facts_of[number].killed_by in {"agent", "wrapper"} or number in spoke
    if not bystander or before.cause.confidence in {"unknown", "suspected"} or number == before.rank:
        return
    more = piece(slug, number, role="secondary", seconds=seconds, line="later")
    after = diagnose(msgspec.structs.replace(item, evidence=(*item.evidence, more))).verdict
    if before.cause.slug in SECONDARY or before.cause.slug == "uneven_data":
        return
    assert (after.cause.slug, after.rank) == (before.cause.slug, before.rank)


@given(cases())
def test_a_verdict_never_breaks_its_own_rules(item):
    verdict = diagnose(item).verdict
    assert verdict.cause.slug in catalogue()
    assert verdict.cause.slug not in NEVER_CAUSE
    if verdict.scope == "all":
        assert (verdict.rank, verdict.node_action) == (None, "none")
    if verdict.cause.slug == "unknown":
        assert verdict.missing
        assert verdict.node_action == "none"
    if verdict.node_action == "taint":
        assert any(e.trust in {"kernel", "platform"} for e in item.evidence)
    for consequence in verdict.consequences:
        assert consequence.rank != verdict.rank
    assert verdict.time.at is None or at(-1) < at(0)


def test_faults_that_differ_in_nothing_but_their_rank_are_listed_in_one_order():
    ranks = [left(0, 1), left(1, 1), died(2, 15, by="agent"), died(3, 15, by="agent")]
    own = piece("address_in_use", 0, line="a", specificity=10, source="log", trust="job")
    elsewhere = [piece("address_in_use", n, line="a", specificity=10, source="kernel", trust="wrapper") for n in (2, 3)]
    there, back = (diagnose(case(ranks, [own, *faults])).verdict for faults in (elsewhere, elsewhere[::-1]))
    assert [one.rank for one in there.independent] == [2, 3]
    assert there == back
