"""Two faults at once: each of eight first faults with each of eight second ones, and what has to be said of each pair, written before any was run. Data only.

The job is 2 pods x 2 ranks: slot 0 on n1, slot 1 on n2 (n3 where an Xid is reported). The first fault strikes rank 2, or all of slot 1. The second one is in place before the first one strikes, or
follows it at once. The first one alone caused the failure, in every cell: what the second one changes is what can be known of it, and what may be done next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from faults.cluster_table import BACKENDS, ELSEWHERE, HERE, LONG, SOON, Cell
from faults.table import CRASH, USER, Fault, at, raising
from support.patience import scaled

# A restarted attempt has nothing to do: whether it came, and where, is all that is asked of it.
AGAIN_AT_ONCE = at("import", "leave", ranks=None, attempts=[2, 3, 4])
ASKS = at(10, "ask")
# Lines that are printed while both faults are there.
BURST = at(10, "burst", ranks=(0, 1, 3), lines=2000)
EARLY_BURST = at("init", "burst", ranks=(0, 1), lines=2000)
_PLAN: dict[str, Any] = {**LONG, "count": True}
# A silence of 25 s is longer than this: an API server that is away must not look like a hang.
_POLICIES: dict[str, Any] = {"max_restarts": 1, "hang_timeout_s": scaled(15.0)}


def _first(name: str, *actions: dict[str, Any], slugs: tuple[str, ...], **more: Any) -> Fault:
    plan = {"plan": _PLAN, "policies": _POLICIES}
    burst = BURST if actions else EARLY_BURST
    return Fault(name, (AGAIN_AT_ONCE, burst, *actions), slugs, **{**plan, **more})


def _slot(name: str, *actions: dict[str, Any], slugs: tuple[str, ...], **more: Any) -> Fault:
    return _first(name, *actions, slugs=slugs, rank=None, slot=1, victims=False, **more)


FIRST: Final = {
    fault.name: fault
    for fault in (
        _first("exception", ASKS, raising("KeyError", text="token_type_ids"), slugs=("user_code_exception",)),
        _first(
            "sigkill",
            *HERE,
            slugs=("killed_unknown",),
            retry=CRASH,
            inject="signal",
            arguments={"number": 9, "to": "pid", "rank": 2},
        ),
        _first("oom", at(10, "allocate", mib=2000, ask=True), slugs=("host_oom",), inject="limit"),
        _first(
            "hang",
            ASKS,
            at(10, "hang"),
            slugs=("rank_stuck",),
            weak=("collective_timeout",),
            retry=CRASH,
            victims=False,
            # Ranks that import torch beside each other are silent for longer than ranks without it.
            policies={**_POLICIES, "hang_timeout_s": scaled(20.0)},
            # Who waits in which collective is to be seen of torch's own alone.
            plan={**_PLAN, "timeout": 600},
        ),
        _slot(
            "node-down",
            *HERE,
            slugs=("node_lost",),
            retry=ELSEWHERE,
            node_action="suspect",
            fields={"kubernetes": {"tolerations": SOON}},
        ),
        _first(
            "xid-event",
            *HERE,
            slugs=("gpu_fallen_off_bus",),
            retry=ELSEWHERE,
            node_action="taint",
            inject="signal",
            arguments={"number": 9, "to": "pid", "rank": 2},
        ),
        _slot(
            "refused-pod",
            slugs=("admission_rejected",),
            retry=ELSEWHERE,
            node_action="suspect",
        ),
        _slot("image-missing", slugs=("image_pull",), retry=USER | ELSEWHERE, fields={"deadlines": {"startup_s": 45}}),
    )
}
# Rank 2 never runs: its pod does not start.
STARTS: Final = frozenset({"refused-pod", "image-missing"})

# How long the API server is away; how long after the first fault the supervisor comes back, and the disk has room again.
AWAY_S: Final = 25.0
SUPERVISOR_AWAY_S: Final = 3.0
DISK_FULL_S: Final = 6.0
SECOND: Final = {
    "api-away": "the API server gives no answer for 25 s, from just before the first fault",
    "supervisor-killed": "`rankfall run` gets SIGKILL just before the first fault; `rankfall attach` comes 3 s after it",
    "disk-full": "the disk of RANKFALL_HOME is full from just before the first fault until 6 s after it",
    "deleted": "somebody deletes the job's object as soon as the first fault has struck",
    "node-elsewhere": "power cut of slot 0's node as soon as the first fault has struck",
    "clock": "the clock of one node is 90 s off: of slot 1's node ahead, or of slot 0's node behind",
    "survived": "rank 0 prints a traceback of CUDA's out-of-memory error at step 5 and goes on",
    "sidecar": "a second container of each pod prints a traceback and exits with code 3 just before the first fault",
}
# What befalls a node befalls other jobs too.
ALONE: Final = frozenset({"node-down", "node-elsewhere"})
SURVIVED: Final = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 40, in step\n'
    "    loss = model(batch)\n"
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    "skipping this batch"
)
# Nobody starts a job again that somebody deleted.
_NOT_AGAIN: Final = USER


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What has to come of a pair.

    Attributes:
        because: the reasoning.
        changes: to fields of the first fault's row.
        others: further answers that are as right, each as changes to that row.
        weaker: answers that are true and say less.
        runs_again: whether attempt 2 is right, wrong, or either.
        lost: slots of which lines may be missing, where that is said.
    """

    because: str
    changes: dict[str, Any] = field(default_factory=dict)
    others: tuple[dict[str, Any], ...] = ()
    weaker: tuple[dict[str, Any], ...] = ()
    runs_again: frozenset[bool] | None = None
    lost: frozenset[int] = frozenset()


