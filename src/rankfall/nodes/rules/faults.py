"""Makes a ``NodeFault`` of a kernel record, collected line, condition or verdict: source, time, trust."""

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

#: The kernel's own clock is not that of the epoch and drifts from it; nothing tells by how much, so a second on each side is allowed.
STAMP_UNCERTAINTY_S: Final = 1.0
#: Last word of the code of a condition that is good again.
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
    """What a record of the ring says about the node; None = nothing.

    Args:
        record: of the ring of ``node``.
        node: whose ring it is, as its reader knows it.
        boot: boot id that goes with the ring.
        boot_at: when the kernel's clock began, in nanoseconds since the epoch.
        reader: of this boot of this node.
        job: the pod whose process the line names, when that is known.
        uncertainty: of ``boot_at``, in seconds.

    Returns:
        A fault of trust ``kernel``; of trust ``injected`` when a process wrote the record.
    """
    at = boot_at + record.stamp_us * 1_000
    # What a process wrote never mixes with the kernel's own lines: neither as a part of one nor as its repetition.
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
    """What an agent's annotation says about its node, a fault for each record that it still names; one told before has the id that it had.

    Args:
        report: as read from the Node.
        node: the Node that bears it.
    """
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
    # In the order of the ring: what takes a fault back must not come before it.
    return sorted(found, key=lambda each: each.seq or 0)


def of_agent_line(line: KernelLine, *, node: str) -> NodeFault | None:
    """What a line that an agent printed says, as a collector brought it; None = no fault. The same record has the id of the agent's annotation.

    Args:
        line: as read.
        node: whose pod printed it, by the collector's metadata; a line that names another one gives nothing.
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
    """What a collected line says about the node; None = nothing.

    Args:
        text: as it was collected.
        node: from the collector's metadata.
        source: where it was collected.
        trust: what its stream is worth: ``collector`` for the log of a DaemonSet that an administrator named, else ``pod_text``.
        reader: of this node.
        identity: what tells this line from any other, as the collector's stream and stamp.
        at: nanoseconds since the epoch; None = unknown.
        uncertainty: seconds on each side of it.
        job: the pod that printed it or that the line names.
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
    """What a pod itself printed, as one of the signatures of verdicts reads it: a hint, which nothing proves.

    Args:
        text: as it was collected.
        node: from the collector's metadata.
        signature: that matched; the code is ``pod/<signature>``.
        slug: the cause that it means for the job.
        identity: what tells this line from any other.
        at: nanoseconds since the epoch.
        job: the pod that printed it.
    """
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
    """A condition that others set on the node: bad, or good again; None = nothing is known of its type, or its status is neither.

    Args:
        node: its name.
        type_: type of the condition.
        status: ``True``, ``False`` or ``Unknown``.
        since: its transition, in nanoseconds since the epoch; the same condition since the same moment is one observation.
        message: as it stands there.
    """
    bad = bad_conditions().get(type_)
    # Whether it is good is told by its opposite alone: one that is Unknown, or gone, takes nothing back.
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
    """What the verdict of a run says about the node that bears it.

    Args:
        verdict: as read from the Node.
        node: the Node that bears it.
        now: nanoseconds since the epoch; a fall that is told from the future is one of now, so that no clock outlasts a clearance to come.
    """
    # Where the job's own words are a part of the proof, the node is marked and no more, whatever the cause asks for.
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
