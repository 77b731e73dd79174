"""The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, each in the control plane's network namespace."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from pathlib import Path

from testbed import kubeconfig, process
from testbed.layout import Layout
from testbed.pki import Authority, Pair, signing_keys

# Waits for readiness; far above what a quiet machine needs (etcd 1 s, API server 10 s).
_ETCD_S, _SERVER_S, _OTHERS_S = 60.0, 180.0, 90.0
_DOMAIN = "cluster.local"


class ControlPlane:
    """Starts, stops and starts again each part.

    Args:
        layout: of the bed.
        binaries: name -> path.
    """

    def __init__(self, layout: Layout, binaries: Mapping[str, Path]) -> None:
        self.layout = layout
        self.binaries = binaries
        self.authority = Authority(layout.pki, "cluster")
        self.front = Authority(layout.pki, "front-proxy")
        self.server = f"https://{layout.api_address}:443"

    def kubeconfig(self, name: str, *, user: str, groups: tuple[str, ...] = ()) -> Path:
        """A kubeconfig with a client certificate for this user."""
        pair = self.authority.issue(name, user=user, groups=groups)
        path = self.layout.kubeconfig(name)
        return kubeconfig.write(path, server=self.server, authority=self.authority.cert, user=user, pair=pair)

    def start(self) -> None:
        """All parts, each when what it needs answers."""
        self.kubeconfig("admin", user="kubernetes-admin", groups=("system:masters",))
        self.start_etcd()
        self.start_apiserver()
        self.start_controller_manager()
        self.start_scheduler()

    def start_etcd(self) -> None:
        """The store; it loses its data when the machine falls, and nobody minds."""
        daemon = self._run(
            "etcd",
            "--data-dir",
            str(self.layout.folder / "etcd"),
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            f"--listen-metrics-urls=http://{self.layout.control_address}:2381",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        process.await_ready(daemon, lambda: answers(str(self.layout.control_address), 2381, "/health"), limit_s=_ETCD_S)

    def start_apiserver(self) -> None:
        """The API server, on the first address of the services' network."""
        layout, authority = self.layout, self.authority
        serving = authority.issue(
            "apiserver",
            user="kube-apiserver",
            hosts=(
                str(layout.api_address),
                str(layout.control_address),
                str(layout.host_address),
                "127.0.0.1",
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                f"kubernetes.default.svc.{_DOMAIN}",
            ),
        )
        to_kubelet = authority.issue("apiserver-kubelet", user="apiserver-kubelet", groups=("system:masters",))
        front = self.front.issue("front-proxy-client", user="front-proxy-client")
        keys = signing_keys(layout.pki)
        daemon = self._run(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={layout.api_address}",
            "--secure-port=443",
            f"--advertise-address={layout.api_address}",
            f"--service-cluster-ip-range={layout.services}",
            *_files("tls", serving),
            f"--client-ca-file={authority.cert}",
            f"--kubelet-certificate-authority={authority.cert}",
            f"--kubelet-client-certificate={to_kubelet.cert}",
            f"--kubelet-client-key={to_kubelet.key}",
            # Otherwise logs and exec try to resolve the nodes' names.
            "--kubelet-preferred-address-types=InternalIP",
            # Webhooks of type service then go to the EndpointSlice's address: no kube-proxy is needed.
            "--enable-aggregator-routing=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction,Priority,PodTolerationRestriction",
            f"--requestheader-client-ca-file={self.front.cert}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={front.cert}",
            f"--proxy-client-key-file={front.key}",
            f"--service-account-key-file={keys.cert}",
            f"--service-account-signing-key-file={keys.key}",
            f"--service-account-issuer=https://kubernetes.default.svc.{_DOMAIN}",
            "--allow-privileged=true",
            "--event-ttl=24h",
            "--v=1",
        )
        process.await_ready(daemon, self.healthy, limit_s=_SERVER_S)

    def start_controller_manager(self) -> None:
        """The controllers; a node's failure is noticed sooner than by default, so that tests need not wait minutes."""
        path = self.kubeconfig("controller-manager", user="system:kube-controller-manager")
        keys = signing_keys(self.layout.pki)
        daemon = self._run(
            "kube-controller-manager",
            f"--kubeconfig={path}",
            f"--authentication-kubeconfig={path}",
            f"--authorization-kubeconfig={path}",
            f"--bind-address={self.layout.control_address}",
            f"--service-account-private-key-file={keys.key}",
            f"--root-ca-file={self.authority.cert}",
            f"--cluster-signing-cert-file={self.authority.cert}",
            f"--cluster-signing-key-file={self.layout.pki / 'cluster.key'}",
            "--use-service-account-credentials=true",
            # Its default is a fixed folder of the machine, which it makes.
            f"--flex-volume-plugin-dir={self.layout.folder / 'volume-plugins'}",
            "--leader-elect=false",
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=20s",
            "--terminated-pod-gc-threshold=2000",
            "--v=1",
        )
        self._await_healthz(daemon, 10257)

    def start_scheduler(self) -> None:
        """The scheduler."""
        path = self.kubeconfig("scheduler", user="system:kube-scheduler")
        daemon = self._run(
            "kube-scheduler",
            f"--kubeconfig={path}",
            f"--authentication-kubeconfig={path}",
            f"--authorization-kubeconfig={path}",
            f"--bind-address={self.layout.control_address}",
            "--leader-elect=false",
            "--v=1",
        )
        self._await_healthz(daemon, 10259)

    def healthy(self) -> bool:
        """Whether the API server is ready for everything."""
        admin = Pair(self.layout.pki / "admin.crt", self.layout.pki / "admin.key")
        return answers(str(self.layout.api_address), 443, "/readyz", authority=self.authority.cert, client=admin)

    def _await_healthz(self, daemon: process.Daemon, port: int) -> None:
        address = str(self.layout.control_address)
        # These two serve with a certificate of their own making; that they answer is all that is asked.
        process.await_ready(daemon, lambda: answers(address, port, "/healthz", anybody=True), limit_s=_OTHERS_S)

    def _run(self, name: str, *arguments: str) -> process.Daemon:
        return process.start(
            self.layout,
            name,
            [str(self.binaries[name]), *arguments],
            namespace=self.layout.control_namespace,
        )


def _files(kind: str, pair: Pair) -> tuple[str, str]:
    return f"--{kind}-cert-file={pair.cert}", f"--{kind}-private-key-file={pair.key}"


def answers(
    host: str, port: int, path: str, *, authority: Path | None = None, client: Pair | None = None, anybody: bool = False
) -> bool:
    """Whether a GET is answered with 200.

    Args:
        host: name or address.
        port: of it.
        path: of the request.
        authority: the server is checked against this certificate; none = plain HTTP.
        client: certificate that is shown.
        anybody: TLS, and no check of the server.
    """
    try:
        connection: http.client.HTTPConnection
        if authority is None and not anybody:
            connection = http.client.HTTPConnection(host, port, timeout=5)
        else:
            context = ssl.create_default_context(cafile=str(authority) if authority else None)
            if anybody:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if client is not None:
                context.load_cert_chain(client.cert, client.key)
            connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == http.HTTPStatus.OK
