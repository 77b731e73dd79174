"""Every name, address and folder of one test bed, from its number. Two beds with two numbers share nothing but the cache.

Address plan of bed N (``B`` = 128 + N), one /16 a bed:

    10.B.0.1          the host's end of the bridge
    10.B.0.2          the control plane's network namespace
    10.B.0.10 + i     node i's network namespace
    10.B.(16 + i).0   /24 of node i's pods
    10.B.240.0        /20 of services; its first address is the API server's
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from testbed.errors import TestbedError

MAX_BEDS = 64
MAX_NODES = 16
# In the environment of every process of a bed; ``down`` finds by it what a killed ``up`` left.
MARK = "RANKFALL_TESTBED"


def cache_folder() -> Path:
    """Where binaries, images and running beds are kept: ``$TESTBED_CACHE``, else the user's cache folder.

    Raises:
        TestbedError: it lies where the nodes cannot see it.
    """
    given = os.environ.get("TESTBED_CACHE")
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = (Path(given) if given else user / "rankfall" / "testbed").resolve()
    if found.parts[:2] in {("/", "run"), ("/", "tmp"), ("/", "var")}:
        raise TestbedError(
            f"the cache folder {found} lies below /{found.parts[1]}, of which parts of the bed have a view of their own",
            hint="choose another one: TESTBED_CACHE=FOLDER",
        )
    return found


@dataclass(frozen=True)
class Layout:
    """Names of one bed.

    Attributes:
        number: 0 to 63.

    Raises:
        TestbedError: the number is out of range.
    """

    number: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.number < MAX_BEDS:
            raise TestbedError(f"there is no test bed {self.number}", hint=f"choose a number from 0 to {MAX_BEDS - 1}")

    @property
    def name(self) -> str:
        """Prefix of everything that has a name on this machine: bridge, namespaces, cgroups."""
        return f"rf{self.number}"

    @property
    def mark(self) -> str:
        """Value of the environment variable ``MARK`` in the bed's processes."""
        return f"{self.name}:{self.folder}"

    @property
    def folder(self) -> Path:
        """State of the running bed: certificates, etcd's data, logs, the nodes' roots. Made new by each ``up``."""
        return cache_folder() / "beds" / str(self.number)

    @property
    def logs(self) -> Path:
        """One file a component."""
        return self.folder / "logs"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.folder / "pki"

    @property
    def network(self) -> IPv4Network:
        """The bed's /16."""
        return IPv4Network(f"10.{128 + self.number}.0.0/16")

    @property
    def nodes_network(self) -> IPv4Network:
        """The bridge's /24: host, control plane, nodes."""
        return IPv4Network(f"{self._at(0)}/24")

    @property
    def services(self) -> IPv4Network:
        """Cluster addresses of services."""
        return IPv4Network(f"{self._at(240 * 256)}/20")

    @property
    def host_address(self) -> IPv4Address:
        """The host's end of the bridge; the fault proxy listens here."""
        return self._at(1)

    @property
    def control_address(self) -> IPv4Address:
        """The control plane's namespace."""
        return self._at(2)

    @property
    def api_address(self) -> IPv4Address:
        """The API server: the first service address, so that pods reach it as ``kubernetes.default`` without a kube-proxy."""
        return self.services[1]

    @property
    def control_namespace(self) -> str:
        """Network namespace of the control plane."""
        return f"{self.name}-cp"

    def node_name(self, index: int) -> str:
        """Node ``index``, counted from 1; also the name of its network namespace and cgroup with the bed's prefix."""
        return f"n{index}"

    def node_namespace(self, index: int) -> str:
        """Network namespace (and top cgroup) of node ``index``."""
        return f"{self.name}-{self.node_name(index)}"

    def node_address(self, index: int) -> IPv4Address:
        """Address of node ``index`` on the bridge."""
        if not 1 <= index <= MAX_NODES:
            raise TestbedError(f"there is no node {index}", hint=f"nodes are counted from 1 to {MAX_NODES}")
        return self._at(10 + index)

    def pods(self, index: int) -> IPv4Network:
        """The /24 of node ``index``'s pods."""
        return IPv4Network(f"{self._at((16 + index) * 256)}/24")

    def node_folder(self, index: int) -> Path:
        """Root of node ``index``'s kubelet and containerd."""
        return self.folder / "nodes" / self.node_name(index)

    def kubeconfig(self, user: str = "admin") -> Path:
        """Kubeconfig of ``admin`` or of a restricted account."""
        return self.folder / f"{user}.kubeconfig"

    def _at(self, offset: int) -> IPv4Address:
        return self.network[offset]
