"""Kernel records for nodes of a bed, which share one kernel: a socket a node, and agents as processes that read it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, KernelReport, decode_report
from testbed.client import Kubectl


def xid(number: int, device: str, rest: str = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.") -> str:
    return f"NVRM: Xid (PCI:{device}): {number}, {rest}"


class Ring:
    """What a node's ring is, as a socket: each connection gets the boot id, all records that there are, and those that come.

    Args:
        path: of the socket.
        boot: boot id; a new one per ring by default.
    """

    def __init__(self, path: Path, boot: str | None = None) -> None:
        self.path, self.boot = path, boot or str(uuid.uuid4())
        self._records: list[bytes] = []
        self._readers: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(4)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                reader, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                reader.send(self.boot.encode())
                for each in self._records:
                    reader.send(each)
                self._readers.append(reader)

    def write(self, text: str, *, stamp_us: int = 1_000_000, facility: int = 0) -> int:
        """Add a record; its number."""
        with self._lock:
            number = len(self._records)
            data = f"{facility * 8 + 3},{number},{stamp_us + number},-;{text}\n".encode()
            self._records.append(data)
            for each in list(self._readers):
                try:
                    each.send(data)
                except OSError:
                    self._readers.remove(each)
            return number

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(5)
        for each in self._readers:
            each.close()


@contextmanager
def agent(config: Path, node: str, *words: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent as a process of this machine; killed at the end where it still runs."""
    with out.open("ab") as file, out.with_suffix(".err").open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "rankfall", "agent", "--node", node, "--kubeconfig", str(config), *words],
            stdout=file,
            stderr=errors,
            env={key: value for key, value in os.environ.items() if key not in {"KUBECONFIG", "NODE_NAME"}},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def report(kubectl: Kubectl, node: str) -> KernelReport | None:
    """What the Node shows of its kernel's log."""
    annotations: dict[str, Any] = kubectl.get("node", node)["metadata"].get("annotations") or {}
    text = annotations.get(REPORT_ANNOTATION)
    return None if text is None else decode_report(text)


def devices(found: KernelReport | None) -> dict[str | None, int]:
    """Device -> how often it was told."""
    return {} if found is None else {each.device: each.count for each in found.entries}
