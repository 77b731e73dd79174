"""HTTP client of Loki: sends one bounded range query and parses the answer.

Retries nothing. Follows no redirect, which would leak credentials, and never shows headers.

Cost: time linear in the bytes of an answer; memory at most thirty times that, as JSON of small containers takes.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec
from yarl import URL

from rankfall.kube.auth import key_material
from rankfall.kube.auth.key_material import WatchedFile
from rankfall.kube.errors import CredentialsError, KubeError
from rankfall.kube.http.sessions import read
from rankfall.kube.request import TOO_MANY, seconds
from rankfall.kube.secret import excerpt
from rankfall.loki import LimitRefused, LokiError
from rankfall.loki.reader import Entry
from rankfall.loki.settings import LokiSettings
from rankfall.model import decoding, numbers
from rankfall.model.patterns import bounded

_BAD: Final = 400
_SERVER_SIDE: Final = 500
_MOST: Final = bounded(
    r"entries limit.{0,80}?\((\d{1,9}) > (\d{1,9})\)", limit=1 << 14, flags=re.IGNORECASE | re.DOTALL
)
_HINTS: Final = {
    401: "RANKFALL_LOKI_TOKEN_FILE or RANKFALL_LOKI_BASIC_FILE; a tenant: RANKFALL_LOKI_TENANT",
    403: "this tenant or login may not read there: check RANKFALL_LOKI_TENANT",
    404: "check the URL: it must lead to Loki, without /loki/api/v1, with the path of a proxy before it",
}


class _Stream(msgspec.Struct, frozen=True):
    stream: dict[str, str] = {}
    # Nanoseconds, text, metadata.
    values: list[list[str | dict[str, object]]] = []


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""  # noqa: N815 - Loki's name
    result: list[msgspec.Raw] = []


class _Answer(msgspec.Struct, frozen=True):
    data: _Data
    status: str = ""


def page(body: bytes, *, keys: Sequence[str], start: int, end: int) -> list[Entry]:
    """Returns an answer's lines from ``start`` until before ``end``; others are errors.

    Raises:
        LokiError: Not Loki's answer.
    """
    try:
        answer = decoding.decode(body, kind=_Answer)
        if answer.status != "success" or answer.data.resultType != "streams":
            raise _strange("it is not a list of streams")
        streams = [decoding.decode(raw, kind=_Stream) for raw in answer.data.result]
    except msgspec.DecodeError:
        raise _strange(f"it reads: {excerpt(body, limit=120) or 'nothing'}") from None
    found = []
    for one in streams:
        key = tuple(one.stream.get(name, "") for name in keys)
        for value in one.values:
            if len(value) < 2 or not isinstance(value[0], str) or not isinstance(value[1], str):  # noqa: PLR2004 - stamp and line
                raise _strange("a line has no stamp or no text")
            at = numbers.whole(value[0], digits=20)
            if at is None or not start <= at < end:
                raise _strange("the time of a line is outside the query")
            found.append(Entry(at=at, key=key, text=value[1], labels=one.stream))
    return found


def refused(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, secrets: Iterable[str] = ()
) -> LokiError:
    """Returns the error for an answer with an error status, ``secrets`` masked."""
    text = excerpt(body, secrets=secrets) or "no reason given"
    if status == _BAD and (found := _MOST.search(body.decode("utf-8", "replace"))) is not None:
        return LimitRefused(f"cannot {what}: {text} ({status})", most=numbers.matched(found[2]))
    return LokiError(
        f"cannot {what}: {text} ({status})",
        hint=_HINTS.get(status),
        retry_after=seconds(headers.get("Retry-After")),
        passing=status == TOO_MANY or status >= _SERVER_SIDE,
    )


def _strange(why: str) -> LokiError:
    return LokiError(
        f"the answer of Loki cannot be used: {why}",
        hint="check that the URL leads to Loki, not to a page of a proxy",
        passing=True,
    )


# Seconds per query; Loki's time-out is a minute.
TOTAL_S: Final = 90.0
CONNECT_S: Final = 10.0
# Bytes per page; lines have at most 256 KiB by default.
MAX_BODY: Final = 64 << 20
_ERROR_BODY: Final = 64 << 10
_OK: Final = 200
_UNAUTHORIZED: Final = 401


class Loki:
    """Client of one Loki server; an asynchronous context manager. ``total_s`` limits one query, in seconds.

    Raises:
        LokiError: Certificate or key unreadable.
    """

    def __init__(
        self, settings: LokiSettings, *, keys: Sequence[str], total_s: float = TOTAL_S, max_body: int = MAX_BODY
    ) -> None:
        self._keys = tuple(keys)
        self._max_body = max_body
        self._url = URL(settings.url) / "loki/api/v1/query_range"
        self._server = self._url.host or ""
        self._tenant = settings.tenant
        self._token = _watched(settings.token_file, "token for Loki")
        self._basic = _watched(settings.basic_file, "user:password for Loki")
        self._tls = _context(settings) if self._url.scheme == "https" else None
        self._timeout = aiohttp.ClientTimeout(total=total_s, connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def query_range(self, query: str, *, start: int, end: int, limit: int) -> list[Entry]:
        """Returns the oldest ``limit`` lines from ``start`` until before ``end`` (nanoseconds).

        ``limit`` is always sent, because a server's maximum may be below its default.

        Raises:
            LimitRefused: Too many lines for one query.
            LokiError: Failed request or invalid answer.
        """
        what = f"read lines from Loki at {self._server}"
        wanted = {"query": query, "start": str(start), "end": str(end), "limit": str(limit), "direction": "forward"}
        status, headers, body, whole = await self._ask(wanted, what=what, anew=False)
        if status == _UNAUTHORIZED and (self._token or self._basic):
            # The file may have changed.
            status, headers, body, whole = await self._ask(wanted, what=what, anew=True)
        if status != _OK:
            raise refused(status, headers, body, what=what, secrets=self._secrets())
        if not whole:
            if limit > 1:
                raise LimitRefused(
                    f"cannot {what}: {limit} lines are more than {self._max_body} bytes", most=limit // 2
                )
            raise LokiError(f"cannot {what}: one line is larger than {self._max_body} bytes")
        return page(body, keys=self._keys, start=start, end=end)

    async def _ask(self, wanted: dict[str, str], *, what: str, anew: bool) -> tuple[int, dict[str, str], bytes, bool]:
        if self._session is None:
            raise RuntimeError("the client is not open")
        headers = self._headers(anew=anew)
        try:
            async with self._session.get(
                self._url,
                params=wanted,
                headers=headers,
                ssl=self._tls if self._tls is not None else True,
                allow_redirects=False,
            ) as response:
                largest = self._max_body if response.status == _OK else _ERROR_BODY
                body, whole = await read(response, largest)
                return response.status, dict(response.headers), body, whole
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The library's messages may repeat the request.
            why = "no answer in time" if isinstance(error, TimeoutError) else _reason(error)
            raise LokiError(
                f"cannot {what}: {why}",
                hint="check the address, the network and the certificate authority (RANKFALL_LOKI_CA_FILE)",
                passing=not isinstance(error, aiohttp.ClientConnectorCertificateError),
            ) from None

    def _headers(self, *, anew: bool) -> dict[str, str]:
        found = {"Accept": "application/json"}
        if self._tenant is not None:
            found["X-Scope-OrgID"] = self._tenant
        try:
            if self._token is not None:
                found["Authorization"] = f"Bearer {_word(self._token.read(anew=anew), self._token)}"
            elif self._basic is not None:
                login = _word(self._basic.read(anew=anew), self._basic)
                found["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode('ascii')}"
        except CredentialsError as error:
            raise LokiError(error.message, hint="correct the path, or write the file", passing=True) from None
        return found

    def _secrets(self) -> tuple[str, ...]:
        try:
            found = self._headers(anew=False).get("Authorization", "")
        except LokiError:
            return ()
        return (found.partition(" ")[2],) if found else ()


def _watched(path: str | None, what: str) -> WatchedFile | None:
    return None if path is None else WatchedFile(path, what=what)


def _word(data: bytes, file: WatchedFile) -> str:
    text = data.decode("utf-8", "replace").strip()
    if not text.isprintable():
        raise LokiError(f"{file.path} holds more than one line", hint="write the secret and nothing else into it")
    return text


def _context(settings: LokiSettings) -> ssl.SSLContext:
    try:
        return key_material.context(
            authorities=_content(settings.ca_file),
            insecure=False,
            certificate=_content(settings.cert_file),
            key=_content(settings.key_file),
            what="Loki",
        )
    except KubeError as error:
        raise LokiError(error.message, hint=error.hint) from None


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LokiError(f"cannot read {path} (for Loki): {error.strerror}", hint="correct the path") from None


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError | OSError):
        return "no connection"
    return "the connection was cut"
