"""The definitions of Kubeflow Trainer 2.1 and 2.2 alone, behind an API server of their own: it says whether a manifest for them is right.

They have the names of 2.0's, which every bed has, so they cannot be in the same cluster. Here are no controllers, no webhooks and no nodes: only what
the definitions themselves say is checked (fields, types, rules), best with ``--dry-run=server``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import builds, kubeconfig, process
from testbed.bed import Bed
from testbed.client import Kubectl, load
from testbed.control import answers
from testbed.errors import TestbedError
from testbed.pki import Pair, signing_keys

# Version -> ports of its etcd (two) and of its API server, in the control plane's network namespace.
_PORTS = {"2.1": (2391, 2392, 6441), "2.2": (2393, 2394, 6442)}
_ETCD_S, _SERVER_S = 60.0, 180.0


@contextmanager
def trainer(bed: Bed, version: str) -> Iterator[Kubectl]:
    """kubectl, as administrator, of an API server that knows TrainJob and its runtimes as this version defines them.

    Args:
        bed: that is up.
        version: ``2.1`` or ``2.2``; both may run at the same time.

    Raises:
        StartError: it did not become ready.
        TestbedError: there is no such version, or it runs already.
    """
    if version not in _PORTS:
        raise TestbedError(
            f"there are no definitions of Trainer {version} here", hint=f"choose of: {', '.join(_PORTS)}"
        )
    name = f"trainer-{version}"
    if process.find(bed.layout, f"{name}-apiserver"):
        raise TestbedError(f"the definitions of Trainer {version} are served already", hint="end the other use first")
    crds = sorted((builds.files(name, say=bed.say) / "manifests/base/crds").glob("trainer*.yaml"))
    folder = bed.layout.folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        _start_etcd(bed, name, folder, *_PORTS[version][:2])
        admin = bed.control.authority.issue(f"{name}-admin", user=name, groups=("system:masters",))
        server = _start_apiserver(bed, name, admin, etcd=_PORTS[version][0], port=_PORTS[version][2])
        login = kubeconfig.write(
            folder / "kubeconfig", server=server, authority=bed.control.authority.cert, user=name, pair=admin
        )
        kubectl = Kubectl(bed.binaries["kubectl"], login)
        kubectl.define(load(*crds))
        yield kubectl
    finally:
        for part in ("apiserver", "etcd"):
            # Nothing of it is kept, so nothing is worth the patience of an orderly end.
            process.stop(bed.layout, f"{name}-{part}", patience_s=1.0)
        shutil.rmtree(folder, ignore_errors=True)


def _start_etcd(bed: Bed, name: str, folder: Path, client: int, peer: int) -> None:
    address, layout = f"http://127.0.0.1:{peer}", bed.layout
    metrics = client + 1000
    daemon = process.start(
        layout,
        f"{name}-etcd",
        [
            str(bed.binaries["etcd"]),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls={address}",
            f"--initial-advertise-peer-urls={address}",
            f"--initial-cluster=default={address}",
            # The other ports are of the namespace's loopback, where nobody outside sees whether they answer.
            f"--listen-metrics-urls=http://{layout.control_address}:{metrics}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
        namespace=layout.control_namespace,
    )
    process.await_ready(daemon, lambda: answers(str(layout.control_address), metrics, "/health"), limit_s=_ETCD_S)


def _start_apiserver(bed: Bed, name: str, admin: Pair, *, etcd: int, port: int) -> str:
    layout, authority = bed.layout, bed.control.authority
    address = str(layout.control_address)
    serving = authority.issue(f"{name}-serving", user=name, hosts=(address,))
    keys = signing_keys(layout.pki)
    daemon = process.start(
        layout,
        f"{name}-apiserver",
        [
            str(bed.binaries["kube-apiserver"]),
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--bind-address={address}",
            f"--secure-port={port}",
            f"--service-cluster-ip-range={layout.services}",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={authority.cert}",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={keys.cert}",
            f"--service-account-signing-key-file={keys.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
        ],
        namespace=layout.control_namespace,
    )

    def ready() -> bool:
        return answers(address, port, "/readyz", authority=authority.cert, client=admin)

    process.await_ready(daemon, ready, limit_s=_SERVER_S)
    return f"https://{address}:{port}"
