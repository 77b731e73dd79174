"""Faults seen on a node, and its record: the annotation ``rankfall.dev/node-health`` and the condition.

The record is one annotation, so it changes in one request with the taint and goes with the Node. Anybody who
may change Nodes may have written it: text that is too large, of another schema or out of bounds is refused as
a whole.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import EvidenceLost

T = TypeVar("T")

FAULT_SCHEMA: Final = "rankfall.nodefault/1"
HEALTH_SCHEMA: Final = "rankfall.nodehealth/1"

#: The annotation that holds a :class:`NodeHealth`, the condition that tells of it, and the taint that keeps the scheduler away by default.
ANNOTATION: Final = "rankfall.dev/node-health"
CONDITION: Final = "RankfallHealthy"
TAINT_KEY: Final = "rankfall.dev/faulty"

#: The code of a cause that a person gave; only a person takes it back.
MANUAL_CODE: Final = "person/taint"

#: Largest annotation that is written or read, in bytes of UTF-8; all annotations of an object share 256 KiB.
MAX_ANNOTATION: Final = 32 << 10
MAX_CAUSES: Final = 16
MAX_SEEN: Final = 32
MAX_TRIED: Final = 20
#: Events that are not known to be told, and answers to verdicts: the newest are kept.
MAX_UNSENT_EVENTS: Final = 4
MAX_ANSWERED: Final = 8
MAX_TEXT: Final = 256
#: Longest message of a condition, in characters.
MAX_MESSAGE: Final = 1_024
#: Longest message of an Event that is kept in the record, in characters.
MAX_EVENT_TEXT: Final = 512

# A latest moment that still is a date: about the year 2262, where signed nanoseconds end.
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Boot = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z-]{1,64}$(?!\n)")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$(?!\n)")]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Short = Annotated[str, msgspec.Meta(max_length=128)]
_Code = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z0-9][A-Za-z0-9._-]{0,31}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){1,2}$(?!\n)")
]

#: What a node is. ``suspect`` is watched and schedulable; the last three carry our taint.
NodeState = Literal["healthy", "suspect", "quarantined", "remediating", "validating"]
#: Why a node that should be quarantined is not.
Held = Literal["budget", "rate", "breaker", "kill_switch", "dry_run", "opt_out"]
#: Who could have written it. ``kernel``: facility 0 of the kernel's log, which no process can forge; ``collector``: the log of a DaemonSet
#: that an administrator named; ``exporter``: metrics of an exporter that one named; ``injected``: a process wrote it into the kernel's log;
#: ``pod_text``: any pod can print it.
FaultTrust = Literal["kernel", "collector", "condition", "exporter", "verdict", "injected", "pod_text"]
FaultSource = Literal["kmsg", "loki", "pod_log", "condition", "metrics", "verdict"]


class NodeFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing seen on a node.

    Attributes:
        id: content identity; two with the same id are one.
        node: its name, from the metadata of the source and never from the text.
        code: what it is in the catalogue: ``xid/79``, ``sxid/20034/fatal``, ``kernel/<signature>``, ``verdict/<cause>``.
        slug: the cause of ``causes.csv`` that the same text means for a job.
        device: what is at fault inside the node, as ``gpu 0000:4e:00``; None = the node, or not known.
        instance: MIG instance, as ``GPU-I:05``.
        boot, seq: identity of a kernel record: boot id and number in the ring.
        at: nanoseconds since the epoch, with ``uncertainty`` seconds on each side; None = unknown, which is never early.
        job: who used the device (a pod's UID); None = not known.
        text: the line, bounded and without control characters.
        detail: what the line says beyond its code, as ``previous 79`` or ``subcode 4``.
    """

    schema: Literal["rankfall.nodefault/1"] = FAULT_SCHEMA
    id: _Short
    node: _Name
    source: FaultSource
    trust: FaultTrust
    code: _Code
    slug: _Short | None = None
    device: _Short | None = None
    instance: _Short | None = None
    boot: _Boot | None = None
    seq: _Sequence | None = None
    at: _Nanoseconds | None = None
    uncertainty: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    job: _Short | None = None
    pid: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] | None = None
    process: _Short | None = None
    text: _Text = ""
    detail: _Short | None = None


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One observation that counts towards a threshold: its id, its time, and the job that it struck."""

    id: _Short
    at: _Nanoseconds | None
    job: _Short | None = None


class OpenCause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One thing that is wrong with a node, until it is cured.

    Attributes:
        count: observations of it; in a storm those that came late are not counted again, so it is a lower bound.
        first_at, last_at: nanoseconds since the epoch, of the observations.
        due_at: when it reached its rule's threshold; None = not yet.
        cured_at: everything up to there was taken back; a newer observation opens it again.
        idle_at: when no job ran on the node any more, of a fault that waits for that.
        on_probation: it came in the node's probation, where one warning is enough.
        seen: the newest observations, oldest first.
        text: the newest line.
    """

    code: _Code
    device: _Short | None = None
    count: _Count = 1
    first_at: _Nanoseconds | None = None
    last_at: _Nanoseconds | None = None
    due_at: _Nanoseconds | None = None
    cured_at: _Nanoseconds | None = None
    idle_at: _Nanoseconds | None = None
    on_probation: bool = False
    boot: _Boot | None = None
    seq: _Sequence | None = None
    seen: Annotated[tuple[Seen, ...], msgspec.Meta(max_length=MAX_SEEN)] = ()
    text: _Text = ""

    @property
    def cured(self) -> bool:
        """It was taken back, and not seen since."""
        return self.cured_at is not None and (self.last_at or 0) <= self.cured_at

    @property
    def named(self) -> str:
        """As commands and messages write it: ``xid/79@gpu 0000:4e:00``, or the code alone."""
        return self.code if self.device is None else f"{self.code}@{self.device}"


