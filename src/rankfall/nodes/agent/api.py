"""The agent's requests over Python's own HTTP client: aiohttp alone would take 20 MiB on every node.

One connection for one thread. Each request is repeatable.
"""

from __future__ import annotations

import asyncio
import http.client
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

import msgspec

from rankfall.kube.auth.access import Access
from rankfall.kube.auth.credentials import Credentials, Proof
from rankfall.kube.errors import KubeConfigError, Unreachable, error_class
from rankfall.kube.request import seconds
from rankfall.kube.resources import EVENTS, NODES
from rankfall.kube.secret import excerpt
from rankfall.model import decoding

#: Namespace of Events about Nodes, as the kubelet's.
EVENT_NAMESPACE: Final = "default"
MANAGER: Final = "rankfall-agent"
_TIMEOUT_S: Final = 10.0
# Bytes of an answer; a Node has some tens of KiB.
_LARGEST: Final = 4 << 20
_UNAUTHORIZED: Final = 401
_REFUSED: Final = 400
_STRATEGIC: Final = "application/strategic-merge-patch+json"

Object = dict[str, Any]


class NodeApi:
    """Client of the API server for one node's agent; for one thread.

    ``timeout`` limits each connect, send or read, in seconds.
    """

    def __init__(self, access: Access, *, node: str, timeout: float = _TIMEOUT_S) -> None:
        if access.endpoint.proxy is not None:
            raise KubeConfigError("the agent cannot use a proxy", hint="use a kubeconfig without proxy-url")
        self._access, self._node, self._timeout = access, node, timeout
        self._server = urlsplit(access.endpoint.server)
        self._credentials = Credentials(access)
        self._runner = asyncio.Runner()
        self._connection: http.client.HTTPConnection | None = None
        self._context: ssl.SSLContext | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()
        self._runner.run(self._credentials.close())
        self._runner.close()

    def patch(self, body: Mapping[str, Any]) -> Object:
        """Merges into the Node by its status, so no right to change taints or cordons is needed.

        Raises:
            KubeError: As the client of ``kube``.
        """
        return self._call("PATCH", NODES.path(None, self._node, "status"), body, kind=_STRATEGIC)

    def event(self, body: Mapping[str, Any]) -> Object:
        """Creates an Event. Raises ``Conflict`` if one of this name exists."""
        return self._call("POST", EVENTS.path(EVENT_NAMESPACE), body, kind="application/json")

    def _call(self, method: str, path: str, body: Mapping[str, Any], *, kind: str) -> Object:
        proof = self._runner.run(self._credentials.current())
        status, headers, data = self._sent(method, path, body, kind=kind, proof=proof)
        if status == _UNAUTHORIZED:
            self._runner.run(self._credentials.refresh(proof))
            proof = self._runner.run(self._credentials.current())
            status, headers, data = self._sent(method, path, body, kind=kind, proof=proof)
        what = f"{'patch' if method == 'PATCH' else 'create'} {path}"
        if status >= _REFUSED:
            text = excerpt(_message(data), secrets=self._credentials.secrets)
            raise error_class(status)(
                f"cannot {what}: {status} {text}", status=status, retry_after=seconds(headers.get("Retry-After"))
            )
        try:
            found = decoding.decode(data)
        except msgspec.DecodeError:
            found = None
        if not isinstance(found, dict):
            raise Unreachable(f"cannot {what}: the answer is not an object", maybe_done=True)
        return found

    def _sent(
        self, method: str, path: str, body: Mapping[str, Any], *, kind: str, proof: Proof
    ) -> tuple[int, Mapping[str, str], bytes]:
        target = f"{self._server.path}{path}?{urlencode({'fieldManager': MANAGER})}"
        headers = {"Accept": "application/json", "Content-Type": kind, **dict(proof.headers)}
        if proof.context is not self._context:
            self._drop()
        kept = self._connection is not None
        for last in (not kept, True):
            try:
                connection = self._open(proof)
                connection.request(method, target, msgspec.json.encode(body), headers)
                answer = connection.getresponse()
                return answer.status, dict(answer.headers), answer.read(_LARGEST)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                if last:
                    # An error text may hold sent data.
                    reported = f"no answer from {self._access.server}: {type(error).__name__}"
                    tls = isinstance(error, ssl.SSLError)
                    raise Unreachable(reported, hint="wait; the agent tries again", maybe_done=True, tls=tls) from None
        raise AssertionError("the loop above ends otherwise")

    def _open(self, proof: Proof) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = self._server.hostname or "", self._server.port
            if proof.context is None:
                self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
            else:
                self._connection = _Secure(
                    host, port, context=proof.context, timeout=self._timeout, name=self._access.endpoint.tls_server_name
                )
            self._context = proof.context
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class _Secure(http.client.HTTPSConnection):
    """A connection whose certificate name may differ from the address."""

    def __init__(
        self, host: str, port: int | None, *, context: ssl.SSLContext, timeout: float, name: str | None
    ) -> None:
        super().__init__(host, port, context=context, timeout=timeout)
        self._wrapper, self._name = context, name or host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._wrapper.wrap_socket(self.sock, server_hostname=self._name)


def _message(data: bytes) -> bytes | str:
    try:
        found = decoding.decode(data)
    except msgspec.DecodeError:
        return data
    return str(found.get("message", "")) if isinstance(found, dict) else data
