"""What a watch of the Nodes shows, and when: devices in an agent's report, our taint, and whether a node's record is clean."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.health.controlling import KEY

_SERVER_S = 3_600


class Watching:
    """A watch for the life of the block.

    Args:
        config: kubeconfig of the administrator.
        node: the only one that is looked at; None = all.

    Attributes:
        devices: node and device of an agent's report -> when it was first seen, seconds since the epoch.
        tainted: node -> since when our taint is seen on it; gone when the taint is.
        open: nodes whose record says that they are tainted.
        lost: node -> records that its agent says were overwritten before they were read; a node whose agent has reported nothing is not in it.
        names: of all nodes.
        events: how often a Node was made, changed or removed.
    """

    def __init__(self, config: Path, node: str | None = None) -> None:
        self._config, self._node = config, node
        self._changed = asyncio.Event()
        self._begun = False
        self.devices: dict[tuple[str, str], float] = {}
        self.tainted: dict[str, float] = {}
        self.open: set[str] = set()
        self.lost: dict[str, int] = {}
        self.names: set[str] = set()
        self.events = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        await self.until(lambda: self._begun, 30.0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until(self, holds: Callable[[], bool], limit_s: float) -> None:
        """Wait until something holds, asked after each change.

        Raises:
            TimeoutError: it does not.
            RuntimeError: the watch has ended.
        """
        async with asyncio.timeout(limit_s):
            while not holds():
                if self._task.done():
                    raise RuntimeError("the watch of the Nodes ended") from self._task.exception()
                self._changed.clear()
                await self._changed.wait()

    async def _follow(self) -> None:
        from rankfall.kube.auth.kubeconfig import load_access
        from rankfall.kube.client import Kube

        params = {"watch": "1", "timeoutSeconds": str(_SERVER_S)}
        if self._node is not None:
            params["fieldSelector"] = f"metadata.name={self._node}"
        try:
            async with (
                Kube(load_access(kubeconfig=str(self._config))) as kube,
                kube.stream("/api/v1/nodes", params=params, read_timeout=None) as answer,
            ):
                rest = b""
                async for chunk in answer.content.iter_any():
                    now = time.time()
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        self._take(json.loads(line), now)
                    self._changed.set()
        finally:
            self._changed.set()

    def _take(self, event: dict[str, Any], now: float) -> None:
        from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, decode_report
        from rankfall.model.node_health.records import ANNOTATION, decode_health

        self._begun = True
        self.events += 1
        item = event["object"]
        name = item["metadata"]["name"]
        if event["type"] == "DELETED":
            self.names.discard(name)
            self.tainted.pop(name, None)
            self.open.discard(name)
            return
        self.names.add(name)
        notes = item["metadata"].get("annotations") or {}
        if any(each["key"] == KEY for each in item["spec"].get("taints") or ()):
            self.tainted.setdefault(name, now)
        else:
            self.tainted.pop(name, None)
        if ANNOTATION in notes and decode_health(notes[ANNOTATION]).tainted:
            self.open.add(name)
        else:
            self.open.discard(name)
        if REPORT_ANNOTATION in notes:
            report = decode_report(notes[REPORT_ANNOTATION])
            self.lost[name] = report.lost
            for entry in report.entries:
                self.devices.setdefault((name, str(entry.device).removeprefix("gpu ")), now)
