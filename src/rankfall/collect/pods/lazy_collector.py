"""Starts the pod collector of an attempt that has pods; does nothing for a local run.

Loads the Kubernetes client on start only, so a local run never imports it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankfall.rundir import RunDir
from rankfall.rundir.cluster.pod_source import PodSource

if TYPE_CHECKING:
    from rankfall.collect.pods.collector import PodCollector

# Nearly all requests of a feed open logs, which an API server does not count against anybody's share: a thousand in half a minute.
_RATE: Final = 50.0
_BURST: Final = 100
_MAX_TROUBLES: Final = 100
# A look at what is around an attempt that has ended may take so long, seconds.
_LATE_S: Final = 10.0


def get_context(run: Path, attempt: int, source: PodSource, *, into: Path) -> bool:
    """Take what the cluster says by now of the nodes, Events and workload of an attempt that nobody follows any more.

    Args:
        run: the run's directory.
        attempt: counted from 1.
        source: its pods; those that were seen are not asked for again.
        into: a file of looks; what is new is added to it.

    Returns:
        Whether anything about a node is new, its Events included.

    Raises:
        InfrastructureError: the cluster cannot be asked.
        OSError: the file cannot be written.
        TimeoutError: the cluster did not answer in time.
    """
    import asyncio  # noqa: PLC0415 - a run on this machine needs none of it

    from rankfall.collect.pods.cluster_context import ContextCollector  # noqa: PLC0415 - as above
    from rankfall.kube.auth.kubeconfig import access_of  # noqa: PLC0415 - as above
    from rankfall.kube.client import Kube  # noqa: PLC0415 - as above
    from rankfall.rundir.cluster.journal import JournalReader, journal_path  # noqa: PLC0415 - as above

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
    """The feed of one attempt's pods; on this machine there is none.

    Args:
        run_dir: where it writes.
        attempt: counted from 1.
        source: which pods; None = there are none.
        unseen: this process shows the lines to nobody.
        stir: called from another thread when there is more to see than further lines: a pod that changed, a stream's first bytes.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource | None,
        unseen: bool = False,
        stir: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._unseen = unseen
        self._stir = stir
        self._troubles: deque[str] = deque(maxlen=_MAX_TROUBLES)
        self._collector: PodCollector | None = None

    def start(self, *, once: bool = False) -> None:
        """Begin to watch; returns at once. ``once``: only take what is there now."""
        source = self._source
        if source is None:
            return
        from rankfall.collect.pods.collector import PodCollector  # noqa: PLC0415 - as above
        from rankfall.collect.pods.log_tailer import GATHER_S, UNSEEN_GATHER_S  # noqa: PLC0415 - as above
        from rankfall.kube.auth.kubeconfig import access_of  # noqa: PLC0415 - as above
        from rankfall.kube.client import Kube  # noqa: PLC0415 - a run on this machine needs no client

        self._collector = PodCollector(
            self._run_dir,
            attempt=self._attempt,
            source=source,
            connect=lambda: Kube(access_of(source), rate=_RATE, burst=_BURST),
            trouble=self._troubles.append,
            once=once,
            gather_s=UNSEEN_GATHER_S if self._unseen else GATHER_S,
            stir=self._stir,
        )
        self._collector.start()

    @property
    def done(self) -> bool:
        """Whether nothing is watched: it has taken what was there, or there is nothing to watch."""
        return self._collector is None or self._collector.done

    @property
    def following(self) -> bool:
        """Whether the log of each container that runs is open, or was tried in vain; true where there is nothing to watch."""
        return self._source is None or (self._collector is not None and self._collector.following)

    @property
    def blind(self) -> bool:
        """Whether pods that are to be watched cannot be watched at present: what is not seen then proves nothing."""
        return self._collector is not None and self._collector.blind

    def troubles(self) -> Iterator[str]:
        """Difficulties that came since the last call, in words: the feed runs in a thread of its own."""
        while self._troubles:
            yield self._troubles.popleft()

    def stop(self) -> None:
        """End it; may be called again."""
        if self._collector is not None:
            self._collector.stop()
            self._collector = None