YES, NO, EITHER = frozenset({True}), frozenset({False}), frozenset({True, False})
_CANCELLED: Final[dict[str, Any]] = {
    "slugs": ("cancelled",),
    "rank": None,
    "slot": None,
    "victims": False,
    "retry": USER,
}
# A slow machine must not call the hang before the deletion comes, and start again what is to be deleted.
_LATE_HANG: Final[dict[str, Any]] = {"max_restarts": 1, "hang_timeout_s": 120.0}
# Slot 0's node is gone, too: its ranks cannot be heard any more.
_LESS: Final[dict[str, Any]] = {"victims": False}
_CUT: Final = frozenset({0})
_OTHER_NODE: Final[dict[str, Any]] = {
    "slugs": ("node_lost",),
    "rank": None,
    "slot": 0,
    "victims": False,
    "retry": ELSEWHERE,
    "node_action": "suspect",
}


def _e(because: str, *others: dict[str, Any], **more: Any) -> Expected:
    return Expected(because=because, others=others, **more)


EXPECTED: Final[dict[tuple[str, str], Expected]] = {
    ("exception", "api-away"): _e("The log is on the node and is read in full once the server answers; 25 s of silence are no hang, because nobody could hear the ranks."),
    ("exception", "supervisor-killed"): _e("Nothing that the ranks printed or recorded lies in the supervisor: whoever takes over reads it from the pods."),
    ("exception", "disk-full"): _e("What the disk did not take is read again from the API once there is room; the traceback is part of that."),
    ("exception", "deleted"): _e("The exception came first and its record was printed before the deletion; if the pod took it away unread, cancelled is the honest answer. No attempt follows.", weaker=(_CANCELLED,), changes=_LESS, runs_again=NO, lost=frozenset({0, 1})),
    ("exception", "node-elsewhere"): _e("Rank 2's own exception is proven on its own node; that slot 0's node went down afterwards is no cause of it.", changes=_LESS, lost=_CUT),
    ("exception", "clock"): _e("Stamps of two nodes cannot be compared beyond their offset; the traceback is proven without any, the others lost their peer."),
    ("exception", "survived"): _e("Rank 0 printed its traceback 5 steps earlier and went on: an error that a rank survived is no cause."),
    ("exception", "sidecar"): _e("The sidecar is no rank; the training containers went on after its exit, until rank 2 raised."),
    ("sigkill", "api-away"): _e("The end record of the wrapper says signal 9, sent by nobody known; it waits in the pod's log."),
    ("sigkill", "supervisor-killed"): _e("The wrapper in the pod saw the signal; a supervisor that did not live cannot have sent it."),
    ("sigkill", "disk-full"): _e("The end record is read again when there is room; a full disk of the client kills no rank."),
    ("sigkill", "deleted"): _e("SIGKILL came first, at a moment when no grace time had run out; if its record was taken away unread, cancelled is honest. No attempt follows.", weaker=(_CANCELLED,), changes=_LESS, runs_again=NO, lost=frozenset({0, 1})),
    ("sigkill", "node-elsewhere"): _e("Rank 2's SIGKILL is recorded on a healthy node; the power cut of the other node came afterwards. Without an order that the clocks prove, the lost node is as true a cause.", _OTHER_NODE, changes=_LESS, lost=_CUT),
    ("sigkill", "clock"): _e("The order between the nodes must not come from a clock that is 90 s off; the record of the signal alone names rank 2."),
    ("sigkill", "survived"): _e("A CUDA OOM that rank 0 survived says nothing about the SIGKILL of rank 2, which no cgroup counter explains."),
    ("sigkill", "sidecar"): _e("The exit 3 of another container sends no SIGKILL to a rank."),
    ("oom", "api-away"): _e("The cgroup's counter is in the end record, which waits in the pod's log."),
    ("oom", "supervisor-killed"): _e("The cgroup's counter is read in the pod, not by the supervisor."),
    ("oom", "disk-full"): _e("Memory of a pod and the disk of the client have nothing to do with one another: host_oom, not disk_full."),
    ("oom", "deleted"): _e("The kill by the cgroup came first; if its record was taken away unread, cancelled is honest. No attempt follows.", weaker=(_CANCELLED,), changes=_LESS, runs_again=NO, lost=frozenset({0, 1})),
    ("oom", "node-elsewhere"): _e("The counter of slot 1's cgroup proves the OOM there; the other node fell afterwards.", changes=_LESS, lost=_CUT),
    ("oom", "clock"): _e("The counter needs no clock."),
    ("oom", "survived"): _e("Two kinds of memory: the text of rank 0 is of a GPU and survived, the counter is of rank 2's cgroup."),
    ("oom", "sidecar"): _e("The counter is of the training container's own cgroup; the sidecar ended by its own exit code."),
    ("hang", "api-away"): _e("Silence counts from when ranks can be heard again: the hang is called late, but rightly, and once.", changes={}),
    ("hang", "supervisor-killed"): _e("The new supervisor finds the ranks silent and calls the hang by itself."),
    ("hang", "disk-full"): _e("While nothing can be written nothing may be called silent; afterwards the hang is what it is."),
    ("hang", "deleted"): _e("Nobody had called the hang yet when the job was deleted: cancelled is all that is known, the hang is right as well. No attempt follows.", {}, changes={**_CANCELLED, "policies": _LATE_HANG}, runs_again=NO, lost=frozenset({0, 1})),
    ("hang", "node-elsewhere"): _e("Rank 2 stood still, but the first failure that anybody can see is slot 0's lost node; either is true.", {"victims": False}, changes=_OTHER_NODE, lost=_CUT),
    ("hang", "clock"): _e("Progress is compared by steps and by this machine's clock."),
    ("hang", "survived"): _e("The text is 5 steps older than the standstill."),
    ("hang", "sidecar"): _e("The exit of the sidecar stops no rank."),
    ("node-down", "api-away"): _e("The node is still away when the server answers; its conditions say so.", lost=frozenset({1})),
    ("node-down", "supervisor-killed"): _e("The Node object shows the loss to whoever looks later.", lost=frozenset({1})),
    ("node-down", "disk-full"): _e("The Node object shows the loss; it is looked at again when there is room.", lost=frozenset({1})),
    ("node-down", "deleted"): _e("The deletion comes before the platform has seen that the node is away: cancelled is what is known; a lost node is true as well. No attempt follows.", {}, changes=_CANCELLED, runs_again=NO, lost=frozenset({0, 1})),
    ("node-down", "node-elsewhere"): _e("Two nodes go down within a second: either, or no single one, is right; n3 alone is left and takes one pod of two, so nothing can run.", {"slot": 0}, {"slot": None}, runs_again=EITHER, lost=frozenset({0, 1})),
    ("node-down", "clock"): _e("Conditions and leases of nodes are written by the control plane's clock, which is right.", lost=frozenset({1})),
    ("node-down", "survived"): _e("The text is older and its rank went on until its peer was gone.", lost=frozenset({1})),
    ("node-down", "sidecar"): _e("The exit of the sidecar came before, the power cut ended all of the pod.", lost=frozenset({1})),
    ("xid-event", "api-away"): _e("The Event is kept by the server and is read afterwards; it names the node and the second."),
    ("xid-event", "supervisor-killed"): _e("The Event is kept by the server."),
    ("xid-event", "disk-full"): _e("The Event is read again when there is room."),
    ("xid-event", "deleted"): _e("The rank's end and the Event came first; if its record was taken away unread, cancelled is honest. No attempt follows.", weaker=(_CANCELLED,), changes=_LESS, runs_again=NO, lost=frozenset({0, 1})),
    ("xid-event", "node-elsewhere"): _e("The Xid is on slot 1's node, where the first rank ended; the other node went down afterwards. Without a proven order its loss is as true, and the Xid only likely: suspect, no taint.", _OTHER_NODE, {**_LESS, "node_action": "suspect"}, changes=_LESS, lost=_CUT),
    ("xid-event", "clock"): _e("The Event's stamp is of the node's own clock; it lies within two minutes of the failure either way."),
    ("xid-event", "survived"): _e("A CUDA error that rank 0 survived on another node is not the Xid of slot 1's node."),
    ("xid-event", "sidecar"): _e("The exit of the sidecar explains no SIGKILL; the Xid on the rank's node does."),
    ("refused-pod", "api-away"): _e("The pod's status holds the refusal for whoever reads it later."),
    ("refused-pod", "supervisor-killed"): _e("The pod's status holds the refusal."),
    ("refused-pod", "disk-full"): _e("The pod's status is read again when there is room."),
    ("refused-pod", "deleted"): _e("The refusal came first; if the pod was gone before anybody looked, cancelled is honest. No attempt follows.", weaker=(_CANCELLED,), runs_again=NO, lost=frozenset({0})),
    ("refused-pod", "node-elsewhere"): _e("Slot 1 was refused on a healthy node; slot 0's node went down afterwards. Either is a cause to go elsewhere.", _OTHER_NODE, lost=_CUT, runs_again=EITHER),
    ("refused-pod", "clock"): _e("A refusal needs no order."),
    ("refused-pod", "survived"): _e("Rank 0 printed its text at its start, and waits for a slot that never came."),
    ("refused-pod", "sidecar"): _e("The sidecar of slot 0 exited by itself; slot 1 never ran."),
    ("image-missing", "api-away"): _e("The startup deadline of 30 s passes while nobody can see; when the server answers, the pod's status holds the reason.", changes={"fields": {"deadlines": {"startup_s": 30}}}, runs_again=EITHER),
    ("image-missing", "supervisor-killed"): _e("The pod's status holds the reason.", runs_again=EITHER),
    ("image-missing", "disk-full"): _e("The pod's status is read again when there is room.", runs_again=EITHER),
    ("image-missing", "deleted"): _e("The deletion comes before the startup deadline has called the start failed; cancelled, or the missing image. No attempt follows.", {}, changes=_CANCELLED, runs_again=NO, lost=frozenset({0})),
    ("image-missing", "node-elsewhere"): _e("Slot 1 never started on a healthy node for want of its image; slot 0's node went down while it waited. Either is true.", _OTHER_NODE, lost=_CUT, runs_again=EITHER),
    ("image-missing", "clock"): _e("A missing image needs no order.", runs_again=EITHER),
    ("image-missing", "survived"): _e("Rank 0 printed its text at its start, and waits for a slot that never came.", runs_again=EITHER),
    ("image-missing", "sidecar"): _e("The sidecar of slot 0 exited by itself; slot 1 never ran.", runs_again=EITHER),
}  # fmt: skip


