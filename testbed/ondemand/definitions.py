"""The definitions of Kubeflow Trainer 2.1 and 2.2 alone, behind an API server of their own: it says whether a manifest for them is right.

They have the names of 2.0's, which every bed has, so they cannot be in the same cluster. Here are no controllers, no webhooks and no nodes: only what
the definitions themselves say is checked (fields, types, rules), best with ``--dry-run=server``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from testbed import builds, kubeconfig, process, server
from testbed.bed import Bed
from testbed.client import Kubectl, load
from testbed.errors import TestbedError

# Version -> ports of its etcd (two) and of its API server, in the control plane's network namespace.
_PORTS = {"2.1": (2391, 2392, 6441), "2.2": (2393, 2394, 6442)}


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
    crds = sorted((builds.files(f"{name}-files", say=bed.say) / "manifests/base/crds").glob("trainer*.yaml"))
    control, layout = bed.control, bed.layout
    etcd_port, peer_port, port = _PORTS[version]
    etcd = server.Etcd(name=f"{name}-etcd", client=etcd_port, peer=peer_port, metrics=etcd_port + 1000)
    admin = control.authority.issue(f"{name}-admin", user=name, groups=("system:masters",))
    one = server.ApiServer(
        name=f"{name}-apiserver",
        address=layout.control_address,
        port=port,
        etcd=etcd,
        admin=admin,
        more=("--authorization-mode=RBAC",),
    )
    try:
        server.start_etcd(layout, bed.binaries["etcd"], etcd)
        server.start_apiserver(layout, bed.binaries["kube-apiserver"], control.authority, one)
        login = kubeconfig.write(
            layout.kubeconfig(name),
            server=f"https://{one.address}:{one.port}",
            authority=control.authority.cert,
            user=name,
            pair=admin,
        )
        kubectl = Kubectl(bed.binaries["kubectl"], login)
        kubectl.define(load(*crds))
        yield kubectl
    finally:
        for part in (one.name, etcd.name):
            # Nothing of it is kept, so nothing is worth the patience of an orderly end.
            process.stop(layout, part, patience_s=1.0)
        shutil.rmtree(layout.folder / etcd.name, ignore_errors=True)
        layout.kubeconfig(name).unlink(missing_ok=True)
