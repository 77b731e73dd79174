"""Chooses cluster and user by kubectl's rules, else the pod's service account.

The first file with a name wins as a whole. Only the chosen context is checked in full.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import yaml

from rankfall.kube.auth import kubeconfig_entries
from rankfall.kube.auth.access import IN_CLUSTER, Access, Endpoint, ExecPlugin, Impersonation, Login, Origin
from rankfall.kube.auth.kubeconfig_entries import Fields
from rankfall.kube.errors import KubeConfigError, NoKubeConfig
from rankfall.kube.secret import excerpt

__all__ = [
    "IN_CLUSTER",
    "Access",
    "Endpoint",
    "ExecPlugin",
    "Impersonation",
    "Login",
    "Place",
    "access_of",
    "in_pod",
    "load_access",
    "pod_access",
    "reread",
]

POD_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
# Thousands of clusters take a few MiB.
_LARGEST: Final = 16 << 20
_KINDS: Final = (("clusters", "cluster"), ("contexts", "context"), ("users", "user"))
_CONTEXT: Final = frozenset({"cluster", "user", "namespace", "extensions"})
_MAX_NAMES: Final = 10
# libyaml is ten times as fast.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Named(msgspec.Struct, frozen=True):
    """One entry and the path of its file."""

    fields: dict[str, Any]
    path: str


class Merged(msgspec.Struct, frozen=True):
    """All files merged into one."""

    clusters: dict[str, Named]
    contexts: dict[str, Named]
    users: dict[str, Named]
    current: str


def load_access(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Access:
    """Returns the cluster and user of ``context``, unaffected by later changes of the current one.

    ``kubeconfig`` None = ``$KUBECONFIG``, else ``~/.kube/config``. ``context`` may be ``in-cluster``.

    Raises:
        KubeConfigError: Missing, unreadable or refused setting.
    """
    paths = _paths(kubeconfig, environ)
    merged = _merge(paths, must_exist=kubeconfig is not None)
    name = context or merged.current
    if name == IN_CLUSTER and name not in merged.contexts:
        return pod_access(namespace=namespace, environ=environ)
    if not name:
        if kubeconfig is None and in_pod(environ):
            return pod_access(namespace=namespace, environ=environ)
        raise _no_context(merged, paths)
    return _access(merged, name, namespace=namespace, paths=paths)


class Place(Protocol):
    """Names a cluster; each field may be None."""

    @property
    def kubeconfig(self) -> str | None:
        """Path of one file; None = by kubectl's rules."""

    @property
    def context(self) -> str | None:
        """Context; None = the kubeconfig's current one."""

    @property
    def namespace(self) -> str | None:
        """Namespace; None = the context's."""


def access_of(place: Place) -> Access:
    """Returns access to the named cluster, or kubectl's current one.

    Raises:
        KubeConfigError: No usable cluster.
    """
    return load_access(kubeconfig=place.kubeconfig, context=place.context, namespace=place.namespace)


def reread(access: Access) -> Access:
    """Returns the same context, cluster and user as the files have them now.

    Raises:
        KubeConfigError: Missing entries, or another server.
    """
    if access.origin is None:
        return access
    merged = _merge(access.origin.paths, must_exist=False)
    cluster, user = _entry(merged.clusters, access.cluster, "cluster"), Named({}, "")
    if access.user:
        user = _entry(merged.users, access.user, "user")
    found = kubeconfig_entries.endpoint(cluster.fields, name=access.cluster, path=cluster.path)
    if found.server != access.server:
        raise KubeConfigError(
            f"cluster {access.cluster!r} in {cluster.path} is now at {found.server}, but was at {access.server}",
            hint="name the context of the old one, to which the run belongs, or start a new run",
        )
    who = kubeconfig_entries.login(user.fields, name=access.user, path=user.path, cluster=cluster.fields)
    kubeconfig_entries.check_transport(found, who, what=f"context {access.context!r}")
    return msgspec.structs.replace(access, endpoint=found, login=who)


