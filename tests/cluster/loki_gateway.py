"""What stands before a Loki in a company: lets only bearers of a token through, and hands on whose tenant they are. Loki itself knows no tokens."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_LOOK_S = 0.1


class Gateway:
    """One before the Loki at ``behind``.

    Attributes:
        tokens: that are good now; while one is replaced these are two.
        used: tokens in the order of the requests that were let through.
        tenants: that were named.
        limits: lines asked for by each request; None = the request left that to the server.
        fault: status and text in Loki's stead; a status of 0 never answers.
        struck: requests that met a fault.
    """

    def __init__(self, behind: str, *tokens: str) -> None:
        self.tokens = set(tokens)
        self.used: list[str] = []
        self.tenants: set[str | None] = set()
        self.limits: list[int | None] = []
        self.fault: tuple[int, bytes] | None = None
        self.struck = 0
        self._over = threading.Event()
        gateway, place = self, urlsplit(behind)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                said = self.headers.get("Authorization") or ""
                if said.removeprefix("Bearer ") not in gateway.tokens:
                    # Servers that repeat what they refuse exist.
                    self._answer(401, f"who is {said}?".encode(), "text/plain")
                    return
                fault = gateway.fault
                if fault is not None:
                    gateway.struck += 1
                    while not fault[0] and gateway.fault is fault and not gateway._over.wait(_LOOK_S):
                        pass
                    self._answer(fault[0] or 503, fault[1], "text/plain")
                    return
                tenant = self.headers.get("X-Scope-OrgID")
                gateway.used.append(said.removeprefix("Bearer "))
                gateway.tenants.add(tenant)
                asked = parse_qs(urlsplit(self.path).query).get("limit")
                gateway.limits.append(None if asked is None else int(asked[0]))
                connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
                connection.request("GET", self.path, headers={} if tenant is None else {"X-Scope-OrgID": tenant})
                answer = connection.getresponse()
                self._answer(answer.status, answer.read(), answer.headers.get("Content-Type", "text/plain"))
                connection.close()

            def _answer(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                # Who asked may have lost patience.
                with suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve for the life of the block."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join(5)
