"""A webhook receiver: a real HTTP server on this machine that answers as a test wishes."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Receiver:
    """Keeps every request; ``status`` is its answer, after the ``statuses``.

    Attributes:
        bodies: decoded bodies in order of arrival, also of requests without an answer.
        hangs: answers wait until it is cleared with ``let_go``.
    """

    def __init__(self) -> None:
        self.status = 200
        self.statuses: list[int] = []
        self.bodies: list[Any] = []
        self.paths: list[str] = []
        self.hangs = False
        self._go = threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.append(self.path)
                receiver.bodies.append(json.loads(data))
                if receiver.hangs:
                    receiver._go.wait()
                status = receiver.statuses.pop(0) if receiver.statuses else receiver.status
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{receiver.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def let_go(self) -> None:
        """Answers all waiting requests, and later ones at once."""
        self.hangs = False
        self._go.set()

    def close(self) -> None:
        """Refuses connections from now on."""
        self.let_go()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def ids(self) -> list[str]:
        """Ids of all bodies of shape json, without the run."""
        return [body["id"].partition("/")[2] for body in self.bodies]


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    try:
        yield made
    finally:
        made.close()
