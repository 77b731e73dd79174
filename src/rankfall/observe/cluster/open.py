"""Opens what a backend describes: feeds for pods. The client of Kubernetes is loaded only when there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from rankfall.observe.cluster.source import PodSource
from rankfall.store import RunDir

if TYPE_CHECKING:
    from rankfall.observe.cluster.feed import PodFeed

# Nearly all requests of a feed open logs, which an API server does not count against anybody's share: a thousand in half a minute.
_RATE: Final = 50.0
_BURST: Final = 100


class Feeds:
    """All feeds of one attempt; none on this machine.

    Args:
        run_dir: where they write.
        attempt, role: of the attempt.
        sources: which pods; those of one attempt are one source, because their journal has one writer.
        trouble: told of difficulties in words, from another thread.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        role: str,
        sources: Iterable[PodSource],
        trouble: Callable[[str], None],
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._role = role
        self._sources = tuple(sources)
        self._trouble = trouble
        self._feeds: list[PodFeed] = []

    def start(self) -> None:
        """Begin to watch; returns at once."""
        if not self._sources:
            return
        from rankfall.kube.client import Kube  # noqa: PLC0415 - a run on this machine needs no client
        from rankfall.kube.kubeconfig import load_access  # noqa: PLC0415 - as above
        from rankfall.observe.cluster.feed import PodFeed  # noqa: PLC0415 - as above

        def connect(source: PodSource) -> Kube:
            access = load_access(kubeconfig=source.kubeconfig, context=source.context, namespace=source.namespace)
            return Kube(access, rate=_RATE, burst=_BURST)

        for source in self._sources:
            feed = PodFeed(
                self._run_dir,
                attempt=self._attempt,
                role=self._role,
                source=source,
                connect=lambda source=source: connect(source),  # type: ignore[misc]
                trouble=self._trouble,
            )
            feed.start()
            self._feeds.append(feed)

    def stop(self) -> None:
        """End them all; may be called again."""
        for feed in self._feeds:
            feed.stop()
        self._feeds.clear()
