"""The fault matrix on two real nodes: as an Indexed Job, a JobSet and a TrainJob; the right rank, node and cause, the victims, the retry."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from cluster.fault_runs import CUT, Runs, Seen
from conformance.suite import chosen
from faults.channels import CUTS
from faults.cluster_page import Row, Rows
from faults.cluster_table import Cell, cells
from faults.run import Judged, judge
from faults.table import Fault
from rankfall.backends.kubernetes.rights import rules
from rankfall.model import Diagnosis, JobSpec, Policies, Verdict
from rankfall.verdict.decide import decide
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, bed: Bed, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    space = f"t-{uuid4().hex[:8]}"
    kubectl.create_namespace(space)
    config = accounts.create(bed.control, kubectl, "rankfall", namespace=space, rules=rules())
    made = Runs(
        bed=bed,
        kubectl=kubectl,
        namespace=space,
        kubeconfig=config,
        folder=tmp_path_factory.mktemp("faults"),
        keep=keep,
    )
    wanted = [params["cell"] for params in chosen(request)]
    made.begin(sorted(wanted, key=lambda cell: cell.alone))
    yield made
    made.close()
    kubectl.run("delete", "namespace", space, "--wait=false", "--ignore-not-found")


def keep(cell: Cell, seen: Seen) -> None:
    """For the page."""
    verdict = newest(seen)
    Rows().add(
        Row.of(
            cell,
            verdict,
            judged_on_nodes(cell.fault, verdict, seen),
            seen.ours.state if seen.ours else "none",
            cut=len(CUTS) if cell.id in CUT and not seen.less else 0,
        )
    )


def newest(seen: Seen) -> Verdict | None:
    """Of the last attempt that has one."""
    return next((one for one in reversed(seen.ours.verdicts) if one is not None), None) if seen.ours else None


@pytest.mark.parametrize("cell", [*cells()], ids=lambda cell: cell.id)
@pytest.mark.xdist_group("fault-matrix")
def test_errors_s41_a_fault_on_the_cluster(runs: Runs, kubectl: Kubectl, cell: Cell) -> None:
    fault = cell.fault
    seen = runs.seen(cell)
    assert not seen.errors, seen.errors
    assert seen.ours is not None, seen.stderr
    last = newest(seen)
    judged = judged_on_nodes(fault, last, seen)
    assert seen.ours.state == fault.outcome, seen.stderr
    assert seen.left == ()
    assert seen.less == ()
    # Of our own; those of the job stand inside the evidence.
    assert not re.search(r"^Traceback", seen.stderr, re.MULTILINE)
    slugs = [one.cause.slug for one in seen.ours.verdicts if one is not None]
    assert slugs[: len(fault.causes)] == list(fault.causes)
    assert judged.grade != "wrong", judged.faults
    assert judged.grade == "right", f"{judged.grade} is not enough: {last}"
    if seen.ours.diagnosis is not None and fault.outcome == "failed":
        decides_well(fault, seen.ours.diagnosis)
    taints = [taint["key"] for node in kubectl.get("nodes")["items"] for taint in node["spec"].get("taints", ())]
    assert not any(key.startswith("rankfall") for key in taints), taints


def judged_on_nodes(fault: Fault, verdict: Verdict | None, seen: Seen) -> Judged:
    """As on this machine, and the node must be that of the culprit's pod."""
    if not fault.slugs:
        return Judged("right") if verdict is None or verdict.state == "succeeded" else Judged("wrong", (str(verdict),))
    slot = culprit_slot(fault, seen)
    judged = judge(fault, verdict, slot=slot)
    if verdict is None or judged.grade == "wrong" or slot is None:
        return judged
    node = seen.nodes.get(slot)
    if verdict.node not in {None, node}:
        return Judged("wrong", (f"node {verdict.node} is named, slot {slot} was on {node}",))
    return judged if verdict.node == node else dataclasses.replace(judged, grade="weak")


def culprit_slot(fault: Fault, seen: Seen) -> int | None:
    """Which slot was struck: that of the rank, or the one whose pod the fault found."""
    if fault.inject == "image_on_one_node":
        return next((slot for slot, node in seen.nodes.items() if node == "n2"), None)
    if fault.name == "one-slot-unschedulable":
        return next((slot for slot, node in seen.nodes.items() if node is None), None)
    return fault.slot if fault.slot is not None else None if fault.rank is None else fault.rank // 2


def decides_well(fault: Fault, diagnosis: Diagnosis) -> None:
    """What would be done with restarts left: a user's error is never started again, what only passed by always is."""
    spec = JobSpec(command=("train.py",), backend="job", policies=Policies(max_restarts=3))
    decision = decide(diagnosis, spec=spec, history=(), other_nodes=True)
    if fault.retry == {"no"}:
        assert decision.action == "stop", decision
    elif "no" not in fault.retry:
        assert decision.action in {"retry", "retry_elsewhere"}, decision
