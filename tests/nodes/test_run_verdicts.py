"""What runs say of a node: who is blamed, how far it is believed, and the controller's answer to it."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kubernetes.launch_server import Refusal
from nodes.api_world import HealthApi, running, tried
from nodes.cluster import SECOND, Cluster
from rankfall.model import Cause, EvidenceLost, Verdict
from rankfall.model.node_health.run_verdicts import (
    MAX_VERDICTS,
    VERDICTS_ANNOTATION,
    RunVerdict,
    RunVerdicts,
    decode_verdicts,
    encode_verdicts,
)
from rankfall.model.verdict import Decisive, Time
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.nodes.rules.faults import of_verdict
from rankfall.nodes.rules.policy import Budget, Policy

PROVEN = Verdict(
    run="train-1a2b3c",
    attempt=2,
    cause=Cause.of("gpu_ecc", confidence="proven"),
    node="n2",
    gpu="PCI:0000:4e:00",
    node_action="taint",
    time=Time(at="2026-11-22T10:00:00.5Z", uncertainty_s=1.5),
    decisive=Decisive(source="event", where="event of node/n2", line="NVRM: Xid 48\x1b[31m\nand more"),
)
replace = msgspec.structs.replace


def said(*, at: int, attempt: int = 1, cause: str = "gpu_ecc", action: str = "taint") -> RunVerdict:
    return RunVerdict(run="train-1a2b3c", attempt=attempt, cause=cause, action=action, at=at)  # type: ignore[arg-type]


def test_a_verdict_is_told_when_it_is_proven_and_blames_the_node():
    found = RunVerdict.of(PROVEN, at=5)
    assert found is not None
    assert (found.id, found.cause, found.action, found.gpu) == (
        "verdict:train-1a2b3c:2",
        "gpu_ecc",
        "taint",
        "0000:4e:00",
    )
    assert (found.at, found.uncertainty) == (1795341600500000000, 1.5)
    assert found.text == "NVRM: Xid 48\\x1b[31m\\nand more"
    untimed = RunVerdict.of(replace(PROVEN, time=Time()), at=5)
    assert untimed is not None
    assert untimed.at == 5
    for other in (
        replace(PROVEN, node=None),
        replace(PROVEN, run=None),
        replace(PROVEN, node_action="none"),
        replace(PROVEN, cause=Cause.of("gpu_ecc", confidence="likely")),
        replace(PROVEN, cause=Cause.of("unknown", confidence="unknown")),
    ):
        assert RunVerdict.of(other, at=5) is None


def test_a_proof_in_which_a_job_has_its_words_marks_a_node_and_never_taints_it():
    for action, wanted in (("taint", "quarantine"), ("suspect", "suspect")):
        fault = of_verdict(said(at=5, action=action), node="n2", now=9)
        assert (fault.node, fault.trust, fault.at, fault.job) == ("n2", "verdict", 5, "train-1a2b3c")
        assert packaged().action(fault.code) == wanted
    assert packaged().action(of_verdict(said(at=5, cause="user_exception"), node="n2", now=9).code) == "none"
    assert packaged().find(of_verdict(said(at=5, cause="no_such"), node="n2", now=9).code) is None
    assert of_verdict(said(at=50), node="n2", now=9).at == 9


def test_the_annotation_holds_the_newest_and_each_once():
    held = RunVerdicts()
    for attempt in range(1, MAX_VERDICTS + 3):
        held = held.with_one(said(at=attempt, attempt=attempt))
        held = held.with_one(said(at=attempt, attempt=attempt))
    assert [each.attempt for each in held.verdicts] == list(range(3, MAX_VERDICTS + 3))
    assert decode_verdicts(encode_verdicts(held)) == held


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "x" * 20_000,
        '{"schema":"rankfall.runverdicts/2"}',
        '{"schema":"rankfall.runverdicts/1","verdicts":[{"run":"a b","attempt":1,"cause":"gpu_ecc","action":"taint","at":1}]}',
        '{"schema":"rankfall.runverdicts/1","verdicts":[{"run":"a","attempt":1,"cause":"gpu/ecc","action":"taint","at":1}]}',
        '{"schema":"rankfall.runverdicts/1","verdicts":[{"run":"a","attempt":1,"cause":"gpu_ecc","action":"drain","at":1}]}',
        '{"schema":"rankfall.runverdicts/1","verdicts":[{"run":"a","attempt":1,"cause":"gpu_ecc","action":"taint","at":-1}]}',
    ],
)
def test_what_is_out_of_bounds_is_refused_whole(text):
    with pytest.raises(EvidenceLost, match="run-verdicts"):
        decode_verdicts(text)


@given(st.text(max_size=200))
def test_any_text_is_refused(text):
    with pytest.raises(EvidenceLost, match="run-verdicts"):
        decode_verdicts(text)


def test_a_verdict_taints_its_node_once_and_is_answered():
    cluster = Cluster()
    fault = of_verdict(said(at=cluster.now), node="n1", now=cluster.now)
    cluster.see(fault)
    assert cluster.tainted == {"n1"}
    assert [(each.id, each.outcome) for each in cluster.record("n1").answered] == [(fault.id, "counted")]
    writes = cluster.writes
    cluster.later(60)
    cluster.see(fault)
    assert cluster.writes == writes
    assert cluster.record("n1").causes[0].count == 1


def test_what_is_not_acted_on_is_answered_too():
    cluster = Cluster(policy=Policy(budget=Budget(nodes=1)))
    old = of_verdict(said(at=cluster.now, attempt=1), node="n1", now=cluster.now)
    cluster.see(old)
    cluster.later(10)
    cluster.untaint("n1")
    cluster.see()
    cluster.later(10)
    before_clearance = of_verdict(said(at=cluster.now - 15 * SECOND, attempt=2), node="n1", now=cluster.now)
    unknown = of_verdict(said(at=cluster.now, cause="no_such"), node="n2", now=cluster.now)
    one, other = (of_verdict(said(at=cluster.now, attempt=7), node=name, now=cluster.now) for name in ("n3", "n4"))
    cluster.see(before_clearance, unknown, one, other)
    answers = {name: cluster.record(name).answered[-1].outcome for name in ("n1", "n2", "n3", "n4")}
    assert answers == {"n1": "stale", "n2": "unknown", "n3": "counted", "n4": "counted"}
    assert cluster.tainted == {"n3"}
    assert cluster.record("n4").held == "budget"


def annotated(api: HealthApi, name: str, text: str) -> None:
    api.edit(name, lambda item: item["metadata"].setdefault("annotations", {}).update({VERDICTS_ANNOTATION: text}))


def test_a_verdict_on_a_node_is_taken_up_by_whoever_leads(caplog):
    async def story():
        async with running("n1", "n2") as first:
            api = first.api
            await first.until(lambda: first.book.complete)
            annotated(api, "n2", "nonsense")
            annotated(api, "n1", encode_verdicts(RunVerdicts(verdicts=(said(at=time.time_ns()),))))
            await first.until(lambda: api.tainted() == {"n1"} and api.condition("n1") == "Quarantined")
            await first.until(lambda: api.reasons("n1").count("Quarantined") == 1)
            assert any("run-verdicts" in each and "n2" in each for each in caplog.messages)
            record = api.record("n1")
            assert record is not None
            assert [each.id for each in record.answered] == ["verdict:train-1a2b3c:1"]
        before = api.writes()
        async with running(api=api) as second:
            await second.until(lambda: second.book.complete)
            annotated(api, "n2", encode_verdicts(RunVerdicts(verdicts=(said(at=time.time_ns(), action="suspect"),))))
            await second.until(lambda: api.condition("n2") == "Suspect")
            # What the one before had told is refused by its name, and nothing else is written of its node.
            again = [each for each in api.writes()[len(before) :] if each[0] != "POST" and "n1" in each[1]]
            assert again == []
            assert api.reasons("n1").count("Quarantined") == 1
        assert api.tainted() == {"n1"}

    tried(story())


def test_health_s16_an_event_is_told_once_also_when_the_kill_comes_between_taint_and_event():
    async def story():
        async with running("n1") as first:
            api = first.api
            await first.until(lambda: first.book.complete)
            first.desk._event = lambda *_, **__: asyncio.sleep(3600)
            annotated(api, "n1", encode_verdicts(RunVerdicts(verdicts=(said(at=time.time_ns()),))))
            await first.until(lambda: api.condition("n1") == "Quarantined")
            assert "Quarantined" not in api.reasons("n1")
        for _ in range(2):
            async with running(api=api) as another:
                await another.until(lambda: another.loop.turning_since is None and "Quarantined" in api.reasons("n1"))
        assert api.reasons("n1").count("Quarantined") == 1
        (event,) = [each for each in api.all("events") if each["reason"] == "Quarantined"]
        assert "train-1a2b3c" in event["message"]

    tried(story())


def test_an_event_that_the_server_does_not_take_now_is_sent_later():
    async def story():
        async with running("n1") as world:
            api = world.api
            await world.until(lambda: world.book.complete)
            api.refusals["POST", "events"] = Refusal(503)
            annotated(api, "n1", encode_verdicts(RunVerdicts(verdicts=(said(at=time.time_ns()),))))
            await world.until(lambda: api.condition("n1") == "Quarantined")
            api.refusals.clear()
            await world.until(lambda: api.reasons("n1").count("Quarantined") == 1)

    tried(story())


def test_events_of_the_record_are_few_and_go_with_the_next_change():
    cluster = Cluster()
    for turn in range(4):
        cluster.see(of_verdict(said(at=cluster.now, attempt=turn + 1), node="n1", now=cluster.now))
        assert cluster.tainted == {"n1"}
        cluster.later(5)
        cluster.untaint("n1")
        cluster.see()
        cluster.later(5)
    reasons = [each.reason for each in cluster.record("n1").untold]
    assert reasons == ["Quarantined", "TaintRemovedByOthers"] * 2
    cluster.later(3_600)
    cluster.see(of_verdict(said(at=cluster.now, attempt=9), node="n1", now=cluster.now))
    assert [each.reason for each in cluster.record("n1").untold] == ["Quarantined"]


def test_the_next_controller_sends_no_event_again_that_the_one_before_has_sent():
    """Of many nodes with Events in their records, a controller that takes over sends what is missing and not all of them."""

    async def story():
        async with running("n1", "n2") as first:
            api = first.api
            await first.until(lambda: first.book.complete)
            annotated(api, "n1", encode_verdicts(RunVerdicts(verdicts=(said(at=time.time_ns()),))))
            await first.until(lambda: "Quarantined" in api.reasons("n1"))
            await first.until(lambda: first.state.stored.reported_until > 0)
        before = len(api.writes())
        async with running(api=api) as second:
            await second.until(lambda: second.book.complete)
            annotated(api, "n2", encode_verdicts(RunVerdicts(verdicts=(said(at=time.time_ns(), attempt=2),))))
            await second.until(lambda: any("QuarantineHeld" in each for each in api.reasons("n2")))
        sent = [path for method, path in api.writes()[before:] if method == "POST" and path.endswith("/events")]
        assert len(sent) == len(api.reasons("n2"))
        assert api.reasons("n1").count("Quarantined") == 1

    tried(story())
