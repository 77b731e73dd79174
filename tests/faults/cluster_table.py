"""The faults on a cluster: those of ``table.py`` in pods on two nodes, and what only a cluster does. Data only.

Rank R is of slot R // 2. What strikes a slot from outside strikes slot 1, when rank 2, which it holds, has come to step 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

from faults.table import CRASH, FAULTS, LATE, USER, ClusterInject, Fault, Outcome, at, raising

Backend = Literal["job", "jobset", "trainjob"]
BACKENDS: tuple[Backend, ...] = ("job", "jobset", "trainjob")
HERE = (at(10, "mark"),)
LONG = {"steps": 6000}
# Kubernetes waits 5 minutes before it takes pods off a node that it calls lost.
SOON = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
    for what in ("unreachable", "not-ready")
]
STARTUP = {"startup_s": 20}
AGAIN = frozenset({"yes"})
ELSEWHERE = frozenset({"elsewhere"})


def _slot(
    name: str, slugs: tuple[str, ...], inject: ClusterInject, *, retry: frozenset[str] = AGAIN, **more: Any
) -> Fault:
    """Something befalls the pod of slot 1 while it trains."""
    return Fault(
        name, HERE, slugs, rank=None, slot=1, victims=False, inject=inject, retry=retry, **{"plan": LONG} | more
    )


# As their controllers write them: Kueue's pkg/controller/jobs/pod and Kubernetes' device taint manager.
CONDITIONS = (
    (
        "kueue-preempts",
        "TerminationTarget",
        "WorkloadEvictedDueToPreempted",
        "Preempted to accommodate a higher priority Workload",
    ),
    (
        "kueue-times-out",
        "TerminationTarget",
        "WorkloadEvictedDueToPodsReadyTimeout",
        "Workload evicted due to a PodsReady timeout",
    ),
    ("kueue-has-no-workload", "TerminationTarget", "NoMatchingWorkload", "missing workload"),
    ("kueue-workload-deleted", "TerminationTarget", "WorkloadDeleted", "Workload is deleted"),
    (
        "device-taint",
        "DisruptionTarget",
        "DeletionByDeviceTaintManager",
        "Device Taint manager: deleting due to NoExecute taint",
    ),
)


def _taken(name: str, condition: str, reason: str, message: str) -> Fault:
    """A controller marks the pod of slot 1 and deletes it."""
    arguments = {"condition": condition, "reason": reason, "message": message}
    return _slot(name, ("preempted",), "take_away", arguments=arguments)


def _start(
    name: str, slugs: tuple[str, ...], inject: ClusterInject | None = None, *, retry: frozenset[str], **more: Any
) -> Fault:
    """Some slots, or all, cannot start before the startup deadline."""
    fields = {"deadlines": STARTUP} | more.pop("fields", {})
    return Fault(name, (), slugs, rank=None, victims=False, inject=inject, retry=retry, fields=fields, **more)


def _ends(name: str, slugs: tuple[str, ...], inject: ClusterInject | None, *, outcome: Outcome, **more: Any) -> Fault:
    """Somebody, or a clock, ends the job; no rank is to blame."""
    return Fault(name, HERE, slugs, rank=None, victims=False, inject=inject, outcome=outcome, **{"plan": LONG} | more)


MEMORY = (
    Fault(
        "container-oom",
        (at(10, "allocate", mib=2000, ranks=(1,)),),
        ("host_oom",),
        rank=None,
        slot=1,
        victims=False,
        inject="limit",
        plan=LATE,
        # Nothing of ours runs in the container: the program is its first process.
        fields={"inside": "off", "nproc_per_node": 1},
        hook_free=True,
    ),
    Fault(
        "oom-of-a-ranks-child",
        (at(10, "child", mib=2000),),
        ("host_oom",),
        weak=("user_code_exception",),
        inject="limit",
        plan=LATE,
    ),
    _slot("container-killed", ("killed_unknown",), "kill_container", retry=CRASH),
)

TAKEN_AWAY = (
    _slot("evicted", ("preempted",), "evict"),
    _slot("preempted", ("preempted",), "preempt"),
    _slot("drained", ("preempted",), "drain"),
    _slot("no-execute-taint", ("preempted",), "taint", weak=("node_lost",)),
    *(_taken(name, condition, reason, message) for name, condition, reason, message in CONDITIONS),
    # Two at once: no eviction raises a KeyError.
    Fault(
        "evicted-while-a-rank-raises",
        (*HERE, raising("KeyError", when=11, text="token_type_ids")),
        ("user_code_exception",),
        inject="evict",
        victims=False,
    ),
    Fault(
        "over-its-disk-limit",
        (at(10, "fill"),),
        ("pod_evicted",),
        rank=None,
        slot=1,
        victims=False,
        inject="disk_limit",
        plan=LONG,
        # The limit is the job's own.
        retry=CRASH,
    ),
    _slot("pod-deleted", ("cancelled", "external_signal"), "delete_pod", retry=AGAIN | USER),
    _slot("probe-fails", ("probe_killed",), "probe", retry=CRASH, weak=("external_signal", "killed_unknown")),
    _slot("pod-deadline", ("deadline_exceeded",), "deadline_of_pod", retry=USER),
)

NODES = (
    _slot(
        "node-down",
        ("node_lost",),
        "node_down",
        retry=ELSEWHERE,
        node_action="suspect",
        fields={"kubernetes": {"tolerations": SOON}},
    ),
    _slot(
        "kubelet-stopped",
        ("node_lost",),
        "kubelet_away",
        retry=ELSEWHERE,
        node_action="suspect",
        fields={"kubernetes": {"tolerations": SOON}},
    ),
    # Its pods live on, and it comes back before anybody gives them up.
    _slot("kubelet-stopped-for-a-while", (), "kubelet_away", arguments={"seconds": 8}, outcome="succeeded", plan=LATE),
)

STARTS = (
    _start("image-missing-on-one-node", ("image_pull",), "image_on_one_node", slot=1, retry=USER | ELSEWHERE),
    _start("unschedulable", ("unschedulable",), retry=AGAIN, fields={"kubernetes": {"resources": {"gpus": 1}}}),
    _start("one-slot-unschedulable", ("unschedulable",), slot=2, retry=AGAIN, fields={"nnodes": 3}),
    _start("no-such-claim", ("unschedulable", "volume_mount"), "no_such_claim", retry=USER),
    _start("volume-does-not-mount", ("volume_mount",), "missing_folder", retry=AGAIN | ELSEWHERE),
    _start("config-missing", ("container_config",), "missing_config", retry=USER),
    _start("quota", ("unschedulable",), "quota", weak=("deadline_exceeded",), retry=AGAIN),
    _start("pods-refused", ("container_config",), "refuse_pods", weak=("deadline_exceeded",), retry=AGAIN | USER),
    _start("job-refused-by-a-policy", ("container_config",), "refuse_job", retry=USER),
    _start(
        "command-missing",
        ("container_config", "command_not_found"),
        retry=USER,
        fields={"inside": "off", "nproc_per_node": 1},
        command=("/no/such/program",),
    ),
    Fault("late-names", (), (), rank=None, inject="late_names", outcome="succeeded"),
)

PEOPLE = (
    _ends("job-deleted-by-hand", ("cancelled",), "delete_job", outcome="deleted"),
    # Not a failure: no verdict is made, and its user gives it up later.
    _ends("suspended", (), "suspend", outcome="cancelled"),
    _ends("deadline", ("deadline_exceeded",), None, outcome="failed", fields={"deadlines": {"attempt_s": 15}}),
)


def _wrong_clocks() -> Iterator[Fault]:
    """One node's clock is 90 s off, that of the slot that is struck or that of its victims, ahead or behind."""
    for where, node in (("culprit", 2), ("victims", 1)):
        for way, seconds in (("ahead", 90), ("behind", -90)):
            name = f"{where}-90-s-{way}"
            clock = {"node": node, "seconds": seconds}
            yield Fault(
                f"exception-{name}",
                (raising("KeyError", text="vocab"),),
                ("user_code_exception",),
                inject="node_clock",
                arguments={**clock, "then": None},
            )
            yield Fault(
                f"killed-{name}",
                HERE,
                ("killed_unknown",),
                retry=CRASH,
                inject="node_clock",
                arguments={**clock, "then": "signal", "number": 9, "to": "pid", "rank": 2},
                plan=LATE,
            )
            yield _slot(f"evicted-{name}", ("preempted",), "node_clock", arguments={**clock, "then": "evict"})


