"""The sources of a controller that read Loki: one for each stream of kernel lines, and one for the watched pods."""

from __future__ import annotations

import contextlib
from typing import Final

from rankfall.health.controller.from_loki import LokiSource
from rankfall.health.controller.lines import POD_TEXTS, KernelLines, PodLines, kernel_texts
from rankfall.health.controller.loop import Loop
from rankfall.health.controller.metrics import Metrics
from rankfall.health.controller.nodebook import NodeBook
from rankfall.health.controller.settings import Settings, kernel_query, pod_query
from rankfall.health.controller.state import StateMap
from rankfall.observe.loki.client import Loki

#: Longest wait for one answer of Loki, seconds.
LOKI_S: Final = 30.0


async def open_sources(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    *,
    book: NodeBook,
    state: StateMap,
    loop: Loop,
    metrics: Metrics,
) -> list[LokiSource]:
    """Open them; none where the settings name no Loki.

    Args:
        stack: closes what they need.
        settings: of the controller.
        book: tells which boot a Node shows.
        state: holds how far each has read.
        loop: takes what they see.
        metrics: counts.
    """
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
