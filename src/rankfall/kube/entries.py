"""Clusters and users of a kubeconfig, read field by field. What is unknown, contradictory or gone from Kubernetes is refused by name.

kubectl ignores unknown fields; here a misspelt ``insecure-skip-tls-verify`` or ``as-groups`` would quietly change who we are, so they are errors.
Values of credentials never appear in a message.
"""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from rankfall.kube import entry_plugin
from rankfall.kube.access import Endpoint, Impersonation, Login
from rankfall.kube.entry_fields import Entry, Fields
from rankfall.kube.errors import KubeConfigError
from rankfall.kube.secret import Secret
from rankfall.model.http_address import is_http

_CLUSTER: Final = frozenset(
    {
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority",
        "certificate-authority-data",
        "proxy-url",
        "disable-compression",
        "extensions",
    }
)
_USER: Final = frozenset(
    {
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "username",
        "password",
        "exec",
        "as",
        "as-uid",
        "as-groups",
        "as-user-extra",
        "extensions",
    }
)


def endpoint(entry: Entry, *, name: str, path: str) -> Endpoint:
    """A cluster's entry.

    Raises:
        KubeConfigError: a field is unknown, wrong or contradicts another one.
    """
    fields = Fields(entry, what=f"cluster {name!r}", path=path, known=_CLUSTER)
    server = fields.text("server")
    if server is None:
        fields.refuse("it has no server", "add the API server's address")
    ca_file, ca_data = fields.file_or_data("certificate-authority")
    insecure = fields.flag("insecure-skip-tls-verify")
    if insecure and (ca_file or ca_data):
        fields.refuse("insecure-skip-tls-verify and a certificate authority are both given", "keep the authority")
    return Endpoint(
        server=_address(fields, server),
        tls_server_name=fields.text("tls-server-name"),
        insecure=insecure,
        ca_file=ca_file,
        ca_data=ca_data,
        proxy=_proxy(fields),
        compress=not fields.flag("disable-compression"),
    )


def login(entry: Entry, *, name: str, path: str, cluster: Entry) -> Login:
    """A user's entry.

    Args:
        entry: its fields.
        name: of the user.
        path: of its file.
        cluster: the cluster's fields: they may have something for the user's plug-in.

    Raises:
        KubeConfigError: a field is unknown, wrong or contradicts another one.
    """
    fields = Fields(entry, what=f"user {name!r}", path=path, known=_USER)
    cert_file, cert_data = fields.file_or_data("client-certificate")
    key_file, key_data = fields.file_or_data("client-key")
    certificate, key = bool(cert_file or cert_data), bool(key_file or key_data)
    if certificate != key:
        given, missing = ("client-certificate", "client-key") if certificate else ("client-key", "client-certificate")
        fields.refuse(f"{given} is given without {missing}", f"add {missing} or {missing}-data")
    token, token_file = fields.text("token"), fields.file("tokenFile")
    username, password = fields.text("username"), fields.text("password")
    if (token or token_file) and (username or password):
        fields.refuse("token and username are both given", "keep one of them")
    exec_ = fields.mapping("exec")
    return Login(
        token=_secret(token),
        token_file=token_file,
        cert_file=cert_file,
        cert_data=cert_data,
        key_file=key_file,
        key_data=None if key_data is None else Secret(key_data.decode("latin-1")),
        username=username,
        password=_secret(password),
        plugin=None if exec_ is None else entry_plugin.plugin(exec_, fields, cluster),
        impersonate=_impersonation(fields),
    )


def check_transport(endpoint: Endpoint, login: Login, *, what: str) -> None:
    """Refuse to send credentials over a network in clear text.

    Raises:
        KubeConfigError: the server is asked without TLS, is not on this machine, and the user has credentials.
    """
    parts = urlsplit(endpoint.server)
    if parts.scheme == "https" or _on_this_machine(parts.hostname or ""):
        return
    if login.token or login.token_file or login.username or login.password or login.plugin:
        raise KubeConfigError(
            f"{what}: credentials would travel in clear text to {endpoint.server}",
            hint="use the server's https address",
        )


def _secret(value: str | None) -> Secret | None:
    return None if value is None else Secret(value)


def _address(fields: Fields, server: str) -> str:
    parts = urlsplit(server) if is_http(server) else None
    if parts is None or parts.query or parts.fragment or not server.isascii() or not server.isprintable():
        fields.refuse("server is no address", "write it as https://host:port")
    if parts.username is not None or parts.password is not None:
        fields.refuse("server holds a user name or password", "put them into the user's entry")
    return server.rstrip("/")


def _proxy(fields: Fields) -> Secret | None:
    value = fields.text("proxy-url")
    if value is None:
        return None
    if not is_http(value):
        fields.refuse(
            "proxy-url is no address of a proxy that can be used here",
            "use http://host:port or https://host:port, or reach the server without a proxy",
        )
    return Secret(value)


def _impersonation(fields: Fields) -> Impersonation | None:
    user, uid, groups = fields.text("as"), fields.text("as-uid"), fields.texts("as-groups")
    extra = fields.mapping("as-user-extra") or {}
    if user is None:
        if uid or groups or extra:
            fields.refuse("as-uid, as-groups or as-user-extra without as", "add as: the user to act as")
        return None
    below = Fields(extra, what=f"{fields.what} (as-user-extra)", path=fields.path, known=frozenset(extra))
    found = Impersonation(
        user=user, uid=uid, groups=groups, extra=tuple((key, below.texts(key)) for key in sorted(extra))
    )
    values = [user, uid or "", *groups, *(value for _, many in found.extra for value in many)]
    if not all(value.isprintable() for value in values):
        fields.refuse("as, as-groups or as-user-extra has control characters", "correct the name")
    return found


def _on_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
