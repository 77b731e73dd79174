"""``rankfall.record/1``, reading side: what the recorder in the training process writes about one rank.

A record is written once, under a unique name, and never rewritten. The writer is ``rankfall_inside``; fields
that older or newer writers leave out or add are accepted. Times are nanoseconds: ``at_ns`` since the epoch,
``mono_ns`` by the monotonic clock of the boot.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "rankfall.record/1"

RecordKind = Literal["start", "error", "end", "stacks", "slot_start", "slot_end", "kill", "gap", "progress"]


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stack frame: file, line and function as Python names them; ``user`` is false for library code."""

    file: str
    line: int = 0
    func: str = ""
    user: bool = False


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The exception that ended a rank.

    Attributes:
        types: qualified type names, the raised one first, then the chain of causes and contexts down to the first.
        message: text of the raised exception, bounded and redacted.
        chain: text of each exception of ``types``, in the same order.
        frames: innermost last; library frames are kept, marked as not ``user``.
        traceback: the text Python would print; head and tail are kept when it is cut.
        mark: ``retryable`` or ``final`` when the user marked this exception or one of its chain.
        raised_ns: when it was raised (or the time it carries itself), never when it was written.
        thread: name of the thread, when it was not the main one.
        exit_code: the code a SystemExit asks for.
    """

    types: tuple[str, ...] = ()
    message: str = ""
    chain: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    mark: Literal["retryable", "final"] | None = None
    marked_by: str | None = None
    raised_ns: int | None = None
    thread: str | None = None
    exit_code: int | None = None
    handled: bool = False


class ExitInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a process ended.

    Attributes:
        code: exit code 0-255, or None when a signal ended it or nobody could read it.
        signal: the signal that ended it.
        how: who read it: ``wait`` (parent), ``pidfd``, ``proc`` (zombie in /proc), ``hook`` (the process itself),
            ``gone`` (it is gone and nobody could read its status), ``agent`` (torchrun reported it), ``none`` (it was never started).
        sender_pid: who sent the signal, where the kernel told.
        ours: the wrapper sent this signal itself and had marked it before.
    """

    code: int | None = None
    signal: int | None = None
    how: str = "wait"
    sender_pid: int | None = None
    sender: str | None = None
    ours: bool = False
    reason: str | None = None


class Lost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lines of a container's log that are not stored.

    Attributes:
        number: restart number of the container.
        stream: whose lines are counted: ``r<rank>``, ``slot`` for lines of no rank, ``all`` for the sum; None = a place in the log, where lines of
            any stream may be missing.
        lines, bytes: how much of the stream is missing; None = not known.
        after_ns, before_ns: stamps of the lines on both sides of the place, by the node's clock; None = the log's beginning, its end.
        why: what kept them from being stored, as ``No space left on device``; None = not known.
    """

    number: int = 0
    stream: str | None = None
    lines: int | None = None
    bytes: int | None = None
    after_ns: int | None = None
    before_ns: int | None = None
    why: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record. Unknown fields of newer writers are ignored; missing ones are None, never a guess.

    Attributes:
        id: unique; the same record read through two channels is one record.
        writer: ``hook`` (in the rank) or ``wrapper``.
        ordinal: process ordinal in its slot and instance; names the stream files ``<ordinal>.out.log``.
        rank_source: where the rank was read: ``env:RANK``, ``env:OMPI_COMM_WORLD_RANK``, ``proc:RANK``, ``launcher``, ...
        phase: import, rendezvous, init, step, checkpoint, teardown; None where nobody said.
        step_ns: when that step was done.
        cpu_s: in ``progress``: CPU seconds, user and system, of the rank's process since it started.
        oom_kills: growth of the cgroup's oom_kill counter since the slot started.
        log_store: in ``slot_start``: folder of the lines of this start's ranks, below the job's log store; they are not on its stdout.
        printed: in ``slot_end``: (lines, bytes) of each stream that were put on the container's stdout, without prefixes and without carriage returns
            right before a line feed; of more than 64 streams, or 12 in the termination message, one sum, ``all``. Absent: not counted.
        lost: in ``gap``: which lines, where the recorder of a cluster found them missing.
        launcher: in ``slot_start``: how the wrapper starts the ranks: ``exec``, ``plain`` or ``torchrun``.
        trust: not in the file; set by the reader from the channel.
    """

    schema: str = SCHEMA
    id: str
    kind: RecordKind
    writer: Literal["hook", "wrapper"] = "hook"
    run: str | None = None
    attempt: int | None = None
    role: str | None = None
    slot: int | None = None
    instance: str | None = None
    round: int | None = None
    node: str | None = None
    host: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    boot_id: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    group_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    restart_count: int | None = None
    rank_source: str | None = None
    ordinal: int | None = None
    pid: int | None = None
    ppid: int | None = None
    start_ticks: int | None = None
    argv: tuple[str, ...] = ()
    python: str | None = None
    streams: bool | None = None
    at_ns: int | None = None
    mono_ns: int | None = None
    phase: str | None = None
    step: int | None = None
    step_ns: int | None = None
    cpu_s: float | None = None
    error: ErrorInfo | None = None
    exit: ExitInfo | None = None
    oom_kills: int | None = None
    launcher: str | None = None
    log_store: str | None = None
    printed: dict[str, tuple[int, int]] | None = None
    lost: Lost | None = None
    stacks: str | None = None
    truncated: bool = False
    redacted: bool = False
    notes: tuple[str, ...] = ()
