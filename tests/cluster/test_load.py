"""What a run asks of an API server, counted by the proxy: the numbers of docs/kubernetes.md, whatever the number of slots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster.launches import AGAIN, LAUNCH, PLAN, launched
from bench.cluster.place import Place, job, place, verbs
from cluster.chaos_world import Chaos, counting
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Proxy, before

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def where(bed: Bed) -> Iterator[Place]:
    with place(bed) as made:
        yield made


@pytest.mark.parametrize("backend", LAUNCH)
def test_a_launch_takes_so_many_requests_however_many_slots(where, backend):
    launched(where, job(where, backend=backend))
    # The schemas are known now.
    for slots in (2, 24):
        planned, created = launched(where, job(where, backend=backend, slots=slots))
        assert (planned.total(), set(planned)) == (PLAN, {"discovery"})
        assert LAUNCH[backend] <= created.total() <= LAUNCH[backend] + AGAIN[backend], created


# Events of the pods and of nodes, the workload, and the nodes that the three pods run on, which are two.
AROUND = 5


def test_a_run_lists_and_watches_once_and_reads_each_log_once_and_commands_ask_nothing(
    bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    with Proxy(before.settings(bed.layout)) as proxy:
        chaos = Chaos(bed, proxy, home=tmp_path / "home", kubectl=kubectl, namespace=namespace)
        done = chaos.run(counting(backend="job", namespace=namespace, lines=3, nnodes=3))
        assert done.returncode == 0, done.stderr
        asked = verbs(proxy.log(), since=0)
        # Two plans: one that refuses in the foreground, one of the attempt. A stream that ended is looked at once more for its end.
        assert asked.pop("log") in range(3, 7)
        assert asked.pop("discovery") <= 2 * (PLAN + 4)
        assert asked.pop("lease") >= 2
        # A list of the pods, and a look or two at the job when it is over; and a list each of what is around the pods.
        assert 1 <= asked.pop("get") <= 3 + AROUND
        assert 1 <= asked.pop("watch") <= 1 + AROUND
        assert asked == {"create": 3, "patch": 1}
        last = proxy.counters().requests
        for words in (
            ("status", chaos.only_run().name),
            ("why", chaos.only_run().name),
            ("logs", chaos.only_run().name),
        ):
            assert chaos.cli(*words).returncode == 0
        assert proxy.counters().requests == last
