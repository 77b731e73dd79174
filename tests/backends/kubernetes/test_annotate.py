"""A verdict on the object of its job: what is written, how much of it, on whose object, and what happens where it may not be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from backends.kubernetes.launch_server import Api, Refusal, serving
from rankfall.backends.kubernetes import verdict_annotation as notes
from rankfall.backends.plan import ClusterPlan
from rankfall.kube.client import Kube
from rankfall.model import Cause, Verdict
from rankfall.model.verdict import Decisive

AT = 1_700_000_000_123_456_789
EVIL = 'x\x1b]0;owned\x07\u202e\r\n"}]\x9b\x00' + "y" * 10_000
VERDICT = Verdict(
    run="train-1a2b3c",
    attempt=2,
    state="failed",
    cause=Cause.of("user_code_exception", confidence="proven"),
    scope="rank",
    rank=5,
    slot=1,
    pod="train-1a2b3c-a2-1-x7k2p",
    node="n2",
    decisive=Decisive(source="record", where="records/x", line="ValueError: bad shard"),
)
PLACE = ClusterPlan(
    backend="job",
    object="train-1a2b3c-a2",
    namespace="here",
    context="c",
    selector="a=b",
    container="main",
    token="",
    bases={"worker": 0},
)


def told(story: Callable[[Api, Kube, str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as api, api.kube() as kube:
            made = api.put(
                "jobs",
                {
                    "metadata": {"name": PLACE.object, "annotations": {"rankfall.dev/owner": "a@b"}},
                    "spec": {"suspend": True},
                },
            )
            await story(api, kube, made["metadata"]["uid"])

    asyncio.run(run())


def note(api: Api) -> dict[str, object]:
    job = api.get("jobs", PLACE.object)
    assert job is not None
    found: dict[str, object] = json.loads(job["metadata"]["annotations"][notes.ANNOTATION])
    return found


def test_errors_s10_a_verdict_is_put_on_the_object_once_as_annotation_and_event() -> None:
    async def story(api: Api, kube: Kube, uid: str) -> None:
        for _ in range(2):
            assert await notes.annotate(kube, PLACE, uid=uid, verdict=VERDICT, at=AT) is None
        said = note(api)
        assert (said["cause"], said["rank"], said["pod"], said["node"]) == (
            "user_code_exception",
            5,
            "train-1a2b3c-a2-1-x7k2p",
            "n2",
        )
        (event,) = api.all("events")
        assert (event["reason"], event["type"], event["involvedObject"]["uid"]) == ("RankfallVerdict", "Warning", uid)
        assert event["firstTimestamp"] == "2023-11-14T22:13:20Z"
        assert "(user_code_exception, proven); first: rank 5, pod train-1a2b3c-a2-1-x7k2p, node n2" in event["message"]
        assert event["message"].endswith("ValueError: bad shard")
        later = msgspec.structs.replace(VERDICT, version=2, rank=3)
        assert await notes.annotate(kube, PLACE, uid=uid, verdict=later, at=AT) is None
        assert note(api)["rank"] == 3
        assert len(api.all("events")) == 2

    told(story)


def test_an_object_of_somebody_else_is_left_alone() -> None:
    async def story(api: Api, kube: Kube, uid: str) -> None:
        problem = await notes.annotate(kube, PLACE, uid="another", verdict=VERDICT, at=AT)
        assert problem is not None
        assert "cannot write the verdict to job train-1a2b3c-a2" in problem
        job = api.get("jobs", PLACE.object)
        assert job is not None
        assert notes.ANNOTATION not in job["metadata"]["annotations"]
        assert api.all("events") == []

    told(story)


def test_without_the_right_to_make_events_the_annotation_stands_and_that_is_said() -> None:
    async def story(api: Api, kube: Kube, uid: str) -> None:
        def only_events(method: str, plural: str) -> None:
            if (method, plural) == ("POST", "events"):
                raise Refusal(403, "events is forbidden")

        create = api._create

        def refusing(plural: str, body: dict[str, object]) -> dict[str, object]:
            only_events("POST", plural)
            return create(plural, body)

        api._create = refusing  # type: ignore[method-assign]
        problem = await notes.annotate(kube, PLACE, uid=uid, verdict=VERDICT, at=AT)
        assert problem is not None
        assert "its Event could not be created" in problem
        assert note(api)["rank"] == 5

    told(story)


@pytest.mark.parametrize("scope", ["rank", "all", None])
def test_hostile_text_is_one_short_line_of_visible_ascii(scope: str | None) -> None:
    decisive = Decisive(source="log", where="x", line=EVIL)
    fields = {"pod": EVIL, "node": EVIL, "run": EVIL, "decisive": decisive, "scope": scope, "rank": None}
    verdict = msgspec.structs.replace(VERDICT, **fields)
    value, message = notes.annotation_of(verdict), notes.message_of(verdict)
    assert len(value) < 4096
    assert len(message) <= notes.MAX_MESSAGE
    for text in (value, message):
        assert text.isascii()
        assert text.isprintable()
    assert json.loads(value)["line"].startswith("x\\x1b]0;owned\\x07")
    assert ("all ranks" if scope == "all" else "no rank") in message


def test_an_unknown_verdict_without_proof_is_shown_too() -> None:
    verdict = msgspec.structs.replace(
        VERDICT, cause=Cause.of("unknown", confidence="unknown"), decisive=None, pod=None, node=None, attempt=None
    )
    assert json.loads(notes.annotation_of(verdict))["line"] is None
    assert notes.message_of(verdict).endswith("first: rank 5")
