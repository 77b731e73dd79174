"""Hooks: the ladder, what a hook is told, what proves that it worked. Commands and a webhook are real; Jobs are the server's part."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from backends.kubernetes.launch_server import Refusal
from kube.apiserver import answer, refuse, serving
from nodes.api_world import running
from rankfall.kube.client import Kube
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import MANUAL_CODE, NodeFault, NodeHealth, OpenCause
from rankfall.nodes.config import ConfigFile, load_config
from rankfall.nodes.controller import remediation as cares
from rankfall.nodes.controller.remediation import NodeOccupancy, Remediation
from rankfall.nodes.hooks.calls import Answer, Call, call_hook, hook_job
from rankfall.nodes.hooks.ladder import Hook, hooks_from, next_hook
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.nodes.rules.node_state import Remedy
from support.helpers import gone, wait_until
from support.patience import scaled

CAUSE = OpenCause(code="xid/79", device="gpu 0000:4e:00", due_at=1, last_at=1)
CALL = Call(node="n1", cause=CAUSE, attempt=1, key="k1")
STEPS = ("restart_pods", "reset_gpu", "reboot", "power_cycle")
ALL = hooks_from([{"step": step, "command": ["true"]} for step in reversed(STEPS)], origin="own")


def sick(*causes: str, **more) -> NodeHealth:
    found = tuple(OpenCause(code=code, due_at=1, last_at=1) for code in causes)
    return NodeHealth(**{"state": "quarantined", "tainted": True, "causes": found, **more})


def rung(health: NodeHealth, hooks=ALL) -> str | None:
    found = next_hook(health, hooks=hooks, rules=packaged())
    return None if found is None else found[0].step


def remedy_code(remedy: str) -> str:
    return next(
        rule.code
        for rule in packaged()
        if rule.remedy == remedy and rule.action == "quarantine" and rule.code != MANUAL_CODE
    )


def test_health_s10_the_ladder_begins_where_the_gravest_cause_asks_and_each_step_is_tried_so_often_only():
    assert [each.step for each in ALL] == list(STEPS)
    code = remedy_code("reboot")
    assert rung(sick(code)) == "reboot"
    assert rung(sick(code, tried=("reboot",))) == "power_cycle"
    assert rung(sick(code, tried=("reboot", "power_cycle"))) is None
    assert rung(sick(remedy_code("reset_gpu"))) == "reset_gpu"
    assert rung(sick(remedy_code("reset_gpu"), code)) == "reboot"
    twice = hooks_from([{"step": "reboot", "command": ["true"], "attempts": 2}], origin="own")
    assert rung(sick(code, tried=("reboot",)), twice) == "reboot"


@pytest.mark.parametrize(
    "health",
    [
        sick(MANUAL_CODE),
        sick(remedy_code("reboot"), remedy_code("inspect")),
        sick(remedy_code("reboot"), repeat_offender=True),
        sick(remedy_code("reboot"), state="validating"),
        sick(remedy_code("reboot"), tainted=False),
        sick(),
    ],
)
def test_what_is_a_persons_work_gets_no_hook(health):
    assert rung(health) is None
    assert next_hook(sick(remedy_code("reboot")), hooks=(), rules=packaged()) is None


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"step": "explode", "command": ["x"]}, "step"),
        ({"step": "reboot"}, "exactly one"),
        ({"step": "reboot", "command": []}, "exactly one"),
        ({"step": "reboot", "command": ["x"], "webhook": "http://h"}, "exactly one"),
        ({"step": "reboot", "webhook": "ftp://h"}, "webhook"),
        ({"step": "reboot", "webhook": "http://[x"}, "webhook"),
        ({"step": "reboot", "webhook": "http://h:99999"}, "webhook"),
        ({"step": "reboot", "command": ["x"], "token_file": "t"}, "token_file"),
        ({"step": "reboot", "job": {"image": "i"}}, "command"),
        ({"step": "reboot", "command": ["x"], "attempts": 9}, "attempts"),
    ],
)
def test_a_hook_with_any_fault_is_refused_with_its_place(row, word):
    with pytest.raises(SpecError, match=word) as refused:
        hooks_from([row], origin="own.toml")
    assert "own.toml: hook 1" in str(refused.value)
    with pytest.raises(SpecError, match="already"):
        hooks_from([{"step": "reboot", "command": ["x"]}] * 2, origin="own.toml")


def called(tmp_path: Path, hook: Hook, *handlers) -> tuple[Answer, list]:
    async def story() -> tuple[Answer, list]:
        async with serving(tmp_path, tls=False) as server, Kube(server.access(), rate=1000, burst=1000) as kube:
            server.plays(*handlers)
            if hook.webhook is not None:
                changed = msgspec.structs.replace(hook, webhook=hook.webhook.replace("http://server", server.url))
                return await call_hook(kube, changed, CALL, namespace="rankfall"), server.seen
            return await call_hook(kube, hook, CALL, namespace="rankfall"), server.seen

    return asyncio.run(asyncio.wait_for(story(), scaled(20)))


def test_health_s10_a_command_is_told_node_cause_action_and_attempt(tmp_path):
    command = (
        "sh",
        "-c",
        'echo "$RANKFALL_NODE $RANKFALL_CAUSE $RANKFALL_DEVICE $RANKFALL_STEP $RANKFALL_ATTEMPT $RANKFALL_KEY"; exit 3',
    )
    found, _ = called(tmp_path, Hook(step="reboot", command=command))
    assert found == Answer(ok=False, text="ended with 3: n1 xid/79 gpu 0000:4e:00 reboot 1 k1")
    assert called(tmp_path, Hook(step="reboot", command=("true",)))[0] == Answer(ok=True, text="ended with 0")
    assert "No such file" in called(tmp_path, Hook(step="reboot", command=("/none/such",)))[0].text
    assert not called(tmp_path, Hook(step="reboot", command=("true", "a\0b")))[0].ok
    loud, _ = called(tmp_path, Hook(step="reboot", command=("sh", "-c", "yes | head -c 1000000; echo; echo ready")))
    assert loud.ok
    assert loud.text.endswith("ready")


def test_a_command_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    command = ("sh", "-c", "sleep 1000 & echo $! >pid; wait")
    found, _ = called(
        tmp_path,
        Hook(step="reboot", command=("sh", "-c", f"cd {tmp_path} && exec {command[0]} -c '{command[2]}'"), timeout_s=1),
    )
    assert found == Answer(ok=False, text="had not answered after 1 s")
    child = int((tmp_path / "pid").read_text())
    # The kernel ends a killed process a moment after the signal was sent.
    wait_until(lambda: gone(child), timeout=10, what="the end of what the command started")


def test_a_webhook_gets_a_post_with_its_token_and_its_key(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    hook = Hook(step="power_cycle", webhook="http://server/cycle", token_file=str(tmp_path / "token"))
    found, seen = called(tmp_path, hook, answer(202, b"queued"), answer(500, b"no"))
    assert found == Answer(ok=True, text="answered 202: queued")
    (request,) = seen
    assert (request.method, request.path, request.headers["Authorization"], request.headers["Idempotency-Key"]) == (
        "POST", "/cycle", ["Bearer s3cret"], ["k1"],
    )  # fmt: skip
    assert request.json == {
        "node": "n1",
        "step": "power_cycle",
        "cause": "xid/79",
        "device": "gpu 0000:4e:00",
        "attempt": "1",
        "key": "k1",
    }
    assert not called(tmp_path, hook, answer(500, b"no"))[0].ok
    gone = msgspec.structs.replace(hook, token_file=str(tmp_path / "none"))
    assert "No such file" in called(tmp_path, gone)[0].text
    (tmp_path / "token").write_text("s3cret\nanother\n")
    found, seen = called(tmp_path, hook)
    assert (found.ok, seen) == (False, [])
    assert "no token that is valid in a header" in found.text
    assert "s3cret" not in found.text
    assert not called(tmp_path, Hook(step="reboot", webhook="http://127.0.0.1:1/x"))[0].ok


def test_a_job_is_made_once_and_removed(tmp_path):
    hook = hooks_from([{"step": "reset_gpu", "job": {"image": "i", "command": ["x"], "on_node": True, "privileged": True, "service_account": "sa"}}], origin="own")[0]  # fmt: skip
    ended = answer(200, {"metadata": {}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    found, seen = called(
        tmp_path, hook, refuse(409, "AlreadyExists"), answer(200, {"metadata": {}}), ended, answer(200, {})
    )
    assert found.ok
    assert [each.method for each in seen] == ["POST", "GET", "GET", "DELETE"]
    assert json.loads(seen[0].body)["spec"]["template"]["spec"]["nodeName"] == "n1"
    assert not called(tmp_path, hook, refuse(403, "Forbidden"))[0].ok
    assert hook.job is not None
    plain = hook_job(
        msgspec.structs.replace(hook.job, on_node=False, privileged=False, service_account=None),
        {},
        node="n1",
        name="x",
        limit=5,
    )
    pod = plain["spec"]["template"]["spec"]
    assert "nodeName" not in pod
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not pod["automountServiceAccountToken"]


def config(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "health.toml"
    path.write_text(text)
    file = ConfigFile(path)
    assert file.reload(), file.problem
    return file


def test_the_example_is_a_file_that_is_taken():
    found = load_config(Path(__file__).parents[2] / "examples" / "node-health.toml")
    assert [each.step for each in found.hooks] == ["reset_gpu", "reboot", "power_cycle"]
    assert [each.name for each in found.checks] == ["gpu-count", "nvidia-smi", "all-reduce"]


def fault(node: str, code: str) -> NodeFault:
    return NodeFault(
        id=f"{node}-{code}",
        node=node,
        source="loki",
        trust="collector",
        code=code,
        at=cares.time.time_ns(),
        text="line",
    )


async def caring(world, story, **options) -> None:
    occupied = NodeOccupancy(world.kube, book=world.book, loop=world.loop, namespace="here", poll_interval_s=0.01)
    care = Remediation(
        world.kube, book=world.book, loop=world.loop, config=world.config, occupied=occupied, namespace="here", poll_interval_s=0.01, **options
    )  # fmt: skip
    tasks = [asyncio.create_task(each.run()) for each in (care, occupied)]
    try:
        await story
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_story(story) -> None:
    asyncio.run(asyncio.wait_for(story, scaled(30)))


REBOOT = remedy_code("reboot")


def state(world, name: str) -> str:
    record = world.api.record(name)
    return "none" if record is None else record.state


def test_health_s10_s43_a_reboot_is_called_once_and_proven_by_another_boot_id_and_else_the_ladder_goes_on(tmp_path):
    said = tmp_path / "said"
    hook = f"""command = ["sh", "-c", "echo $RANKFALL_STEP $RANKFALL_ATTEMPT >> {said}"]"""
    file = config(tmp_path, f"[[hook]]\nstep = 'reboot'\nprove_s = 1\n{hook}\n[[hook]]\nstep = 'power_cycle'\n{hook}\n")

    async def story() -> None:
        async with running("n1", "n2", config=file) as world:

            async def told() -> None:
                await world.loop.give([fault("n1", REBOOT)])
                # The hook says yes, and the boot id stays: that is a failure, and the next rung's turn.
                await world.until(lambda: (world.api.record("n1") or NodeHealth()).tried == ("reboot", "power_cycle"))
                await world.until(lambda: said.read_text() == "reboot 1\npower_cycle 1\n")
                world.api.edit("n1", lambda item: item["status"]["nodeInfo"].update(bootID="boot-new"))
                await world.until(lambda: state(world, "n1") == "validating")

            await caring(world, told())
            assert said.read_text() == "reboot 1\npower_cycle 1\n"
            assert world.api.tainted() == {"n1"}

    run_story(story())


def job_pod(api, name: str, node: str, *, asks: str = "nvidia.com/gpu", space: str = "team", **status) -> None:
    spec = {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": {asks: "1", "cpu": "1"}}}]}
    api.put(
        "pods", {"metadata": {"name": name, "namespace": space}, "spec": spec, "status": {"phase": "Running", **status}}
    )


def test_health_s30_a_job_that_goes_on_is_not_disturbed_and_after_its_end_the_node_is_reset(tmp_path, caplog):
    said = tmp_path / "said"
    hook = f"""command = ["sh", "-c", "echo $RANKFALL_STEP $RANKFALL_CAUSE >> {said}"]"""
    file = config(tmp_path, f"[policy]\nafter_job = true\n[[hook]]\nstep = 'reset_gpu'\n{hook}\n")

    async def story() -> None:
        async with running("n1", "n2", config=file) as world:
            api = world.api
            job_pod(api, "train-0", "n1")
            # No jobs: one that has ended, one that asks for no device, the controller's own checks.
            job_pod(api, "old", "n2", phase="Succeeded")
            job_pod(api, "web", "n2", asks="memory")
            job_pod(api, "check", "n2", space="here")
            asked = []
            api.webhook = lambda request: (
                asked.append(request.query.get("fieldSelector")) if request.path == "/api/v1/pods" else None
            )

            async def told() -> None:
                await world.loop.give([fault("n1", "xid/63")])
                await world.until(lambda: asked.count("spec.nodeName=n1") > 5)
                assert api.tainted() == set()
                assert "spec.nodeName=n2" not in asked  # nothing waits there
                api.objects["pods", "train-0"]["status"]["phase"] = "Succeeded"
                await world.until(lambda: api.tainted() == {"n1"})
                await world.until(lambda: said.exists() and said.read_text().startswith("reset_gpu xid/63"))
                await world.until(lambda: state(world, "n1") == "validating")

            await caring(world, told())
            assert said.read_text().count("reset_gpu") == 1

    run_story(story())


def test_i32_p5_no_hook_begins_on_a_node_that_nvsentinel_took_after_rankfall_tainted_it(tmp_path):
    said = tmp_path / "said"
    hook = f"""command = ["sh", "-c", "echo $RANKFALL_NODE >> {said}"]"""
    file = config(
        tmp_path, f"[policy]\nbudget = {{ nodes = 4, percent = 100 }}\n[[hook]]\nstep = 'reset_gpu'\n{hook}\n"
    )

    def take(item) -> None:
        item["metadata"].setdefault("labels", {})["dgxc.nvidia.com/nvsentinel-state"] = "draining"
        item["spec"]["unschedulable"] = True

    def release(item) -> None:
        del item["metadata"]["labels"]["dgxc.nvidia.com/nvsentinel-state"]
        item["spec"]["unschedulable"] = False

    async def story() -> None:
        async with running("n1", "n2", config=file) as world:
            await world.loop.give([fault("n1", "xid/95")])
            await world.until(lambda: world.api.tainted() == {"n1"})
            world.api.edit("n1", take)
            await world.until(lambda: world.book.nodes["n1"].view.hands_off)

            async def told() -> None:
                # n1 comes first by name: a hook on n2 means that it was passed over.
                await world.loop.give([fault("n2", "xid/95")])
                await world.until(lambda: said.exists() and said.read_text() == "n2\n")
                await world.until(lambda: state(world, "n2") == "validating")
                assert (state(world, "n1"), world.api.tainted()) == ("quarantined", {"n1", "n2"})
                world.api.edit("n1", release)
                await world.until(lambda: said.read_text() == "n2\nn1\n")

            await caring(world, told())

    run_story(story())


@pytest.mark.parametrize("seen", [True, False], ids=["a job runs", "pods may not be seen"])
def test_health_s30_a_hook_waits_for_the_job_unless_the_fault_is_fatal_for_it(tmp_path, caplog, seen):
    waits = next(
        rule.code
        for rule in packaged()
        if rule.action == "quarantine" and rule.count == 1 and rule.remedy == "reboot" and rule.fatal_for_job != "yes"
    )
    said = tmp_path / "said"
    file = config(
        tmp_path,
        f"[policy]\nbudget = {{ nodes = 4, percent = 100 }}\n[[hook]]\nstep = 'reset_gpu'\ncommand = ['sh', '-c', 'echo $RANKFALL_NODE >> {said}']\n"
        f"[[hook]]\nstep = 'reboot'\nprove_s = 1\ncommand = ['sh', '-c', 'echo $RANKFALL_NODE >> {said}']\n",
    )

    async def story() -> None:
        async with running("n1", "n2", config=file) as world:
            api = world.api
            if seen:
                job_pod(api, "train-0", "n1")
                job_pod(api, "train-1", "n2")
            else:
                api.refusals["GET", "pods"] = Refusal(403, "pods is forbidden")

            async def told() -> None:
                await world.loop.give([fault("n1", waits)])
                await world.until(lambda: "waits for the end of the job" in caplog.text)
                await world.loop.give([fault("n2", "xid/95")])
                await world.until(lambda: said.exists() and said.read_text().startswith("n2"))
                assert state(world, "n1") == "quarantined"
                if seen:
                    api.objects.pop(("pods", "train-0"))
                    await world.until(lambda: "n1" in said.read_text())

            await caring(world, told())

    with caplog.at_level("WARNING", logger="rankfall.controller"):
        run_story(story())


def test_a_hook_that_fails_is_not_waited_for_and_one_that_mends_no_reboot_is_validated(tmp_path):
    file = config(
        tmp_path, "[[hook]]\nstep = 'reboot'\ncommand = ['false']\n[[hook]]\nstep = 'reset_gpu'\ncommand = ['true']\n"
    )

    async def story() -> None:
        async with running("n1", "n2", config=file) as world:

            async def told() -> None:
                await world.loop.give([fault("n1", REBOOT)])
                await world.until(
                    lambda: (
                        (world.api.record("n1") or NodeHealth()).tried == ("reboot",)
                        and state(world, "n1") == "quarantined"
                    )
                )

            await caring(world, told())

    run_story(story())


@pytest.mark.parametrize("rebooted", [True, False])
def test_a_step_of_an_earlier_controller_is_not_begun_again_and_ends_by_its_proof_or_its_time(tmp_path, rebooted):
    # There is no hook of the step that was begun any more, so nobody waits for its proof.
    file = config(tmp_path, "[[hook]]\nstep = 'power_cycle'\ncommand = ['false']\n")

    async def story() -> None:
        async with running("n1", "n2", config=file) as world:
            await world.loop.give([fault("n1", REBOOT)])
            await world.loop.give([Remedy(node="n1", at=cares.time.time_ns(), step="reboot", outcome="started")])
            await world.until(lambda: state(world, "n1") == "remediating")
            if rebooted:
                world.api.edit("n1", lambda item: item["status"]["nodeInfo"].update(bootID="boot-new"))
                await world.until(lambda: world.book.nodes["n1"].view.boot == "boot-new")
                await caring(world, world.until(lambda: state(world, "n1") == "validating"))
                return
            tried = ("reboot", "power_cycle")
            await caring(world, world.until(lambda: (world.api.record("n1") or NodeHealth()).tried == tried))

    run_story(story())


def test_health_s10_one_hook_in_the_whole_cluster_also_when_another_controller_takes_over(tmp_path):
    """The step on n2 was begun by a controller that is gone, and is proven by a boot: until then no hook is called for n1."""
    said = tmp_path / "said"
    file = config(
        tmp_path,
        "[policy]\nbudget = { nodes = 5, percent = 100 }\n[[hook]]\nstep = 'reboot'\nprove_s = 600\n"
        f"""command = ["sh", "-c", "echo $RANKFALL_NODE >> {said}"]\n""",
    )

    async def story() -> None:
        async with running("n1", "n2", config=file) as first:
            api = first.api
            await first.loop.give([fault("n1", REBOOT), fault("n2", REBOOT)])
            await first.loop.give([Remedy(node="n2", at=cares.time.time_ns(), step="reboot", outcome="started")])
            await first.until(lambda: state(first, "n2") == "remediating")
        async with running(api=api, config=file) as world:
            await world.until(lambda: world.book.complete)
            looks = []
            care_of = Remediation._node

            async def told() -> None:
                await world.until(lambda: looks.count("n1") > 5)
                assert not said.exists()
                assert state(world, "n1") == "quarantined"
                world.api.edit("n2", lambda item: item["status"]["nodeInfo"].update(bootID="boot-new"))
                await world.until(lambda: state(world, "n2") == "validating")
                await world.until(lambda: said.exists() and said.read_text() == "n1\n")

            async def seen(self: Remediation, name: str) -> None:
                looks.append(name)
                await care_of(self, name)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Remediation, "_node", seen)
                await caring(world, told())

    run_story(story())


def test_nothing_is_done_for_a_node_that_is_opted_out_or_under_the_kill_switch(tmp_path):
    file = config(tmp_path, "[policy]\nkill_switch = true\n[[hook]]\nstep = 'reboot'\ncommand = ['false']\n")
    assert load_config(tmp_path / "health.toml").hooks[0].step == "reboot"

    async def story() -> None:
        async with running("n1", config=file) as world:
            await world.loop.give([fault("n1", REBOOT)])
            await caring(world, asyncio.sleep(0.05))
            assert world.api.tainted() == set()
            assert (world.api.record("n1") or NodeHealth()).tried == ()

    run_story(story())
