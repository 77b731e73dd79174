"""Access of a pod's service account: the files that the kubelet mounts, and the address in the environment.

The kubelet renews the token about every hour, so it is kept as a file, not as a value.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rankfall.kube.auth.access import IN_CLUSTER, Access, Endpoint, Login
from rankfall.kube.errors import KubeConfigError

FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


def possible(environ: Mapping[str, str], *, folder: str | None = None) -> bool:
    """Whether this is a pod that may speak with its API server."""
    return bool(
        environ.get("KUBERNETES_SERVICE_HOST")
        and environ.get("KUBERNETES_SERVICE_PORT")
        and Path(folder or FOLDER, "token").is_file()
    )


def load(*, namespace: str | None, environ: Mapping[str, str], folder: str | None = None) -> Access:
    """The access of this pod.

    Args:
        namespace: None = the pod's own.
        environ: the environment.
        folder: where the service account is mounted; None = where the kubelet does it.

    Raises:
        KubeConfigError: this is no pod, or it has no service account.
    """
    if not possible(environ, folder=folder):
        raise KubeConfigError(
            "this is no pod with a service account",
            hint="set automountServiceAccountToken, or give a kubeconfig with --kubeconfig",
        )
    root = Path(folder or FOLDER)
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
    """As it stands in an address: IPv6 in brackets."""
    try:
        return f"[{text}]" if ipaddress.ip_address(text).version == 6 else text  # noqa: PLR2004 - of IP
    except ValueError:
        return text


def _namespace(root: Path) -> str:
    try:
        return (root / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
