"""Minimal client of an S3-compatible store (signature version 4), standard library only."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

_TIMEOUT_S = 10.0
_MAX_ANSWER = 1 << 20
_DONE, _THERE, _CONFLICT, _NO_CONDITIONS, _SLOW_DOWN = 200, 412, 409, 501, 429


class RefusedError(Exception):
    """The store refuses permanently."""


class Bucket:
    """Bucket with keys from the environment.

    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``; optional ``AWS_SESSION_TOKEN``, ``AWS_REGION``,
    ``AWS_ENDPOINT_URL`` (addressed by path).

    Raises:
        RefusedError: Keys are missing.
    """

    def __init__(self, name: str, environ: Mapping[str, str], *, timeout_s: float = _TIMEOUT_S) -> None:
        self._key, self._secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
        self._token = environ.get("AWS_SESSION_TOKEN", "")
        if not self._key or not self._secret:
            raise RefusedError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set in the slot's environment")
        self._region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
        by_path = bool(endpoint) or "." in name
        endpoint = endpoint or f"https://{'' if by_path else name + '.'}s3.{self._region}.amazonaws.com"
        scheme, _, rest = endpoint.partition("://")
        self._tls, self._host = scheme != "http", rest.strip("/")
        self._base = f"/{name}" if by_path else ""
        self._roots = environ.get("AWS_CA_BUNDLE") or None
        self._once = True
        self._timeout_s = timeout_s

    def put(self, key: str, data: bytes) -> None:
        """Writes one object unless it exists.

        Raises:
            RefusedError: The store refused.
            OSError: The store is unreachable or busy.
        """
        status = self._put(key, data)
        if status == _NO_CONDITIONS and self._once:
            # The server lacks conditions; unique names overwrite nothing.
            self._once = False
            status = self._put(key, data)
        if status not in (_DONE, _THERE):
            _refuse(status)

    def ask(self, query: Mapping[str, str], limit: int) -> bytes:
        """Returns at most ``limit`` bytes of the answer to a bucket query.

        Raises:
            RefusedError: The store refused.
            OSError: Unreachable or busy.
        """
        status, answer = self._send("GET", "", b"", query=query, limit=limit)
        if status != _DONE:
            _refuse(status)
        return answer

    def _put(self, key: str, data: bytes) -> int:
        return self._send("PUT", key, data, once=self._once)[0]

    def _send(
        self,
        method: str,
        key: str,
        data: bytes,
        *,
        once: bool = False,
        query: Mapping[str, str] | None = None,
        limit: int = _MAX_ANSWER,
    ) -> tuple[int, bytes]:
        import http.client
        from urllib.parse import quote

        path = quote(f"{self._base}/{key}", safe="/-_.~")
        # As the signature requires.
        words = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in (query or {}).items())
        asked = "&".join(f"{name}={value}" for name, value in words)
        headers = self._signed(method, path, data, query=asked, once=once)
        if self._tls:
            import ssl

            context = ssl.create_default_context(cafile=self._roots)
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, timeout=self._timeout_s, context=context
            )
        else:
            link = http.client.HTTPConnection(self._host, timeout=self._timeout_s)
        try:
            link.request(method, f"{path}?{asked}" if asked else path, body=data, headers=headers)
            answer = link.getresponse()
            return answer.status, answer.read(limit)
        except http.client.HTTPException as error:
            raise OSError(f"the store's answer is invalid: {type(error).__name__}") from error
        finally:
            link.close()

    def _signed(self, method: str, path: str, data: bytes, *, query: str, once: bool) -> dict[str, str]:
        import hashlib
        import hmac

        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(data).hexdigest()
        headers = {"host": self._host, "x-amz-content-sha256": digest, "x-amz-date": now}
        if self._token:
            headers["x-amz-security-token"] = self._token
        if once:
            headers["if-none-match"] = "*"
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{self._secret}".encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        credential = f"Credential={self._key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return dict(headers, authorization=f"AWS4-HMAC-SHA256 {credential}")


def _refuse(status: int) -> None:
    """Raises ``OSError`` for a temporary failure status, else ``RefusedError``."""
    words = f"it answered {status}"
    if status in (_CONFLICT, _SLOW_DOWN) or status >= 500:  # noqa: PLR2004 - the server's own trouble
        raise OSError(words)
    raise RefusedError(words)
