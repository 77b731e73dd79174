"""Reads GPU metrics of NVIDIA's DCGM exporter.

``DCGM_FI_DEV_XID_ERRORS`` holds its last number forever, so only a change between two readings is an observation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from rankfall.model import decoding, numbers
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import NodeFault, printable
from rankfall.model.numbers import is_http
from rankfall.model.patterns import anchored, bounded
from rankfall.nodes.rules.fault_rules import MetricKind, metric_fields

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$(?!\n)")]


class Exporter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: an address with its node, or the pods of a DaemonSet.

    Attributes:
        node, url: One exporter.
        namespace, pods: Namespace and selector of trusted pods.
        port, path: Port and path of pods.
        every_s: Seconds between two polls.
    """

    node: _Name | None = None
    url: str | None = None
    namespace: _Name | None = None
    pods: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)] | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 9_400
    path: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._/-]{0,255}$(?!\n)")] = "/metrics"
    every_s: Annotated[int, msgspec.Meta(ge=1, le=3_600)] = 30


def exporters_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Exporter, ...]:
    """Returns the rows of an operator's file.

    Raises:
        SpecError: Names file, row and field.
    """
    found = []
    for number, row in enumerate(rows, start=1):
        place = f"{origin}: metrics {number}"
        try:
            each = decoding.convert(row, Exporter)
        except msgspec.ValidationError as error:
            raise SpecError(place, printable(str(error))) from None
        one = each.node is not None and each.url is not None
        many = each.namespace is not None and each.pods is not None
        if one == many or (each.node is None) != (each.url is None) or (each.namespace is None) != (each.pods is None):
            raise SpecError(
                place,
                "needs either node and url, or namespace and pods",
                hint='namespace = "gpu-operator", pods = "app=nvidia-dcgm-exporter"',
            )
        if each.url is not None and not is_http(each.url):
            raise SpecError(f"{place}: url", "must be an http or https address")
        found.append(each)
    return tuple(found)


SECOND: Final = 1_000_000_000
#: Readings of a node: eight GPUs, seven instances each, and a reserve.
MAX_READINGS: Final = 1_024
# DCGM's "blank" numbers (not supported, found, permitted) begin here.
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


class ActiveMetric(msgspec.Struct, frozen=True, array_like=True):
    """A value other than 0, and its first observation in nanoseconds since the epoch."""

    value: Annotated[int, msgspec.Meta(ge=0, lt=_BLANK)]
    since: _Nanoseconds


def readings(text: str) -> list[Reading]:
    """Returns the relevant fields; skips lines without device or number."""
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
        # Instances and pods that share a GPU have separate lines.
        before = known.get((found[1], device))
        if before is not None or len(known) < MAX_READINGS:
            reading = Reading(found[1], device, value, line)
            known[found[1], device] = reading if before is None or value > before.value else before
    return list(known.values())


def changed_values(
    found: Iterable[Reading], *, node: str, boot: str, stood: Mapping[str, ActiveMetric], before: int | None, now: int
) -> tuple[list[NodeFault], dict[str, ActiveMetric]]:
    """Returns changes since the previous poll, and all active values.

    ``stood``: active values of the previous poll, at ``before``; None for the first poll. Another boot resets
    everything.
    """
    fields = metric_fields()
    faults: list[NodeFault] = []
    standing: dict[str, ActiveMetric] = {}
    for each in found:
        if not each.value:
            continue
        kind, code = fields[each.metric]
        name = key(node, boot, each)
        known = stood.get(name)
        if known is not None and _same(kind, known.value, each.value):
            # A reset counter grows from there.
            standing[name] = known if kind != "counter" else ActiveMetric(each.value, known.since)
            continue
        standing[name] = ActiveMetric(each.value, now)
        # A state is current; an event's time is unknown without a previous poll.
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
                text=printable(each.line),
            )
        )
    return faults, standing


def key(node: str, boot: str, each: Reading) -> str:
    """Returns the key of an active value; it includes the boot."""
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
