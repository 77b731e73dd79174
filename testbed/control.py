"""The control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, each in the control plane's network namespace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed import kubeconfig, process, server
from testbed.answers import answers
from testbed.layout import Layout
from testbed.pki import Authority, Pair, signing_keys
from testbed.together import together

# Wait for readiness; far above what a quiet machine needs.
_OTHERS_S = 90.0
ETCD = server.Etcd(name="etcd", client=2379, peer=2380, metrics=2381)


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

    def start_store(self) -> None:
        """The API server with its etcd, and the administrator's kubeconfig."""
        self.kubeconfig("admin", user="kubernetes-admin", groups=("system:masters",))
        self.start_etcd()
        self.start_apiserver()

    def start_others(self) -> None:
        """What works on the API server's objects."""
        together(self.start_controller_manager, self.start_scheduler)

    def start_etcd(self) -> None:
        """The store; it loses its data when the machine falls, and nobody minds."""
        server.start_etcd(self.layout, self.binaries["etcd"], ETCD)

    def start_apiserver(self) -> None:
        """The API server, on the first address of the services' network."""
        layout, authority = self.layout, self.authority
        to_kubelet = authority.issue("apiserver-kubelet", user="apiserver-kubelet", groups=("system:masters",))
        front = self.front.issue("front-proxy-client", user="front-proxy-client")
        server.start_apiserver(
            layout,
            self.binaries["kube-apiserver"],
            authority,
            server.ApiServer(
                name="kube-apiserver",
                address=layout.api_address,
                port=443,
                etcd=ETCD,
                admin=self._admin,
                hosts=(
                    str(layout.control_address),
                    str(layout.host_address),
                    "127.0.0.1",
                    "localhost",
                    "kubernetes",
                    "kubernetes.default",
                    "kubernetes.default.svc",
                    f"kubernetes.default.svc.{server.DOMAIN}",
                ),
                more=(
                    f"--advertise-address={layout.api_address}",
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
                    "--allow-privileged=true",
                    "--event-ttl=24h",
                    "--v=1",
                ),
            ),
        )

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
        return answers(str(self.layout.api_address), 443, "/readyz", authority=self.authority.cert, client=self._admin)

    @property
    def _admin(self) -> Pair:
        return Pair(self.layout.pki / "admin.crt", self.layout.pki / "admin.key")

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