def _paths(kubeconfig: str | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    if kubeconfig is not None:
        return (str(Path(kubeconfig).expanduser()),)
    listed = environ.get("KUBECONFIG", "")
    if listed:
        return tuple(dict.fromkeys(path for path in listed.split(os.pathsep) if path))
    home = environ.get("HOME", "")
    return (str(Path(home, ".kube", "config")),) if home else ()


def _merge(paths: tuple[str, ...], *, must_exist: bool) -> Merged:
    found: dict[str, dict[str, Named]] = {plural: {} for plural, _ in _KINDS}
    current = ""
    for path in paths:
        document = _document(path, must_exist=must_exist)
        for plural, singular in _KINDS:
            for name, entry in _named(document, plural, singular, path).items():
                found[plural].setdefault(name, entry)
        active = document.get("current-context") or ""
        if not isinstance(active, str):
            raise KubeConfigError(f"current-context in {path} must be a text", hint="put it in quotes")
        current = current or active
    return Merged(found["clusters"], found["contexts"], found["users"], current)


def _document(path: str, *, must_exist: bool) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        if not must_exist:
            return {}
        why = "there is no such file"
    except OSError as error:
        why = error.strerror or type(error).__name__
    else:
        if len(data) > _LARGEST:
            raise KubeConfigError(
                f"{path} is larger than {_LARGEST} bytes", hint="use another file: this is not a kubeconfig"
            )
        return _parsed(path, data)
    raise KubeConfigError(f"cannot read the kubeconfig {path}: {why}", hint="correct --kubeconfig or $KUBECONFIG")


def _parsed(path: str, data: bytes) -> dict[str, Any]:
    where = ""
    try:
        found = yaml.load(data, Loader=_LOADER)  # noqa: S506 - it is the safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # Only the line number: its text may be a credential.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        found = ()
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise KubeConfigError(
            f"{path} is not a kubeconfig: it cannot be read as YAML fields{where}", hint="fetch it again"
        )
    version, kind = found.get("apiVersion", "v1"), found.get("kind", "Config")
    if (version or "v1", kind or "Config") != ("v1", "Config"):
        raise KubeConfigError(
            f"{path} is not a kubeconfig: it is a {excerpt(str(kind), limit=60)} {excerpt(str(version), limit=60)}",
            hint="give a file of apiVersion v1, kind Config",
        )
    return found


def _named(document: Mapping[str, Any], plural: str, singular: str, path: str) -> dict[str, Named]:
    rows = document.get(plural) or []
    found: dict[str, Named] = {}
    for row in rows if isinstance(rows, list) else [None]:
        name = row.get("name") if isinstance(row, dict) else None
        fields = row.get(singular) if isinstance(row, dict) else None
        if not isinstance(name, str) or not isinstance(fields, dict | None):
            raise KubeConfigError(
                f"{plural} in {path} must be a list of name and {singular}", hint="check it with kubectl config view"
            )
        if name in found:
            raise KubeConfigError(f"{path} has two {plural} named {name!r}", hint="remove one of them")
        found[name] = Named(fields or {}, path)
    return found


def _access(merged: Merged, name: str, *, namespace: str | None, paths: tuple[str, ...]) -> Access:
    chosen = _entry(merged.contexts, name, "context")
    fields = Fields(chosen.fields, what=f"context {name!r}", path=chosen.path, known=_CONTEXT)
    cluster_name, user_name = fields.text("cluster"), fields.text("user") or ""
    if cluster_name is None:
        fields.refuse("it names no cluster", "set one with kubectl config set-context")
    cluster, user = _entry(merged.clusters, cluster_name, "cluster"), Named({}, "")
    if user_name:
        user = _entry(merged.users, user_name, "user")
    endpoint = kubeconfig_entries.endpoint(cluster.fields, name=cluster_name, path=cluster.path)
    login = kubeconfig_entries.login(user.fields, name=user_name, path=user.path, cluster=cluster.fields)
    kubeconfig_entries.check_transport(endpoint, login, what=f"context {name!r}")
    return Access(
        context=name,
        cluster=cluster_name,
        user=user_name,
        namespace=namespace or fields.text("namespace") or "default",
        endpoint=endpoint,
        login=login,
        origin=Origin(paths=tuple(str(Path(path).absolute()) for path in paths)),
    )


def _entry(found: Mapping[str, Named], name: str, kind: str) -> Named:
    if name in found:
        return found[name]
    known = ", ".join(sorted(found)[:_MAX_NAMES]) or "none"
    raise KubeConfigError(
        f"the kubeconfig has no {kind} {name!r}; it has: {known}", hint="list them with kubectl config get-contexts"
    )


def _no_context(merged: Merged, paths: tuple[str, ...]) -> KubeConfigError:
    if merged.contexts:
        return KubeConfigError(
            f"no current context is set in {', '.join(paths)}",
            hint=f"name one with --context: {', '.join(sorted(merged.contexts)[:_MAX_NAMES])}",
        )
    where = ", ".join(paths) or "$KUBECONFIG"
    return NoKubeConfig(
        f"no cluster to work with: no kubeconfig at {where}, and this is not a pod with a service account",
        hint="set $KUBECONFIG, give --kubeconfig FILE, or kubernetes.kubeconfig in the job file; --backend local needs no cluster",
    )


def in_pod(environ: Mapping[str, str], *, folder: str | None = None) -> bool:
    """True if this process runs in a pod with access to its API server."""
    return bool(
        environ.get("KUBERNETES_SERVICE_HOST")
        and environ.get("KUBERNETES_SERVICE_PORT")
        and Path(folder or POD_FOLDER, "token").is_file()
    )


def pod_access(*, namespace: str | None, environ: Mapping[str, str], folder: str | None = None) -> Access:
    """Returns the access of this pod's service account; ``namespace`` None = the pod's.

    The kubelet renews the token hourly, so its file is stored, not its value.

    Raises:
        KubeConfigError: No pod, or no service account.
    """
    if not in_pod(environ, folder=folder):
        raise KubeConfigError(
            "this is not a pod with a service account",
            hint="set automountServiceAccountToken, or give a kubeconfig with --kubeconfig",
        )
    root = Path(folder or POD_FOLDER)
    ca = root / "ca.crt"
    return Access(
        context=IN_CLUSTER,
        cluster=IN_CLUSTER,
        user=IN_CLUSTER,
        namespace=namespace or environ.get("POD_NAMESPACE") or _namespace(root) or "default",
        endpoint=Endpoint(
            server=f"https://{_host(environ['KUBERNETES_SERVICE_HOST'])}:{environ['KUBERNETES_SERVICE_PORT']}",
            ca_file=str(ca) if ca.is_file() else None,
        ),
        login=Login(token_file=str(root / "token")),
    )


def _host(text: str) -> str:
    try:
        return f"[{text}]" if ipaddress.ip_address(text).version == 6 else text  # noqa: PLR2004 - IP version
    except ValueError:
        return text


def _namespace(root: Path) -> str:
    try:
        return (root / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
