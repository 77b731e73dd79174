"""Publishes a verdict on the run's workload as an annotation and an Event, shown by ``kubectl describe``.

Only with ``kubernetes.annotate``. Text of jobs is bounded and control characters are escaped. The patch names
the UID, so an object of the same name made by others is left alone. A refusal by the server is logged once,
and the run goes on.
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
# An Event's note is refused by the server above 1,024 bytes; an annotation stays well below the 256 KiB that all of them may have.
MAX_MESSAGE: Final = 1000
MAX_WORD: Final = 253
MAX_LINE: Final = 500


def annotation_of(verdict: Verdict) -> str:
    """The annotation: JSON of ASCII, the few fields that others look for; under 4 KiB whatever the job said."""
    decisive = verdict.decisive
    said: dict[str, Any] = {
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
    return msgspec.json.encode(said).decode()


def message_of(verdict: Verdict) -> str:
    """One sentence for the Event: who fell first, of what, where; then the proof."""
    who = "all ranks" if verdict.scope == "all" else "no rank" if verdict.rank is None else f"rank {verdict.rank}"
    pod, node = _word(verdict.pod), _word(verdict.node)
    place = (f", pod {pod}" if pod else "") + (f", node {node}" if node else "")
    attempt = f"attempt {verdict.attempt}: " if verdict.attempt is not None else ""
    line = plain(verdict.decisive.line or "", MAX_LINE) if verdict.decisive is not None else ""
    text = f"{attempt}{verdict.cause.title} ({verdict.cause.slug}, {verdict.cause.confidence}); first: {who}{place}"
    return plain(f"{text}: {line}" if line else text, MAX_MESSAGE)


def plain(text: str, limit: int) -> str:
    """Text of a job as one line of visible ASCII, of so many characters at most; what is cut ends with three dots."""
    # Twice the limit suffices: each character becomes one at least, and the rest would be cut anyway.
    seen = text[: 2 * limit].encode("ascii", "backslashreplace").decode()
    clean = "".join(c if c.isprintable() and unicodedata.category(c) != "Cf" else f"\\x{ord(c):02x}" for c in seen)
    whole = len(clean) <= limit and len(text) <= 2 * limit
    return clean if whole else clean[: limit - 3] + "..."


def _word(text: str | None) -> str | None:
    return plain(text, MAX_WORD) if text is not None else None


async def annotate(kube: Kube, place: ClusterPlan, *, uid: str, verdict: Verdict, at: int) -> str | None:
    """Write annotation and Event; may be called again for the same verdict, which then has one Event all the same.

    Args:
        kube: an open client.
        place: of the attempt.
        uid: of the workload, as it was launched.
        verdict: of the attempt.
        at: now, nanoseconds since the epoch.

    Returns:
        What could not be written and why, in words; None when both are there.
    """
    resource = WORKLOADS[place.backend]
    # What Rankfall makes has annotations from the beginning, so there is a place to add to.
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
        return f"the verdict could not be put on {place.backend} {place.object}: {error.message}"
    try:
        await kube.create(EVENTS, event_of(place, uid=uid, verdict=verdict, at=at), namespace=place.namespace)
    except Conflict:
        # It was made before.
        return None
    except KubeError as error:
        return f"the verdict stands on {place.backend} {place.object}, but no Event could be made: {error.message}"
    return None


def event_of(place: ClusterPlan, *, uid: str, verdict: Verdict, at: int) -> dict[str, Any]:
    """The Event of a verdict; its name is that of the verdict's version, so that it is made once.

    Args:
        place: of the attempt.
        uid: of the workload.
        verdict: of the attempt.
        at: when it is told, nanoseconds since the epoch.
    """
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
