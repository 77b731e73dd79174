"""Scenarios of node health on a real API server: a controller and agents as processes with their own accounts, a real Loki of many tenants that gives few lines at once.

What the kernel says comes over a socket to the agent of a node, or as lines that a collector brought to Loki; each fake node has a boot id of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster import health_world
from cluster.health_world import DMESG, LIMIT_S, LOST, Fleet, kernel, stamped
from cluster.kmsg_world import report
from cluster.loki_gateway import Gateway
from rankfall.model.node_health.records import ANNOTATION
from rankfall.model.timestamps import nanoseconds
from support.helpers import wait_until
from testbed import faults
from testbed.bed import Bed
from testbed.client import Kubectl, Object
from testbed.ondemand import kwok, loki
from testbed.workloads import PYTHON_IMAGE

# One controller for all of them, so one worker.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.xdist_group("health-scenarios")]
SPACE, WATCHED, OTHER = "rankfall-scenarios", "rankfall-watched", "rankfall-unwatched"
NODES = 56
#: Lines that this Loki gives at once; its own default is more.
MOST = 50
TENANT = "team-a"
FIRST, SECOND, THIRD = "first-secret", "second-secret", "third-secret"
POOL = "three"
# What is no answer of a Loki: nobody behind a proxy, and a proxy's own page.
AWAY = (503, b"no healthy upstream")
PAGE = (200, b"<html>please log in</html>")
# What a Loki says that has too much to do, has lost its ring, does not take the query; and one that says nothing at all.
OTHER_ANSWERS = {
    "429": (429, b"too many outstanding requests"),
    "500": (500, b"empty ring"),
    "400": (400, b"parse error at line 1"),
    "hangs": (0, b""),
}
NOISE = "cni0: port 1(veth9a15e765) entered forwarding state"


class Guarded(NamedTuple):
    """The controller with its nodes, and what stands before Loki."""

    fleet: Fleet
    gateway: Gateway
    token: Path


def _as_wanted(index: int, node: Object) -> None:
    # With both addresses: where one is missing and the cluster has called the node lost for a moment, KWOK takes away what it finds there.
    addresses = [
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "Hostname", "address": node["metadata"]["name"]},
    ]
    node["status"] = {"nodeInfo": {"bootID": f"boot-{index}"}, "addresses": addresses}
    if index < 3:
        node["metadata"]["labels"]["rankfall.dev/pool"] = POOL


@pytest.fixture(scope="module")
def guarded(bed: Bed, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("health")
    token = folder / "token"
    token.write_text(f"{FIRST}\n")
    with (
        loki.alone(folder / "loki", say=print, tenants=True, max_entries_limit_per_query=MOST) as url,
        kwok.fleet(bed, nodes=NODES, pods=0, change=_as_wanted) as fakes,
    ):
        kubectl("wait", "--for=condition=Ready", "nodes", "-l", kwok.LABEL, "--timeout=60s")
        gateway = Gateway(url, FIRST)
        fleet = Fleet(
            kubectl,
            health_world.account(bed, kubectl, SPACE),
            nodes={name: f"boot-{index}" for index, name in enumerate(fakes.nodes) if index >= 3},
            agents=health_world.agent_account(bed, kubectl, SPACE),
            space=SPACE,
            folder=folder,
            loki=url,
            tenant=TENANT,
            tables=f"[policy.pools.{POOL}]\nnodes = 100\npercent = 20\n",
        )
        try:
            with gateway.serving(), fleet.controlling(WATCHED_NAMESPACES=WATCHED, **reading(gateway, token)):
                yield Guarded(fleet, gateway, token)
        finally:
            kubectl.run("delete", "configmap,lease", "-n", SPACE, "--all")
            kubectl.run("taint", "node", "n2", f"{health_world.KEY}-")
            kubectl.run("annotate", "node", "n2", f"{ANNOTATION}-")


def reading(gateway: Gateway, token: Path) -> dict[str, str]:
    """How a controller finds Loki."""
    return {
        "LOG_ENDPOINT": gateway.url,
        "RANKFALL_LOKI_TENANT": TENANT,
        "RANKFALL_LOKI_TOKEN_FILE": str(token),
    }


def xid(number: int, device: str, rest: str) -> str:
    return f"NVRM: Xid (PCI:{device}): {number}, {rest}"


def recovery(device: str, change: str) -> str:
    return xid(154, device, f"GPU recovery action changed from {change}")


def waiting(kubectl: Kubectl, space: str, name: str = "train-0") -> None:
    """A pod of a user on n2, once it runs."""
    spec = {
        "nodeSelector": {"kubernetes.io/hostname": "n2"},
        # Another scenario may have tainted it.
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [
            {"name": "main", "image": PYTHON_IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "1000"]}
        ],
    }
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}])
    meta = {"name": name, "namespace": space}
    wait_until(
        lambda: kubectl.run("get", "serviceaccount", "default", "-n", space).returncode == 0,
        timeout=LIMIT_S,
        what="the account of the pod",
    )
    kubectl.apply([{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}])
    kubectl("wait", "--for=condition=Ready", f"pod/{name}", "-n", space, "--timeout=60s")


def say_in_pod(fleet: Fleet, space: str, line: str) -> None:
    """Have the pod print, and bring its log to Loki, which keeps of equal lines one."""
    kubectl = fleet.kubectl
    kubectl("exec", "train-0", "-n", space, "--", "sh", "-c", f"echo '{line}' > /proc/1/fd/1")
    rows: list[tuple[int, str]] = []

    def printed() -> bool:
        text = kubectl("logs", "train-0", "-n", space, "--timestamps")
        rows[:] = [(nanoseconds(stamp) or 0, rest) for stamp, _, rest in (one.partition(" ") for one in text.splitlines())]  # fmt: skip
        return any(rest == line for _, rest in rows)

    wait_until(printed, timeout=LIMIT_S, what="the line of the pod")
    node = kubectl.get("pod", "train-0", "-n", space)["spec"]["nodeName"]
    fleet.bring(node, rows, k8s_namespace_name=space, k8s_pod_name="train-0")


def test_health_s03_s04_the_word_of_an_sxid_says_whether_its_node_is_tainted(guarded):
    fleet = guarded.fleet
    grave, other = fleet.fresh(), fleet.fresh()
    fleet.say(
        other, stamped("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 19049, Non-fatal, Link 44 GLT ECC limit reached")
    )
    fleet.say(grave, stamped("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"))
    harmless = {"source": "loki", "kind": "sxid", "outcome": "harmless"}
    fleet.acts(grave)
    assert fleet.causes(grave) == [("sxid/20034/fatal", "switch 0000:00:00", 1)]
    wait_until(lambda: fleet.number("health_evidence_total", **harmless) == 1, timeout=LIMIT_S, what="the count")
    fleet.settled()
    assert not fleet.tainted(other)


def test_health_s07_what_a_pod_prints_is_a_hint_and_taints_only_where_an_operator_names_it(guarded, kubectl):
    fleet = guarded.fleet
    line = "RuntimeError: CUDA error: invalid device ordinal"
    try:
        for space in (OTHER, WATCHED):
            waiting(kubectl, space)
            say_in_pod(fleet, space, line)

        def hints() -> list[tuple[str, str, str]]:
            rows = (row for row in fleet.audit() if row["what"] == "saw" and row["fault"]["source"] == "pod_log")
            return [(row["fault"]["code"], row["fault"]["job"], row["outcome"]) for row in rows]

        wait_until(hints, timeout=LIMIT_S, what="the hint")
        fleet.settled()
        # Of the namespace that nobody watches nothing was read.
        assert fleet.number("health_source_lines_total", source="pods") == 1
        ((code, job, outcome),) = hints()
        assert (job, outcome) == (f"{WATCHED}/train-0", "untrusted")
        assert not fleet.tainted("n2")
        assert f"node `n2` has pod log error: {line}" in fleet.log
        # A pod that prints a line of the kernel is a pod that prints.
        say_in_pod(fleet, WATCHED, LOST.replace("'", ""))
        wait_until(lambda: fleet.saw("n2", "xid/79"), timeout=LIMIT_S, what="the hint")
        fleet.settled()
        assert fleet.saw("n2", "xid/79") == ["untrusted"]
        assert not fleet.tainted("n2")
        fleet.believe(code)
        say_in_pod(fleet, OTHER, f"{line} (again)")
        fleet.settled()
        assert not fleet.tainted("n2")
        say_in_pod(fleet, WATCHED, f"{line} (again)")
        fleet.acts("n2")
        assert [each[0] for each in fleet.causes("n2")] == [code]
    finally:
        kubectl.run("delete", "namespace", WATCHED, OTHER, "--wait=false", "--ignore-not-found")


def test_health_s11_xids_of_programs_taint_nothing_and_name_process_and_device(guarded, kubectl):
    fleet = guarded.fleet
    node = fleet.fresh()
    with fleet.agent(node) as ring:
        for number in (13, 31, 43, 45):
            kernel(ring, xid(number, "000b:00:00", f"pid={4000 + number}, name=pt_main_thread, Ch 0000000a"))

        def told() -> set[tuple[str, str | None, int | None, str | None]]:
            found = report(kubectl, node)
            entries = () if found is None else found.entries
            return {(each.code, each.device, each.pid, each.process) for each in entries}

        wait_until(lambda: len(told()) == 4, timeout=LIMIT_S, what="all four")
        fleet.settled()
    assert told() == {
        (f"xid/{number}", "gpu 000b:00:00", 4000 + number, "pt_main_thread") for number in (13, 31, 43, 45)
    }
    assert not fleet.tainted(node)


def test_health_s12_a_contained_error_acts_when_it_strikes_a_second_job_on_the_same_gpu_on_a_real_server(
    guarded, bed, kubectl, namespace
):
    """The agent finds the job of a process itself, by its control group: these are processes of real pods."""
    fleet = guarded.fleet
    node = fleet.fresh()
    pids = []
    for name in ("train-0", "train-1"):
        waiting(kubectl, namespace, name)
        pids.append(min(faults.processes_of(bed, namespace, name)))

    def contained(device: str, pid: int) -> str:
        return xid(94, device, f"pid={pid}, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No")

    first, second = "0000:18:00", "0000:2a:00"
    with fleet.agent(node) as ring:
        kernel(ring, contained(first, pids[0]), contained(first, pids[0]), contained(second, pids[1]))
        told = [("xid/94", f"gpu {first}", 2), ("xid/94", f"gpu {second}", 1)]
        wait_until(lambda: fleet.causes(node) == told, timeout=LIMIT_S, what="three of one job each")
        fleet.settled()
        assert not fleet.tainted(node)
        kernel(ring, contained(first, pids[1]))
        fleet.acts(node)
        assert ("xid/94", f"gpu {first}", 3) in fleet.causes(node)


def test_health_s15_s21_a_loki_that_does_not_answer_is_never_no_lines_on_a_real_server(guarded):
    """What was stored meanwhile is acted on once; the time without answers is a number."""
    fleet, gateway = guarded.fleet, guarded.gateway
    node = fleet.fresh()

    def blind() -> float:
        return fleet.number("health_source_blind_seconds", source=DMESG)

    gateway.fault = AWAY
    fleet.say(node, stamped(LOST))
    try:
        for fault in (AWAY, PAGE):
            gateway.fault, before = fault, gateway.struck
            # Each of the three queries has met it.
            wait_until(lambda before=before: gateway.struck >= before + 3, timeout=LIMIT_S, what="all to have asked")
            wait_until(blind, timeout=LIMIT_S, what="the number")
            assert not fleet.tainted(node)
    finally:
        gateway.fault = None
    fleet.acts(node)
    wait_until(lambda: blind() == 0, timeout=LIMIT_S, what="an answer")
    assert fleet.causes(node) == [("xid/79", "gpu 0000:4e:00", 1)]
    assert fleet.happened(node, "Quarantined") == 1


@pytest.mark.parametrize("fault", list(OTHER_ANSWERS.values()), ids=list(OTHER_ANSWERS))
def test_health_s21_whatever_loki_answers_instead_of_lines_they_come_once_when_it_answers_again(guarded, fault):
    """After a refusal that waiting may not heal the next look is half a minute later, and so long is a silence waited for."""
    fleet, gateway = guarded.fleet, guarded.gateway
    node = fleet.fresh()

    def blind() -> float:
        return fleet.number("health_source_blind_seconds", source=DMESG)

    wait_until(lambda: blind() == 0, timeout=LIMIT_S, what="an answer")
    gateway.fault, before = fault, gateway.struck
    try:
        # Before the line is there: a question that was let through just before may still bring it.
        wait_until(lambda: gateway.struck >= before + 3, timeout=LIMIT_S, what="all to have asked")
        fleet.say(node, stamped(LOST))
        wait_until(blind, timeout=LIMIT_S, what="the number")
        assert not fleet.tainted(node)
    finally:
        gateway.fault = None
    wait_until(lambda: fleet.tainted(node), timeout=LIMIT_S, what="the taint")
    wait_until(lambda: blind() == 0, timeout=LIMIT_S, what="an answer")
    assert fleet.causes(node) == [("xid/79", "gpu 0000:4e:00", 1)]
    assert fleet.happened(node, "Quarantined") == 1


def test_health_s19_a_node_that_is_gone_keeps_no_other_waiting_on_a_real_server(guarded, kubectl):
    fleet = guarded.fleet
    gone, other = fleet.fresh(), fleet.fresh()
    kubectl("delete", "node", gone)
    fleet.say(gone, stamped(LOST))
    fleet.say(other, stamped(LOST))
    fleet.acts(other)
    fleet.settled()
    # Known to be gone, or found to be when it was to be written.
    assert fleet.saw(gone, "xid/79") == ["no_node"] or f"node `{gone}` no longer exists" in fleet.log


def test_health_s23_a_part_of_a_small_pool_is_at_least_one_node_on_a_real_server(guarded):
    fleet = guarded.fleet
    first, second = "fake-0", "fake-1"
    fleet.say(first, stamped(LOST))
    fleet.acts(first)
    fleet.say(second, stamped(LOST))
    wait_until(lambda: fleet.condition(second) == "HeldBudget", timeout=LIMIT_S, what="the condition")
    assert not fleet.tainted(second)


def test_health_s14_more_lines_of_one_nanosecond_than_a_page_holds_are_said_once_and_hide_no_other(guarded):
    fleet = guarded.fleet
    many, other = fleet.fresh(), fleet.fresh()
    lines = fleet.number("health_source_lines_total", source=DMESG)
    lost = fleet.number("health_lines_lost_total", source=DMESG)
    now = time.time_ns()
    fleet.bring(many, [(now, stamped(xid(31, "0000:4e:00", f"pid={index}, name=x, Ch 0"))) for index in range(130)])
    fleet.bring(other, [(now + 1, stamped(LOST))])
    fleet.acts(other)
    # Looks begin a little behind the mark, so this one meets that nanosecond again.
    fleet.settled()
    assert MOST + 2 <= fleet.number("health_source_lines_total", source=DMESG) - lines <= 132
    assert fleet.number("health_lines_lost_total", source=DMESG) - lost == 1
    assert fleet.log.count(f"nanosecond {now} holds more lines than one answer of Loki") == 1
    assert not fleet.tainted(many)


def test_health_s27_an_action_that_is_withdrawn_begins_validation_and_frees_nothing_at_once_on_a_real_server(
    guarded, kubectl
):
    fleet = guarded.fleet
    node = fleet.fresh()
    with fleet.agent(node) as ring:
        kernel(ring, recovery("0009:01:00", "0x0 (None) to 0x4 (Drain and Reset)"))
        fleet.acts(node)
        assert fleet.causes(node) == [("xid/154/drain_and_reset", "gpu 0009:01:00", 1)]
        # Of another GPU: it takes back nothing of this one.
        kernel(ring, recovery("000a:01:00", "0x4 (Drain and Reset) to 0x0 (None)"))
        wait_until(lambda: len(report(kubectl, node).entries) == 2, timeout=LIMIT_S, what="the other GPU's record")
        fleet.settled()
        assert fleet.record(node).state == "quarantined"
        kernel(ring, recovery("0009:01:00", "0x4 (Drain and Reset) to 0x0 (None)"))
        fleet.stands(node, "validating")
        wait_until(lambda: fleet.condition(node) == "Validating", timeout=LIMIT_S, what="the condition")
        fleet.settled()
        assert fleet.tainted(node)
        assert fleet.happened(node, "Quarantined") == 1
        assert fleet.happened(node, "Returned") == 0


def test_health_s28_the_line_says_how_grave_an_nvlink5_error_is_on_a_real_server(guarded):
    fleet = guarded.fleet
    grave, other = fleet.fresh(), fleet.fresh()
    words = "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    fleet.say(other, stamped(xid(145, "0000:c5:00", f"RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 {words}")))
    fleet.say(grave, stamped(xid(149, "0009:01:00", f"NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 {words}")))
    fleet.acts(grave)
    assert fleet.causes(grave) == [("xid/149/fatal", "gpu 0009:01:00", 1)]
    wait_until(lambda: fleet.events(other, "FaultCounted"), timeout=LIMIT_S, what="the Event")
    fleet.settled()
    assert not fleet.tainted(other)
    assert fleet.causes(other) == [("xid/145/nonfatal", "gpu 0000:c5:00", 1)]
    assert fleet.condition(other) == "Healthy"


def test_health_s29_tenant_and_a_token_that_rotates_are_sent_and_never_told_on_a_real_server(
    guarded, kubectl, tmp_path
):
    fleet, gateway = guarded.fleet, guarded.gateway
    node, foreign = fleet.fresh(), fleet.fresh()
    fleet.say(foreign, stamped(LOST), tenant="team-b")
    # As whoever rotates tokens does: for a while both are good. Then the old one is refused, and the file is read anew.
    gateway.tokens.add(SECOND)
    fresh = guarded.token.with_suffix(".new")
    fresh.write_text(f"{SECOND}\n")
    fresh.rename(guarded.token)
    gateway.tokens.discard(FIRST)
    wait_until(lambda: set(gateway.used[-6:]) == {SECOND}, timeout=LIMIT_S, what="the second token")
    fleet.say(node, stamped(LOST))
    fleet.acts(node)
    assert gateway.tenants == {TENANT}
    fleet.settled()
    assert fleet.saw(foreign, "xid/79") == []
    assert not fleet.tainted(foreign)
    # Refused by a server that repeats what it refuses; this one writes nothing, so it may run beside the other.
    wrong = tmp_path / "token"
    wrong.write_text(THIRD)
    log = fleet.folder / "refused.log"
    with fleet.controlling("--dry-run", name="refused", **reading(gateway, wrong)):
        wait_until(lambda: "401" in log.read_text(), timeout=LIMIT_S, what="the refusal")
    files = [each.read_text() for pattern in ("*.log", "*.audit") for each in fleet.folder.glob(pattern)]
    objects = [kubectl("get", kind, "-A", "-o", "json") for kind in ("events", "configmaps", "nodes", "leases")]
    assert "secret" not in "".join([*files, fleet.metrics()])
    assert not [token for token in (FIRST, SECOND, THIRD) if token in "".join(objects)]


def test_health_s33_an_unknown_code_is_shown_and_acts_when_an_operator_says_so(guarded):
    fleet = guarded.fleet
    node = fleet.fresh()
    fleet.say(node, stamped(xid(999, "0000:4e:00", "pid=7, name=x, Something new")))
    wait_until(lambda: fleet.events(node, "FaultUnknown"), timeout=LIMIT_S, what="the Event")
    fleet.settled()
    assert fleet.saw(node, "xid/999") == ["unknown"]
    assert not fleet.tainted(node)
    assert fleet.condition(node) == ""
    fleet.rule("xid/999", "quarantine")
    fleet.say(node, stamped(xid(999, "0000:4e:00", "pid=8, name=x, Something new")))
    fleet.acts(node)
    assert fleet.causes(node) == [("xid/999", "gpu 0000:4e:00", 1)]


def test_health_s34_an_operators_file_is_used_without_restart_and_a_bad_one_keeps_the_old_rules(guarded):
    fleet = guarded.fleet
    default, quiet, still = fleet.fresh(), fleet.fresh(), fleet.fresh()

    def strike(node: str) -> None:
        fleet.say(node, stamped(xid(109, "0000:4e:00", "pid=7, name=x, Ch 00000008, errorString CTX SWITCH TIMEOUT")))

    def harmless() -> float:
        return fleet.number("health_evidence_total", source="loki", kind="xid", outcome="harmless")

    def passes(node: str) -> None:
        before = harmless()
        strike(node)
        wait_until(lambda: harmless() == before + 1, timeout=LIMIT_S, what="a line that does nothing")
        fleet.settled()
        assert not fleet.tainted(node)
        assert fleet.condition(node) == ""

    strike(default)
    fleet.acts(default)
    fleet.rule("xid/109", "none")
    passes(quiet)
    try:
        for bad in ("nonsense", '[[rule]]\ncode = "xid/109"\naction = "explode"\n'):
            fleet.write(bad, says="the previous settings remain active")
            assert fleet.number("health_config_bad") == 1
        passes(still)
    finally:
        fleet.rule("xid/998", "watch")  # another text than before, so that the controller says when it is used
    assert fleet.number("health_config_bad") == 0


def test_health_s36_forms_with_mig_instances_name_gpu_and_instance(guarded, kubectl):
    fleet = guarded.fleet
    node = fleet.fresh()
    with fleet.agent(node) as ring:
        kernel(ring, xid(94, "0000:01:00 GPU-I:05", "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No"))
        wait_until(lambda: fleet.causes(node), timeout=LIMIT_S, what="the record")
        fleet.settled()
        assert not fleet.tainted(node)
        kernel(ring, xid(95, "0000:01:00 GPU-I:01 GPU-CI:00", "pid=7062, Uncontained: LTC TAG (0x2, 0x1)."))
        fleet.acts(node)
        entries = {(each.code, each.device, each.instance) for each in report(kubectl, node).entries}
    assert entries == {
        ("xid/94", "gpu 0000:01:00", "GPU-I:05"),
        ("xid/95", "gpu 0000:01:00", "GPU-I:01 GPU-CI:00"),
    }
    assert fleet.causes(node) == [("xid/94", "gpu 0000:01:00", 1), ("xid/95", "gpu 0000:01:00", 1)]


def test_health_s37_a_lost_gpu_without_number_is_one_event_in_every_form_on_a_real_server(guarded, kubectl):
    fleet = guarded.fleet
    node = fleet.fresh()
    parts = (
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    with fleet.agent(node) as ring:
        kernel(ring, parts[0], NOISE, parts[1], NOISE, NOISE)
        kernel(ring, parts[2])
        fleet.acts(node)
        assert fleet.causes(node) == [("xid/79", "gpu 0000:18:00", 1)]
        kernel(ring, "NVRM: GPU 0000:2a:00.0: GPU has fallen off the bus.", LOST.replace("4e", "2a"))
        kernel(ring, "\\x0a".join(parts).replace("18", "3b"))
        told = [("xid/79", f"gpu 0000:{each}:00", 1) for each in ("18", "2a", "3b")]
        wait_until(lambda: fleet.causes(node) == told, timeout=LIMIT_S, what="three GPUs, each told once")
        fleet.settled()
        assert fleet.causes(node) == told
        assert [each.count for each in report(kubectl, node).entries] == [1, 1, 1]
    assert fleet.happened(node, "Quarantined") == 1


def test_health_s38_further_lines_of_an_sxid_are_no_event_on_a_real_server(guarded, kubectl):
    fleet = guarded.fleet
    node = fleet.fresh()
    head = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, "
    with fleet.agent(node) as ring:
        kernel(
            ring,
            f"{head}Non-fatal, Link 32 egress non-posted PRIV error (First)",
            f"{head}Severity 0 Engine instance 32 Sub-engine instance 00",
            f"{head}Data {{0x00140004, 0x00100000, 0x00140004, 0x00000000}}",
            f"{head}Data {{0x00000000, 0x00000000}}",
            xid(31, "0000:4e:00", "pid=7, name=x, Ch 0"),
        )
        # The one behind them is told, so these are read.
        wait_until(lambda: len(fleet.causes(node)) > 1, timeout=LIMIT_S, what="the records")
        fleet.settled()
        entries = [(each.code, each.count) for each in report(kubectl, node).entries]
    assert sorted(entries) == [("sxid/12028/nonfatal", 1), ("xid/31", 1)]
    assert fleet.causes(node) == [("xid/31", "gpu 0000:4e:00", 1), ("sxid/12028/nonfatal", "switch 0000:05:00", 1)]
    assert not fleet.tainted(node)


def test_health_s40_the_taint_stays_until_the_last_cause_is_cured_on_a_real_server(guarded):
    fleet = guarded.fleet
    fleet.rule("xid/163", "quarantine")
    node = fleet.fresh()
    first, second = "0000:18:00", "0000:2a:00"
    with fleet.agent(node) as ring:
        kernel(ring, *(xid(163, each, "Power smoothing disengaged") for each in (first, second)))
        fleet.acts(node)
        wait_until(lambda: len(fleet.causes(node)) == 2, timeout=LIMIT_S, what="both causes")
        kernel(ring, xid(162, first, "Power smoothing engaged"))

        def cured() -> list[str | None]:
            return [each.device for each in fleet.record(node).causes if each.cured]

        wait_until(cured, timeout=LIMIT_S, what="one of them to be cured")
        fleet.settled()
        assert cured() == [f"gpu {first}"]
        assert fleet.tainted(node)
        kernel(ring, xid(162, second, "Power smoothing engaged"))
        wait_until(lambda: not fleet.tainted(node), timeout=LIMIT_S, what="the taint to go")
    assert (fleet.record(node).state, fleet.causes(node)) == ("healthy", [])


def test_health_s44_163_acts_on_nothing_and_162_withdraws_it_without_checks_on_a_real_server(guarded):
    fleet = guarded.fleet
    fleet.rule("xid/163", "watch")
    quiet, grave = fleet.fresh(), fleet.fresh()
    fleet.say(quiet, stamped(xid(163, "0000:4e:00", "Power smoothing disengaged")))
    wait_until(lambda: fleet.causes(quiet), timeout=LIMIT_S, what="the record")
    fleet.settled()
    assert not fleet.tainted(quiet)
    fleet.say(quiet, stamped(xid(162, "0000:4e:00", "Power smoothing engaged")))
    wait_until(lambda: all(each.cured for each in fleet.record(quiet).causes), timeout=LIMIT_S, what="the withdrawal")
    # An operator for whom it is grave: the act is taken back by the line alone.
    fleet.rule("xid/163", "quarantine")
    fleet.say(grave, stamped(xid(163, "0000:4e:00", "Power smoothing disengaged")))
    fleet.acts(grave)
    fleet.say(grave, stamped(xid(162, "0000:4e:00", "Power smoothing engaged")))
    wait_until(lambda: fleet.events(grave, "Returned"), timeout=LIMIT_S, what="its return")
    assert not fleet.tainted(grave)
    assert fleet.record(grave).state == "healthy"
    assert not fleet.tainted(quiet)


def test_health_s45_a_loki_that_gives_fewer_lines_at_once_than_its_own_default_is_read_whole_on_a_real_server(guarded):
    fleet, gateway = guarded.fleet, guarded.gateway
    noisy, other = fleet.fresh(), fleet.fresh()
    lines = fleet.number("health_source_lines_total", source=DMESG)
    bad = [fleet.number(name, source=DMESG) for name in ("health_source_errors_total", "health_lines_lost_total")]
    fleet.say(noisy, *(stamped(xid(31, "0000:4e:00", f"pid={index}, name=x, Ch 0")) for index in range(130)))
    fleet.say(other, stamped(LOST))
    fleet.acts(other)
    wait_until(
        lambda: fleet.number("health_source_lines_total", source=DMESG) == lines + 131,
        timeout=LIMIT_S,
        what="each line once",
    )
    assert not fleet.tainted(noisy)
    after = [fleet.number(name, source=DMESG) for name in ("health_source_errors_total", "health_lines_lost_total")]
    assert after == bad
    # Every request says how many it wants, and each of the three queries learns the server's limit once.
    assert None not in gateway.limits
    assert sum(each > MOST for each in gateway.limits if each is not None) <= 3
