"""Evidence, facts of ranks and slots, and the ``Case`` that holds them: the whole input of ``diagnose``.

Times are integer nanoseconds since the epoch; an unknown time is None and is never treated as early.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from rankfall.model.causes import EvidenceRole, Retry
from rankfall.model.timestamps import EXACT, Bound

Source = Literal["log", "record", "exit", "pod", "event", "node", "kernel", "recorder"]
# Who could have written it. ``job``: text of the job, which may say anything; ``inside``: our hook in the rank;
# ``launcher``: torchrun's own report (still job text); ``wrapper``: our process 1, which saw it with its own eyes;
# ``supervisor``; ``kernel``; ``platform``.
Trust = Literal["job", "inside", "launcher", "wrapper", "supervisor", "kernel", "platform"]

# Which clock a stamp is of: that of the node of its slot, the API server's and its controllers', or that of whoever observes.
StampedBy = Literal["node", "server", "here"]

# What started the ranks of a slot.
SlotLauncher = Literal["torchrun", "plain", "exec"]


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One classified observation with a pointer to the bytes that prove it.

    Attributes:
        id: content identity; two pieces with the same id are one piece.
        specificity: a more specific slug proven on the same rank beats a general one (0 lowest, 100 highest).
        at: nanoseconds since the epoch by the clock ``stamped``, with ``uncertainty`` seconds by that clock on each side; None = unknown.
            How far that clock is off stands in ``Case.clocks``.
        order: position inside its own stream (byte offset), usable only between pieces of the same ``stream``.
        fingerprint: cause + normalised text + top user frame; no rank, node, time, pointer or port.
        peers: ranks that the text names as missing, closed or lagging.
        mark: the user's own word about retry, on the root's exception only.
        retry: what its own text says of another try, where that is not what its cause says in general.
        pid: process that it speaks of.
        pod: name of the pod that wrote it, where only its own words say so.
        attempt, round: None = unknown, taken as the present ones.
        teardown: it was printed or raised when the work was done.
        whole: in text: a whole traceback, and not one line among many.
        passed: in text: the job as a whole went on with its work for long after it, or its speaker perhaps did.
        outlived: in text: its speaker went on with its work after it, so that its role is ``context``.
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
    detail: str | None = None


class RankFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is definitely known of one rank of one round.

    Attributes:
        state: ``expected`` (nobody saw it start), ``running``, ``ended``, ``unknown``.
        exit_code, signal: how it ended; both None with state ``ended`` = nobody could read it.
        killed_by: ``wrapper`` (Rankfall's own stop), ``agent`` (torchrun's own teardown), ``foreign`` or None = not known.
        ended_at: nanoseconds since the epoch by its node's clock, with ``ended_uncertainty`` seconds by that clock.
        hook: ``loaded`` or ``absent``.
        last_seq: last collective of torch's flight recorder, when there is one.
        finished: its own output says that its work is done, and shows no work after that.
        step_at: when it reported ``step``, by its node's clock.
        stream: where a launcher reported it, when its slot is not known.
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
    last_seq: int | None = None
    stream: str | None = None
    where: str = ""


class SlotFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is definitely known of one slot (one node-level process).

    Attributes:
        instance: which start of the slot in this attempt, counted from 0; more than 0 only where slots are started again alone.
        launcher: torchrun, plain or exec.
        recorder: its wrapper has said that it is there, so that its ranks will be seen.
        signalled: a signal from outside had come to it before it ended.
        ended_uncertainty: of ``ended_at``, in seconds: a kubelet's stamps are of whole seconds.
        platform_ready: what the pod's Ready condition says; None where nothing says so (on this machine).
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


class SlotClock(msgspec.Struct, frozen=True, array_like=True):
    """A clock that does not agree with that of whoever observes.

    Attributes:
        slot: on whose node it is; None = the API server's.
        ahead: by how much.
    """

    slot: int | None
    ahead: Bound


class Case(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a verdict is made from.

    Attributes:
        world_size: expected number of ranks; None offline.
        ended: the attempt is over (all slots ended); false = a hang or a live look.
        succeeded: every slot ended with 0, and none left an error file that says otherwise.
        denied: such a file was left by one that ended with 0; nothing that only counts exit codes can then say that the attempt succeeded.
        cancelled: by whom, when the user asked for the end.
        hung: the supervisor found no progress for the set time.
        missing: what could not be had, in words (unreadable record, absent stream, damaged file).
        stopper: who stops the rest of a gang when a part of it has failed.
        clocks: those that do not agree; what is not named here does.
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
    hung: bool = False
    ranks: tuple[RankFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[str, ...] = ()
    stopper: str = "Rankfall"
    clocks: tuple[SlotClock, ...] = ()

    def clock_of(self, slot: int | None) -> Bound:
        """How far the clock of a slot's node (None: of the API server) is ahead."""
        return next((one.ahead for one in self.clocks if one.slot == slot), EXACT)


def digest(*parts: object) -> str:
    """A short, stable identity of some content."""
    joined = "\0".join("" if part is None else str(part) for part in parts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
