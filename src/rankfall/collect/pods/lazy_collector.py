"""Starts the pod collector of an attempt that has pods.

A local run never imports the Kubernetes client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankfall.rundir import RunDir
from rankfall.rundir.cluster.pod_source import PodSource

if TYPE_CHECKING:
    from rankfall.collect.background import Stir
    from rankfall.collect.pods.collector import PodCollector

# Requests a second; log requests count against no client's share.
_RATE: Final = 50.0
_BURST: Final = 100
_MAX_TROUBLES: Final = 100
# Time-out in seconds for the context of an ended attempt.
_LATE_S: Final = 10.0


def get_context(run: Path, attempt: int, source: PodSource, *, into: Path) -> bool:
    """Reads the cluster's current facts on nodes, Events and workload of an attempt without collector.

    Returns True if a fact about a node is new.

    Raises:
        InfrastructureError: The cluster cannot be queried.
        OSError: The file cannot be written.
        TimeoutError: The cluster did not answer.
    """
    import asyncio  # noqa: PLC0415

    from rankfall.collect.pods.cluster_context import ContextCollector  # noqa: PLC0415
    from rankfall.kube.auth.kubeconfig import access_of  # noqa: PLC0415
    from rankfall.kube.client import Kube  # noqa: PLC0415
    from rankfall.rundir.cluster.journal import JournalReader, journal_path  # noqa: PLC0415

    pods = list(JournalReader.read(journal_path(run, attempt)).values())

    def full(error: OSError) -> None:
        raise error

    async def work() -> bool:
        async with asyncio.timeout(_LATE_S), Kube(access_of(source)) as kube:
            collector = ContextCollector(kube, path=into, source=source, pods=lambda: pods, full=full)
            try:
                before = collector.statements()
                await collector.take()
                return collector.statements() != before
            finally:
                collector.close()

    return asyncio.run(work())


class LazyCollector:
    """Collector of one attempt's pods; ``source`` is None for a local run.

    ``stir`` is called from another thread on stored data.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource | None,
        unseen: bool = False,
        stir: Stir | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._unseen = unseen
        self._stir = stir
        self._troubles: deque[str] = deque(maxlen=_MAX_TROUBLES)
        self._collector: PodCollector | None = None

    def start(self, *, once: bool = False) -> None:
        """Starts watching without waiting. ``once``: reads only the current state."""
        source = self._source
        if source is None:
            return
        from rankfall.collect.background import undisturbed  # noqa: PLC0415
        from rankfall.collect.pods.collector import PodCollector  # noqa: PLC0415
        from rankfall.collect.pods.log_tailer import GATHER_S, UNSEEN_GATHER_S  # noqa: PLC0415
        from rankfall.kube.auth.kubeconfig import access_of  # noqa: PLC0415
        from rankfall.kube.client import Kube  # noqa: PLC0415

        self._collector = PodCollector(
            self._run_dir,
            attempt=self._attempt,
            source=source,
            connect=lambda: Kube(access_of(source), rate=_RATE, burst=_BURST),
            trouble=self._troubles.append,
            once=once,
            gather_s=UNSEEN_GATHER_S if self._unseen else GATHER_S,
            stir=self._stir or undisturbed,
        )
        self._collector.start()

    @property
    def done(self) -> bool:
        """True if nothing is watched: the current state is read (``once``), or the run has no pods."""
        return self._collector is None or self._collector.done

    @property
    def following(self) -> bool:
        """True if every running log was tried, or without pods."""
        return self._source is None or (self._collector is not None and self._collector.following)

    @property
    def blind(self) -> bool:
        """True if the pods cannot be watched; missing ones then prove nothing."""
        return self._collector is not None and self._collector.blind

    def troubles(self) -> Iterator[str]:
        """Yields problem texts since the last call, from the collector's thread."""
        while self._troubles:
            yield self._troubles.popleft()

    def stop(self, *, over: bool = False) -> None:
        """Stops the collector, ``over`` for good; may be called again."""
        if self._collector is not None:
            self._collector.stop(over=over)
            self._collector = None
