"""Brings what containers print from the nodes' files to Loki, as a cluster's log collector does: whole lines, with namespace, pod and container."""

from __future__ import annotations

import datetime as dt
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.loki_push import push
from testbed.bed import Bed

_PAUSE_S = 0.2
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Collector:
    """One for all nodes of a bed; of one namespace.

    Attributes:
        brought: lines that Loki took, by pod.
    """

    def __init__(self, bed: Bed, url: str, *, namespace: str) -> None:
        self.brought: dict[str, list[str]] = defaultdict(list)
        self._folders = sorted(bed.layout.folder.glob("nodes/*/pod-logs"))
        self._url = url
        self._namespace = namespace
        self._read: dict[Path, int] = {}
        self._parts: dict[Path, str] = {}

    def bring(self) -> int:
        """Bring what is new; how many lines that were."""
        count = 0
        for folder in self._folders:
            for path in sorted(folder.glob(f"{self._namespace}_*/*/*.log")):
                count += self._file(path)
        return count

    def _file(self, path: Path) -> int:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return 0
        whole = data[: data.rfind(b"\n") + 1]
        rows = [row for line in whole.splitlines() if (row := self._row(path, line.decode())) is not None]
        if rows:
            pod = path.parent.parent.name.split("_")[1]
            labels = {"namespace": self._namespace, "pod": pod, "container": path.parent.name}
            push(self._url, labels, rows)
            self.brought[pod] += [text for _, text in rows]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return len(rows)

    def _row(self, path: Path, line: str) -> tuple[int, str] | None:
        """Stamp and text; None where the runtime has cut a line and this is not its last piece."""
        stamp, _, tag, text = line.split(" ", 3)
        text = self._parts.pop(path, "") + text
        if tag == "P":
            self._parts[path] = text
            return None
        seconds, _, fraction = stamp.removesuffix("Z").partition(".")
        whole = dt.datetime.fromisoformat(seconds).replace(tzinfo=dt.UTC) - _EPOCH
        return int(whole.total_seconds()) * 10**9 + int(fraction.ljust(9, "0")), text


@contextmanager
def collecting(bed: Bed, url: str, *, namespace: str) -> Iterator[Collector]:
    """Goes on in a thread; all that the files have is brought before it ends."""
    made, over = Collector(bed, url, namespace=namespace), threading.Event()

    def work() -> None:
        while not over.wait(_PAUSE_S):
            made.bring()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
        made.bring()
