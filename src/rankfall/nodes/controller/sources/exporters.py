"""Polls the operator's metric exporters and passes on changes.

A silent exporter never means "no errors". Active values are stored after processing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import aiohttp

from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import PODS
from rankfall.model.errors import EvidenceLost
from rankfall.model.node_health.records import NodeFault, printable
from rankfall.nodes.config import ConfigFile
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG
from rankfall.nodes.controller.persistent_state import StateMap
from rankfall.nodes.controller.plan_writer import sole_writer
from rankfall.nodes.rules.gpu_metrics import ActiveMetric, Exporter, changed_values, readings

#: Bytes of a page; eight GPUs have some 100 KiB.
MAX_PAGE: Final = 4 << 20
LIMIT_S: Final = 5.0


def pages() -> aiohttp.ClientSession:
    """Returns a session for :func:`page`; the caller closes it."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=LIMIT_S), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    )


async def page(session: aiohttp.ClientSession, url: str) -> str:
    """Returns the text at an address.

    Raises:
        EvidenceLost: Time-out, status other than 200, or too large.
    """
    try:
        async with session.get(url, allow_redirects=False, headers={"Accept": "text/plain"}) as answer:
            if answer.status != HTTPStatus.OK:
                raise EvidenceLost(
                    f"it answered {answer.status}", hint="check that the address is the exporter's metrics page"
                )
            data = bytearray()
            async for chunk in answer.content.iter_chunked(64 << 10):
                data += chunk
                if len(data) > MAX_PAGE:
                    raise EvidenceLost(
                        f"its page is larger than {MAX_PAGE >> 20} MiB", hint="check that it is an exporter of one node"
                    )
    except TimeoutError:
        raise EvidenceLost(
            f"it did not answer within {LIMIT_S:g} s", hint="check that the controller can reach it"
        ) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise EvidenceLost(
            f"it cannot be reached: {str(error)[:200]}", hint="check that the controller can reach it"
        ) from None
    return data.decode("utf-8", "replace")


POLL_INTERVAL_S: Final = 1.0
_AT_ONCE: Final = 8
#: Stored values other than 0; healthy GPUs have none.
MAX_ACTIVE_METRICS: Final = 2_000


class ExporterSource:
    """Polls the exporters."""

    def __init__(
        self,
        kube: Kube,
        *,
        book: NodeCache,
        config: ConfigFile,
        state: StateMap,
        give: Callable[[Sequence[NodeFault]], Awaitable[None]],
        metrics: Metrics,
        get: Callable[[aiohttp.ClientSession, str], Awaitable[str]] = page,
        clock: Callable[[], int] = time.time_ns,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._kube, self._book, self._config, self._state, self._give = kube, book, config, state, give
        self._metrics, self._get, self._clock, self._poll_interval_s = metrics, get, clock, poll_interval_s
        self._looked: dict[str, tuple[str, int]] = {}
        self._due: dict[Exporter, float] = {}
        self._silent: dict[str, str] = {}

    async def run(self) -> None:
        """Polls forever."""
        async with pages() as session:
            while True:
                now = time.monotonic()
                for each in self._config.config.exporters:
                    if now >= self._due.get(each, 0):
                        self._due[each] = now + each.every_s
                        await self.look(session, each)
                await asyncio.sleep(self._poll_interval_s)

    async def look(self, session: aiohttp.ClientSession, row: Exporter) -> None:
        """Polls the exporters of one ``[[metrics]]`` row once; changes are processed before they are stored.

        Raises:
            LeadershipLost: Another controller wrote the state.
        """
        try:
            targets = await self._targets(row)
        except KubeError as error:
            LOG.warning("exporters of %s cannot be found: %s", row.namespace, error.message)
            self._metrics.add("health_source_errors_total", source="metrics")
            return
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(node: str, url: str) -> tuple[str, str | EvidenceLost]:
            async with slots:
                try:
                    return node, await self._get(session, url)
                except EvidenceLost as error:
                    return node, error

        answers = await asyncio.gather(*(one(node, url) for node, url in targets.items()))
        self._log_unreachable(
            {node: answer.message for node, answer in answers if isinstance(answer, EvidenceLost)}, of=targets
        )
        await self._take({node: answer for node, answer in answers if isinstance(answer, str)})

    async def _targets(self, row: Exporter) -> dict[str, str]:
        if row.node is not None and row.url is not None:
            return {row.node: row.url} if row.node in self._book.nodes else {}
        found = await self._kube.list(PODS, namespace=row.namespace, labels=row.pods)
        targets = {}
        for item in found.items:
            place = _place(item)
            if place is not None and place[0] in self._book.nodes:
                node, address = place
                host = f"[{address}]" if ":" in address else address
                targets[node] = f"http://{host}:{row.port}{row.path}"
        return targets

    async def _take(self, texts: Mapping[str, str]) -> None:
        now = self._clock()
        stood, faults = dict(self._state.standing), list[NodeFault]()
        for node, text in texts.items():
            boot = self._book.nodes[node].view.boot or "" if node in self._book.nodes else ""
            looked = self._looked.get(node)
            before = looked[1] if looked is not None and looked[0] == boot else None
            found, standing = changed_values(readings(text), node=node, boot=boot, stood=stood, before=before, now=now)
            faults += found
            stood = {name: each for name, each in stood.items() if name.partition(" ")[0] != node} | standing
        stood = {name: each for name, each in stood.items() if name.partition(" ")[0] in self._book.nodes}
        await self._give(faults)
        for node in texts:
            if node in self._book.nodes:
                self._looked[node] = (self._book.nodes[node].view.boot or "", now)
        await self._keep(stood)

    async def _keep(self, stood: Mapping[str, ActiveMetric]) -> None:
        if len(stood) > MAX_ACTIVE_METRICS:
            LOG.error("%d metrics show a fault; only the newest %d survive a restart", len(stood), MAX_ACTIVE_METRICS)  # fmt: skip
        try:
            with sole_writer():
                await self._state.save_active_metrics(
                    dict(sorted(stood.items(), key=lambda each: -each[1].since)[:MAX_ACTIVE_METRICS])
                )
        except KubeError as error:
            LOG.warning("cannot store the metrics that show a fault: %s", error.message)

    def _log_unreachable(self, silent: Mapping[str, str], *, of: Iterable[str]) -> None:
        for node in of:
            reason = silent.get(node)
            if reason is not None:
                self._metrics.add("health_source_errors_total", source="metrics")
            if (reason is None) == (node not in self._silent):
                continue
            if reason is None:
                LOG.info("the exporter of node `%s` answers again", node)
                self._silent.pop(node)
            else:
                LOG.warning(
                    "the exporter of node `%s`: %s; no node counts as recovered until it answers",
                    node,
                    printable(reason),
                )
                self._silent[node] = reason
        self._silent = {node: reason for node, reason in self._silent.items() if node in self._book.nodes}
        self._metrics.set("health_exporters_silent", len(self._silent))


def _place(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns node and address of a running pod of a DaemonSet, or None."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    owners = meta.get("ownerReferences") or ()
    made = any(each.get("kind") == "DaemonSet" and each.get("controller") for each in owners)
    node, address = spec.get("nodeName"), status.get("podIP")
    if not made or status.get("phase") != "Running" or meta.get("deletionTimestamp") or not node or not address:
        return None
    return str(node), str(address)