class Untold(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An Event that belongs to a change of this record, written in the same request: so a kill between the two loses none.

    Its name follows from node, reason and moment; sent again it is the same Event. It stays here until the record changes next.
    """

    reason: _Short
    at: _Nanoseconds
    message: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_TEXT)]
    warning: bool


class Answered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a verdict of a run was taken up: its id, and what became of it (as the controller counts observations)."""

    id: _Short
    outcome: _Short


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of one node: the annotation ``rankfall.dev/node-health``.

    Attributes:
        since: when it came into this state, nanoseconds since the epoch.
        held: why it is not quarantined although it should be.
        more: causes beyond the ones that fit; the gravest are kept.
        boot: the boot that is current; ``boot_at`` is when it was first seen here, ``past_boots`` are the ones before it.
        seq: highest number of a kernel record of this boot that counted.
        cleared_at, cleared_boot, cleared_seq: everything up to there is settled and never taints again.
        tainted: our taint was placed together with this record. Where it is gone, somebody took it away.
        quarantines: when it was quarantined, oldest first.
        probation_until: until then one warning is enough.
        repeat_offender: it came back too often; it stays quarantined until it is released by hand.
        clean, clean_since: rounds of checks in a row that all passed, and when the first of them ended.
        checked_at: the last round of checks that counted.
        failed_check: the check that failed last.
        step, step_boot: of remediation, as its hook is called, and the boot in which it began.
        tried: the steps that were begun since it was last good.
        untold: Events of the newest changes.
        answered: verdicts of runs that were taken up, the newest last: whoever told one waits for this.
    """

    schema: Literal["rankfall.nodehealth/1"] = HEALTH_SCHEMA
    state: NodeState = "healthy"
    since: _Nanoseconds | None = None
    held: Held | None = None
    causes: Annotated[tuple[OpenCause, ...], msgspec.Meta(max_length=MAX_CAUSES)] = ()
    more: _Count = 0
    boot: _Boot | None = None
    boot_at: _Nanoseconds | None = None
    past_boots: Annotated[tuple[_Boot, ...], msgspec.Meta(max_length=8)] = ()
    seq: _Sequence | None = None
    cleared_at: _Nanoseconds | None = None
    cleared_boot: _Boot | None = None
    cleared_seq: _Sequence | None = None
    tainted: bool = False
    quarantines: Annotated[tuple[_Nanoseconds, ...], msgspec.Meta(max_length=8)] = ()
    probation_until: _Nanoseconds | None = None
    repeat_offender: bool = msgspec.field(default=False, name="lemon")
    clean: _Count = 0
    clean_since: _Nanoseconds | None = None
    checked_at: _Nanoseconds | None = None
    failed_check: _Short | None = None
    step: _Short | None = None
    step_boot: _Boot | None = None
    tried: Annotated[tuple[_Short, ...], msgspec.Meta(max_length=MAX_TRIED)] = ()
    untold: Annotated[tuple[Untold, ...], msgspec.Meta(max_length=MAX_UNSENT_EVENTS)] = ()
    answered: Annotated[tuple[Answered, ...], msgspec.Meta(max_length=MAX_ANSWERED)] = ()


class HealthCondition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition ``RankfallHealthy`` of a Node: ``True`` healthy, ``False`` quarantined or to be, ``Unknown`` suspect.

    ``reason`` is one CamelCase word as Kubernetes asks for; ``message`` names code, device and text, at most 1,024 characters.
    """

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def printable(text: str, limit: int = MAX_TEXT) -> str:
    r"""Text of others for an annotation, an Event or a terminal: control characters as ``\xNN``, cut to ``limit`` characters."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text[: limit + 1]
    )
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def encode_health(health: NodeHealth) -> str:
    """The text of the annotation. Where it would be too large, old observations and then the text of causes are left out.

    Raises:
        EvidenceLost: it does not fit even so, which no bounded record can reach.
    """
    for smaller in (health, _thinned(health, seen=4, text=96), _thinned(health, seen=1, text=0)):
        data = msgspec.json.encode(smaller)
        if len(data) <= MAX_ANNOTATION:
            return data.decode()
    raise EvidenceLost(
        f"a node's record has {len(data)} bytes, more than {MAX_ANNOTATION}", hint="rankfall nodes clear NODE"
    )


def decode_health(text: str) -> NodeHealth:
    """Read the annotation.

    Raises:
        EvidenceLost: too large, no JSON, another schema, an unknown field or a value out of bounds.
    """
    hint = f"remove the annotation {ANNOTATION} from the node to begin anew"
    return decode_annotation(text, NodeHealth, name=ANNOTATION, most=MAX_ANNOTATION, hint=hint)


def decode_annotation(text: str, kind: type[T], *, name: str, most: int, hint: str, schema: str | None = None) -> T:
    """Read an annotation of a Node that others may have written.

    Args:
        text: of it.
        kind: what it holds.
        name: of the annotation.
        most: characters that are read.
        hint: what helps where it cannot be read.
        schema: that it has to begin with; None = wherever its schema stands.

    Raises:
        EvidenceLost: too large, no JSON, another schema, an unknown field or a value out of bounds.
    """
    if len(text) > most:
        raise EvidenceLost(f"{name}: {len(text)} characters, more than {most}", hint=hint)
    if schema is not None and not text.startswith(f'{{"schema":"{schema}"'):
        raise EvidenceLost(f"{name}: it does not begin with the schema {schema}", hint=hint)
    try:
        return decoding.decode(text, kind=kind)
    except msgspec.DecodeError as error:
        raise EvidenceLost(f"{name}: {printable(str(error))}", hint=hint) from None


def _thinned(health: NodeHealth, *, seen: int, text: int) -> NodeHealth:
    replace = msgspec.structs.replace
    causes = (replace(each, seen=each.seen[-seen:], text=each.text[:text]) for each in health.causes)
    return replace(health, causes=tuple(causes), untold=health.untold if text else ())
