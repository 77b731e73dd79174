"""The controller at work: from a line to a taint, exactly once, whatever is killed, refused, late or said twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from backends.kubernetes.launch_server import Refusal
from nodes.api_world import LABELS, SECOND, XID, MemoryLoki, running, tried
from rankfall.kube.errors import Conflict, KubeError
from rankfall.loki import LokiError
from rankfall.model.errors import EvidenceLost
from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, KernelEntry, KernelReport, Place, encode_report
from rankfall.model.node_health.records import NodeFault
from rankfall.nodes.checks.rounds import Round
from rankfall.nodes.config import ConfigFile
from rankfall.nodes.controller.plan_writer import LeadershipLost
from rankfall.nodes.controller.remediation import Validator
from rankfall.nodes.controller.settings import Settings, Switches, read_switches
from rankfall.nodes.controller.sources.loki import PodLines, rest_s
from rankfall.nodes.rules.node_state import CheckRound

DMESG = f"[538441.007373] {XID}"


def config(tmp_path, text: str) -> ConfigFile:
    path = tmp_path / "health.toml"
    path.write_text(text)
    file = ConfigFile(path)
    file.reload()
    assert file.problem is None
    return file


def report(boot: str, *codes: str, trust: str = "kernel") -> dict[str, str]:
    now = time.time_ns()
    entries = tuple(
        KernelEntry(
            code=code, trust=trust, device="gpu 0000:4e:00", seen=(Place(seq, now),), first=Place(seq, now), text=XID
        )  # type: ignore[arg-type]
        for seq, code in enumerate(codes, start=1)
    )
    return {REPORT_ANNOTATION: encode_report(KernelReport(boot=boot, entries=entries))}


def test_health_s01_a_line_of_a_daemon_sets_log_taints_its_node_and_no_other(caplog):
    async def story():
        async with running("n1", "n2") as world:
            world.loki.say("n1", DMESG)
            with caplog.at_level("INFO", logger="rankfall.controller"):
                await world.source.look()
            api = world.api
            assert api.tainted() == {"n1"}
            await world.until(lambda: api.condition("n1") == "Quarantined" and "Quarantined" in api.reasons("n1"))
            record = api.record("n1")
            assert record is not None
            (cause,) = record.causes
            assert (cause.code, cause.device, cause.text) == ("xid/79", "gpu 0000:4e:00", DMESG)
            (event,) = [each for each in api.all("events") if each["reason"] == "Quarantined"]
            assert "xid/79 gpu 0000:4e:00" in event["message"]
            assert f"node `n1` has dmesg error: {DMESG}" in caplog.messages
            assert "Node n1 tainted. (rankfall.dev/faulty=true:NoSchedule)" in caplog.messages
            assert api.record("n2") is None
            assert [row["what"] for row in world.audit] == ["saw", "happened"]
            assert world.metrics.get("health_quarantined_total") == 1
            # Said again, or read again, it is the same line.
            world.loki.say("n1", DMESG)
            writes = len(api.writes())
            await world.source.look()
            assert api.tainted() == {"n1"}
            assert [path for _, path in api.writes()[writes:] if "nodes" in path] == []

    tried(story())


def test_health_s16_a_kill_between_taint_and_mark_changes_nothing():
    async def story():
        loki = MemoryLoki()
        async with running("n1", loki=loki) as first:
            loki.say("n1", DMESG)
            api = first.api
            # Killed after the taint and before the mark was kept.
            first.state.save_position = lambda *_: (_ for _ in ()).throw(asyncio.CancelledError)
            with pytest.raises(asyncio.CancelledError):
                await first.source.look()
            await first.until(lambda: "Quarantined" in api.reasons("n1"))
            before = (api.taints("n1"), api.record("n1"), sorted(api.reasons("n1")))
        async with running(api=api, loki=loki) as second:
            await second.source.look()
            await second.source.look()
            assert (api.taints("n1"), api.record("n1"), sorted(api.reasons("n1"))) == before

    tried(story())


def test_a_ring_that_is_printed_again_does_not_taint_a_node_that_a_person_cleared():
    async def story():
        async with running("n1") as world:
            world.loki.say("n1", DMESG)
            await world.source.look()
            world.api.edit("n1", lambda item: item["spec"].update(taints=[]))
            await world.until(lambda: world.api.record("n1") is not None and not world.api.record("n1").tainted)
            world.loki.say("n1", DMESG)  # a later stamp, the text of before
            await world.source.look()
            assert world.api.tainted() == set()
            world.loki.say(
                "n1",
                "[538999.000000] NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.",
                at=time.time_ns() + 30 * SECOND,
            )
            await world.source.look()
            await world.until(lambda: world.api.tainted() == {"n1"})

    tried(story())


def test_health_s13_a_storm_of_one_node_hides_no_other():
    async def story():
        async with running("n1", "n2", loki=MemoryLoki(most=50)) as world:
            now = time.time_ns()
            for index in range(500):
                text = f"[{1000 + index}.000000] NVRM: Xid (PCI:0000:4e:00): 31, pid=7, name=x, Ch 0{index}"
                world.loki.say("n1", text, at=now + index)
            world.loki.say("n2", DMESG, at=now + 600)
            await world.source.look()
            assert world.api.tainted() == {"n2"}
            assert world.metrics.get("health_source_lines_total", source="dmesg") == 501

    tried(story())


@pytest.mark.parametrize("passing", [True, False])
def test_health_s15_s21_a_loki_that_does_not_answer_is_never_no_lines(passing, monkeypatch):
    monkeypatch.setattr("rankfall.nodes.controller.sources.loki.REFUSED_S", 0.01)
    monkeypatch.setattr("rankfall.loki.reader.FIRST_S", 0.01)

    async def story():
        async with running("n1") as world:
            world.loki.say("n1", DMESG)
            world.loki.fault = LokiError("away", passing=passing)
            task = asyncio.create_task(world.source.run())
            await world.until(lambda: world.loki.asked > 2)
            assert world.source.blind_s > 0
            assert world.metrics.get("health_source_blind_seconds", source="dmesg") > 0
            assert world.api.tainted() == set()
            world.loki.fault = None
            await world.until(lambda: world.api.tainted() == {"n1"})
            await world.until(lambda: world.source.blind_s == 0)
            task.cancel()

    tried(story())


def test_health_s17_a_line_that_comes_four_minutes_late_is_acted_on_once():
    async def story():
        async with running("n1") as world:
            await world.source.look()
            world.loki.say("n1", DMESG, at=time.time_ns() - 240 * SECOND)
            await world.source.look()
            assert world.api.tainted() == set()  # a quick look does not go so far back
            world.source._thorough_at = None
            await world.source.look()
            assert world.api.tainted() == {"n1"}
            assert world.api.record("n1").causes[0].count == 1

    tried(story())


def test_health_s18_what_others_write_meanwhile_stays():
    async def story():
        async with running("n1") as world:
            await world.until(lambda: world.book.complete)
            write, other = world.api.fault, {"key": "theirs", "effect": "NoSchedule"}

            def strike(request):
                if request.method == "PATCH" and request.path.endswith("/nodes/n1"):
                    world.api.fault = write
                    world.api.edit("n1", lambda item: item["spec"].update(taints=[other]))

            world.api.fault = strike
            world.loki.say("n1", DMESG)
            await world.source.look()
            await world.until(lambda: world.api.taints("n1") == ["theirs", "rankfall.dev/faulty"])
            assert world.metrics.get("health_writes_total", result="changed") == 1

    tried(story())


def test_health_s19_a_node_that_is_gone_keeps_no_other_waiting(caplog):
    async def story():
        async with running("n1", "n2", "n3") as world:
            await world.until(lambda: world.book.complete)
            world.api.refusals["PATCH", "nodes/n1"] = Refusal(404)
            for node in ("n1", "n2", "none-such"):
                world.loki.say(node, DMESG)
            # A pool of three has room for one; the first that is asked for is gone.
            await world.source.look()
            await world.until(lambda: world.api.tainted() == {"n2"} or world.api.condition("n2") is not None)
            assert world.metrics.get("health_writes_total", result="gone") >= 1

    tried(story())


def test_a_node_that_refuses_a_write_waits_where_a_kill_cannot_lose_it():
    async def story():
        async with running("n1") as world:
            await world.until(lambda: world.book.complete)
            world.api.refusals["PATCH", "nodes/n1"] = Refusal(403)
            world.loki.say("n1", DMESG)
            await world.source.look()
            assert [each.code for each in world.state.stored.waiting] == ["xid/79"]
            assert world.metrics.get("health_waiting") == 1
            api, loki = world.api, world.loki
        api.refusals.clear()
        async with running(api=api, loki=loki) as second:
            await second.until(lambda: api.tainted() == {"n1"})
            await second.until(lambda: second.state.stored.waiting == ())

    tried(story())


def test_nothing_is_dropped_while_the_api_is_away(monkeypatch):
    monkeypatch.setattr("rankfall.nodes.controller.decision_loop.AGAIN_S", 0.01)

    async def story():
        async with running("n1") as world:
            await world.until(lambda: world.book.complete)
            world.api.refusals["PATCH", "configmaps"] = Refusal(503)
            world.loki.say("n1", DMESG)
            look = asyncio.create_task(world.source.look())
            await world.until(lambda: world.api.seen.count(("PATCH", "/api/v1/namespaces/here/configmaps/rankfall-controller-state")) > 4)  # fmt: skip
            assert not look.done()
            assert world.api.tainted() == set()
            world.api.refusals.clear()
            await look
            assert world.api.tainted() == {"n1"}

    tried(story())


def test_health_s22_over_budget_is_said_and_its_turn_comes(tmp_path):
    async def story():
        file = config(tmp_path, "[policy.budget]\nnodes = 1\npercent = 100\n")
        async with running("n1", "n2", "n3", "n4", config=file) as world:
            for node in ("n1", "n2", "n3"):
                world.loki.say(node, DMESG)
            await world.source.look()
            api = world.api
            assert len(api.tainted()) == 1
            held = {"n1", "n2", "n3"} - api.tainted()
            await world.until(lambda: all(api.condition(name) == "HeldBudget" for name in held))
            await world.until(lambda: all("QuarantineHeld" in api.reasons(name) for name in held))
            (tmp_path / "health.toml").write_text("[policy.budget]\nnodes = 3\npercent = 100\n")
            assert file.reload()
            world.loop.settings_changed()
            await world.until(lambda: api.tainted() == {"n1", "n2", "n3"})
            assert api.condition("n4") is None

    tried(story())


def test_health_s24_a_dry_run_writes_nothing_at_all(caplog):
    async def story():
        async with running("n1", settings=Settings(dry_run=True)) as world:
            world.loki.say("n1", DMESG)
            with caplog.at_level("INFO", logger="rankfall.controller"):
                await world.source.look()
                world.loki.say("n1", "[538442.000000] NVRM: Xid (PCI:0000:4f:00): 48, DBE")
                await world.source.look()
            assert world.api.writes() == []
            assert any("QuarantineHeld" in each and "dry_run" in each for each in caplog.messages)
            assert sum("QuarantineHeld" in each for each in caplog.messages) == 1
            assert world.metrics.get("health_evidence_total", source="loki", kind="xid", outcome="counted") == 2

    tried(story())


def test_health_s25_the_kill_switch_stops_acts_and_lets_them_come_later():
    async def story():
        async with running("n1") as world:
            world.loop.switch(read_switches({"data": {"kill-switch": "true"}}))
            world.loki.say("n1", DMESG)
            await world.source.look()
            assert world.api.tainted() == set()
            await world.until(lambda: world.api.condition("n1") == "HeldKillSwitch")
            assert world.metrics.get("health_kill_switch") == 1
            world.loop.switch(read_switches({"data": {"kill-switch": "maybe"}}))
            world.loop.switch(read_switches(None))
            await world.until(lambda: world.api.tainted() == {"n1"})

    tried(story())


def test_switches_that_cannot_be_read_stop():
    assert read_switches(None) == Switches()
    assert read_switches({"data": {"kill-switch": "off", "breaker-reset": "ann"}}) == Switches(reset_word="ann")
    odd = read_switches({"data": {"kill-switch": "\x1b[31m"}})
    assert odd.kill
    assert "counts as true" in (odd.problem or "")


def test_the_breaker_outlives_the_controller_and_only_a_person_closes_it(tmp_path):
    async def story():
        nodes = [f"n{number}" for number in range(1, 9)]
        text = "[policy]\nbreaker_nodes = 3\n[policy.budget]\npercent = 100\n"
        async with running(*nodes, config=config(tmp_path, text)) as world:
            for node in nodes:
                world.loki.say(node, DMESG)
            await world.source.look()
            assert world.api.tainted() == set()
            assert world.metrics.get("health_breaker_open") == 1
            api, loki = world.api, world.loki
        async with running(api=api, loki=loki, config=config(tmp_path, text)) as second:
            assert second.state.stored.safety.trip is not None
            loki.say("n1", DMESG.replace("007373", "207373"))
            await second.source.look()
            assert api.tainted() == set()
            second.loop.switch(Switches(reset_word="ann 2026-11-22"))
            await second.until(lambda: api.tainted() == set(nodes))
            assert second.state.stored.reset_word == "ann 2026-11-22"
            assert "breaker_closed" in [row["what"] for row in second.audit]

    tried(story())


def test_an_agents_annotation_taints_and_a_process_that_wrote_into_the_log_does_not():
    async def story():
        async with running("n2") as world:
            world.api.node("n1", boot="b1", annotations=report("b1", "xid/79"))
            await world.api.wake()
            await world.until(lambda: world.api.tainted() == {"n1"})
            for annotations in (report("boot-n2", "xid/79", trust="injected"), {REPORT_ANNOTATION: "{"}):
                world.api.edit("n2", lambda item, given=annotations: item["metadata"].update(annotations=given))
                await world.api.wake()
                await world.until(lambda: any(row["what"] == "saw" and row["node"] == "n2" for row in world.audit))
            assert world.api.tainted() == {"n1"}
            untrusted = {"source": "kmsg", "kind": "xid", "outcome": "untrusted"}
            await world.until(lambda: world.metrics.get("health_evidence_total", **untrusted) == 1)
            assert world.api.tainted() == {"n1"}

    tried(story())


def test_the_test_mode_believes_what_was_written_into_the_log():
    async def story():
        async with running(settings=Settings(accept_injected=True)) as world:
            world.api.node("n1", boot="b1", annotations=report("b1", "xid/79", trust="injected"))
            await world.api.wake()
            await world.until(lambda: world.api.tainted() == {"n1"})

    tried(story())


@pytest.mark.parametrize("owner", [None, "n1"])
def test_records_of_a_kernel_that_two_nodes_share_count_for_its_owner_alone(owner):
    async def story():
        async with running(settings=Settings(shared_kernel_node=owner)) as world:
            for name in ("n1", "n2"):
                world.api.node(name, boot="one", annotations=report("one", "xid/79"))
            await world.api.wake()
            await world.until(lambda: len(world.audit) >= (2 if owner is None else 3))
            assert world.api.tainted() == (set() if owner is None else {"n1"})
            refusals = [row["outcome"] for row in world.audit if "share one kernel" in row.get("outcome", "")]
            assert len(refusals) == (2 if owner is None else 1)

    tried(story())


def test_conditions_that_others_set_count_once():
    async def story():
        async with running("n1") as world:
            bad = {
                "type": "KernelDeadlock",
                "status": "True",
                "lastTransitionTime": "2100-01-01T00:00:00Z",
                "message": "m",
            }
            odd = [
                {"type": "ReadonlyFilesystem", "status": "True", "lastTransitionTime": "then"},
                {"type": 7, "status": "True"},
            ]
            world.api.edit("n1", lambda item: item["status"]["conditions"].extend([bad, *odd]))
            await world.until(lambda: world.api.tainted() == {"n1"})
            assert [each.code for each in world.api.record("n1").causes] == ["condition/KernelDeadlock"]
            world.api.edit("n1", lambda item: item["metadata"].update(labels={"a": "b"}))
            await world.api.wake()
            world.api.edit("n1", lambda item: item["status"].update(conditions=[]))
            await world.api.wake()
            await world.until(lambda: not world.book._conditions["n1"])

    tried(story())


CONDITION = {"type": "KernelDeadlock", "status": "True", "lastTransitionTime": "2100-01-01T00:00:00Z", "message": "m"}


@pytest.mark.parametrize("watched", [True, False], ids=["seen", "while nobody watched"])
def test_a_condition_that_is_good_again_is_cured_into_validation_and_gives_nothing_back_at_once(watched):
    good = {**CONDITION, "status": "False", "lastTransitionTime": "2100-01-01T00:01:00Z"}

    def set_to(api, *conditions):
        api.edit(
            "n1", lambda item: item["status"].update(conditions=[{"type": "Ready", "status": "True"}, *conditions])
        )

    async def story():
        async with running("n1") as world:
            api = world.api
            set_to(api, CONDITION)
            await world.until(lambda: api.tainted() == {"n1"})
            # Gone, or Unknown, is not good.
            set_to(api)
            await api.wake()
            set_to(api, {**good, "status": "Unknown"})
            await world.until(lambda: world.book._conditions["n1"] == frozenset())
            assert api.record("n1").state == "quarantined"
            if watched:
                set_to(api, good)
                await world.until(lambda: api.record("n1").state == "validating")
        if not watched:
            set_to(api, good)
            async with running(api=api) as world:
                await world.until(lambda: api.record("n1").state == "validating")
        assert api.tainted() == {"n1"}
        (cause,) = api.record("n1").causes
        assert cause.cured

    tried(story())


def test_another_label_of_pools_counts_without_a_restart(tmp_path):
    file = config(tmp_path, "[policy]\nbudget = { nodes = 1, percent = 100 }\n")

    async def story():
        async with running("n1", "n2", config=file) as world:
            for name in ("n1", "n2"):
                world.api.edit(name, lambda item, name=name: item["metadata"].update(labels={"rack": name}))
                world.loki.say(name, DMESG)
            await world.until(lambda: all(each.labels for each in world.book.nodes.values()))
            await world.source.look()
            assert len(world.api.tainted()) == 1
            (tmp_path / "health.toml").write_text(
                "[policy]\npool_label = 'rack'\nbudget = { nodes = 1, percent = 100 }\n"
            )
            assert file.reload()
            world.loop.settings_changed()
            await world.until(lambda: world.api.tainted() == {"n1", "n2"})

    tried(story())


def test_health_s07_what_a_pod_prints_is_a_hint_until_an_operator_names_it(tmp_path):
    async def story():
        text = '[policy]\npod_codes = ["pod/no_gpu_visible.cuda"]\n[[rule]]\ncode = "pod/no_gpu_visible.cuda"\naction = "quarantine"\n'
        line = "RuntimeError: CUDA error: invalid device ordinal"
        lines = PodLines(LABELS)
        code = lines.read(entry(line)).code
        for file, wanted in ((None, set()), (config(tmp_path, text.replace("pod/no_gpu_visible.cuda", code)), {"n1"})):
            async with running("n1", config=file) as world:
                world.source = world.new_source(lines)
                world.loki.say("n1", line)
                world.loki.say(None, line)
                world.loki.say("n1", "all is well")
                await world.source.look()
                assert world.api.tainted() == wanted
                seen = [row for row in world.audit if row["what"] == "saw"]
                assert (seen[0]["fault"]["code"], seen[0]["fault"]["job"]) == (code, "dmesg-logging/dmesg-n1")
                assert world.metrics.get("health_lines_without_node_total", source="dmesg") >= 1
        # A pod that prints a line of the kernel is a pod that prints.
        found = lines.read(entry(XID))
        assert (found.code, found.trust) == ("xid/79", "pod_text")

    tried(story())


def entry(text: str):
    loki = MemoryLoki()
    loki.say("n1", text)
    return loki.entries[0]


def test_who_lost_the_lease_writes_nothing():
    async def story():
        async with running("n1") as world:
            await world.until(lambda: world.book.complete)
            world.firm = False
            fault = NodeFault(id="x", node="n1", source="kmsg", trust="kernel", code="xid/79", at=time.time_ns())
            world.loop._again.append(fault)
            with pytest.raises(LeadershipLost):
                await world.loop._run_step()
            assert [path for method, path in world.api.writes() if "nodes" in path] == []
            world.firm = True

    tried(story())


def test_a_source_whose_mark_another_controller_moved_ends_the_lead_and_not_the_process():
    async def story():
        async with running("n1") as world:
            await world.source.look()
            item = world.api.get("configmaps", "rankfall-controller-state")
            item["data"]["holder"], item["metadata"]["resourceVersion"] = "other", "999"
            world.loki.say("n1", "[1.000000] NVRM: Xid (PCI:0000:4e:00): 31, pid=7, name=x, Ch 01")
            with pytest.raises(LeadershipLost):
                await world.source.run()
            assert world.api.get("configmaps", "rankfall-controller-state")["data"]["holder"] == "other"
            item["data"]["holder"] = "c1"

    tried(story())


def test_state_of_another_holder_is_never_overwritten_and_a_broken_one_is_no_empty_one():
    async def story():
        async with running() as world:
            item = world.api.get("configmaps", "rankfall-controller-state")
            await world.state.keep(world.state.stored.__class__(reset_word="a"))
            item["data"]["holder"] = "other"
            item["metadata"]["resourceVersion"] = "999"
            with pytest.raises(Conflict):
                await world.state.keep(world.state.stored.__class__(reset_word="b"))
            # The answer to a write of ours was lost: it is ours all the same.
            item["data"]["holder"] = "c1"
            await world.state.keep(world.state.stored.__class__(reset_word="b"))
            assert world.state.stored.reset_word == "b"
            for data in ({"state": "{"}, {"query.x": "3"}, {"state": '{"schema":"rankfall.controller/9"}'}):
                item["data"] = data
                with pytest.raises(EvidenceLost):
                    await world.state.load()
            item["data"], item["metadata"]["labels"] = {}, {}
            with pytest.raises(EvidenceLost, match="is not Rankfall's"):
                await world.state.load()
            item["metadata"]["labels"] = {
                "app.kubernetes.io/name": "rankfall",
                "app.kubernetes.io/component": "controller",
            }

    tried(story())


def test_health_s14_a_nanosecond_that_fits_into_no_page_is_said(caplog):
    async def story():
        async with running("n1", loki=MemoryLoki(most=50)) as world:
            now = time.time_ns()
            for index in range(130):
                text = f"[{1000 + index}.000000] NVRM: Xid (PCI:0000:4e:00): 31, pid={index}, name=x, Ch 0"
                world.loki.say("n1", text, at=now)
            world.loki.say("n1", DMESG, at=now + 1)
            await world.source.look()
            await world.until(lambda: world.api.tainted() == {"n1"})
            # Each look that begins before that nanosecond meets it again; it is one loss, and is told once.
            await world.source.look()
            await world.source.look()
            assert world.metrics.get("health_lines_lost_total", source="dmesg") == 1
            assert sum("more lines than one answer of Loki" in each for each in caplog.messages) == 1

    tried(story())


def test_what_cannot_be_told_or_kept_stops_no_taint(caplog):
    async def story():
        async with running("n1", "n2") as world:
            api = world.api
            await world.until(lambda: world.book.complete)
            api.refusals["POST", "events"] = Refusal(403)
            api.refusals["PATCH", "nodes/n1/status"] = Refusal(403)
            api.refusals["PATCH", "nodes/n2"] = Refusal(500)
            world.loki.say("n1", DMESG)
            await world.source.look()
            await world.until(lambda: any("is refused" in each for each in caplog.messages))
            assert api.tainted() == {"n1"}
            assert any("the condition of node `n1` cannot be written" in each for each in caplog.messages)
            api.refusals["POST", "events"] = Refusal(503)
            world.loki.say("n2", "[5.000000] NVRM: Xid (PCI:0000:4e:00): 48, DBE")
            await world.source.look()
            await world.until(lambda: world.metrics.get("health_writes_total", result="later") > 0)
            api.refusals["PATCH", "configmaps"] = Refusal(403)
            await world.source._keep()
            assert any("cannot store the position of dmesg" in each for each in caplog.messages)
            api.refusals.clear()
            await world.until(lambda: api.condition("n1") == "Quarantined" and api.condition("n2") == "HeldBudget")

    tried(story())


def test_a_node_that_goes_is_forgotten_with_all_it_told():
    async def story():
        async with running("n1", "n2") as world:
            await world.until(lambda: len(world.book.nodes) == 2)
            item = world.api.objects.pop(("nodes", "n2"))
            world.api._tell("DELETED", "nodes", item)
            await world.api.wake()
            await world.until(lambda: set(world.book.nodes) == {"n1"})
            # What a write of ours answers about a Node that is gone makes it no Node.
            world.book.written(item, policy=world.loop.in_force.policy)
            assert set(world.book.nodes) == {"n1"}

    tried(story())


@pytest.mark.parametrize(("outcomes", "returned"), [(["passed", "passed"], True), (["failed"], False)])
def test_health_s09_checks_give_a_node_back_and_a_failing_one_keeps_it(tmp_path, monkeypatch, outcomes, returned):
    monkeypatch.setattr("rankfall.nodes.controller.decision_loop.TICK_S", 0.02)
    text = (
        "[policy]\nvalidate_after_s = 0\nclean_rounds = 2\nclean_s = 0\n"
        '[[check]]\nname = "smi"\nimage = "i"\ncommand = ["true"]\n'
    )

    async def story():
        async with running("n1", "n2", config=config(tmp_path, text)) as world:
            left, asked = [KubeError("away"), *outcomes], []

            async def check(kube, checks, *, node, peer, round_, **_):
                what = left.pop(0) if left else "failed"
                if isinstance(what, KubeError):
                    raise what
                asked.append((node, peer, round_, [each.name for each in checks]))
                done = CheckRound(
                    node=node, at=time.time_ns(), outcome=what, check="" if what == "passed" else "smi: no"
                )
                return Round(round=done, results=())

            validator = Validator(
                world.kube, book=world.book, loop=world.loop, config=world.config, namespace="here", check=check,
                poll_interval_s=0.01, refused_s=0.01,
            )  # fmt: skip
            world.loki.say("n1", DMESG, at=time.time_ns() - 60 * SECOND)
            await world.source.look()
            task = asyncio.create_task(validator.run())
            try:
                if returned:
                    await world.until(lambda: world.api.tainted() == set())
                    await world.until(lambda: world.api.condition("n1") == "Healthy")
                    assert len({each[2] for each in asked}) == 2
                else:
                    await world.until(lambda: world.api.record("n1").failed_check == "smi: no")
                    assert world.api.tainted() == {"n1"}
                assert asked[0][:2] == ("n1", "n2")
                assert asked[0][3] == ["smi"]
                world.loop.switch(Switches(kill=True))
                assert validator.next_node(now=time.time_ns()) is None
            finally:
                task.cancel()

    tried(story())


@pytest.mark.parametrize(("took", "rest"), [(0.0, 2.0), (0.5, 1.5), (1.5, 0.5), (9.0, 0.5)])
def test_looks_at_loki_begin_at_the_pace_that_was_asked_for_and_never_at_once(took, rest):
    assert rest_s(2.0, took_s=took) == rest
