"""The agent's kernel log report: annotation ``rankfall.dev/kernel-faults`` and printed lines.

Only the agent writes it, the controller reads it. Equal records share one entry. Invalid text is refused whole.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rankfall.model import decoding
from rankfall.model.node_health.records import MAX_SEEN, MAX_TEXT, decode_annotation, printable

REPORT_SCHEMA: Final = "rankfall.kernelreport/1"
LINE_SCHEMA: Final = "rankfall.kernelline/1"

#: Annotation and condition of the agent.
REPORT_ANNOTATION: Final = "rankfall.dev/kernel-faults"
REPORT_CONDITION: Final = "RankfallKernelLog"

#: Largest annotation, in bytes of UTF-8.
MAX_REPORT: Final = 8 << 10
MAX_ENTRIES: Final = 32

_LINE_BEGINS: Final = f'{{"schema":"{LINE_SCHEMA}",'.encode()

_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Boot = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z-]{1,64}$(?!\n)")]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Short = Annotated[str, msgspec.Meta(max_length=128)]
_Code = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z0-9][A-Za-z0-9._-]{0,31}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){1,2}$(?!\n)")
]
_Uncertainty = Annotated[float, msgspec.Meta(ge=0)]

#: ``kernel``: facility 0, closed to processes; ``injected``: written by a process.
RecordTrust = Literal["kernel", "injected"]


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record: number in the ring, nanoseconds since the epoch."""

    seq: _Sequence
    at: _Nanoseconds


class KernelEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Equal records: same code, device, instance, job and trust.

    Attributes:
        code: Catalogue code, as ``xid/79``.
        trust: Possible writers.
        seen: Newest records, oldest first; at least the rule's count, if the annotation has room.
        count: Number of records.
        first: Oldest record.
        uncertainty: Seconds around each time.
        device: Device, as ``gpu 0000:4e:00``; None = the node, or unknown.
        instance: MIG instance, as ``GPU-I:05``.
        slug: Cause of this text for a job.
        job: UID of the pod of the newest line's process; None = unknown.
        pid, process: Process in the newest line.
        detail: Further facts of the newest line.
        text: Newest line, bounded, without control characters.
    """

    code: _Code
    trust: RecordTrust = "kernel"
    seen: Annotated[tuple[Place, ...], msgspec.Meta(min_length=1, max_length=MAX_SEEN)]
    first: Place
    count: _Count = 1
    uncertainty: _Uncertainty = 0.0
    device: _Short | None = None
    instance: _Short | None = None
    slug: _Short | None = None
    job: _Short | None = None
    pid: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] | None = None
    process: _Short | None = None
    detail: _Short | None = None
    text: _Text = ""


class KernelReport(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="schema",
    tag=REPORT_SCHEMA,
):
    """Relevant records of one boot of one node.

    Attributes:
        boot: Boot id of the ring. Nodes with equal ids share a kernel, so a record's node is unknown.
        seq: Highest number read; None = none.
        lost: Records overwritten before reading.
        more: Dropped entries; the gravest and newest remain.
        injected: Test mode: records written by processes count.
        entries: Gravest last, equally grave ones by age.
    """

    boot: _Boot
    seq: _Sequence | None = None
    lost: _Count = 0
    more: _Count = 0
    injected: bool = False
    entries: Annotated[tuple[KernelEntry, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()


class KernelLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=LINE_SCHEMA):
    """One line that the agent prints, as ASCII JSON, for a collector and Loki.

    Attributes:
        kind: ``record`` of interest. ``plain``: any other, with ``--all``. ``gap``: overwritten before reading.
            ``fold``: repetitions, only counted. ``unreadable`` bytes. ``start`` of the agent. ``alive``: no events.
        node: Configured name.
        boot, seq: Identity of the record, first of a gap or fold to ``last_seq``. Equal ones are one line.
        count: Records in this line.
        stamp_us: Microseconds, kernel's clock.
        at: Nanoseconds since the epoch, ± ``uncertainty`` seconds.
        facility, level: 0 is the kernel; 0 (emergency) to 7 (debug).
        text: Kernel's escaped text, at most 1,024 characters.
        note: Remark of the agent.
    """

    kind: Literal["record", "plain", "gap", "fold", "unreadable", "start", "alive"]
    node: str
    boot: str
    seq: _Sequence | None = None
    last_seq: _Sequence | None = None
    count: _Count = 1
    stamp_us: _Sequence | None = None
    at: _Nanoseconds | None = None
    uncertainty: _Uncertainty = 0.0
    facility: Annotated[int, msgspec.Meta(ge=0)] | None = None
    level: Annotated[int, msgspec.Meta(ge=0, le=7)] | None = None
    trust: RecordTrust | None = None
    code: _Code | None = None
    device: _Short | None = None
    instance: _Short | None = None
    slug: _Short | None = None
    job: _Short | None = None
    pid: int | None = None
    process: _Short | None = None
    detail: _Short | None = None
    text: Annotated[str, msgspec.Meta(max_length=1_024)] = ""
    note: str = ""


def encode_report(report: KernelReport) -> str:
    """Encodes the annotation; if too large, cuts texts and old places, then drops the first entries."""
    replace = msgspec.structs.replace
    for text, seen in ((MAX_TEXT, MAX_SEEN), (160, MAX_SEEN), (120, 8), (60, 2)):
        entries = tuple(
            replace(each, text=printable(each.text, text), seen=each.seen[-seen:]) for each in report.entries
        )
        smaller = replace(report, entries=entries)
        data = msgspec.json.encode(smaller)
        if len(data) <= MAX_REPORT:
            return data.decode()
    while len(data) > MAX_REPORT and smaller.entries:
        smaller = replace(smaller, entries=smaller.entries[1:], more=smaller.more + 1)
        data = msgspec.json.encode(smaller)
    return data.decode()


def decode_report(text: str) -> KernelReport:
    """Decodes the annotation.

    Raises:
        EvidenceLost: Too large, not JSON, another schema, unknown field, value out of bounds.
    """
    hint = f"remove the annotation {REPORT_ANNOTATION}; the agent writes it again"
    return decode_annotation(
        text, KernelReport, name=REPORT_ANNOTATION, most=MAX_REPORT, hint=hint, schema=REPORT_SCHEMA
    )


def decode_line(text: str | bytes) -> KernelLine | None:
    """Decodes an agent's line, ignoring unknown fields; None if it is another text."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if not data.startswith(_LINE_BEGINS):
        return None
    try:
        return decoding.decode(data, kind=KernelLine)
    except msgspec.DecodeError:
        return None
