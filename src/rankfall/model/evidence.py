"""Evidence and facts of one attempt as a ``Case``, the whole input of ``diagnose``.

Times are integer nanoseconds since the epoch; None is unknown, never early.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from rankfall.model.causes import EvidenceRole, Retry
from rankfall.model.numbers import whole
from rankfall.model.timestamps import EXACT, Bound

Source = Literal["log", "record", "exit", "pod", "event", "node", "kernel", "recorder"]
# Writers. ``job``: any text of the job; ``inside``: the hook; ``launcher``: torchrun's report, also job text;
# ``wrapper``: the slot's process 1, a direct observer.
Trust = Literal["job", "inside", "launcher", "wrapper", "supervisor", "kernel", "platform"]

# Clock of a stamp: the slot's node, the API server and controllers, or the observer.
StampedBy = Literal["node", "server", "here", "text"]

SlotLauncher = Literal["torchrun", "plain", "exec"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One classified observation with a pointer to its proof.

    Attributes:
        id: Content identity; equal ids are one piece.
        role: Part in the failure; only ``primary`` can be the root.
        uncertainty: Of ``at``, seconds.
        stamped: Clock of ``at``; ``text``: that of a log which names no zone.
        signature: Id of the matching signature.
        peer_hosts: Addresses of ``peers`` without a rank.
        detail: Further text for display.
        stream: Path of the stream; its key for ``order``.
        specificity: 0-100; the most specific proven slug of a rank wins.
        at: Nanoseconds since the epoch, clock ``stamped``, ± ``uncertainty`` seconds; None = unknown. ``Case.clocks``
            holds the clock's offset.
        order: Byte offset, comparable only inside one ``stream``.
        fingerprint: Cause, normalised text and top user frame; no rank, node, time, pointer, port.
        peers: Ranks reported as missing, closed or lagging.
        mark: User's retry mark on the root exception.
        retry: Retry implied by the text, unlike the cause's default.
        pid: Process concerned.
        pod: Pod of the writer, if only the text names it.
        attempt, round: None = unknown, treated as current.
        teardown: It came after the work was complete.
        whole: Text that is a complete traceback.
        passed: Text; the job, or possibly its writer, worked long after it.
        outlived: Text; its writer worked on, so ``role`` is ``context``.
        place: Traceback: ``FILE:LINE in FUNCTION`` of the user's innermost frame.
        collective: Traceback: collective that the user's code called.
        caught: Traceback: the program caught the exception and printed it.
        lost_peer: Exception: its chain contains that of a lost peer, or of a wait for the other ranks.
        thread: Record: the exception ended a thread other than the main one.
    """

    id: str
    source: Source
    slug: str
    role: EvidenceRole
    trust: Trust
    rank: int | None = None
    slot: int | None = None
    node: str | None = None
    local_rank: int | None = None
    pid: int | None = None
    pod: str | None = None
    at: int | None = None
    uncertainty: float | None = None
    stamped: StampedBy = "node"
    stream: str | None = None
    order: int | None = None
    where: str = ""
    line: str = ""
    signature: str | None = None
    specificity: int = 0
    fingerprint: str | None = None
    peers: tuple[int, ...] = ()
    peer_hosts: tuple[str, ...] = ()
    mark: Literal["retryable", "final"] | None = None
    retry: Retry | None = None
    exit_code: int | None = None
    signal: int | None = None
    gpu: str | None = None
    phase: str | None = None
    step: int | None = None
    attempt: int | None = None
    round: int | None = None
    teardown: bool = False
    whole: bool = False
    passed: bool = False
    outlived: bool = False
    place: str | None = None
    collective: str | None = None
    caught: bool = False
    lost_peer: bool = False
    thread: bool = False
    detail: str | None = None


class RankFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Certain facts about one rank of one round.

    Attributes:
        state: ``expected`` (no start seen), ``running``, ``ended``, ``unknown``.
        exit_code, signal: Its end; both None when ``ended`` = unreadable.
        killed_by: ``wrapper`` (Rankfall), ``agent`` (torchrun), ``foreign``; None = unknown.
        ended_at: Nanoseconds since the epoch, node's clock, ± ``ended_uncertainty`` seconds.
        ended_uncertainty: Seconds, of ``ended_at``.
        group_rank: Number of its node in torchrun's round.
        round: Rendezvous of the attempt.
        phase: Last phase that it reported.
        last_line_at: Arrival of its newest line, nanoseconds since the epoch.
        hook: ``loaded`` or ``absent``.
        last_seq: Last collective in torch's flight recorder.
        finished: Its output shows completed work and no later work.
        step_at: Time of ``step``, node's clock.
        worked_at: Arrival of its newest line that shows work.
        stream: Stream of the launcher's report, if the slot is unknown.
        reported_first: The launcher observed its end before all others.
    """

    rank: int
    slot: int | None = None
    node: str | None = None
    role: str | None = None
    local_rank: int | None = None
    group_rank: int | None = None
    pod: str | None = None
    pid: int | None = None
    round: int | None = None
    state: Literal["expected", "running", "ended", "unknown"] = "unknown"
    exit_code: int | None = None
    signal: int | None = None
    killed_by: Literal["wrapper", "agent", "foreign"] | None = None
    started_at: int | None = None
    ended_at: int | None = None
    ended_uncertainty: float | None = None
    hook: Literal["loaded", "absent"] | None = None
    phase: str | None = None
    step: int | None = None
    step_at: int | None = None
    finished: bool = False
    last_line_at: int | None = None
    worked_at: int | None = None
    last_seq: int | None = None
    stream: str | None = None
    reported_first: bool = False
    where: str = ""


class SlotFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Certain facts about one slot (one node-level process).

    Attributes:
        instance: Number of its start in this attempt, from 0; above 0 if the slot restarted alone.
        launcher: torchrun, plain or exec.
        recorder: True if its wrapper reported, so its ranks become visible.
        signalled: True if it received an external signal before its end.
        state: ``lost``: without a known end.
        killed_by: ``wrapper`` (Rankfall), ``foreign``; None = unknown.
        oom_kills: Processes that the kernel killed for memory in its cgroup.
        ended_uncertainty: Seconds, of ``ended_at``; a kubelet stamps whole seconds.
        platform_ready: Pod's Ready condition; None on the local machine.
    """

    slot: int
    instance: int = 0
    node: str | None = None
    role: str | None = None
    pod: str | None = None
    launcher: SlotLauncher | None = None
    state: Literal["expected", "running", "ended", "lost", "unknown"] = "unknown"
    exit_code: int | None = None
    signal: int | None = None
    killed_by: Literal["wrapper", "foreign"] | None = None
    started_at: int | None = None
    ended_at: int | None = None
    ended_uncertainty: float | None = None
    oom_kills: int | None = None
    recorder: bool = False
    signalled: bool = False
    platform_ready: bool | None = None
    where: str = ""

    @property
    def loss(self) -> str:
        """Description of a lost slot, whose end nothing recorded; the pod of a foreign job has no wrapper."""
        gone = "pod" if self.pod is not None and not self.recorder else "wrapper"
        return f"its {gone} vanished without a record of its end"


class SlotClock(msgspec.Struct, frozen=True, array_like=True):
    """A clock that differs from the observer's.

    Attributes:
        slot: Slot on the clock's node; None = API server.
        ahead: Offset.
    """

    slot: int | None
    ahead: Bound


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Complete input of one verdict.

    Attributes:
        role: The only role; None with several.
        world_size: Expected number of ranks; None offline.
        nnodes: Slots of the attempt; None offline.
        ranks: Facts of the newest round.
        slots: Facts of all slots.
        evidence: All pieces of the attempt.
        ended: True if all slots ended; False for a hang or live snapshot.
        succeeded: True if all slots ended with 0 and no error file contradicts.
        denied: True if a slot with exit code 0 wrote an error file, so exit codes prove nothing.
        cancelled: Text about who canceled the run, or None.
        cancel_slug: Cause of that: ``cancelled``, or why the platform ended the job.
        hung: True without progress for the set time.
        missing: Unavailable evidence, as text (unreadable record, absent stream, damaged file).
        stopper: Actor that stops a gang after a failure.
        clocks: Differing clocks.
    """

    run: str | None = None
    attempt: int | None = None
    backend: str | None = None
    role: str | None = None
    world_size: int | None = None
    nnodes: int | None = None
    ended: bool = True
    succeeded: bool = False
    denied: bool = False
    cancelled: str | None = None
    cancel_slug: str = "cancelled"
    hung: bool = False
    ranks: tuple[RankFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[str, ...] = ()
    stopper: str = "Rankfall"
    clocks: tuple[SlotClock, ...] = ()

    def clock_of(self, slot: int | None) -> Bound:
        """Returns the clock offset of a slot's node.

        Args:
            slot: Number; None for the API server.
        """
        return next((one.ahead for one in self.clocks if one.slot == slot), EXACT)


def surely_after(piece: Evidence, other: Evidence) -> bool:
    """True if ``piece`` certainly followed ``other``: later in the same stream, or by a comparable clock."""
    if (
        piece.stream is not None
        and piece.stream == other.stream
        and piece.order is not None
        and other.order is not None
    ):
        return piece.order > other.order
    if piece.at is None or other.at is None or piece.slot != other.slot:
        return False
    if "text" in {piece.stamped, other.stamped} and piece.stamped != other.stamped:
        return False
    return piece.at - other.at > round(((piece.uncertainty or 0.0) + (other.uncertainty or 0.0)) * 1e9)


def same_line(piece: Evidence | None, other: Evidence | None) -> bool:
    """True if both are from one line of a text."""
    if piece is None or other is None or piece.stream is None or piece.order is None:
        return False
    return (piece.stream, piece.order) == (other.stream, other.order)


def on_other_nodes(one: str | None, other: str | None) -> bool:
    """True for names of two nodes that differ without their domains; False if one is missing."""
    return bool(one and other) and (one or "").partition(".")[0] != (other or "").partition(".")[0]


def line_place(where: str) -> tuple[str, int | None]:
    """File and line number of a pointer to a line; None as number for other pointers."""
    file, _, number = where.rpartition(":")
    return file, whole(number)


def digest(*parts: object) -> str:
    """Returns a short, stable hash."""
    joined = "\0".join("" if part is None else str(part) for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
