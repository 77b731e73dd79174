"""A run tells its node what it did, and a controller at work answers: over HTTP, with conflicts, refusals and what others left there."""

from __future__ import annotations

import time

import pytest

from backends.kubernetes.launch_server import Refusal
from nodes.api_world import HealthApi, running, tried
from rankfall.backends.kubernetes.backend import node_report_answer, report_to_node
from rankfall.kube.client import Kube
from rankfall.model.node_health.records import NodeHealth
from rankfall.model.node_health.run_verdicts import LEASE, VERDICTS_ANNOTATION, RunVerdict, answer_of, decode_verdicts
from rankfall.nodes.config import ConfigFile

SPACE = "rankfall"


def said(attempt: int = 1, *, action: str = "taint") -> RunVerdict:
    at = time.time_ns()
    return RunVerdict(run="train-1a2b3c", attempt=attempt, cause="gpu_ecc", action=action, at=at, text="Xid 48")  # type: ignore[arg-type]


async def state(kube: Kube, node: str, verdict: RunVerdict) -> str:
    return (await node_report_answer(kube, node, verdict, namespace=SPACE)).state


def leads(api: HealthApi, holder: str = "one") -> None:
    api.objects.pop(("leases", LEASE), None)
    api.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": holder}})


def test_health_s31_a_node_that_felled_a_run_is_told_and_the_taint_is_the_answer():
    async def story():
        async with running("n1", "n2") as world:
            api, verdict = world.api, said()
            leads(api)
            assert await state(world.kube, "n1", verdict) == "waiting"
            assert await report_to_node(world.kube, "n1", verdict) is None
            await world.until(lambda: api.tainted() == {"n1"} and api.condition("n1") == "Quarantined")
            found = await node_report_answer(world.kube, "n1", verdict, namespace=SPACE)
            assert found.state == "tainted"
            assert "verdict/gpu_ecc" in found.text
            assert "train-1a2b3c" in found.text
            version = api.objects["nodes", "n1"]["metadata"]["resourceVersion"]
            assert await report_to_node(world.kube, "n1", verdict) is None
            assert api.objects["nodes", "n1"]["metadata"]["resourceVersion"] == version
            mild = said(2, action="suspect")
            assert await report_to_node(world.kube, "n2", mild) is None
            await world.until(lambda: api.condition("n2") == "Suspect")
            assert await state(world.kube, "n2", mild) == "noted"
            assert api.tainted() == {"n1"}

    tried(story())


def test_over_budget_is_an_answer_too(tmp_path):
    path = tmp_path / "health.toml"
    path.write_text("[policy]\nkill_switch = true\n")
    config = ConfigFile(path)
    config.reload()

    async def story():
        async with running("n1", config=config) as world:
            verdict = said()
            assert await report_to_node(world.kube, "n1", verdict) is None
            await world.until(lambda: world.api.condition("n1") == "HeldKillSwitch")
            assert await state(world.kube, "n1", verdict) == "held"
            assert world.api.tainted() == set()

    tried(story())


def test_without_a_controller_nobody_is_waited_for():
    async def story():
        async with running("n1") as world:
            api, verdict = world.api, said()
            assert await state(world.kube, "n1", verdict) == "none"
            leads(api, holder="")
            assert await state(world.kube, "n1", verdict) == "none"
            leads(api)
            assert await state(world.kube, "n1", verdict) == "waiting"
            api.refusals["GET", "leases"] = Refusal(403)
            assert await state(world.kube, "n1", verdict) == "none"
            assert await state(world.kube, "n9", verdict) == "noted"

    tried(story())


def test_what_the_server_refuses_is_said_and_what_others_change_meanwhile_stays():
    async def story():
        async with running("n1") as world:
            api, verdict = world.api, said()
            await world.until(lambda: world.book.complete)
            api.edit("n1", lambda item: item["metadata"].update(annotations={"theirs": "1", VERDICTS_ANNOTATION: "{"}))
            tries = []

            def between(request):
                if request.method == "PATCH" and request.path.endswith("/n1/status") and len(tries) < 2:
                    tries.append(request.path)
                    api.edit("n1", lambda item: item["metadata"].setdefault("labels", {}).update(a=str(len(tries))))

            api.fault = between
            assert await report_to_node(world.kube, "n1", verdict) is None
            assert len(tries) == 2
            notes = api.objects["nodes", "n1"]["metadata"]["annotations"]
            assert notes["theirs"] == "1"
            assert [each.id for each in decode_verdicts(notes[VERDICTS_ANNOTATION]).verdicts] == [verdict.id]
            api.refusals["PATCH", "nodes/n1/status"] = Refusal(403, "no right")
            refused = await report_to_node(world.kube, "n1", said(2))
            assert refused is not None
            assert "no right" in refused
            gone = await report_to_node(world.kube, "n9", verdict)
            assert gone is not None
            assert "no longer exists" in gone

    tried(story())


@pytest.mark.parametrize("health", [None, NodeHealth(), NodeHealth(tainted=True, state="quarantined")])
def test_a_record_that_does_not_name_the_verdict_is_no_answer(health):
    assert answer_of(health, said()).state == "waiting"
