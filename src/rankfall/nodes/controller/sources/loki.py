"""Sources that query Loki for kernel lines and watched pods.

The position moves only after processing; without an answer it stays. Queries overlap, once a minute by ten minutes, for
late lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from rankfall.kube.errors import KubeError
from rankfall.loki import LokiError
from rankfall.loki.client import Loki
from rankfall.loki.cursor import OVERLAP_NS, SECOND, Cursor, Entry, State
from rankfall.loki.reader import PageSource, Reader
from rankfall.model.node_health.records import NodeFault
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG
from rankfall.nodes.controller.persistent_state import Place, StateMap
from rankfall.nodes.controller.plan_writer import sole_writer
from rankfall.nodes.controller.settings import Settings, kernel_query, pod_query
from rankfall.nodes.controller.sources.loki_lines import POD_TEXTS, KernelLines, PodLines, kernel_texts

#: Future timestamps that Loki accepts, from fast clocks.
AHEAD_NS: Final = 600 * SECOND
#: Nanoseconds before the mark of a poll; seconds between thorough polls.
QUICK_NS: Final = 15 * SECOND
THOROUGH_S: Final = 60.0
#: Least rest between polls, as a share of ``poll_s``.
LEAST_REST: Final = 0.25
#: Seconds after an answer that waiting may not fix.
REFUSED_S: Final = 30.0
#: Seconds between saves of an empty query's mark.
_KEEP_S: Final = 60.0


def rest_s(poll_s: float, *, took_s: float) -> float:
    """Returns the seconds between the end of a poll and the next one."""
    return max(poll_s - took_s, poll_s * LEAST_REST)


class LineReader(Protocol):
    """Converts lines to faults: ``KernelLines`` and ``PodLines``."""

    nameless: int

    def read(self, entry: Entry) -> NodeFault | None:
        """Returns the fault in a line, or None."""
        ...


class LokiSource:
    """One query; ``begun`` has the boot times that ``lines`` derives."""

    def __init__(
        self,
        name: str,
        *,
        loki: PageSource,
        query: str,
        lines: LineReader,
        begun: dict[str, int] | None,
        state: StateMap,
        give: Callable[[Sequence[NodeFault]], Awaitable[None]],
        metrics: Metrics,
        poll_s: float,
        look_back_s: int,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.name, self._lines, self._begun, self._state, self._give = name, lines, begun, state, give
        self._metrics, self._poll_s, self._clock = metrics, poll_s, clock
        before = state.places.get(name)
        if before is not None and begun is not None:
            begun |= before.begun
        cursor = Cursor(before.cursor if before is not None else State.starting_at(clock() - look_back_s * SECOND))
        self._reader = Reader(loki, query, cursor, trouble=self._trouble, on_stuck=self._stuck, patience_s=None)
        self._blind_since: float | None = None
        self._kept_at: float | None = None
        self._thorough_at: float | None = None
        self._reported_lost: set[int] = set()

    async def run(self) -> None:
        """Polls forever, with a pause after each poll: Loki has other users."""
        while True:
            begun = time.monotonic()
            try:
                await self.look()
            except LokiError as error:
                self._trouble(error)
                await asyncio.sleep(max(REFUSED_S, error.retry_after or 0))
                continue
            await asyncio.sleep(rest_s(self._poll_s, took_s=time.monotonic() - begun))

    async def look(self) -> None:
        """Polls once; lines are processed before the mark moves.

        Raises:
            LokiError: A lasting failure; the mark is unchanged.
            LeadershipLost: Another controller wrote the state.
        """
        now, clock = self._clock(), time.monotonic()
        thorough = self._thorough_at is None or clock - self._thorough_at >= THOROUGH_S
        new = False
        async for page in self._reader.read(now + AHEAD_NS, overlap_ns=None if thorough else QUICK_NS, settled=now):
            self._answered()
            self._metrics.add("health_source_lines_total", len(page), source=self.name)
            await self._give([fault for entry in page if (fault := self._lines.read(entry)) is not None])
            new = True
        if thorough:
            self._thorough_at = clock
        self._answered()
        self._metrics.set("health_source_lag_seconds", max(0, self._clock() - now) / SECOND, source=self.name)
        self._metrics.set("health_lines_without_node_total", self._lines.nameless, source=self.name)
        if new or self._kept_at is None or clock - self._kept_at >= _KEEP_S:
            await self._keep()
            self._kept_at = clock

    async def _keep(self) -> None:
        place = Place(cursor=self._reader.cursor.state(), begun=dict(self._begun or {}))
        try:
            with sole_writer():
                await self._state.save_position(self.name, place)
        except KubeError as error:
            # After a kill the lines would be read again and recognized.
            LOG.warning("cannot store the position of %s: %s", self.name, error.message)

    def _trouble(self, error: LokiError) -> None:
        if self._blind_since is None:
            self._blind_since = time.monotonic()
            LOG.warning("%s: %s; no node counts as recovered until it answers", self.name, error.message)
        self._metrics.add("health_source_errors_total", source=self.name)
        self._metrics.set("health_source_blind_seconds", max(0.001, self.blind_s), source=self.name)

    def _answered(self) -> None:
        if self._blind_since is not None:
            LOG.info("%s answers again after %.0f s", self.name, self.blind_s)
            self._blind_since = None
        self._metrics.set("health_source_blind_seconds", 0, source=self.name)

    @property
    def blind_s(self) -> float:
        """Seconds since Loki's last answer; 0 if Loki answers."""
        return 0.0 if self._blind_since is None else time.monotonic() - self._blind_since

    def _stuck(self, at: int) -> None:
        # Polls that begin before it repeat the same loss.
        horizon = self._reader.cursor.mark - OVERLAP_NS
        self._reported_lost = {each for each in self._reported_lost if each > horizon}
        if at in self._reported_lost:
            return
        self._reported_lost.add(at)
        self._metrics.add("health_lines_lost_total", source=self.name)
        LOG.error("%s: nanosecond %d holds more lines than one answer of Loki; the rest is lost", self.name, at)


#: Seconds for one answer of Loki.
LOKI_S: Final = 30.0


async def open_sources(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    *,
    book: NodeCache,
    state: StateMap,
    loop: Loop,
    metrics: Metrics,
) -> list[LokiSource]:
    """Opens the sources; none without a Loki."""
    if settings.loki is None:
        return []
    labels = settings.labels
    keys = (labels.node, labels.namespace, labels.pod)
    loki = await stack.enter_async_context(Loki(settings.loki, keys=keys, total_s=LOKI_S))

    def boot_of(name: str) -> str | None:
        node = book.nodes.get(name)
        return None if node is None else node.view.boot

    def source(name: str, query: str, lines: KernelLines | PodLines) -> LokiSource:
        return LokiSource(
            name,
            loki=loki,
            query=query,
            lines=lines,
            begun=lines.begun if isinstance(lines, KernelLines) else None,
            state=state,
            give=loop.give,
            metrics=metrics,
            poll_s=settings.poll_s,
            look_back_s=settings.look_back_s,
        )

    texts = kernel_texts()
    sources = [
        source(
            f"{each.namespace}.{each.daemon_set}",
            kernel_query(each, labels, texts=texts),
            KernelLines(labels, boot_of=boot_of),
        )
        for each in settings.streams
    ]
    if settings.watched:
        query = pod_query(settings.watched, labels, texts=POD_TEXTS)
        sources.append(source("pods", query, PodLines(labels)))
    return sources
