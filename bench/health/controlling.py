"""One controller with the rights of its manifests and no limits of its own, for measurements; and what its metrics say."""

from __future__ import annotations

import contextlib
import http.client
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.common import ROOT
from bench.health.figures import numbers
from bench.health.processes import environ
from testbed import process
from testbed.errors import StartError

KEY: Final = "rankfall.dev/faulty"
#: Nothing that is measured waits for its turn: neither budget nor rate nor breaker is reached.
POLICY: Final = """[policy]
rate_nodes = 100000
rate_s = 60
breaker_nodes = 100000
budget = { nodes = 100000, percent = 100 }
"""
_READY_S: Final = 120.0
_END_S: Final = 60.0
_PORT: Final = re.compile(r"metrics and probes on port (\d+)")
#: Said by its first turn: from then on it has all Nodes and decides.
_TURNED: Final = "rankfall_health_nodes{"


class Controlling:
    """A controller that runs.

    Args:
        made: its process.
        log: what it says.
    """

    def __init__(self, made: subprocess.Popen[Any], log: Path) -> None:
        self._made, self._log = made, log
        self.pid = made.pid

    def numbers(self) -> dict[str, float]:
        """Its metrics; empty = it does not serve them yet."""
        port = _PORT.search(self._log.read_text(errors="replace"))
        if port is None:
            return {}
        connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=20)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", "/metrics")
            return numbers(connection.getresponse().read().decode())
        return {}

    def nodes(self) -> int:
        """How many nodes it counts."""
        return int(sum(value for name, value in self.numbers().items() if name.startswith(_TURNED)))

    def await_turn(self) -> None:
        """Wait until it leads, knows all Nodes and has made its first turn.

        Raises:
            StartError: it ended, or does not come to it.
        """
        if not process.poll(lambda: self._made.poll() is not None or self.nodes() > 0, _READY_S) or self._made.poll() is not None:  # fmt: skip
            raise StartError(f"the controller does not come to lead: {process.tail(self._log)}")


@contextlib.contextmanager
def controlling(
    folder: Path, *, account: Path, namespace: str, words: tuple[str, ...] = (), loki: str | None = None
) -> Iterator[Controlling]:
    """One that leads; it gives its lease back at the end.

    Args:
        folder: for its log and settings.
        account: kubeconfig of its rights.
        namespace: of its own objects.
        words: more of its command line.
        loki: URL; None = it reads no logs.
    """
    config = folder / "policy.toml"
    config.write_text(POLICY)
    log = folder / "controller.log"
    log.write_bytes(b"")
    command = [sys.executable, "-m", "rankfall", "controller", "-n", namespace, "--config", str(config)]
    command += ["--metrics-address", "127.0.0.1:0", *words]
    own = environ(KUBECONFIG=str(account)) | ({} if loki is None else {"LOG_ENDPOINT": loki})
    with log.open("ab") as out:
        made = subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=out, cwd=ROOT)
    try:
        found = Controlling(made, log)
        found.await_turn()
        yield found
    finally:
        made.terminate()
        try:
            made.wait(_END_S)
        except subprocess.TimeoutExpired:
            made.kill()
            made.wait()
