"""Puts the proxy before a bed's API server, with the bed's own authorities, and leads users through it."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from testbed.layout import Layout
from testbed.pki import Authority, Pair
from testbed.proxy.certificates import Certificates
from testbed.proxy.hub import Settings


def certificates(layout: Layout) -> Certificates:
    """Certificates to show before this bed."""
    hosts = (str(layout.host_address), "127.0.0.1", "localhost")
    return Certificates(Authority(layout.pki, "cluster"), layout.pki / "foreign", hosts)


def settings(layout: Layout, *, port: int = 0) -> Settings:
    """Where a proxy before this bed stands: on the host's end of the bridge, so that pods reach it too.

    Args:
        layout: of a bed that is up.
        port: to listen on; 0 = any that is free.
    """
    authority = layout.pki / "cluster.crt"
    return Settings(
        upstream=f"https://{layout.api_address}",
        authority=authority,
        serving=certificates(layout).good(),
        host=str(layout.host_address),
        port=port,
        clients=authority,
        # The one that the API server trusts by name (--requestheader-allowed-names).
        front=Pair(layout.pki / "front-proxy-client.crt", layout.pki / "front-proxy-client.key"),
    )


def through(url: str, kubeconfig: Path, path: Path) -> Path:
    """Write a kubeconfig of the same user that goes through a proxy.

    Args:
        url: of the proxy.
        kubeconfig: of a user, straight to the server.
        path: to write.
    """
    document = yaml.safe_load(kubeconfig.read_text())
    for cluster in document["clusters"]:
        cluster["cluster"]["server"] = url
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(document, file)
    return path
