"""The bed's network: a bridge on the host, one network namespace for the control plane and one a node, veth pairs between.

The control plane has a namespace of its own so that two beds may use the same ports. Pods of a node hang on a bridge inside the
node's namespace (the CNI plugin makes it); every side routes each pod subnet through its node's address.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from testbed.errors import TestbedError
from testbed.layout import MAX_NODES, Layout


def run(*words: str, check: bool = True) -> str:
    """A command of iproute2 or sysctl; its output.

    Raises:
        TestbedError: it failed, and ``check`` is set.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise TestbedError(
            f"{' '.join(words)}: {done.stderr.strip() or done.returncode}", hint="the test bed needs root and iproute2"
        )
    return done.stdout


def up(layout: Layout) -> None:
    """The bridge, the control plane's namespace, and forwarding between them."""
    bridge, prefix = layout.name, layout.nodes_network.prefixlen
    run("ip", "link", "add", bridge, "type", "bridge")
    run("ip", "addr", "add", f"{layout.host_address}/{prefix}", "dev", bridge)
    run("ip", "link", "set", bridge, "up")
    namespace = layout.control_namespace
    _join(layout, namespace, f"{layout.name}-cpv", f"{layout.control_address}/{prefix}")
    run("ip", "-n", namespace, "addr", "add", f"{layout.api_address}/32", "dev", "lo")
    run("ip", "route", "add", str(layout.services), "via", str(layout.control_address), "dev", bridge)


def add_node(layout: Layout, index: int) -> None:
    """Node ``index``'s namespace; routes to and from its pods on the host, the control plane and the other nodes."""
    namespace, address, prefix = (
        layout.node_namespace(index),
        layout.node_address(index),
        layout.nodes_network.prefixlen,
    )
    _join(layout, namespace, f"{layout.name}-{layout.node_name(index)}v", f"{address}/{prefix}")
    run("ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    run("ip", "-n", namespace, "route", "add", str(layout.services), "via", str(layout.control_address))
    pods = str(layout.pods(index))
    run("ip", "route", "add", pods, "via", str(address), "dev", layout.name)
    run("ip", "-n", layout.control_namespace, "route", "add", pods, "via", str(address))
    for other in range(1, MAX_NODES + 1):
        if other != index and layout.node_namespace(other) in namespaces():
            run("ip", "-n", layout.node_namespace(other), "route", "add", pods, "via", str(address))
            run("ip", "-n", namespace, "route", "add", str(layout.pods(other)), "via", str(layout.node_address(other)))


def remove_node(layout: Layout, index: int) -> None:
    """Take a node off the network, with its routes. Nothing happens where it is not there."""
    pods = str(layout.pods(index))
    run("ip", "route", "del", pods, check=False)
    for namespace in namespaces():
        if namespace.startswith(f"{layout.name}-"):
            run("ip", "-n", namespace, "route", "del", pods, check=False)
    run("ip", "netns", "del", layout.node_namespace(index), check=False)


def cut(layout: Layout, index: int, *, off: bool = True) -> None:
    """Pull a node's cable, or put it back: the node lives on and nobody reaches it."""
    run("ip", "link", "set", f"{layout.name}-{layout.node_name(index)}v", "down" if off else "up")


def down(layout: Layout) -> None:
    """Remove everything that has the bed's name. Safe at any time; nothing that is not there is missed."""
    for namespace in namespaces():
        if namespace.startswith(f"{layout.name}-"):
            run("ip", "netns", "del", namespace, check=False)
    for link in links():
        if link == layout.name or link.startswith(f"{layout.name}-"):
            run("ip", "link", "del", link, check=False)


def namespaces() -> list[str]:
    """Names of all network namespaces of this machine."""
    folder = Path("/run/netns")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def inhabitants(namespace: str) -> list[int]:
    """Ids of all processes inside a network namespace."""
    return [int(pid) for pid in run("ip", "netns", "pids", namespace, check=False).split()]


def links() -> list[str]:
    """Names of all links of the host."""
    return [row["ifname"] for row in json.loads(run("ip", "-j", "link"))]


def _join(layout: Layout, namespace: str, outer: str, address: str) -> None:
    """A namespace with a cable to the bridge, a default route to the host, and its loopback up."""
    run("ip", "netns", "add", namespace)
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    run("ip", "link", "set", outer, "master", layout.name, "up")
    run("ip", "-n", namespace, "link", "set", "lo", "up")
    run("ip", "-n", namespace, "addr", "add", address, "dev", "eth0")
    run("ip", "-n", namespace, "link", "set", "eth0", "up")
    run("ip", "-n", namespace, "route", "add", "default", "via", str(layout.host_address))
