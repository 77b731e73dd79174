"""Writes the agent's report to its Node, and retries until the server accepts it.

A separate thread; only the newest report waits. Events beyond a rate are dropped: the annotation is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from rankfall.kube.errors import ApiError, Conflict, KubeError
from rankfall.kube.request import Retry
from rankfall.model.node_health.kernel_reports import (
    REPORT_ANNOTATION,
    REPORT_CONDITION,
    KernelEntry,
    KernelReport,
    encode_report,
)
from rankfall.model.node_health.records import MAX_MESSAGE, printable
from rankfall.nodes.agent.api import EVENT_NAMESPACE, MANAGER

#: Least seconds between writes: new fault; only larger counts.
URGENT_S: Final = 0.1
COUNTS_S: Final = 5.0
#: Seconds until an unchanged report is rewritten: the Node may be new.
REFRESH_S: Final = 300.0
_EVENTS: Final = 20
_EVENT_EVERY_S: Final = 30.0
_RETRY: Final = Retry(first_s=0.5, cap_s=30.0)
_LOG_EVERY_S: Final = 60.0


class Api(Protocol):
    """The needed requests to the server; see ``api``."""

    def patch(self, body: Mapping[str, Any], /) -> dict[str, Any]:
        """Merges into the Node."""
        ...

    def event(self, body: Mapping[str, Any], /) -> dict[str, Any]:
        """Creates an Event."""
        ...


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The full state for the Node.

    Attributes:
        report: Report of the ring.
        readable: True if the ring is being read.
        since: Last change of ``readable``, nanoseconds since the epoch.
        note: Reason why the ring is not read.
    """

    report: KernelReport
    readable: bool = True
    since: int = 0
    note: str = ""


