"""The judge of the soak of node health: it must find each thing that could go wrong."""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import sys
import threading

import pytest

from bench.health import soak_controllers, soak_inject
from bench.health.soak import now_and_then
from bench.health.soak_controllers import Controllers
from bench.health.soak_faults import KINDS, POOL_LABEL, SECOND, SMALL_BUDGET, Fault, faults
from bench.health.soak_inject import Injector
from bench.health.soak_judge import judge, settled
from rankfall.model.node_health.records import ANNOTATION, CONDITION, NodeHealth, OpenCause, encode_health
from support.patience import scaled

KEY = "rankfall.dev/faulty"
GRAVE = Fault(1, "n1", "loki")


def node(name: str, pool: str = "main") -> dict:
    return {
        "metadata": {"name": name, "uid": name, "labels": {POOL_LABEL: pool}, "annotations": {}},
        "spec": {"taints": [{"key": "theirs", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def struck(item: dict, *given: Fault, taint: bool = True, reason: str = "Quarantined", count: int = 1) -> dict:
    """The Node as a controller leaves it."""
    found = copy.deepcopy(item)
    causes = tuple(OpenCause(code=code, device=device, count=count) for code, device in (each.cause for each in given))
    record = NodeHealth(causes=causes, quarantines=(3 * SECOND,) if taint else (), tainted=taint)
    found["metadata"]["annotations"][ANNOTATION] = encode_health(record)
    if taint:
        found["spec"]["taints"].append({"key": KEY, "effect": "NoSchedule"})
    found["status"]["conditions"].append({"type": CONDITION, "reason": reason})
    return found


def event(name: str, reason: str = "Quarantined") -> dict:
    return {"involvedObject": {"name": name}, "reason": reason, "count": 1}


def test_all_that_was_to_be_done_and_nothing_else():
    before = {name: node(name) for name in ("n1", "n2", "n3")}
    mild = Fault(2, "n2", "agent_mild")
    after = {
        "n1": struck(before["n1"], GRAVE),
        "n2": struck(before["n2"], mild, taint=False, reason="Healthy"),
        "n3": copy.deepcopy(before["n3"]),
    }
    after["n3"]["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    given = [(GRAVE, SECOND), (mild, SECOND), (Fault(3, "n3", "pod"), SECOND)]
    found = judge(before, after, [event("n1")], given, key=KEY)
    assert found.wrong == []
    assert (found.tainted, found.noted, found.untouched, found.untold) == ({"n1"}, {"n2"}, {"n3"}, set())
    assert found.waits_s == [2.0]
    assert settled(after, given)
    assert not settled(before, given)
    assert judge(before, after, [], given, key=KEY).untold == {"n1"}


def test_held_only_in_the_small_pool_and_only_once_its_budget_is_spent():
    names = [f"n{number}" for number in range(SMALL_BUDGET + 1)]
    before = {name: node(name, "small") for name in names}
    given = [(Fault(number, name, "loki"), SECOND) for number, name in enumerate(names)]
    after = {each.node: struck(before[each.node], each) for each, _ in given}
    last = given[-1][0]
    assert any("budget" in each for each in judge(before, after, [], given, key=KEY).wrong)
    after[last.node] = struck(before[last.node], last, taint=False, reason="HeldBudget")
    found = judge(before, after, [], given, key=KEY)
    assert (found.wrong, found.held) == ([], {last.node})
    first = given[0][0]
    after[first.node] = struck(before[first.node], first, taint=False, reason="HeldBudget")
    assert any("budget" in each for each in judge(before, after, [], given, key=KEY).wrong)


@pytest.mark.parametrize(
    ("change", "events", "said"),
    [
        (lambda item: struck(item, GRAVE, count=2), (), "was counted 2 times"),
        (lambda item: struck(item, GRAVE, Fault(9, "n1", "loki")), (), "without a fault"),
        (lambda item: item, (), "not written down"),
        (lambda item: struck(struck(item, GRAVE), GRAVE), (), "stands 2 times"),
        (lambda item: struck(item, GRAVE), (event("n1"), event("n1")), "2 Events"),
        (lambda item: struck(item, GRAVE), (event("n1", "BreakerOpen"),), "nobody caused one"),
        (lambda item: struck(item, GRAVE, taint=False, reason="HeldBudget"), (), "outside of the small pool"),
        (lambda item: struck({**item, "spec": {"taints": [], "unschedulable": True}}, GRAVE), (), "not ours was changed"),
        (lambda item: None, (), "is gone"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(change, events, said):
    before = {"n1": node("n1")}
    after = {name: found for name, found in (("n1", change(node("n1"))),) if found is not None}
    assert any(said in each for each in judge(before, after, events, [(GRAVE, SECOND)], key=KEY).wrong)


def test_a_node_with_nothing_grave_must_stay_schedulable():
    before = {"n1": node("n1")}
    injected = [(Fault(1, "n1", "agent_injected"), SECOND)]
    assert judge(before, {"n1": struck(before["n1"])}, [], injected, key=KEY).wrong != []


def test_faults_have_devices_of_their_own_and_leave_one_node_in_four_alone():
    names = [f"n{number}" for number in range(40)]
    found = list(itertools.islice(faults(names, random.Random(1)), 300))
    assert len({each.cause for each in found}) == 300
    assert {each.way for each in found} == set(KINDS)
    assert len({each.node for each in found}) == 30
    assert sum(kind.share for kind in KINDS.values()) == 100
    late = next(each for each in found if each.way == "loki_late")
    assert late.late_s >= 20
    assert late.dmesg(at=7_200_500_000_000, begun=0) == f"[ 7200.500000] {late.text}"


def test_a_line_that_is_brought_again_has_its_old_stamp(monkeypatch):
    pushed = []

    def push(url, labels, rows):
        pushed.append(rows)
        if len(pushed) == 1:
            raise OSError("stored, and the answer was lost")

    async def no_wait(seconds):
        del seconds

    monkeypatch.setattr(soak_inject, "push", push)
    monkeypatch.setattr(soak_inject.asyncio, "sleep", no_wait)
    injector = Injector(None, "http://loki", begun=0)
    asyncio.run(injector.give(GRAVE))
    assert pushed[0] == pushed[1]
    assert [fault for fault, _ in injector.given] == [GRAVE]


def test_what_disturbs_is_not_cut_off_in_the_middle():
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go_on.wait(scaled(20))

    async def story():
        task = asyncio.create_task(now_and_then(work, lambda: done.append(1), random.Random(1), every=(0, 0)))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert done == [1]


def test_a_controller_that_was_killed_as_the_time_ran_out_is_started_again(tmp_path, monkeypatch):
    sleeps = []

    async def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 2:  # between the kill and the start
            raise asyncio.CancelledError

    controllers = Controllers(tmp_path, kubeconfig=tmp_path, url="http://loki")
    controllers._command = [sys.executable, "-c", "import time; time.sleep(60)"]
    controllers.start("one")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(soak_controllers.asyncio, "sleep", sleep)
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(controllers.trouble(random.Random(1), every=(0, 0)))
        assert controllers.kills == 1
    finally:
        controllers.end()
    assert controllers.ended == []
