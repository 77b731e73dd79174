"""Brings the faults of a soak to the cluster, as agents and collectors do."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from bench.health.soak_cluster import boot
from bench.health.soak_faults import SECOND, Fault


class Injector:
    """Brings faults to the cluster as agents and collectors do: what cannot be brought now is brought later."""

    def __init__(self, kube: Any, url: str, *, begun: int) -> None:
        self._kube, self._url, self._begun = kube, url, begun
        self._entries: dict[str, list[Any]] = {}
        self.given: list[tuple[Fault, int]] = []

    async def give(self, fault: Fault) -> None:
        """Bring one; noted with the moment at which it could be seen first. Tried again it keeps its stamp: an answer that was lost makes no second line."""
        at = time.time_ns() - int(fault.late_s * SECOND)
        while True:
            try:
                if fault.way.startswith("agent"):
                    await self._annotate(fault)
                else:
                    await asyncio.to_thread(self._say, fault, at)
            except Exception as error:  # noqa: BLE001 - whatever it is, the soak has to go on
                sys.stderr.write(f"soak: {fault.way} on {fault.node} is tried again: {str(error)[:100]}\n")
                await asyncio.sleep(1)
                continue
            self.given.append((fault, time.time_ns()))
            return

    async def _annotate(self, fault: Fault) -> None:
        from rankfall.kube.resources import NODES
        from rankfall.model.node_health.kernel_reports import (
            REPORT_ANNOTATION,
            KernelEntry,
            KernelReport,
            Place,
            encode_report,
        )

        entries = self._entries.setdefault(fault.node, [])
        code, device = fault.cause
        if all(each.device != device for each in entries):
            place = Place(len(entries) + 1, time.time_ns())
            trust: Any = "injected" if fault.way == "agent_injected" else "kernel"
            entries.append(KernelEntry(code=code, trust=trust, device=device, seen=(place,), first=place, text=fault.text))  # fmt: skip
        report = KernelReport(boot=boot(fault.node), seq=len(entries), entries=tuple(entries))
        body = {"metadata": {"annotations": {REPORT_ANNOTATION: encode_report(report)}}}
        await self._kube.patch(NODES, fault.node, body, kind="merge")

    def _say(self, fault: Fault, at: int) -> None:
        labels = kernel_labels(fault.node)
        if fault.way == "pod":
            labels = {"k8s_namespace_name": "team", "k8s_pod_name": "train-0", "k8s_node_name": fault.node}
        text = fault.text if fault.way == "pod" else fault.dmesg(at=at, begun=self._begun)
        rows = [(at, text)]
        if fault.way == "loki_twice":
            rows.append((at + SECOND // 2, text))
        push(self._url, labels, rows)


def kernel_labels(node: str) -> dict[str, str]:
    """What a collector says of a line of the DaemonSet that prints the kernel's log of this node."""
    return {"k8s_namespace_name": "dmesg-logging", "k8s_daemonset_name": "dmesg", "k8s_node_name": node}


def push(url: str, labels: dict[str, str], rows: Sequence[tuple[int, str]]) -> None:
    """Lines of one stream to Loki, as a collector brings them.

    Raises:
        OSError: it does not take them.
    """
    push_all(url, [(labels, rows)])


def push_all(url: str, streams: Sequence[tuple[dict[str, str], Sequence[tuple[int, str]]]]) -> None:
    """Lines of many streams in one request.

    Raises:
        OSError: as above.
    """
    place = urlsplit(url)
    told = [{"stream": labels, "values": [[str(at), text] for at, text in rows]} for labels, rows in streams]
    body = json.dumps({"streams": told})
    with contextlib.closing(http.client.HTTPConnection(str(place.hostname), place.port, timeout=20)) as connection:
        connection.request("POST", "/loki/api/v1/push", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.NO_CONTENT:
            raise OSError(f"Loki answered {answer.status}: {answer.read(200)!r}")
