"""Converts a kernel record, line, condition or verdict to a ``NodeFault``."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from rankfall.kernellog.record import KmsgRecord
from rankfall.model.node_health.kernel_reports import KernelLine, KernelReport
from rankfall.model.node_health.records import FaultSource, FaultTrust, NodeFault, printable
from rankfall.model.node_health.run_verdicts import RunVerdict
from rankfall.model.patterns import anchored
from rankfall.nodes.rules.fault_rules import SUSPECT, bad_conditions
from rankfall.nodes.rules.kernel_lines import Line, Recogniser

#: Seconds: the kernel's clock drifts by an unknown amount.
STAMP_UNCERTAINTY_S: Final = 1.0
#: Last word of a recovered condition's code.
GOOD: Final = "/good"
_BOOT: Final = anchored(r"[0-9A-Za-z-]{1,64}", limit=64)


def of_record(
    record: KmsgRecord,
    *,
    node: str,
    boot: str,
    boot_at: int,
    reader: Recogniser,
    job: str | None = None,
    uncertainty: float = STAMP_UNCERTAINTY_S,
) -> NodeFault | None:
    """Returns the fault in a record of the ring, or None.

    Trust is ``kernel``, or ``injected`` if a process wrote it; ``boot_at`` in nanoseconds since the epoch.
    """
    at = boot_at + record.stamp_us * 1_000
    # A process's record never mixes with kernel lines.
    line = (reader if record.by_kernel else reader.fresh()).read(record.text, at=at)
    if line is None:
        return None
    fault = NodeFault(
        id=f"kmsg:{boot}:{record.seq}",
        node=node,
        source="kmsg",
        trust="kernel" if record.by_kernel else "injected",
        code=line.code,
        boot=boot,
        seq=record.seq,
        at=at,
        uncertainty=uncertainty,
        job=job,
    )
    return _said(fault, line, record.text)


def of_report(report: KernelReport, *, node: str) -> list[NodeFault]:
    """Returns the faults of an agent's annotation; ids are stable."""
    found = [
        NodeFault(
            id=f"kmsg:{report.boot}:{place.seq}",
            node=node,
            source="kmsg",
            trust=entry.trust,
            code=entry.code,
            slug=entry.slug,
            device=entry.device,
            instance=entry.instance,
            boot=report.boot,
            seq=place.seq,
            at=place.at,
            uncertainty=entry.uncertainty,
            job=entry.job,
            pid=entry.pid,
            process=entry.process,
            text=entry.text,
            detail=entry.detail,
        )
        for entry in report.entries
        for place in entry.seen
    ]
    # A recovery must not precede its fault.
    return sorted(found, key=lambda each: each.seq or 0)


def of_agent_line(line: KernelLine, *, node: str) -> NodeFault | None:
    """Returns the fault in a collected agent line, or None.

    ``node`` is from metadata; a line that names another gives None. Ids equal the annotation's.
    """
    if line.kind != "record" or line.code is None or line.node != node or line.trust is None:
        return None
    if line.seq is None or not _BOOT.fullmatch(line.boot):
        return None
    return NodeFault(
        id=f"kmsg:{line.boot}:{line.seq}",
        node=node,
        source="loki",
        trust="collector" if line.trust == "kernel" else "injected",
        code=line.code,
        slug=line.slug,
        device=line.device,
        instance=line.instance,
        boot=line.boot,
        seq=line.seq,
        at=line.at,
        uncertainty=line.uncertainty,
        job=line.job,
        pid=line.pid,
        process=line.process,
        text=printable(line.text),
        detail=line.detail,
    )


def of_line(
    text: bytes,
    *,
    node: str,
    source: FaultSource,
    trust: FaultTrust,
    reader: Recogniser,
    identity: str,
    at: int | None,
    uncertainty: float = 0.0,
    job: str | None = None,
) -> NodeFault | None:
    """Returns the fault in a collected line, or None.

    ``trust`` is ``collector`` for an administrator's DaemonSet, else ``pod_text``; ``uncertainty`` in seconds.
    """
    line = reader.read(text, at=at)
    if line is None:
        return None
    fault = NodeFault(
        id=f"{source}:{hashlib.sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}",
        node=node,
        source=source,
        trust=trust,
        code=line.code,
        at=at,
        uncertainty=uncertainty,
        job=job,
    )
    return _said(fault, line, text)


def of_pod_text(text: bytes, *, node: str, signature: str, slug: str, identity: str, at: int, job: str) -> NodeFault:
    """Returns an unproven fault from a pod's output; its code is ``pod/<signature>``."""
    return NodeFault(
        id=f"pod_log:{hashlib.sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}",
        node=node,
        source="pod_log",
        trust="pod_text",
        code=f"pod/{signature}",
        slug=slug,
        at=at,
        uncertainty=STAMP_UNCERTAINTY_S,
        job=job,
        text=printable(text.decode("utf-8", "replace")),
    )


def of_condition(*, node: str, type_: str, status: str, since: int, message: str) -> NodeFault | None:
    """Returns a condition that another component set as fault or recovery; None if no rule knows it.

    The same condition and time are one observation.
    """
    bad = bad_conditions().get(type_)
    # An Unknown or missing condition revokes nothing.
    if bad is None or status not in {"True", "False"}:
        return None
    good = "" if status == bad else GOOD
    return NodeFault(
        id=f"condition:{type_}{good}:{since}",
        node=node,
        source="condition",
        trust="condition",
        code=f"condition/{type_}{good}",
        at=since,
        uncertainty=1.0,
        text=printable(message),
    )


def of_verdict(verdict: RunVerdict, *, node: str, now: int) -> NodeFault:
    """Returns a run verdict as a fault of its node.

    A failure time after ``now`` counts as ``now``, so that no wrong clock outlasts a clearance.
    """
    # With job output as proof the node is only marked.
    code = f"verdict/{verdict.cause}" + (SUSPECT if verdict.action == "suspect" else "")
    return NodeFault(
        id=verdict.id,
        node=node,
        source="verdict",
        trust="verdict",
        code=code,
        slug=verdict.cause,
        device=None if verdict.gpu is None else printable(f"gpu {verdict.gpu}", 128),
        at=min(verdict.at, now),
        uncertainty=verdict.uncertainty,
        job=verdict.run,
        text=printable(f"run {verdict.run}, attempt {verdict.attempt}: {verdict.text}"),
    )


def _said(fault: NodeFault, line: Line, text: bytes) -> NodeFault:
    return msgspec.structs.replace(
        fault,
        code=line.code,
        slug=line.slug,
        device=None if line.device is None else printable(line.device, 128),
        instance=line.instance,
        pid=line.pid,
        process=line.process,
        detail=line.detail,
        text=printable(text.decode("utf-8", "replace")),
    )
