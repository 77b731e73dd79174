"""How the newest look at a pod reads for one container instance, and for its log as a whole."""

from __future__ import annotations

import pytest

from rankfall.collect.pods.known_pods import Followed, FollowedInstance, idle_of, instance_state, instances_of, missed
from rankfall.rundir.cluster.pod_facts import ContainerFact, ContainerState, PodFact


def one(state: ContainerState, restarts: int = 0) -> ContainerFact:
    return ContainerFact(state=state, restarts=restarts, id=None if state == "waiting" else "containerd://1")


def pod(
    main: ContainerFact | None = None, last: ContainerFact | None = None, *, gone: bool = False, phase: str = "Running"
) -> PodFact:
    return PodFact(seen_ns=1, name="p", uid="u", slot=0, phase=phase, main=main, last=last, gone=gone)


@pytest.mark.parametrize(
    ("fact", "number", "state", "instances"),
    [
        (pod(phase="Pending"), 0, "waiting", ()),
        (pod(one("waiting"), phase="Pending"), 0, "waiting", ()),
        (pod(one("running")), 0, "running", (0,)),
        (pod(one("terminated")), 0, "ended", (0,)),
        # It waits to be started again: what it printed is still the newest log.
        (pod(one("waiting", 2), one("terminated", 2)), 2, "ended", (2,)),
        (pod(one("waiting", 2), one("terminated", 1)), 2, "waiting", (1,)),
        (pod(one("running", 1), one("terminated", 0)), 0, "replaced", (0, 1)),
        (pod(one("running", 2), one("terminated", 1)), 0, "gone", (1, 2)),
        (pod(one("running"), gone=True), 0, "gone", (0,)),
        (pod(one("running"), phase="Failed"), 0, "ended", (0,)),
        (pod(None, phase="Failed"), 0, "ended", ()),
        # The kubelet calls a container terminated that it never started, where the pod ends first.
        (pod(ContainerFact(state="terminated", reason="ContainerStatusUnknown"), phase="Failed"), 0, "ended", ()),
    ],
)
def test_state_of_an_instance(fact, number, state, instances):
    assert (instance_state(fact, number), instances_of(fact)) == (state, instances)


@pytest.mark.parametrize(
    ("fact", "ends", "state"),
    [
        (pod(one("running")), ["complete"], "open"),
        (pod(one("terminated")), [None], "open"),
        (pod(one("terminated")), ["complete", None], "open"),
        (pod(one("terminated")), ["complete"], "complete"),
        (pod(one("terminated")), ["lost", "complete"], "lost"),
        (pod(None, phase="Failed"), [], "none"),
        (pod(one("waiting"), gone=True), [], "none"),
        (pod(one("waiting", 1), one("terminated", 0)), ["complete"], "open"),
        (pod(one("waiting", 1), one("terminated", 0), gone=True), ["complete"], "complete"),
    ],
)
def test_state_of_a_pods_log(fact, ends, state):
    followed = Followed(fact)
    followed.logs = {number: FollowedInstance(end) for number, end in enumerate(ends)}
    assert followed.log_state == state


@pytest.mark.parametrize(
    ("fact", "known", "unseen"),
    [
        (pod(phase="Pending"), (), ()),
        (pod(one("running")), (), ()),
        (pod(one("running", 1), one("terminated", 0)), (), ()),
        (pod(one("running", 2), one("terminated", 1)), (), (0,)),
        (pod(one("running", 3), one("terminated", 2)), (0,), (1,)),
        (pod(one("running", 3), one("terminated", 2)), (0, 1), ()),
        # The kubelet has forgotten the one before.
        (pod(one("running", 2)), (0,), (1,)),
        (pod(one("waiting", 2), one("terminated", 2)), (), (0, 1)),
    ],
)
def test_instances_that_nobody_saw(fact, known, unseen):
    assert missed(fact, known) == unseen


def test_an_instance_that_ended_without_having_run_has_no_lines_to_miss():
    never = ContainerFact(state="terminated", reason="StartError", restarts=1)
    assert idle_of(pod(one("waiting", 2), never)) == {1}
    assert idle_of(pod(one("terminated", 1), one("terminated", 0))) == set()
