"""The objects of one attempt of two slots, as the collector stores them."""

from __future__ import annotations

from typing import Any

import msgspec

from rankfall.evidence.attempt.case import make_case
from rankfall.evidence.cluster.platform import PlatformView
from rankfall.evidence.facts import Facts
from rankfall.kube.object_fields import COMPLETION_INDEX
from rankfall.model import Diagnosis, Evidence, JobSpec, Policies, SlotFacts
from rankfall.rundir.cluster.context_facts import ContextFact, later_node, node_fact
from rankfall.rundir.cluster.journal import JournalWriter, SnapshotWriter, journal_path
from rankfall.rundir.cluster.pod_facts import later, pod_fact, stamp_ns
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.layout import context_path
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.signatures.catalogue import default_catalogue

MADE, NOTICED, TAKEN, OVER = (f"2026-11-21T16:{minute:02}:00Z" for minute in (0, 5, 7, 9))
SOURCE = PodSource(context="c", namespace="n", selector="", container="main", token="", bases={"worker": 0})
SEEN = stamp_ns(OVER) or 0
Object = dict[str, Any]


def condition(kind: str, reason: str, message: str = "", *, status: str = "True", at: str = TAKEN) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


class World:
    """The objects of one attempt of two slots, as the collector stores them."""

    def __init__(self, run) -> None:
        self.run = run
        self.pods = JournalWriter(journal_path(run, 1))
        self.context: SnapshotWriter[ContextFact] = SnapshotWriter(context_path(run, 1), ContextFact)

    def pod(
        self,
        slot: int,
        status: Object,
        *,
        code: int | None,
        gone: bool = True,
        finished: str = OVER,
        more: Object | None = None,
        begins: bool = True,
    ) -> None:
        running = {"name": "main", "containerID": f"c{slot}", "state": {"running": {"startedAt": MADE}}, "ready": True}
        end = {"exitCode": code, "reason": "Error", "startedAt": MADE, "finishedAt": finished}
        ended = running | {"state": {"terminated": end}}
        meta = {
            "name": f"job-{slot}-x",
            "uid": f"u{slot}",
            "creationTimestamp": MADE,
            "labels": {COMPLETION_INDEX: str(slot), "rankfall.dev/attempt": "1"},
        }
        base = {"metadata": meta, "spec": {"nodeName": f"n{slot}", "containers": [{"name": "main"}], **(more or {})}}
        deleting = {"deletionTimestamp": OVER, "deletionGracePeriodSeconds": 30} if gone else {}
        if not begins:
            running = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
        runs = base | {"status": {"phase": "Running" if begins else "Pending", "containerStatuses": [running]}}
        over = {**base, "metadata": meta | deleting}
        over["status"] = {"phase": "Failed", "containerStatuses": [running if code is None else ended], **status}
        fact = pod_fact(runs, source=SOURCE, seen_ns=stamp_ns(MADE) or 0)
        self.pods.add(fact)
        fact = later(fact, pod_fact(over, source=SOURCE, seen_ns=SEEN))
        self.pods.add(msgspec.structs.replace(fact, log="complete", gone=gone))

    def node(self, number: int, *looks: tuple[str, tuple[Object, ...], tuple[Object, ...]]) -> None:
        """Times, taints and conditions of each look at a node."""
        held = None
        for at, taints, conditions in looks:
            item = {
                "metadata": {"name": f"n{number}", "uid": f"n{number}"},
                "spec": {"taints": list(taints)},
                "status": {"nodeInfo": {"bootID": "b"}, "conditions": list(conditions)},
            }
            seen = node_fact(item, seen_ns=stamp_ns(at) or 0)
            held = seen if held is None else later_node(held, seen)
        assert held is not None
        self.context.add(held)

    def diagnosis(self, *more: Evidence) -> Diagnosis:
        facts = Facts({n: SlotFacts(slot=n, role="worker", state="expected") for n in (0, 1)}, here=False)
        view = PlatformView(self.run, attempt=1, catalogue=default_catalogue())
        _, found = view.poll(facts)
        found = [*found, *view.context_evidence(facts), *more]
        words = {"missing": (), "kernel_note": None, "denied": False, "cancelled": None, "hung": False, "only": None}
        return diagnose(make_case(spec(), facts, found, run="job-abc123", attempt=1, **words))


def spec(**policies: Any) -> JobSpec:
    return JobSpec(command=("train.py",), nnodes=2, backend="job", policies=Policies(max_restarts=1, **policies))
