"""An API server with its etcd: the bed's own, and those beside it that only check manifests. All are in the control plane's network namespace."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from testbed import process
from testbed.answers import answers
from testbed.layout import Layout
from testbed.pki import Authority, Pair, signing_keys

# Waits for readiness; far above what a quiet machine needs (etcd 1 s, API server 10 s).
_ETCD_S, _SERVER_S = 60.0, 180.0
DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Etcd:
    """One etcd.

    Attributes:
        name: of the component and of its data's folder.
        client: port of the namespace's loopback, where its API server finds it.
        peer: port of the same loopback.
        metrics: port of the control plane's address, where it says that it is ready.
    """

    name: str
    client: int
    peer: int
    metrics: int


@dataclass(frozen=True)
class ApiServer:
    """One API server.

    Attributes:
        name: of the component and of its certificate.
        address: to listen on.
        port: of it.
        etcd: keeps its objects.
        admin: may ask whether it is ready.
        hosts: names and addresses in its certificate, beside its own.
        more: further options.
    """

    name: str
    address: IPv4Address
    port: int
    etcd: Etcd
    admin: Pair
    hosts: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


def start_etcd(layout: Layout, program: Path, one: Etcd) -> None:
    """Start it and wait until it answers. It loses its data when the machine falls, and nobody minds.

    Raises:
        StartError: it did not become ready.
    """
    peer = f"http://127.0.0.1:{one.peer}"
    client = f"http://127.0.0.1:{one.client}"
    daemon = process.start(
        layout,
        one.name,
        [
            str(program),
            f"--data-dir={layout.folder / one.name}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # The other ports are of the namespace's loopback, where nobody outside sees whether they answer.
            f"--listen-metrics-urls=http://{layout.control_address}:{one.metrics}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
        namespace=layout.control_namespace,
    )
    process.await_ready(daemon, lambda: answers(str(layout.control_address), one.metrics, "/health"), limit_s=_ETCD_S)


def start_apiserver(layout: Layout, program: Path, authority: Authority, one: ApiServer) -> None:
    """Start it and wait until it is ready for everything.

    Raises:
        StartError: it did not become ready.
    """
    serving = authority.issue(f"{one.name}-serving", user=one.name, hosts=(str(one.address), *one.hosts))
    keys = signing_keys(layout.pki)
    daemon = process.start(
        layout,
        one.name,
        [
            str(program),
            f"--etcd-servers=http://127.0.0.1:{one.etcd.client}",
            f"--bind-address={one.address}",
            f"--secure-port={one.port}",
            f"--service-cluster-ip-range={layout.services}",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={authority.cert}",
            f"--service-account-key-file={keys.cert}",
            f"--service-account-signing-key-file={keys.key}",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            *one.more,
        ],
        namespace=layout.control_namespace,
    )

    def ready() -> bool:
        return answers(str(one.address), one.port, "/readyz", authority=authority.cert, client=one.admin)

    process.await_ready(daemon, ready, limit_s=_SERVER_S)
