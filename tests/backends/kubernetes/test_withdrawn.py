"""Whether somebody deleted an attempt's workload: a deletion is told apart from a time to live that is over, and from our own removal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.kubernetes.launch_server import Refusal
from backends.kubernetes.launch_stories import NAME
from backends.kubernetes.test_launch_roles import Place, with_place
from rankfall.backends.kubernetes import workload
from rankfall.kube.errors import KubeError
from rankfall.rundir.cluster.journal import JournalWriter, SnapshotWriter, journal_path
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.rundir.cluster.workload_state import NativeState, WorkloadFact, workload_path

GOING, FELL = NativeState(phase="going"), NativeState(phase="failed")
MAYBE = "it was deleted, or its time to live of 600 s after its end has passed"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(workload, "_BEHIND_S", 0.05)
    monkeypatch.setattr(workload, "_STEP_S", 0.01)


def expiring(place: Place, *, ttl_s: int = 600) -> Path:
    """The run of the place, with a time to live."""
    run = Path(place.plan.slots[0].slot_dir).parents[2]
    spec = msgspec.json.decode((run / "spec.json").read_bytes())
    (run / "spec.json").write_bytes(msgspec.json.encode(spec | {"ttl_s": ttl_s}))
    return run


def seen(run: Path, *facts: WorkloadFact) -> None:
    writer: SnapshotWriter[WorkloadFact] = SnapshotWriter(workload_path(run, 1), WorkloadFact)
    for fact in facts:
        writer.add(fact)
    writer.close()


def fact(place: Place, state: NativeState, **fields: Any) -> WorkloadFact:
    uid = place.api.objects["jobs", NAME]["metadata"]["uid"]
    return WorkloadFact(seen_ns=1, uid=uid, kind="Job", state=state, **fields)


async def asked(place: Place, *, surely: bool = False) -> str | None:
    found: str | None = await place.call(place.backend.deleted_externally, place.plan, surely=surely)
    return found


@pytest.mark.parametrize(
    ("state", "fields", "says", "surely"),
    [
        (GOING, {"gone": True}, "was deleted in the cluster", True),
        (FELL, {"gone": True}, None, False),
        (FELL, {}, None, False),
        (GOING, {"gone": True, "vanished": True}, MAYBE, False),
        (GOING, {}, MAYBE, False),
        (None, {}, MAYBE, False),
    ],
)
def test_i19_p6_a_deletion_is_told_apart_from_a_time_to_live(tmp_path, state, fields, says, surely):
    async def story(place: Place) -> None:
        run = expiring(place)
        if state is not None:
            seen(run, fact(place, state, **fields))
        assert await asked(place) is None
        place.api.objects.pop(("jobs", NAME))
        found = await asked(place)
        assert (says in found) if says is not None and found is not None else found is None and says is None
        assert (await asked(place, surely=True) is not None) is surely

    with_place(tmp_path, story)


@pytest.mark.parametrize(("ago_s", "surely"), [(60, True), (590, False)])
def test_i19_p6_a_time_to_live_that_cannot_be_over_yet_proves_a_deletion(tmp_path, ago_s, surely):
    async def story(place: Place) -> None:
        run = expiring(place)
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - ago_s))
        journal = JournalWriter(journal_path(run, 1))
        main = ContainerFact(state="terminated", exit_code=1, finished=ended)
        journal.add(PodFact(seen_ns=1, name="p", uid="p", slot=0, main=main))
        journal.close()
        place.api.objects.pop(("jobs", NAME))
        assert (await asked(place, surely=True) is not None) is surely

    with_place(tmp_path, story)


def test_i19_p6_a_finished_workload_on_its_way_out_is_expired_and_an_unfinished_one_is_deleted(tmp_path):
    async def story(place: Place) -> None:
        job = place.api.objects["jobs", NAME]
        job["metadata"] |= {"deletionTimestamp": "2026-11-21T19:00:00Z", "finalizers": ["x/y"]}
        assert "was deleted" in (await asked(place, surely=True) or "")
        job["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        assert "was deleted" in (await asked(place, surely=True) or "")
        expiring(place)
        assert await asked(place) is None

    with_place(tmp_path, story)


def test_i19_p6_what_rankfall_itself_removes_nobody_deleted(tmp_path):
    async def story(place: Place) -> None:
        await place.call(place.backend.clear, place.plan)
        assert place.api.all("jobs") == []
        assert await asked(place, surely=True) is None

    with_place(tmp_path, story)


def test_i19_p6_a_cluster_that_does_not_answer_is_an_error_only_where_it_has_to_be_sure(tmp_path):
    async def story(place: Place) -> None:
        place.api.refusals["GET", "jobs"] = Refusal(403)
        assert await asked(place) is None
        with pytest.raises(KubeError):
            await asked(place, surely=True)

    with_place(tmp_path, story)


@pytest.mark.parametrize("now", ["there", "another", "none"])
def test_i19_p6_a_trainjob_whose_jobset_somebody_deleted_is_withdrawn(tmp_path, now):
    async def story(place: Place) -> None:
        run = Path(place.plan.slots[0].slot_dir).parents[2]
        one = place.api._create("trainjobs", {"metadata": {"name": NAME}, "spec": {}})
        (run / "kube" / "attempt-1" / "submitted.json").write_text(f'{{"uid": "{one["metadata"]["uid"]}"}}')
        cluster = msgspec.structs.replace(place.plan.cluster, backend="trainjob", jobs={})
        place.plan = msgspec.structs.replace(place.plan, cluster=cluster)
        if now != "none":
            place.api._create(
                "jobsets",
                {"metadata": {"name": NAME, "uid": "s1" if now == "there" else "s2"}, "spec": {"suspend": True}},
            )
        seen(
            run,
            WorkloadFact(seen_ns=1, uid=one["metadata"]["uid"], kind="TrainJob", state=GOING),
            WorkloadFact(seen_ns=2, uid="s1", kind="JobSet", state=GOING),
        )
        found = await asked(place, surely=True)
        assert found == (None if now == "there" else f"jobset {NAME} of trainjob {NAME} was deleted in the cluster")

    with_place(tmp_path, story)
