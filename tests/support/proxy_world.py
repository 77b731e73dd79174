"""A small real API server over TLS for the tests of the fault proxy: the test decides what it streams, and when."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from support.patience import scaled
from testbed.pki import Authority, Pair
from testbed.proxy import Proxy, Settings

END = b""
ABORT = None


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, list[str]]
    client: dict[str, object]
    body: bytes


@dataclass
class Stream:
    """What a streaming path sends: put chunks, ``END`` or ``ABORT`` in; ``gone`` is set when the client's side went away."""

    chunks: queue.Queue[bytes | None] = field(default_factory=queue.Queue)
    gone: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def handle_any(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(size)
        headers: dict[str, list[str]] = {}
        for name, value in self.headers.items():
            headers.setdefault(name.lower(), []).append(value)
        self.server.seen.append(Seen(self.command, self.path, headers, self.connection.getpeercert() or {}, body))
        route = self.server.routes.get(urlsplit(self.path).path, Handler.missing)
        route(self)

    do_GET = do_POST = do_PUT = do_HEAD = handle_any  # noqa: N815 - names of http.server

    def missing(self) -> None:
        self.reply(b"404 page not found\n", status=404, kind="text/plain")

    def reply(self, body: bytes, *, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def stream(self, stream: Stream, *, kind: str = "text/plain") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        stream.open.set()
        threading.Thread(target=self._watch, args=(stream,), daemon=True).start()
        try:
            while (data := stream.chunks.get()) is not ABORT:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                if data == END:
                    return
        except OSError:
            stream.gone.set()
        self.close_connection = True
        # A bare close would wait for the thread that reads: the other side must see the end now.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _watch(self, stream: Stream) -> None:
        # The only thing that a client can still send on a stream is its going away.
        with contextlib.suppress(OSError):
            socket.socket.recv(self.connection, 1, socket.MSG_PEEK)
        stream.gone.set()

    def log_message(self, *_: object) -> None:
        pass


def kernel_says(sock: socket.socket, *, within: float = 20) -> str:
    """How a connection ends: ``fin``, ``rst`` or, after so long, ``open``; what is unread is dropped."""
    sock.settimeout(within)
    try:
        # Below TLS: above it a reset looks like an end.
        while socket.socket.recv(sock, 65536):
            pass
    except ConnectionResetError:
        return "rst"
    except TimeoutError:
        return "open"
    return "fin"


class Upstream(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, serving: Pair, front: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.routes: dict[str, Callable[[Handler], None]] = {}
        self.seen: list[Seen] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(serving.cert, serving.key)
        self.context.load_verify_locations(front)
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}"

    def finish_request(self, request, client_address) -> None:
        try:
            with self.context.wrap_socket(request, server_side=True) as wrapped:
                super().finish_request(wrapped, client_address)
        except OSError:
            pass

    def shutdown_request(self, request) -> None:
        request.close()

    def handle_error(self, request, client_address) -> None:
        pass

    def streams(self, path: str, *, kind: str = "text/plain") -> Stream:
        stream = Stream()
        self.routes[path] = lambda handler: handler.stream(stream, kind=kind)
        return stream

    def answers(self, path: str, body: object, *, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.routes[path] = lambda handler: handler.reply(text, status=status)

    def close(self) -> None:
        if not self.thread.is_alive():
            return
        self.shutdown()
        self.server_close()
        self.thread.join()


class World:
    """The server, a proxy before it, and clients that look closely."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = Authority(folder, "cluster")
        self.front = Authority(folder, "front")
        hosts = ("127.0.0.1", "localhost")
        self.upstream = Upstream(self.cluster.issue("server", user="server", hosts=hosts), self.front.cert)
        self.serving = self.cluster.issue("proxy", user="proxy", hosts=hosts)
        self.settings = Settings(
            upstream=self.upstream.url,
            authority=self.cluster.cert,
            serving=self.serving,
            clients=self.cluster.cert,
            front=self.front.issue("front-client", user="front-proxy-client"),
        )
        self.proxy = Proxy(self.settings).start()
        self._open: list[http.client.HTTPSConnection] = []

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.proxy.url)
        return parts.hostname or "", parts.port or 0

    def client(self, pair: Pair | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.cluster.cert))
        context.set_alpn_protocols(["h2", "http/1.1"])
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        made = http.client.HTTPSConnection(*self.address, timeout=scaled(20), context=context)
        self._open.append(made)
        return made

    def get(self, target: str, *, method: str = "GET", body: bytes | None = None, headers=None, pair=None) -> Answer:
        client = self.client(pair)
        client.request(method, target, body=body, headers=headers or {})
        answer = client.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())

    def open(self, target: str, headers=None) -> http.client.HTTPResponse:
        """A streamed answer, its head read."""
        client = self.client()
        client.request("GET", target, headers=headers or {})
        return client.getresponse()

    def how_it_ends(self, number: int = -1, *, within: float = 20) -> str:
        """What the kernel says of a client's connection: ``fin``, ``rst`` or, after so long, ``open``; what is unread is dropped."""
        return kernel_says(self._open[number].sock, within=within)

    def close(self) -> None:
        for client in self._open:
            client.close()
        self.proxy.close()
        self.upstream.close()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self):
        return json.loads(self.body)
