"""Access with a pod's service account.

The kubelet renews the token hourly, so the file is stored, not its value.
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
    """True if this process runs in a pod with access to its API server."""
    return bool(
        environ.get("KUBERNETES_SERVICE_HOST")
        and environ.get("KUBERNETES_SERVICE_PORT")
        and Path(folder or FOLDER, "token").is_file()
    )


def load(*, namespace: str | None, environ: Mapping[str, str], folder: str | None = None) -> Access:
    """Returns the access of this pod; ``namespace`` None = the pod's.

    Raises:
        KubeConfigError: No pod, or no service account.
    """
    if not possible(environ, folder=folder):
        raise KubeConfigError(
            "this is not a pod with a service account",
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
    try:
        return f"[{text}]" if ipaddress.ip_address(text).version == 6 else text  # noqa: PLR2004 - IP version
    except ValueError:
        return text


def _namespace(root: Path) -> str:
    try:
        return (root / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
