"""aiohttp session pools, proxies and sockets.

Proxy variables follow Go's rules, which know networks. A socket canceled in its last step belongs to no session
(seen with aiohttp 3.14).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import socket
import weakref
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from rankfall.kube.auth.access import Endpoint
from rankfall.kube.errors import KubeConfigError
from rankfall.kube.http import responses
from rankfall.kube.secret import Secret
from rankfall.model import numbers
from rankfall.model.numbers import is_http


class Sockets:
    """Creates sockets as aiohttp's ``socket_factory`` and finally closes those still open."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, info: Any) -> socket.socket:
        """Returns a socket for one address of a name."""
        family, kind, protocol, _, _ = info
        made = socket.socket(family=family, type=kind, proto=protocol)
        self._made.add(made)
        return made

    async def close(self) -> int:
        """Closes open sockets, after all sessions; returns their number."""
        # Closed sockets leave the loop one iteration later.
        await asyncio.sleep(0)
        loop: Any = asyncio.get_running_loop()
        # Private; elsewhere only bare sockets can be closed.
        transports = getattr(loop, "_transports", {})
        count = 0
        for one in list(self._made):
            number = one.fileno()
            if number < 0:
                continue
            transport = transports.get(number)
            if transport is None:
                one.close()
            elif not transport.is_closing():
                transport.abort()
            else:
                continue
            count += 1
        if count:
            await asyncio.sleep(0)
        return count


_PORTS: Final = {"https": 443, "http": 80}
_LOCAL: Final = frozenset({"localhost"})


def proxy_for(endpoint: Endpoint, environ: Mapping[str, str]) -> Secret | None:
    """Returns the proxy's address, possibly with password, or None.

    Raises:
        KubeConfigError: Unsupported kind of proxy.
    """
    if endpoint.proxy is not None:
        return endpoint.proxy
    parts = urlsplit(endpoint.server)
    host = parts.hostname or ""
    name = f"{parts.scheme.upper()}_PROXY"
    found = environ.get(name) or environ.get(name.lower()) or ""
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not found or _bypassed(host, parts.port or _PORTS[parts.scheme], excluded):
        return None
    address = found if "://" in found else f"http://{found}"
    if not is_http(address):
        raise KubeConfigError(
            f"${name} names no proxy that can be used here",
            hint="set it to http://host:port, or add the server to $NO_PROXY",
        )
    return Secret(address)


def _bypassed(host: str, port: int, excluded: str) -> bool:
    address = _address(host)
    if host in _LOCAL or (address is not None and address.is_loopback):
        return True
    return any(_excludes(rule.strip().lower(), host, address, port) for rule in excluded.split(","))


def _excludes(rule: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    if rule in {"", "*"}:
        return rule == "*"
    try:
        network = ipaddress.ip_network(rule, strict=False)
    except ValueError:
        network = None
    if network is not None:
        return address is not None and address in network
    name, separator, wanted = rule.rpartition(":")
    if separator and wanted.isdigit():
        if numbers.whole(wanted) != port:
            return False
        rule = name.strip("[]")
    if address is not None:
        return _address(rule) == address
    rule = rule.removeprefix("*")
    return host.endswith(rule) if rule.startswith(".") else host == rule or host.endswith(f".{rule}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


# Bytes of an error's body.
_ERROR_BODY: Final = 64 * 1024
_ERROR_BODY_S: Final = 10.0
_REFUSED: Final = 300


class Limits:
    """Time-outs in seconds, and sizes.

    Attributes:
        connect: For TCP and TLS.
        pool: For a free connection, including connecting.
        total: For one attempt.
        head: For a stream's headers.
        calls: Number of connections for calls.
        streams: Number of open streams and websockets.
        body: Bytes of an answer.
    """

    def __init__(
        self,
        *,
        connect: float = 10.0,
        pool: float = 30.0,
        total: float = 60.0,
        head: float = 60.0,
        calls: int = 16,
        streams: int = 8192,
        body: int = 256 << 20,
    ) -> None:
        self.connect, self.pool, self.total, self.head = connect, pool, total, head
        self.calls, self.streams, self.body = calls, streams, body


def pool(connections: int, timeout: aiohttp.ClientTimeout, *, sockets: Sockets) -> aiohttp.ClientSession:
    """Returns a session with a bounded pool.

    Error statuses raise ``responses.Refusal``; no retries, no redirects.
    """
    made = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, socket_factory=sockets.make),
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": agent()},
        raise_for_status=_refuse,
    )
    # By default aiohttp resends a DELETE on a closed pooled connection.
    made._retry_connection = False  # noqa: SLF001 - there is no public setting
    return made


@functools.cache
def agent() -> str:
    """Returns the value of the User-Agent header; cached."""
    try:
        return f"rankfall/{metadata.version('rankfall')}"
    except metadata.PackageNotFoundError:
        return "rankfall"


async def _refuse(response: aiohttp.ClientResponse) -> None:
    if response.status < _REFUSED:
        return
    try:
        async with asyncio.timeout(_ERROR_BODY_S):
            body, _ = await read(response, _ERROR_BODY)
    except (aiohttp.ClientError, TimeoutError, OSError):
        body = b""
    raise responses.Refusal(response.status, response.headers, body)


async def read(response: aiohttp.ClientResponse, largest: int) -> tuple[bytes, bool]:
    """Returns the body's first ``largest`` bytes, and True if that is the whole body."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        parts.append(part)
        if size > largest:
            return b"".join(parts), False
    return b"".join(parts), True


def through(proxy: Secret | None) -> tuple[URL | None, dict[str, str] | None]:
    """Returns a proxy's address, and its password as header, because errors show addresses; None each if absent."""
    if proxy is None:
        return None, None
    url = URL(proxy.reveal())
    if url.user is None and url.password is None:
        return url, None
    given = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode("ascii")
    return url.with_user(None), {"Proxy-Authorization": f"Basic {given}"}
