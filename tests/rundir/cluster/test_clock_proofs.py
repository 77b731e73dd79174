"""What stamps on objects prove of clocks: of pods, of kubelets' Leases, of the server's own answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kube.http.transport import ServerClock
from rankfall.model.timestamps import EXACT, Bound
from rankfall.rundir.cluster.clock_bounds import (
    ClockFile,
    Proofs,
    ProofView,
    by_server,
    lease_snapshot,
    of_lease,
    of_pod,
    proofs_path,
)
from rankfall.rundir.cluster.pod_facts import Condition, ContainerFact, PodFact

NS = 1_000_000_000
DAY = 1_795_276_800


def whole(at: int) -> str:
    """As the API writes it: cut to whole seconds."""
    return datetime.fromtimestamp(at // NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(*, bound: int | None, accepted: int | None, seen: int, started: int | None = None) -> PodFact:
    conditions = () if bound is None else (Condition(type="PodScheduled", status="True", at=whole(bound)),)
    main = None if started is None else ContainerFact(state="running", started=whole(started))
    return PodFact(
        seen_ns=seen,
        name="p",
        uid="u",
        slot=0,
        phase="Running",
        conditions=conditions,
        accepted=None if accepted is None else whole(accepted),
        main=main,
    )


@given(
    st.integers(-100 * NS, 100 * NS),
    st.integers(-100 * NS, 100 * NS),
    st.integers(0, 3 * NS),
    st.integers(0, 9 * NS),
    st.integers(0, NS),
    st.integers(0, NS),
)
def test_whatever_the_clocks_a_pods_stamps_prove_nothing_that_is_not_so(node, server, taken, begun, late, part):  # noqa: PLR0917 - drawn
    """``node`` and ``server`` are how far each clock is ahead of ours; the rest is what took how long."""
    bound_at = DAY * NS + part
    accepted, started = bound_at + taken, bound_at + taken + begun
    fact = pod(bound=bound_at + server, accepted=accepted + node, started=started + node, seen=started + late)
    ahead = of_pod(fact, server=Bound(server, server))
    assert ahead.lo is not None
    assert ahead.hi is not None
    assert ahead.lo <= node <= ahead.hi
    # Two cut stamps, and what the kubelet took.
    assert ahead.hi - node <= taken + 2 * NS
    told = by_server(fact, started + node)
    # Clocks that may well agree are let be.
    assert told == started + node or started + server - taken - 2 * NS <= told <= started + server
    if abs(node - server) > 12 * NS:
        assert told != started + node


def test_a_pod_without_stamps_proves_nothing():
    assert of_pod(pod(bound=5 * NS, accepted=None, seen=9 * NS), server=EXACT) == Bound()
    assert of_pod(pod(bound=None, accepted=5 * NS, seen=9 * NS), server=EXACT) == Bound(-4 * NS, None)


def test_a_pod_that_a_slow_kubelet_took_late_makes_no_stamp_of_it_wrong():
    fact = pod(bound=DAY * NS, accepted=(DAY + 5) * NS, seen=(DAY + 6) * NS)
    assert by_server(fact, (DAY + 5) * NS) == (DAY + 5) * NS
    ahead = pod(bound=DAY * NS, accepted=(DAY + 90) * NS, seen=(DAY + 1) * NS)
    assert by_server(ahead, (DAY + 95) * NS) == (DAY + 4) * NS


# -- leases


def lease(renewed: str | None, written: str | None = None, **spec: Any) -> dict[str, Any]:
    fields = [{"manager": "kubelet", "time": written, "fieldsV1": {"f:spec": {"f:renewTime": {}}}}] if written else []
    other = {"manager": "other", "time": "2026-11-21T17:00:00Z", "fieldsV1": {"f:metadata": {}}}
    return {"metadata": {"name": "n1", "managedFields": [other, *fields]}, "spec": {"renewTime": renewed, **spec}}


def test_a_renewal_is_after_the_servers_stamp_of_the_one_before_and_before_its_own():
    server = Bound(2 * NS, 3 * NS)
    # The kubelet is 90 s ahead of us, the server 2.5 s.
    first = lease_snapshot(lease("2026-11-21T16:01:30.500000Z", "2026-11-21T16:00:03Z"), seen_ns=(DAY + 1) * NS)
    then = lease_snapshot(lease("2026-11-21T16:01:40.500000Z", "2026-11-21T16:00:13Z"), seen_ns=(DAY + 11) * NS)
    assert first is not None
    assert then is not None
    one = of_lease(first, None, server=server)
    assert one == Bound(90 * NS - NS // 2, None)
    both = of_lease(then, first, server=server)
    # After 16:00:03 by the server, which is 16:00:00 to 16:00:01 by us.
    assert both == Bound(90 * NS - NS // 2, 100 * NS + NS // 2)
    assert of_lease(first, first, server=server) == one


@pytest.mark.parametrize("item", [{}, lease(None), lease("soon"), lease("2026-11-21T16:01:30.500000Z") | {"spec": 3}])
def test_a_lease_without_a_stamp_is_no_look(item):
    assert lease_snapshot(item, seen_ns=DAY * NS) is None


# -- the server's answers


def test_the_date_of_an_answer_lies_between_question_and_answer():
    clock = ServerClock()
    assert clock.ahead == Bound()
    head = {"Date": "Sat, 21 Nov 2026 16:00:05 GMT"}
    clock.answered(head, asked=DAY * NS, got=DAY * NS + NS // 10)
    assert clock.ahead == Bound(5 * NS - NS // 10, 6 * NS)
    clock.answered(head, asked=DAY * NS + NS // 2, got=DAY * NS + NS)
    assert clock.ahead == Bound(5 * NS - NS // 10, 6 * NS - NS // 2)


@pytest.mark.parametrize("text", ["", "tomorrow", "Sat, 99 Nov 2026 16:00:05 GMT", "\x00"])
def test_a_date_that_cannot_be_read_tells_nothing(text):
    clock = ServerClock()
    clock.answered({"Date": text}, asked=1, got=2)
    clock.answered({}, asked=1, got=2)
    assert clock.ahead == Bound()


def test_a_clock_that_was_set_while_it_was_asked_tells_nothing():
    clock = ServerClock()
    clock.answered({"Date": "Sat, 21 Nov 2026 16:00:05 GMT"}, asked=DAY * NS, got=(DAY - 60) * NS)
    assert clock.ahead == Bound()


# -- the file


def test_what_was_proved_is_kept_and_read_when_it_changes(tmp_path):
    file, view = ClockFile(tmp_path, attempt=1), ProofView(tmp_path, attempt=1)
    file.write()
    assert (view.poll(), view.proofs) == (False, Proofs())
    file.server(Bound(-1, 10_000_001))
    file.node("n1", Bound(3, None))
    file.write()
    assert view.poll()
    # To the hundredth of a second, outwards.
    assert view.proofs == Proofs(server=Bound(-10_000_000, 20_000_000), nodes={"n1": Bound(3, None)})
    assert not view.poll()
    again = ClockFile(tmp_path, attempt=1)
    again.node("n1", Bound(None, 9))
    again.write()
    assert view.poll()
    assert view.proofs.nodes == {"n1": Bound(3, 9)}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"nodes":{"n1":3}}'])
def test_a_damaged_file_proves_nothing(tmp_path, data):
    path = proofs_path(tmp_path, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    view = ProofView(tmp_path, attempt=1)
    assert (view.poll(), view.proofs) == (False, Proofs())
    assert msgspec.json.encode(Proofs()) == b'{"server":[null,null],"nodes":{}}'
