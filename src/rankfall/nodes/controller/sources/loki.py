"""Sources that query Loki for kernel lines and watched pods.

The position moves only after processing; without an answer it stays. Queries overlap, once a minute by ten minutes, for
late lines. A line's node comes from metadata. ``dmesg`` prints the ring again after a restart, so boot and text
identify lines.
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
from rankfall.loki.reader import OVERLAP_NS, SECOND, Cursor, Entry, PageSource, Reader, State
from rankfall.model import numbers
from rankfall.model.node_health.kernel_reports import LINE_SCHEMA, decode_line
from rankfall.model.node_health.records import NodeFault
from rankfall.model.patterns import anchored
from rankfall.nodes.controller.decision_loop import Loop
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.notifier import LOG
from rankfall.nodes.controller.persistent_state import Place, StateMap
from rankfall.nodes.controller.plan_writer import sole_writer
from rankfall.nodes.controller.settings import Labels, Settings, kernel_query, pod_query
from rankfall.nodes.rules import faults
from rankfall.nodes.rules.kernel_lines import Recogniser
from rankfall.verdict.signatures.catalogue import default_catalogue
from rankfall.verdict.signatures.matcher import best
from rankfall.verdict.signatures.patterns import required_words

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


#: Selects all driver lines; some come in three parts.
_DRIVER: Final = ("NVRM: ", "nvidia-nvswitch", "fallen off the bus")
#: Texts about GPUs; signatures decide a line's meaning.
POD_TEXTS: Final = ("NVRM: Xid", "SXid", "invalid device ordinal", "CUDA error", "NCCL", "uncorrectable")
_CLOCK: Final = anchored(r"(?:<[0-9]{1,4}>)?\[ {0,12}([0-9]{1,12})\.([0-9]{6})\]", limit=128)
_MAX_NODES: Final = 20_000
#: One for each node; a ConfigMap has at most 1 MiB.
MAX_BOOTS: Final = 5_000


def kernel_texts() -> tuple[str, ...]:
    """Returns texts of which each relevant kernel line has one, and the schema name of the agent's lines."""
    words: set[str] = set()
    for signature in default_catalogue().signatures:
        if "kernel" in signature.where and "line" not in signature.where:
            words |= required_words(signature.pattern) or set()
    short = {each for each in words if not any(other != each and other in each for other in words)}
    return (LINE_SCHEMA, *_DRIVER, *sorted(each for each in short if not any(word in each for word in _DRIVER)))


class KernelLines:
    """Reads lines of trusted DaemonSets. ``begun`` grows here; at its limit it drops boots that no Node shows."""

    def __init__(
        self, labels: Labels, *, boot_of: Callable[[str], str | None], begun: dict[str, int] | None = None
    ) -> None:
        self._labels = labels
        self._boot_of = boot_of
        self.begun = {} if begun is None else begun
        self._readers: dict[str, Recogniser] = {}
        self.nameless = 0

    def read(self, entry: Entry) -> NodeFault | None:
        """Returns the fault in a line; None also if the node is unknown."""
        node = entry.labels.get(self._labels.node, "")
        if not node:
            self.nameless += 1
            return None
        if LINE_SCHEMA in entry.text:
            line = decode_line(entry.text)
            return None if line is None else faults.of_agent_line(line, node=node)
        boot = self._boot_of(node) or ""
        at, identity = entry.at, entry.id.hex()
        clock = _CLOCK.match(entry.text)
        since = -1 if clock is None else numbers.matched(clock[1]) * 1_000_000_000 + numbers.matched(clock[2]) * 1_000
        # Text older than the epoch only resembles a clock.
        if 0 <= since <= entry.at:
            key = f"{node} {boot}"
            at, identity = self._began(key, entry.at - since) + since, f"{key} {entry.text}"
        return faults.of_line(
            entry.text.encode("utf-8", "surrogatepass"),
            node=node,
            source="loki",
            trust="collector",
            reader=self._reader(f"{node} {boot}"),
            identity=identity,
            at=at,
            uncertainty=faults.STAMP_UNCERTAINTY_S,
        )

    def _began(self, key: str, at: int) -> int:
        """Latest possible start of this boot, from this and earlier lines."""
        known = self.begun.get(key)
        if known is None and len(self.begun) >= MAX_BOOTS:
            for each in list(self.begun):
                node, _, boot = each.rpartition(" ")
                if self._boot_of(node) != boot:
                    del self.begun[each]
        begun = at if known is None else min(known, at)
        if known is not None or len(self.begun) < MAX_BOOTS:
            self.begun[key] = begun
        return begun

    def _reader(self, key: str) -> Recogniser:
        if key not in self._readers:
            if len(self._readers) >= _MAX_NODES:
                self._readers.clear()
            self._readers[key] = Recogniser(prefixed=True)
        return self._readers[key]


class PodLines:
    """Reads output of pods: a hint unless an operator names the code."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.nameless = 0

    def read(self, entry: Entry) -> NodeFault | None:
        """Returns the unproven fault in a line, or None."""
        node = entry.labels.get(self._labels.node, "")
        if not node:
            self.nameless += 1
            return None
        data = entry.text.encode("utf-8", "surrogatepass")
        job = "/".join(entry.labels.get(name, "") for name in (self._labels.namespace, self._labels.pod))[:128]
        found = faults.of_line(
            data,
            node=node,
            source="pod_log",
            trust="pod_text",
            reader=Recogniser(),
            identity=entry.id.hex(),
            at=entry.at,
            uncertainty=faults.STAMP_UNCERTAINTY_S,
            job=job,
        )
        if found is not None:
            return found
        hit = best(default_catalogue().match_line(data.split(b"\n", 1)[0], where="line"))
        if hit is None:
            return None
        return faults.of_pod_text(
            data, node=node, signature=hit.signature.id, slug=hit.signature.slug, identity=entry.id.hex(), at=entry.at, job=job
        )  # fmt: skip