CLOCKS = tuple(_wrong_clocks())

CLUSTER_FAULTS: tuple[Fault, ...] = (*MEMORY, *TAKEN_AWAY, *NODES, *STARTS, *PEOPLE, *CLOCKS)
# Beside the Indexed Job: what each controller above it treats in its own way.
ON_ALL = frozenset(
    {
        "container-oom",
        "evicted",
        "image-missing-on-one-node",
        "job-deleted-by-hand",
        "node-down",
        "preempted",
        "quota",
        "suspended",
        "unschedulable",
    }
)
# What is done to a node or to the cluster would befall other jobs too.
ALONE: frozenset[str | None] = frozenset({"node_down", "kubelet_away", "late_names", "drain", "taint"})
# Rows whose program needs torch itself: data loaders, gloo's own checks and times, stacks that show who waits in which collective.
OF_TORCH = (
    "hang-before-rendezvous",
    "hang-silent",
    "hang-spinning",
    "hang-with-timeout",
    "loader-child-killed",
    "loader-child-raises",
    "mismatch-operation",
    "mismatch-size",
    "port-taken-store",
    "shm-too-small",
)
# Seconds that ranks of torch in pods may take to meet.
MEETING_S = 45
# Under the real torchrun with gloo, as a TrainJob of today runs.
UNDER_TORCHRUN = ("exception-key", "signal-outside-kill", "cgroup-oom", "exception-on-all", "hang-silent")


