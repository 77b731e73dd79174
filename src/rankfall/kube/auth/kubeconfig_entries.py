"""Reads clusters, users and exec plug-ins of a kubeconfig.

Unknown, contradictory and removed fields are refused, unlike kubectl: a misspelt ``as-groups`` would change the
identity. Messages never contain credentials.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast, get_args
from urllib.parse import urlsplit

import msgspec

from rankfall.kube.auth.access import Endpoint, ExecPlugin, Impersonation, Login, Mode, Version
from rankfall.kube.errors import KubeConfigError
from rankfall.kube.secret import Secret, excerpt
from rankfall.model.numbers import is_http

Entry = Mapping[str, Any]


class Fields:
    """One entry of a kubeconfig, with typed access to its fields."""

    def __init__(self, entry: Entry, *, what: str, path: str, known: frozenset[str]) -> None:
        self._entry, self.what, self.path = entry, what, path
        for name in entry:
            if name == "auth-provider":
                self.refuse(
                    "Kubernetes removed auth-provider in 1.26",
                    "log in again with a tool that writes an exec plug-in",
                )
            if name not in known:
                self.refuse(f"unknown field {excerpt(str(name), limit=60)!r}", "correct its spelling or remove it")

    def refuse(self, why: str, hint: str) -> NoReturn:
        """Raises the error for this entry."""
        raise KubeConfigError(f"{self.what} in {self.path}: {why}", hint=hint)

    def text(self, name: str) -> str | None:
        """Returns a text; None if missing or empty, as in kubectl."""
        value = self._entry.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self.refuse(f"{name} must be a text", "put it in quotes")
        return value

    def flag(self, name: str) -> bool:
        """Returns a boolean; False if it is missing."""
        value = self._entry.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(f"{name} must be true or false", "write it without quotes")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        value = self._entry.get(name) or ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            self.refuse(f"{name} must be a list of texts", "put each in quotes")
        return tuple(value)

    def mapping(self, name: str) -> Entry | None:
        """Fields below this one; None if missing."""
        value = self._entry.get(name)
        if value is not None and not isinstance(value, dict):
            self.refuse(f"{name} must hold fields", "see kubectl config view")
        return cast("Entry | None", value)

    def data(self, name: str) -> bytes | None:
        """Decodes base64 bytes; None if missing."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            self.refuse(f"{name} is not base64", "fetch this kubeconfig again")

    def file(self, name: str) -> str | None:
        """Returns a path, relative to the folder of the kubeconfig; None if missing."""
        value = self.text(name)
        return None if value is None else str(Path(self.path).parent.absolute() / value)

    def file_or_data(self, name: str) -> tuple[str | None, bytes | None]:
        """Returns a path or base64 content; refuses both, like kubectl."""
        path, data = self.file(name), self.data(f"{name}-data")
        if path is not None and data is not None:
            self.refuse(f"{name} and {name}-data are both given", "keep one of them")
        return path, data


_EXEC: Final = frozenset(
    {"apiVersion", "command", "args", "env", "installHint", "provideClusterInfo", "interactiveMode"}
)
_VERSIONS: Final = get_args(Version)
_MODES: Final = get_args(Mode)
_CLUSTER_CONFIG: Final = "client.authentication.k8s.io/exec"


def plugin(entry: Entry, user: Fields, cluster: Entry) -> ExecPlugin:
    """Returns the plug-in of a user; the cluster's extension may configure it.

    Raises:
        KubeConfigError: An unknown, missing or invalid field.
    """
    fields = Fields(entry, what=f"{user.what} (exec)", path=user.path, known=_EXEC)
    version, command = fields.text("apiVersion"), fields.text("command")
    if version not in _VERSIONS:
        fields.refuse(
            f"apiVersion {excerpt(version or '', limit=60)!r} is not supported",
            f"update the plug-in; it must speak {' or '.join(_VERSIONS)}",
        )
    if command is None:
        fields.refuse("it has no command", "add the program to run")
    mode = fields.text("interactiveMode")
    if mode is None and version == _VERSIONS[0]:
        fields.refuse("interactiveMode is missing, which v1 requires", f"set it to {' or '.join(_MODES)}")
    if mode is not None and mode not in _MODES:
        fields.refuse(f"interactiveMode {excerpt(mode, limit=60)!r} is unknown", f"set it to {' or '.join(_MODES)}")
    if "/" in command:
        command = str(Path(fields.path).parent.absolute() / command)
    tell = fields.flag("provideClusterInfo")
    return ExecPlugin(
        version=cast("Version", version),
        command=command,
        args=tuple(Secret(word) for word in fields.texts("args")),
        env=_environment(entry, fields),
        interactive=cast("Mode", mode or "IfAvailable"),
        install_hint=fields.text("installHint"),
        tell_cluster=tell,
        cluster_config=_cluster_config(cluster) if tell else None,
    )


def _environment(entry: Entry, fields: Fields) -> tuple[tuple[str, Secret], ...]:
    rows = entry.get("env") or []
    found: list[tuple[str, Secret]] = []
    for row in rows if isinstance(rows, list) else (None,):
        name, value = (row.get("name"), row.get("value", "")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(value, str)) or not name or "=" in name or "\0" in name + value:
            fields.refuse("env must be a list of name and value", "put values in quotes")
        found.append((name, Secret(value)))
    return tuple(found)


def _cluster_config(cluster: Entry) -> Secret | None:
    for row in cluster.get("extensions") or ():
        if isinstance(row, dict) and row.get("name") == _CLUSTER_CONFIG:
            try:
                return Secret(msgspec.json.encode(row.get("extension")).decode())
            except RecursionError:
                return None  # YAML can refer to itself, JSON cannot
    return None


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
    """Parses a cluster's entry.

    Raises:
        KubeConfigError: An unknown, invalid or contradictory field.
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
    """Parses a user's entry.

    Raises:
        KubeConfigError: An unknown, invalid or contradictory field.
    """
    fields = Fields(entry, what=f"user {name!r}", path=path, known=_USER)
    cert_file, cert_data = fields.file_or_data("client-certificate")
    key_file, key_data = fields.file_or_data("client-key")
    certificate, key = bool(cert_file or cert_data), bool(key_file or key_data)
    if certificate != key:
        given, missing = ("client-certificate", "client-key") if certificate else ("client-key", "client-certificate")
        fields.refuse(f"{given} needs {missing}", f"add {missing} or {missing}-data")
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
        plugin=None if exec_ is None else plugin(exec_, fields, cluster),
        impersonate=_impersonation(fields),
    )


def check_transport(endpoint: Endpoint, login: Login, *, what: str) -> None:
    """Refuses to send credentials over a network in clear text.

    Raises:
        KubeConfigError: Credentials for a remote server without TLS.
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
        fields.refuse("server is not an address", "write it as https://host:port")
    if parts.username is not None or parts.password is not None:
        fields.refuse("server holds a user name or password", "put them into the user's entry")
    return server.rstrip("/")


def _proxy(fields: Fields) -> Secret | None:
    value = fields.text("proxy-url")
    if value is None:
        return None
    if not is_http(value):
        fields.refuse(
            "proxy-url is not the address of a proxy that can be used here",
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
