"""The agent's report of the kernel log: the annotation ``rankfall.dev/kernel-faults`` and printed lines.

Only the agent writes the annotation; the controller reads it. Equal records fold into one entry, so a burst
stays small. Text that is too large, of another schema or out of bounds is refused as a whole.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from rankfall.model import decoding
from rankfall.model.node_health.records import MAX_SEEN, MAX_TEXT, decode_annotation, printable

REPORT_SCHEMA: Final = "rankfall.kernelreport/1"
LINE_SCHEMA: Final = "rankfall.kernelline/1"

#: The agent's own annotation and condition.
REPORT_ANNOTATION: Final = "rankfall.dev/kernel-faults"
REPORT_CONDITION: Final = "RankfallKernelLog"

#: Largest annotation that is written or read, in bytes of UTF-8.
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

#: ``kernel``: facility 0, which no process can write; ``injected``: a process wrote it into the log.
RecordTrust = Literal["kernel", "injected"]


class Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record: its number in the ring, and its time in nanoseconds since the epoch."""

    seq: _Sequence
    at: _Nanoseconds


class KernelEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Equal records of the kernel's log: same code, device, instance, job and trust.

    Attributes:
        code: what they are in the catalogue, as ``xid/79``.
        trust: who could have written them.
        seen: the newest ones, oldest first; at least as many as the packaged rule of the code counts, unless the annotation would be too large.
        count: how many there were.
        first: the oldest one.
        uncertainty: seconds on each side of each time.
        device: as ``gpu 0000:4e:00``; None = the node, or not known.
        instance: MIG instance, as ``GPU-I:05``.
        slug: the cause that the same text means for a job.
        job: UID of the pod whose process the newest line names; None = not known.
        pid, process: of the newest line, as the line says.
        detail: what the newest line says beyond its code.
        text: the newest line, bounded and without control characters.
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
    """What the kernel's log of one boot of one node held that concerns the node.

    Attributes:
        boot: boot id of the ring. Two Nodes that tell the same one share a kernel, and whose fault a record is cannot be told.
        seq: highest number that was read when this was written; None = nothing yet.
        lost: records that were overwritten before they could be read.
        more: entries that did not fit; the gravest and newest are kept.
        injected: the agent runs in the test mode, in which records that processes wrote are told too.
        entries: the gravest last, and of equally grave ones the newest.
    """

    boot: _Boot
    seq: _Sequence | None = None
    lost: _Count = 0
    more: _Count = 0
    injected: bool = False
    entries: Annotated[tuple[KernelEntry, ...], msgspec.Meta(max_length=MAX_ENTRIES)] = ()


class KernelLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="schema", tag=LINE_SCHEMA):
    """One line that the agent prints: JSON on one line, in ASCII; a collector brings it to Loki.

    Attributes:
        kind: ``record`` a record of interest; ``plain`` any other one, printed only when all were asked for; ``gap`` records that were overwritten
            before they were read; ``fold`` records that are equal to one printed before and are only counted; ``unreadable`` bytes that are no
            record; ``start`` the first line of each start; ``alive`` nothing to tell, and the ring is read.
        node: its name, as the agent was told.
        boot, seq: identity of the record; of a gap or fold the first one, and ``last_seq`` is the last one. Equal ones are one line that was
            printed again.
        count: records that this line stands for.
        stamp_us: microseconds on the kernel's own clock.
        at: nanoseconds since the epoch, with ``uncertainty`` seconds on each side.
        facility, level: 0 is the kernel itself; 0 (emergency) to 7 (debug).
        text: as the kernel escaped it, cut to 1,024 characters.
        note: what the agent says itself.
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
    """The text of the annotation. Where it would be too large, texts and old places are cut, then entries left out, those in front first."""
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
    """Read the annotation.

    Raises:
        EvidenceLost: too large, no JSON, another schema, an unknown field or a value out of bounds.
    """
    hint = f"remove the annotation {REPORT_ANNOTATION}; the agent writes it anew"
    return decode_annotation(
        text, KernelReport, name=REPORT_ANNOTATION, most=MAX_REPORT, hint=hint, schema=REPORT_SCHEMA
    )


def decode_line(text: str | bytes) -> KernelLine | None:
    """Read a line that an agent printed; None = it is none. Unknown fields of newer agents are passed over."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if not data.startswith(_LINE_BEGINS):
        return None
    try:
        return decoding.decode(data, kind=KernelLine)
    except msgspec.DecodeError:
        return None
