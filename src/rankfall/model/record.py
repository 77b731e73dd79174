"""``rankfall.record/1``, reading side: records of ``rankfall_inside`` about one rank.

Written once, under a unique name. Nanoseconds: ``at_ns`` since the epoch, ``mono_ns`` by the boot's monotonic clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "rankfall.record/1"

RecordKind = Literal["start", "error", "end", "stacks", "slot_start", "slot_end", "kill", "gap", "progress", "ras"]


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One Python stack frame; ``user`` is false for library code."""

    file: str
    line: int = 0
    func: str = ""
    user: bool = False


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The exception that ended a rank.

    Attributes:
        types: Qualified type names, raised one first, then its chain.
        message: Text of the raised exception, bounded and redacted.
        chain: Text of each of ``types``, in order.
        frames: Stack, innermost last, with library frames.
        traceback: Python's text; if cut, head and tail.
        mark: ``retryable`` or ``final``, the user's mark.
        raised_ns: Time of the raise, or the time that the exception names; not the time of writing.
        thread: Thread name, unless main.
        exit_code: Code of a SystemExit.
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
    """End of a process.

    Attributes:
        code: Exit code 0-255; None if signaled or unreadable.
        signal: Signal that ended it.
        how: ``wait`` (parent), ``pidfd``, ``proc`` (zombie in /proc), ``hook`` (the process), ``gone`` (status
            unreadable), ``agent`` (torchrun), ``none`` (never started).
        sender_pid: Sender of the signal, if the kernel reported it.
        ours: The wrapper sent and first marked this signal.
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
        number: Restart number of the container.
        stream: ``r<rank>``, ``slot`` (no rank) or ``all`` (sum); None = any stream may lack lines.
        lines, bytes: Missing amount; None = unknown.
        after_ns, before_ns: Bounds, node's clock; None = the log's beginning or end.
        why: Obstacle, as ``No space left on device``; None = unknown.
    """

    number: int = 0
    stream: str | None = None
    lines: int | None = None
    bytes: int | None = None
    after_ns: int | None = None
    before_ns: int | None = None
    why: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record. Unknown fields are ignored, missing ones are None.

    Attributes:
        id: Unique; two copies are one record.
        writer: ``hook`` (in the rank) or ``wrapper``.
        ordinal: Process number in slot and instance; names ``<ordinal>.out.log``.
        rank_source: ``env:RANK``, ``env:OMPI_COMM_WORLD_RANK``, ``proc:RANK``, ``launcher``, ...
        phase: import, rendezvous, init, step, checkpoint, teardown; None = unknown.
        step_ns: End of the step.
        cpu_s: In ``progress``: user and system CPU seconds of the process.
        oom_kills: Growth of the cgroup's oom_kill counter since slot start.
        log_store: In ``slot_start``: folder in the log store with the ranks' lines, not on stdout.
        printed: In ``slot_end``: (lines, bytes) of each stream on stdout, without prefixes and carriage returns before
            line feeds; one sum ``all`` above 64 streams, or 12 in the termination message. Absent: not counted.
        lost: In ``gap``: lines that a cluster's recorder misses.
        launcher: In ``slot_start``: ``exec``, ``plain`` or ``torchrun``.
        ras: In ``ras``: report of NCCL's RAS service, without the job summary, at most 6 KiB.
        trust: Set by the reader from the channel, not in the file.
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
    ras: str | None = None
    truncated: bool = False
    redacted: bool = False
    notes: tuple[str, ...] = ()
