"""A small cluster with jobs that Rankfall did not start, on a server of its own in a thread, and the command line against it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from support.kubemodel import START, Pod, World, rfc3339, world
from support.patience import scaled

_T = TypeVar("_T")
UID = "8c0ffee0-0000-4000-8000-000000000001"
INDEX = "batch.kubernetes.io/job-completion-index"


class Foreigners:
    """The cluster.

    Args:
        made: the server.
        loop: in which it runs.
    """

    def __init__(self, made: World, loop: asyncio.AbstractEventLoop) -> None:
        self.world = made
        self._loop = loop

    def do(self, work: Callable[[World], _T]) -> _T:
        """Change something, in the server's own thread."""

        async def in_loop() -> _T:
            return work(self.world)

        return asyncio.run_coroutine_threadsafe(in_loop(), self._loop).result(scaled(30))

    def put(self, path: str, item: dict[str, Any]) -> None:
        self.do(lambda made: made.objects.update({path: item}))

    def drop(self, path: str) -> None:
        self.do(lambda made: made.objects.pop(path))

    def pod(
        self,
        number: int,
        *,
        name: str | None = None,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> Pod:
        """A pod that runs, of an Indexed Job unless its labels say otherwise."""
        own = {INDEX: str(number)} if labels is None else labels
        return self.do(
            lambda made: made.add(number, name=name or f"plain-{number}", labels=own, annotations=annotations)
        )

    def write(self, pod: Pod, *texts: str) -> None:
        self.do(lambda made: made.write(pod, *(text.encode() for text in texts)))

    def end(self, pod: Pod, code: int = 0) -> None:
        self.do(lambda made: made.end(pod, code))

    def job(self, name: str = "plain", *, count: int = 2, ended: str = "", **spec: Any) -> None:
        """An Indexed Job; ``ended``: the type of its terminal condition."""
        self.put(f"/apis/batch/v1/namespaces/here/jobs/{name}", job(name, count=count, ended=ended, **spec))


def meta(name: str, **fields: Any) -> dict[str, Any]:
    made = rfc3339(START, digits=0)
    return {"name": name, "namespace": "here", "uid": UID, "creationTimestamp": made} | fields


def conditions(ended: str) -> dict[str, Any]:
    end = {"type": ended, "status": "True", "reason": "BackoffLimitExceeded", "message": "it has ended"}
    return {"conditions": [end | {"lastTransitionTime": rfc3339(START, digits=0)}]} if ended else {}


def job(name: str = "plain", *, count: int = 2, ended: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": meta(name),
        "spec": {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": UID}},
            "template": {"spec": {"containers": [{"name": "main", "command": ["python3", "train.py"]}]}},
        }
        | spec,
        "status": conditions(ended),
    }


@contextmanager
def foreigners(folder: Path) -> Iterator[tuple[Foreigners, Path]]:
    """The cluster, and a kubeconfig that leads to it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    held = world()
    made = asyncio.run_coroutine_threadsafe(held.__aenter__(), loop).result(scaled(30))
    path = folder / "kubeconfig.yaml"
    cluster = {"clusters": [{"name": "k", "cluster": {"server": made.url}}], "users": [{"name": "u", "user": {}}]}
    context = {"contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "here"}}]}
    path.write_text(
        yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "c", **cluster, **context})
    )
    try:
        yield Foreigners(made, loop), path
    finally:
        asyncio.run_coroutine_threadsafe(_shut(held), loop).result(scaled(30))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _shut(held: AbstractAsyncContextManager[World]) -> None:
    await held.__aexit__(None, None, None)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
