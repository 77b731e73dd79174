"""Node faults, and a node's record: annotation ``rankfall.dev/node-health`` and condition.

One annotation changes in one request with the taint. Other writers are possible: invalid text is refused whole.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

from rankfall.model import decoding
from rankfall.model.errors import EvidenceLost

T = TypeVar("T")

FAULT_SCHEMA: Final = "rankfall.nodefault/1"
HEALTH_SCHEMA: Final = "rankfall.nodehealth/1"

#: Annotation of a :class:`NodeHealth`, its condition, and the default taint.
ANNOTATION: Final = "rankfall.dev/node-health"
CONDITION: Final = "RankfallHealthy"
TAINT_KEY: Final = "rankfall.dev/faulty"

#: Cause given by a person, who alone removes it.
MANUAL_CODE: Final = "person/taint"

#: Largest annotation, in bytes of UTF-8; an object's annotations share 256 KiB.
MAX_ANNOTATION: Final = 32 << 10
MAX_CAUSES: Final = 16
MAX_SEEN: Final = 32
MAX_TRIED: Final = 20
#: Newest unconfirmed Events and answers to verdicts.
MAX_UNSENT_EVENTS: Final = 4
MAX_ANSWERED: Final = 8
MAX_TEXT: Final = 256
#: Longest condition message, in characters.
MAX_MESSAGE: Final = 1_024
#: Longest Event message in the record, in characters.
MAX_EVENT_TEXT: Final = 512

# Signed nanoseconds end about the year 2262.
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

#: States of a node. ``suspect`` is schedulable; the last three have Rankfall's taint.
NodeState = Literal["healthy", "suspect", "quarantined", "remediating", "validating"]
#: Obstacles to a due quarantine.
Held = Literal["budget", "rate", "breaker", "kill_switch", "dry_run", "opt_out", "other_holder"]
#: Possible writers. ``kernel``: facility 0 of its log, unforgeable; ``collector``: log of a DaemonSet, ``exporter``:
# metrics, both named by an administrator; ``injected``: a process, into the kernel's log; ``pod_text``: any pod.
FaultTrust = Literal["kernel", "collector", "condition", "exporter", "verdict", "injected", "pod_text"]
FaultSource = Literal["kmsg", "loki", "pod_log", "condition", "metrics", "verdict"]


class NodeFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault observed on a node.

    Attributes:
        id: Content identity.
        node: Name, from the source's metadata, never the text.
        code: ``xid/79``, ``sxid/20034/fatal``, ``kernel/<signature>`` or ``verdict/<cause>``.
        slug: Cause in ``causes.csv`` of this text for a job.
        device: Faulty device, as ``gpu 0000:4e:00``; None = the node, or unknown.
        instance: MIG instance, as ``GPU-I:05``.
        boot, seq: Identity of a kernel record: boot id, ring number.
        at: Nanoseconds since the epoch, ± ``uncertainty`` seconds; None = unknown, never early.
        job: UID of the pod that used the device; None = unknown.
        text: Line, bounded, without control characters.
        detail: Further facts, as ``previous 79`` or ``subcode 4``.
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
    """One observation that counts for a threshold: id, time, affected job."""

    id: _Short
    at: _Nanoseconds | None
    job: _Short | None = None


class OpenCause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One fault of a node, until it is cured.

    Attributes:
        count: Observations; a lower bound: bursts skip late ones.
        first_at, last_at: Observations, nanoseconds since the epoch.
        due_at: Threshold reached; None = not yet.
        cured_at: Observations until then are cleared; a newer one reopens it.
        idle_at: Time when the node had no more jobs, if the fault waits for that.
        on_probation: Seen in probation, where one warning suffices.
        seen: Newest observations, oldest first.
        text: Newest line.
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
        """True if cleared and not seen since."""
        return self.cured_at is not None and (self.last_at or 0) <= self.cured_at

    @property
    def named(self) -> str:
        """``xid/79@gpu 0000:4e:00``, or the code."""
        return self.code if self.device is None else f"{self.code}@{self.device}"


class Untold(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An Event about a change of the record, stored in the same request, so that a kill in between loses no Event.

    Node, reason and time form its name, so a second send is harmless. It stays in the record until the next change.
    """

    reason: _Short
    at: _Nanoseconds
    message: Annotated[str, msgspec.Meta(max_length=MAX_EVENT_TEXT)]
    warning: bool


class Answered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A verdict's id and its outcome, as the controller counts observations."""

    id: _Short
    outcome: _Short


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of one node: annotation ``rankfall.dev/node-health``.

    Attributes:
        since: Begin of this state, nanoseconds since the epoch.
        held: Obstacle to a due quarantine.
        more: Dropped causes; the gravest remain.
        boot: Current boot, first seen ``boot_at``, after ``past_boots``.
        seq: Highest counted kernel record of this boot.
        cleared_at, cleared_boot, cleared_seq: Older evidence never taints again.
        tainted: The taint came with this record; if absent, a person removed it.
        quarantines: Times of quarantine, oldest first.
        probation_until: Until then one warning suffices.
        repeat_offender: Too many returns; only a person releases it.
        clean, clean_since: Consecutive passed rounds of checks; end of the first.
        checked_at: Last counted round of checks.
        failed_check: Last failed check.
        step, step_boot: Remediation hook and boot of its begin.
        tried: Steps begun since last healthy.
        untold: Events of the newest changes.
        answered: Processed verdicts of runs, newest last; their senders wait for it.
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
    """Node condition ``RankfallHealthy``: ``True`` healthy, ``False`` quarantined or due, ``Unknown`` suspect.

    ``reason`` is CamelCase; ``message`` has code, device and text, at most 1,024 characters.
    """

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def printable(text: str, limit: int = MAX_TEXT) -> str:
    r"""Escapes control characters as ``\xNN`` and cuts to ``limit`` characters."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text[: limit + 1]
    )
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"


def encode_health(health: NodeHealth) -> str:
    """Encodes the annotation; if too large, drops old observations, then texts.

    Raises:
        EvidenceLost: Still too large; impossible for bounded records.
    """
    for smaller in (health, _thinned(health, seen=4, text=96), _thinned(health, seen=1, text=0)):
        data = msgspec.json.encode(smaller)
        if len(data) <= MAX_ANNOTATION:
            return data.decode()
    raise EvidenceLost(
        f"a node's record has {len(data)} bytes, more than {MAX_ANNOTATION}", hint="rankfall nodes clear NODE"
    )


def decode_health(text: str) -> NodeHealth:
    """Decodes the annotation.

    Raises:
        EvidenceLost: Too large, not JSON, another schema, unknown field, value out of bounds.
    """
    hint = f"remove the annotation {ANNOTATION} from the node to start with an empty record"
    return decode_annotation(text, NodeHealth, name=ANNOTATION, most=MAX_ANNOTATION, hint=hint)


def decode_annotation(text: str, kind: type[T], *, name: str, most: int, hint: str, schema: str | None = None) -> T:
    """Decodes a Node's annotation of at most ``most`` characters from any writer.

    The text must begin with ``schema``, unless None.

    Raises:
        EvidenceLost: Too large, not JSON, another schema, unknown field, value out of bounds.
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
