"""Asks a Loki: one query of a range, bounded in time and size, with a tenant and credentials that rotate.

It repeats nothing by itself and hides nothing: whoever reads keeps its cursor, waits (``LokiError.retry_after``) and says that it is blind.
Nothing is redirected, because a redirect would carry the credentials elsewhere. Headers are never shown.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
from yarl import URL

from rankfall.kube import tls
from rankfall.kube.errors import CredentialsError, KubeError
from rankfall.kube.files import WatchedFile
from rankfall.kube.sessions import read
from rankfall.observe.loki import answers
from rankfall.observe.loki.cursor import Entry
from rankfall.observe.loki.errors import LimitRefused, LokiError
from rankfall.observe.loki.settings import LokiSettings

# One query, from the beginning to the last byte; Loki's own time-out is a minute.
TOTAL_S: Final = 90.0
CONNECT_S: Final = 10.0
# Of one page. Lines of Loki have 256 KiB at most unless it is told otherwise, most have a hundred bytes.
MAX_BODY: Final = 64 << 20
_ERROR_BODY: Final = 64 << 10
_OK: Final = 200
_UNAUTHORIZED: Final = 401


class Loki:
    """A client; to be entered.

    Args:
        settings: where, and who we are.
        keys: labels whose values tell sources apart.
        total_s: limit of one query.
        max_body: largest answer, bytes.

    Raises:
        LokiError: a certificate or key cannot be read.
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
        """The oldest ``limit`` lines of a range.

        Args:
            query: in Loki's language.
            start: nanoseconds since the epoch, included.
            end: not included.
            limit: lines; always sent, because a server may allow fewer than its own default.

        Raises:
            LimitRefused: so many are not given at once.
            LokiError: it could not be asked, or its answer is none.
        """
        what = f"read lines from Loki at {self._server}"
        wanted = {"query": query, "start": str(start), "end": str(end), "limit": str(limit), "direction": "forward"}
        status, headers, body, whole = await self._ask(wanted, what=what, anew=False)
        if status == _UNAUTHORIZED and (self._token or self._basic):
            # The file may have been changed since it was read.
            status, headers, body, whole = await self._ask(wanted, what=what, anew=True)
        if status != _OK:
            raise answers.refused(status, headers, body, what=what, secrets=self._secrets())
        if not whole:
            if limit > 1:
                raise LimitRefused(
                    f"cannot {what}: {limit} lines are more than {self._max_body} bytes", most=limit // 2
                )
            raise LokiError(f"cannot {what}: one line is larger than {self._max_body} bytes")
        return answers.page(body, keys=self._keys, start=start, end=end)

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
            # Texts of the HTTP library may repeat what was sent.
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
        raise LokiError(f"{file.path} holds more than one line", hint="it must hold the secret and nothing else")
    return text


def _context(settings: LokiSettings) -> ssl.SSLContext:
    try:
        return tls.context(
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
        return "its name is not known"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is refused"
    if isinstance(error, aiohttp.ClientConnectorError | OSError):
        return "no connection"
    return "the connection was cut"
