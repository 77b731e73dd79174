"""Publishes a verdict on the workload as annotation and Event, with ``kubernetes.annotate``.

The patch contains the UID, so a foreign object stays unchanged.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import msgspec

from rankfall.backends.plan import ClusterPlan
from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, KubeError
from rankfall.kube.resources import EVENTS, WORKLOADS
from rankfall.model import Verdict
from rankfall.model.timestamps import rfc3339

ANNOTATION: Final = "rankfall.dev/verdict"
REASON: Final = "RankfallVerdict"
# Servers refuse Event notes above 1,024 bytes; annotations have 256 KiB.
MAX_MESSAGE: Final = 1000
MAX_WORD: Final = 253
MAX_LINE: Final = 500


def annotation_of(verdict: Verdict) -> str:
    """Returns ASCII JSON with the fields for other tools; always under 4 KiB."""
    decisive = verdict.decisive
    content: dict[str, Any] = {
        "schema": verdict.schema,
        "version": verdict.version,
        "run": _word(verdict.run),
        "attempt": verdict.attempt,
        "state": verdict.state,
        "cause": verdict.cause.slug,
        "confidence": verdict.cause.confidence,
        "scope": verdict.scope,
        "rank": verdict.rank,
        "slot": verdict.slot,
        "pod": _word(verdict.pod),
        "node": _word(verdict.node),
        "line": plain(decisive.line or "", MAX_LINE) if decisive is not None else None,
    }
    return msgspec.json.encode(content).decode()


def message_of(verdict: Verdict) -> str:
    """Event's sentence: rank, cause, place and proof."""
    who = "all ranks" if verdict.scope == "all" else "no rank" if verdict.rank is None else f"rank {verdict.rank}"
    pod, node = _word(verdict.pod), _word(verdict.node)
    place = (f", pod {pod}" if pod else "") + (f", node {node}" if node else "")
    attempt = f"attempt {verdict.attempt}: " if verdict.attempt is not None else ""
    line = plain(verdict.decisive.line or "", MAX_LINE) if verdict.decisive is not None else ""
    text = f"{attempt}{verdict.cause.title} ({verdict.cause.slug}, {verdict.cause.confidence}); first: {who}{place}"
    return plain(f"{text}: {line}" if line else text, MAX_MESSAGE)


def plain(text: str, limit: int) -> str:
    """Returns job text as one bounded line of ASCII; truncation ends with three dots."""
    # Each character yields at least one.
    seen = text[: 2 * limit].encode("ascii", "backslashreplace").decode()
    clean = "".join(c if c.isprintable() and unicodedata.category(c) != "Cf" else f"\\x{ord(c):02x}" for c in seen)
    whole = len(clean) <= limit and len(text) <= 2 * limit
    return clean if whole else clean[: limit - 3] + "..."


def _word(text: str | None) -> str | None:
    return plain(text, MAX_WORD) if text is not None else None


async def annotate(kube: Kube, place: ClusterPlan, *, uid: str, verdict: Verdict, at: int) -> str | None:
    """Writes annotation and one Event per verdict; returns a message on failure, else None. Repeatable."""
    resource = WORKLOADS[place.backend]
    # The path exists: objects always have annotations.
    steps = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {
            "op": "add",
            "path": f"/metadata/annotations/{ANNOTATION.replace('/', '~1')}",
            "value": annotation_of(verdict),
        },
    ]
    try:
        await kube.patch(resource, place.object, steps, namespace=place.namespace, kind="json")
    except KubeError as error:
        return f"cannot write the verdict to {place.backend} {place.object}: {error.message}"
    try:
        await kube.create(EVENTS, event_of(place, uid=uid, verdict=verdict, at=at), namespace=place.namespace)
    except Conflict:
        # An earlier call created it.
        return None
    except KubeError as error:
        return f"the verdict was written to {place.backend} {place.object}, but its Event could not be created: {error.message}"
    return None


def event_of(place: ClusterPlan, *, uid: str, verdict: Verdict, at: int) -> dict[str, Any]:
    """Verdict's Event, named by its version, so it is created once."""
    resource = WORKLOADS[place.backend]
    # Events have whole seconds.
    stamp = (rfc3339(at) or "").partition(".")[0] + "Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{place.object}.v{verdict.version}.{uid}", "namespace": place.namespace},
        "involvedObject": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": place.object,
            "namespace": place.namespace,
            "uid": uid,
        },
        "reason": REASON,
        "message": message_of(verdict),
        "type": "Normal" if verdict.state == "succeeded" else "Warning",
        "source": {"component": "rankfall"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
