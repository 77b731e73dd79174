"""Kubeconfig files of a bed."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import yaml

from testbed.pki import Pair


def write(
    path: Path, *, server: str, authority: Path, user: str, pair: Pair | None = None, token: str | None = None
) -> Path:
    """A kubeconfig with everything inside, readable by its owner alone.

    Args:
        path: of the file; replaced at once when it exists.
        server: address of the API server.
        authority: certificate that the server's is checked against.
        user: name of the context's user.
        pair: client certificate; or
        token: of a service account.
    """
    login: dict[str, str] = {}
    if pair is not None:
        login = {"client-certificate-data": _data(pair.cert), "client-key-data": _data(pair.key)}
    if token is not None:
        login = {"token": token}
    text = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "testbed", "cluster": {"server": server, "certificate-authority-data": _data(authority)}}
            ],
            "users": [{"name": user, "user": login}],
            "contexts": [{"name": user, "context": {"cluster": "testbed", "user": user}}],
            "current-context": user,
        }
    )
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    return scratch.replace(path)


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