@dataclass(frozen=True)
class Cell:
    """One run of the matrix.

    Attributes:
        launcher: of the ranks.
        torch: whether they meet by gloo.
    """

    fault: Fault
    backend: Backend
    launcher: Literal["plain", "torchrun"] = "plain"
    torch: bool = False

    @property
    def id(self) -> str:
        """A name for people; the code under test never sees it."""
        return f"{self.backend}-{self.fault.name}{'-torchrun' if self.column == 'torchrun' else ''}"

    @property
    def column(self) -> str:
        """Of the page."""
        return "torchrun" if self.torch and self.launcher == "torchrun" else self.backend

    @property
    def alone(self) -> bool:
        """Whether no other job may run meanwhile."""
        return self.fault.inject in ALONE


def _patient(fault: Fault) -> Fault:
    """The same with a time-out of torch that a start in pods keeps to: several beds may share the machine, and torch alone takes half a minute then."""
    limit = fault.plan.get("timeout")
    return fault if limit is None else replace(fault, plan={**fault.plan, "timeout": max(limit, MEETING_S)})


def cells() -> Iterator[Cell]:
    """Every fault as an Indexed Job, the core ones and some more on the other backends in turn, and a few under torchrun on a TrainJob."""
    turn = cycle(("jobset", "trainjob"))
    for fault in FAULTS:
        torch = fault.name in OF_TORCH
        fault = _patient(fault) if torch else fault  # noqa: PLW2901 - the same row, on slower ground
        launcher: Literal["plain", "torchrun"] = "plain" if "plain" in fault.launchers else "torchrun"
        yield Cell(fault, "job", launcher, torch)
        if fault.core and not torch and launcher == "plain":
            yield Cell(fault, "jobset" if next(turn) == "jobset" else "trainjob")
        if fault.name in UNDER_TORCHRUN:
            yield Cell(fault, "trainjob", "torchrun", torch=True)
    for fault in CLUSTER_FAULTS:
        for backend in BACKENDS if fault.name in ON_ALL else BACKENDS[:1]:
            yield Cell(fault, backend)
