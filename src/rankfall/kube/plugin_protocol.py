"""``ExecCredential``: what a credential plug-in is told in its environment, and what it answers. Pure; refuses what kubectl refuses."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from rankfall.kube.access import Endpoint, ExecPlugin
from rankfall.kube.secret import Secret, excerpt
from rankfall.model import decoding

INFO: Final = "KUBERNETES_EXEC_INFO"
"""The variable that tells it."""

_FIELDS: Final = ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")


class Misspoken(Exception):  # noqa: N818 - read as the end of a sentence that begins with the plug-in's name
    """The answer cannot be used; says why, without anything of it that could be a credential."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a plug-in gave.

    Attributes:
        token: for the header.
        certificate: of the client, as PEM, with
        key: its key; PEM, bytes read as Latin-1 (as in ``Login.key_data``).
        expires: seconds since the epoch; None = only a 401 ends it.
    """

    token: Secret | None = None
    certificate: bytes | None = None
    key: Secret | None = None
    expires: float | None = None

    def __repr__(self) -> str:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        return f"Given({', '.join(given)})"


def told(plugin: ExecPlugin, endpoint: Endpoint, *, authorities: bytes | None, interactive: bool) -> str:
    """Content of ``KUBERNETES_EXEC_INFO``.

    Args:
        plugin: which; only one that asks for it is told of the cluster.
        endpoint: of the cluster.
        authorities: of the cluster, as PEM.
        interactive: whether it may ask at the terminal.
    """
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.tell_cluster:
        spec["cluster"] = _cluster(plugin, endpoint, authorities)
    return msgspec.json.encode({"kind": "ExecCredential", "apiVersion": plugin.version, "spec": spec}).decode()


def understood(output: bytes, plugin: ExecPlugin, *, secrets: Sequence[str]) -> Given:
    """The credentials in an answer.

    Args:
        output: its stdout.
        plugin: which.
        secrets: not to be shown in an error.

    Raises:
        Misspoken: it is no answer of this protocol, or has no credentials.
    """
    try:
        document = decoding.decode(output)
    except msgspec.DecodeError:
        document = None
    if not isinstance(document, Mapping):
        raise Misspoken("printed no JSON object")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != "ExecCredential" or version != plugin.version:
        shown = excerpt(f"{kind} {version}", secrets=secrets, limit=100)
        raise Misspoken(f"printed {shown}, not ExecCredential {plugin.version}")
    status = document.get("status")
    if not isinstance(status, Mapping):
        raise Misspoken("gave no status")
    values = [status.get(name) or None for name in _FIELDS]
    if not all(value is None or isinstance(value, str) for value in values):
        raise Misspoken("gave a status with fields of the wrong type")
    token, certificate, key, expires = values
    if (certificate is None) != (key is None):
        raise Misspoken("gave a certificate without its key, or a key without its certificate")
    if token is None and certificate is None:
        raise Misspoken("gave neither a token nor a certificate")
    return Given(
        token=None if token is None else Secret(token),
        certificate=None if certificate is None else certificate.encode(),
        key=None if key is None else Secret(key.encode().decode("latin-1")),
        expires=None if expires is None else _moment(expires, secrets),
    )


def _cluster(plugin: ExecPlugin, endpoint: Endpoint, authorities: bytes | None) -> dict[str, Any]:
    found: dict[str, Any] = {"server": endpoint.server}
    if endpoint.tls_server_name:
        found["tls-server-name"] = endpoint.tls_server_name
    if endpoint.insecure:
        found["insecure-skip-tls-verify"] = True
    if authorities is not None:
        found["certificate-authority-data"] = base64.b64encode(authorities).decode("ascii")
    if endpoint.proxy is not None:
        found["proxy-url"] = endpoint.proxy.reveal()
    if plugin.cluster_config is not None:
        found["config"] = msgspec.Raw(plugin.cluster_config.reveal().encode())
    return found


def _moment(text: str, secrets: Sequence[str]) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        shown = excerpt(text, secrets=secrets, limit=60)
        raise Misspoken(f"gave an expirationTimestamp that is no time: {shown}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
