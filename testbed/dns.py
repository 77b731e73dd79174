"""Cluster DNS: CoreDNS on the control plane's address, which every kubelet gives to its pods."""

from __future__ import annotations

import socket

from testbed import process
from testbed.control import ControlPlane

_READY_S = 60.0
# Query for the address of kubernetes.default.svc.cluster.local: header, name, type A, class IN.
_QUERY = (
    b"\x07\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01"
)


def start(control: ControlPlane) -> None:
    """Start it and wait until it knows the API server's own service."""
    layout = control.layout
    login = control.kubeconfig("coredns", user="testbed:coredns", groups=("system:masters",))
    file = layout.folder / "Corefile"
    address = layout.control_address
    file.write_text(
        f"""cluster.local:53 in-addr.arpa:53 {{
    bind {address}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {login} testbed:coredns
        pods insecure
        ttl 5
    }}
}}
.:53 {{
    bind {address}
    # Nothing outside of the cluster is known: pods have no way out.
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
    )
    daemon = process.start(
        layout, "coredns", [str(control.binaries["coredns"]), f"-conf={file}"], namespace=layout.control_namespace
    )
    process.await_ready(daemon, lambda: _knows(str(address), layout.api_address.packed), limit_s=_READY_S)


def _knows(server: str, address: bytes) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.settimeout(1.0)
        try:
            channel.sendto(_QUERY, (server, 53))
            return channel.recv(512).endswith(address)
        except OSError:
            return False