class Publisher:
    """Publishes offered states; only the thread of ``run`` uses ``api``."""

    def __init__(
        self,
        api: Api,
        *,
        node: str,
        say: Callable[[str], None],
        published: int = -1,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._node, self._say, self._clock = api, node, say, clock
        self._rng = rng or random.Random()  # noqa: S311 - of pauses, not of secrets
        self._changed = threading.Condition()
        self._wanted: Standing | None = None
        self._urgent = False
        self._stopping = False
        self._events: deque[tuple[str, KernelEntry]] = deque(maxlen=_EVENTS)
        self._room, self._room_at = float(_EVENTS), clock()
        self._published: Standing | None = None
        self._published_at = -1e9
        self._failures = 0
        self._failed_at = -1e9
        self._pause = 0.0
        self._uid: str | None = None
        self._turned_at = clock()
        self.published = published
        self.left_out = 0
        self.written = 0

    def offer(self, standing: Standing, *, new: KernelEntry | None = None, urgent: bool = False) -> None:
        """Publishes this state from now on. ``new`` gets an Event; ``urgent``: more than a count changed."""
        with self._changed:
            self._wanted = standing
            self._urgent = self._urgent or urgent or new is not None
            waits = any(boot == standing.report.boot and each.first == new.first for boot, each in self._events if new)
            if new is not None and new.first.seq > self.published and not waits:
                self.left_out += len(self._events) == _EVENTS
                self._events.append((standing.report.boot, new))
            self._changed.notify()

    def forget(self) -> None:
        """Resets the record numbers for another boot."""
        with self._changed:
            self._events.clear()
            self.published = -1

    def stop(self) -> None:
        """Ends ``run`` after one more try."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def turns(self) -> bool:
        """True if the loop of ``run`` works: it never waits longer than a refresh, and each request has a time-out."""
        return self._clock() - self._turned_at < 2 * REFRESH_S

    def run(self) -> None:
        """Writes until ``stop``."""
        while True:
            self._turned_at = self._clock()
            with self._changed:
                wait = self._due()
                if wait > 0 and not self._stopping:
                    self._changed.wait(min(wait, REFRESH_S))
                    continue
                stopping = self._stopping
                wanted, self._urgent = self._wanted, False
            if wanted is not None and (not stopping or wanted != self._published):
                self._try(wanted)
            if stopping:
                return

    def _due(self) -> float:
        now = self._clock()
        if self._wanted is None:
            return REFRESH_S
        if self._failures:
            return self._failed_at + self._pause - now
        if self._urgent:
            return self._published_at + URGENT_S - now
        if self._events and self._budget(now) >= 1:
            return 0.0
        return self._published_at + (REFRESH_S if self._wanted == self._published else COUNTS_S) - now

    def _try(self, wanted: Standing) -> None:
        try:
            if wanted != self._published or self._clock() - self._published_at >= REFRESH_S:
                node = self._api.patch(self.body(wanted))
                self._uid = (node.get("metadata") or {}).get("uid")
                self._published, self._published_at = wanted, self._clock()
                self.written += 1
            self._tell()
        except KubeError as error:
            self._failed(error)
            return
        if self._failures:
            self._say("the API server accepts the agent's writes again")
        self._failures = 0

    def _failed(self, error: KubeError) -> None:
        self._failures += 1
        asked = error.retry_after if isinstance(error, ApiError) else None
        self._pause = _RETRY.pause(self._failures, retry_after=asked, rng=self._rng)
        now = self._clock()
        if self._failures == 1 or now - self._failed_at > _LOG_EVERY_S:
            self._say(f"{error.message}; trying again; the newest report waits")
        self._failed_at = now

    def _tell(self) -> None:
        """Sends waiting Events as far as the rate allows."""
        while True:
            with self._changed:
                if not self._events or self._budget(self._clock()) < 1:
                    return
                boot, entry = self._events[0]
            # An earlier agent sent it.
            with contextlib.suppress(Conflict):
                self._api.event(self.event(boot, entry))
            self._room -= 1
            with self._changed:
                if self._events and self._events[0] == (boot, entry):
                    self._events.popleft()
                self.published = max(self.published, entry.first.seq)

    def _budget(self, now: float) -> float:
        self._room = min(float(_EVENTS), self._room + (now - self._room_at) / _EVENT_EVERY_S)
        self._room_at = now
        return self._room

    def body(self, standing: Standing) -> dict[str, Any]:
        """Returns the merge into the Node: the agent's annotation and condition."""
        report = standing.report
        text = f"boot {report.boot}, {report.lost} records lost"
        if report.injected:
            text += "; TEST MODE: records that processes wrote count as well"
        condition = {
            "type": REPORT_CONDITION,
            "status": "True" if standing.readable else "False",
            "reason": "Reading" if standing.readable else "Unreadable",
            "message": printable(text if standing.readable else standing.note, MAX_MESSAGE),
            "lastHeartbeatTime": stamp(time.time_ns()),
            "lastTransitionTime": stamp(standing.since),
        }
        return {
            "metadata": {"annotations": {REPORT_ANNOTATION: encode_report(report)}},
            "status": {"conditions": [condition]},
        }

    def event(self, boot: str, entry: KernelEntry) -> dict[str, Any]:
        """Returns an Event about a new kind of fault."""
        name = hashlib.sha256(f"{self._node} {boot} {entry.first.seq}".encode()).hexdigest()[:16]
        at = stamp(entry.seen[-1].at)
        note = "" if entry.trust == "kernel" else "(TEST MODE: a process wrote it) "
        where = f" {entry.device}" if entry.device else ""
        about: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        if self._uid is not None:
            about["uid"] = self._uid
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self._node[:200]}.rankfall.{name}", "namespace": EVENT_NAMESPACE},
            "involvedObject": about,
            "reason": "KernelFault",
            "type": "Warning",
            "message": printable(
                f"{note}{entry.code}{where}: {entry.text} (boot {boot}, record {entry.seen[-1].seq})", 1_000
            ),
            "source": {"component": MANAGER, "host": self._node},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }


def stamp(at: int) -> str:
    """Returns whole seconds in Kubernetes' format; the annotation has the nanoseconds."""
    return datetime.fromtimestamp(min(at, 1 << 62) // 1_000_000_000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