@dataclass(frozen=True)
class Pair(Cell):
    """One cell: a first fault with a second one."""

    second: str = ""

    @property
    def id(self) -> str:
        """A name for people; the code under test never sees it."""
        return f"{self.fault.name}-{self.second}"

    @property
    def key(self) -> tuple[str, str]:
        """Row and column."""
        return self.fault.name, self.second

    @property
    def alone(self) -> bool:
        """Whether no other job may run meanwhile."""
        return not ALONE.isdisjoint(self.key)

    @property
    def expected(self) -> Expected:
        """What has to come of it."""
        return EXPECTED[self.key]

    @property
    def answers(self) -> tuple[Fault, ...]:
        """The first fault's row as it has to be judged here, and what is as right."""
        row = self.fault
        return (replace(row, **self.expected.changes), *(replace(row, **changes) for changes in self.expected.others))

    @property
    def weaker(self) -> tuple[Fault, ...]:
        """Answers that are true and say less."""
        return tuple(replace(self.fault, **changes) for changes in self.expected.weaker)

    @property
    def runs_again(self) -> frozenset[bool]:
        """Whether an attempt 2 may, must or must not follow."""
        if self.expected.runs_again is not None:
            return self.expected.runs_again
        return NO if self.fault.retry == USER else YES

    @property
    def bad_slots(self) -> frozenset[int]:
        """Slots whose node must not be used again."""
        return frozenset({1}) if self.fault.retry == ELSEWHERE else frozenset()

    @property
    def down_slots(self) -> frozenset[int]:
        """Slots whose node went down beside the first failure."""
        return frozenset({0}) if self.second == "node-elsewhere" else frozenset()


def with_survived(fault: Fault) -> Fault:
    """The same, and rank 0 prints an error shortly before, which is among its last lines."""
    text = at("import" if fault.name in STARTS else 5, "print", ranks=(0,), text=SURVIVED)
    others = [what | {"ranks": (1, 3)} if what["do"] == "burst" else what for what in fault.actions]
    return replace(fault, actions=(*others, text))


def pairs() -> Iterator[Pair]:
    """Every first fault with every second one, over the three backends in turn."""
    for row, first in enumerate(FIRST.values()):
        for column, second in enumerate(SECOND):
            fault = with_survived(first) if second == "survived" else first
            changes = EXPECTED[first.name, second].changes
            # Of what the job asks for, not of what has to come of it.
            fault = replace(fault, **{name: changes[name] for name in ("fields", "policies") if name in changes})
            yield Pair(fault, BACKENDS[(row + column) % len(BACKENDS)], torch=first.name == "hang", second=second)
