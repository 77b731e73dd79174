"""Reports observations and actions: log lines, the JSON audit trail, Events on the Nodes.

A burst is one report with a count. Event names are deterministic, so a repeated Event is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Conflict, KubeError, ServerError, TooManyRequests
from rankfall.kube.resources import EVENTS
from rankfall.model.node_health.records import NodeFault, printable
from rankfall.model.timestamps import rfc3339
from rankfall.nodes.rules.planner import NodeEvent

LOG: Final = logging.getLogger("rankfall.controller")
#: ``kubectl describe node`` finds Events there.
EVENTS_NAMESPACE: Final = "default"
COMPONENT: Final = "rankfall-controller"
FORMAT: Final = "[%(levelname).1s %(asctime)s %(filename)s:%(lineno)d] %(message)s"
DATE_FORMAT: Final = "%m-%d %H:%M:%S"
#: Between equal reports about one node.
AGAIN_NS: Final = 600 * 1_000_000_000
_MAX_REPORTED: Final = 20_000
#: Events that change a node's state.
_ALWAYS: Final = frozenset({"Quarantined", "Returned", "TaintRemovedByOthers", "Cleared", "BreakerOpen"})
_SOURCES: Final = {
    "loki": "dmesg error",
    "kmsg": "kernel error",
    "pod_log": "pod log error",
    "condition": "bad condition",
    "verdict": "caused the failure of a run",
    "metrics": "bad metric",
}


class Notifier:
    """Sends the reports; without ``kube`` no Events."""

    def __init__(self, kube: Kube | None, *, audit: Callable[[str], None]) -> None:
        self._kube = kube
        self._audit = audit
        self._notified: dict[tuple[str, ...], tuple[int, int]] = {}

    def saw(self, fault: NodeFault, outcome: str, *, now: int) -> None:
        """Reports an observation and its outcome."""
        again = self._again(("saw", fault.node, fault.code, fault.device or "", outcome), now=now)
        if again is None:
            return
        more = f" (and {again} like it before)" if again else ""
        LOG.info("node `%s` has %s: %s%s", fault.node, _SOURCES[fault.source], printable(fault.text), more)
        self.note("saw", now=now, node=fault.node, outcome=outcome, fault=fault, before=again)

    def note(self, what: str, *, now: int, **fields: Any) -> None:
        """Writes a line of the audit trail."""
        row = {"at": rfc3339(now), "what": what, **fields}
        self._audit(msgspec.json.encode(row).decode())

    async def happened(self, happenings: Iterable[NodeEvent], *, now: int) -> None:
        """Reports a step's events; a failed Event stops nothing."""
        for each in happenings:
            # Texts of observations differ from line to line.
            thing = each.message if each.reason in _ALWAYS else each.message.partition(" ")[0]
            again = self._again((each.reason, each.node, thing), now=now)
            if again is None and each.reason not in _ALWAYS:
                continue
            if not each.reason.startswith("Fault"):
                LOG.log(
                    logging.WARNING if each.warning else logging.INFO,
                    "node `%s`: %s: %s", each.node, each.reason, each.message,
                )  # fmt: skip
                self.note("happened", now=now, node=each.node, reason=each.reason, message=each.message)
            if not each.kept:
                about = f"{each.message}\n{now - now % AGAIN_NS}"
                await self.event(each, at=now, about=about)

    async def event(self, event: NodeEvent, *, at: int, about: str) -> bool:
        """Creates one Event; True if it exists now or is finally refused, False to try again.

        ``about`` is part of its name.
        """
        if self._kube is None:
            return True
        digest = hashlib.blake2b(f"{event.node}\n{event.reason}\n{about}".encode("utf-8", "replace"), digest_size=10)
        moment = rfc3339(at)
        stamp = None if moment is None else f"{moment[:19]}Z"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{event.node[:200]}.{digest.hexdigest()}", "namespace": EVENTS_NAMESPACE},
            # A Node's name replaces its UID, as kubelet and kubectl expect.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": event.node, "uid": event.node},
            "reason": event.reason,
            "message": event.message[:1_024],
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": COMPONENT},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._kube.create(EVENTS, body, namespace=EVENTS_NAMESPACE)
        except Conflict:
            return True
        except ApiError as error:
            LOG.warning("an Event on node `%s` is refused: %s", event.node, error.message)
            return not isinstance(error, ServerError | TooManyRequests)
        except KubeError as error:
            LOG.warning("an Event on node `%s` could not be sent: %s", event.node, error.message)
            return False
        return True

    def _again(self, key: tuple[str, ...], *, now: int) -> int | None:
        """Number of suppressed reports; None to suppress this one."""
        at, left_out = self._notified.get(key, (0, 0))
        if key in self._notified and now - at < AGAIN_NS:
            self._notified[key] = (at, left_out + 1)
            return None
        if len(self._notified) >= _MAX_REPORTED:
            self._notified = {each: found for each, found in self._notified.items() if now - found[0] < AGAIN_NS}
        if len(self._notified) >= _MAX_REPORTED:
            self._notified.clear()
        self._notified[key] = (now, 0)
        return left_out
