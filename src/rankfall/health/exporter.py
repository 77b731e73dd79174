"""Reads what NVIDIA's DCGM exporter says of the GPUs of one node: Prometheus' text format, and of it only the fields of ``data/metrics.csv``. Pure.

A gauge tells what stands now, never when it began or how often it came: ``DCGM_FI_DEV_XID_ERRORS`` keeps its last number for ever, and the same number
twice looks like once. So only a change between two looks is news, and it happened somewhere between them; what stood there at the first look has no time, which
acts on nothing. Numbers that stand for "not supported" are no numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from rankfall.health.rules import MetricKind, metric_fields
from rankfall.model import numbers
from rankfall.model.health import NodeFault, shown
from rankfall.model.patterns import anchored, bounded

SECOND: Final = 1_000_000_000
#: Readings of one node that are looked at: eight GPUs, seven instances each, and room.
MAX_READINGS: Final = 1_024
# DCGM's numbers for "blank" begin here: not supported, not found, not permitted; as 32 bits, as 64, and as a double.
_BLANK: Final = 0x7FFFFFF0
_MAX_LABELS: Final = 4_096
_LINE: Final = anchored(r"([A-Za-z_:][A-Za-z0-9_:]*)\{(.*)\}[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?[ \t]*", limit=4_096)
_LABEL: Final = bounded(
    r'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*,?[ \t]*', limit=4_096
)
_PCI: Final = anchored(r"(?:[0-9a-f]{4})?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?", limit=128)
_UUID: Final = anchored(r"GPU-[0-9a-fA-F-]{4,64}", limit=128)
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Reading(NamedTuple):
    """One field of one device, as ``gpu 0000:4e:00``."""

    metric: str
    device: str
    value: int
    line: str


class Stood(msgspec.Struct, frozen=True, array_like=True):
    """A value other than 0, and when it was seen to be there first, nanoseconds since the epoch."""

    value: Annotated[int, msgspec.Meta(ge=0, lt=_BLANK)]
    since: _Nanoseconds


def readings(text: str) -> list[Reading]:
    """The fields that mean anything; what is no line of the format, has no device, or no number, is passed over."""
    fields = metric_fields()
    known: dict[tuple[str, str], Reading] = {}
    for line in text.splitlines():
        if not line.startswith("DCGM_") or line.partition("{")[0] not in fields:
            continue
        found = _LINE.fullmatch(line) if len(line) <= _MAX_LABELS else None
        value = None if found is None else _number(found[3])
        device = None if found is None else _device(dict(_LABEL.findall(found[2])))
        if found is None or value is None or device is None:
            continue
        # Instances of a GPU and pods that share one have a line each: of the same thing.
        before = known.get((found[1], device))
        if before is not None or len(known) < MAX_READINGS:
            reading = Reading(found[1], device, value, line)
            known[found[1], device] = reading if before is None or value > before.value else before
    return list(known.values())


def news(
    found: Iterable[Reading], *, node: str, boot: str, stood: Mapping[str, Stood], before: int | None, now: int
) -> tuple[list[NodeFault], dict[str, Stood]]:
    """What is different from the look before.

    Args:
        found: of this look.
        node: whose GPUs they are, as Kubernetes says of the exporter's pod, or an operator.
        boot: of the node now; after another one all begins anew.
        stood: what stood at the look before, by :func:`key`.
        before: moment of the look before at this boot of the node, nanoseconds since the epoch; None = this is the first.
        now: of this look.

    Returns:
        Faults, and what stands now: all of the node.
    """
    fields = metric_fields()
    faults: list[NodeFault] = []
    standing: dict[str, Stood] = {}
    for each in found:
        if not each.value:
            continue
        kind, code = fields[each.metric]
        name = key(node, boot, each)
        known = stood.get(name)
        if known is not None and _same(kind, known.value, each.value):
            # Of a counter the least is kept: one that began anew grows from there.
            standing[name] = known if kind != "counter" else Stood(each.value, known.since)
            continue
        standing[name] = Stood(each.value, now)
        # What holds now holds now; an event lies somewhere since the last look, and without one before it nobody knows where.
        since = now if kind == "state" and before is None else known.since if before is None and known else before
        faults.append(
            NodeFault(
                id=f"metrics:{hashlib.sha256(f'{name} {each.value} {now}'.encode()).hexdigest()[:32]}",
                node=node,
                source="metrics",
                trust="exporter",
                code=f"xid/{each.value}" if code == "xid" else code,
                device=each.device,
                at=None if since is None else now,
                uncertainty=0.0 if since is None else max(0, now - since) / SECOND,
                text=shown(each.line),
            )
        )
    return faults, standing


def key(node: str, boot: str, each: Reading) -> str:
    """Of what stands: it dies with the boot."""
    return f"{node} {boot} {each.device} {each.metric}"


def _same(kind: MetricKind, was: int, value: int) -> bool:
    return value <= was if kind == "counter" else value == was


def _number(text: str) -> int | None:
    value = numbers.real(text)
    return math.floor(value) if value is not None and 0 <= value < _BLANK else None


def _device(labels: Mapping[str, str]) -> str | None:
    pci = _PCI.fullmatch(labels.get("pci_bus_id", "").lower())
    if pci is not None:
        return f"gpu {pci[1]}:{pci[2]}:{pci[3]}"
    uuid = labels.get("UUID", "")
    return f"gpu {uuid}" if _UUID.fullmatch(uuid) else None
