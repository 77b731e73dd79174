"""One real node: containerd and a kubelet in namespaces of their own (network, mounts, processes), as a small machine inside this one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from testbed import cgroups, kubeconfig, network, process
from testbed.control import ControlPlane
from testbed.errors import StartError
from testbed.layout import Layout

PAUSE = "rankfall.test/pause:1"
_CNI_PLUGINS = "/usr/lib/cni"
_READY_S = 90.0


class Node:
    """Starts, stops and kills a node and its parts.

    Args:
        control: the control plane that it joins.
        index: counted from 1.
        images: archives to import.
    """

    def __init__(self, control: ControlPlane, index: int, *, images: Sequence[Path]) -> None:
        self.control = control
        self.layout: Layout = control.layout
        self.index = index
        self.images = tuple(images)
        self.name = self.layout.node_name(index)
        self.folder = self.layout.node_folder(index)

    @property
    def group(self) -> str:
        """Name of the node's control group in every hierarchy."""
        return self.layout.node_namespace(self.index)

    @property
    def socket(self) -> Path:
        """Socket of containerd; seen inside the node's namespaces and outside."""
        return self.folder / "containerd.sock"

    def start(self, **kubelet: Any) -> None:
        """The whole node.

        Args:
            kubelet: fields of the kubelet's configuration that differ.
        """
        self.attach()
        self.prepare()
        self.start_kubelet(**kubelet)

    def attach(self) -> None:
        """Its folder, cable, routes and control group."""
        self.folder.mkdir(parents=True, exist_ok=True)
        network.add_node(self.layout, self.index)
        cgroups.make(self.group)

    def prepare(self) -> None:
        """The machine, with containerd and its images; needs no control plane."""
        self.start_machine()
        self.start_containerd()
        self.import_images()

    def start_machine(self) -> None:
        """The namespaces, with their process 1."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        init = str(Path(__file__).with_name("init.py"))
        daemon = process.start(
            self.layout,
            f"{self.name}-init",
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                sys.executable,
                "-S",
                "-E",
                init,
                str(self.folder),
            ],
            namespace=self.layout.node_namespace(self.index),
            forks=True,
        )
        process.await_ready(daemon, ready.exists, limit_s=_READY_S)

    def start_containerd(self) -> None:
        """Containerd, until it answers."""
        path = self.folder / "containerd.toml"
        path.write_text(self._containerd_config())
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-bed.conflist").write_text(json.dumps(self._cni(), indent=1))
        daemon = self._run("containerd", ["containerd", "--config", str(path)])
        process.await_ready(daemon, lambda: self._ctr("version").returncode == 0, limit_s=_READY_S)

    def import_images(self) -> None:
        """Import the node's archives into its image store.

        Raises:
            StartError: containerd refuses one.
        """
        for archive in self.images:
            self.import_image(archive)

    def import_image(self, archive: Path) -> None:
        """Import one more archive; pods of a node that runs already may use it at once.

        Raises:
            StartError: containerd refuses it.
        """
        done = self._ctr("images", "import", "--all-platforms", str(archive))
        if done.returncode:
            raise StartError(
                f"{self.name}: {archive.name} cannot be imported: {done.stderr.strip()}",
                hint=f"the log of its containerd: {self.layout.logs / f'{self.name}-containerd.log'}",
            )

    def start_kubelet(self, **fields: Any) -> None:
        """The kubelet, until it is healthy.

        Args:
            fields: of its configuration, as ``containerLogMaxSize="1Mi"``.
        """
        config = self.folder / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._kubelet_config() | fields))
        address = str(self.layout.node_address(self.index))
        client = self.control.authority.issue(
            f"kubelet-{self.name}",
            user=f"system:node:{self.name}",
            groups=("system:nodes",),
            hosts=(address, self.name),
        )
        login = kubeconfig.write(
            self.folder / "kubeconfig",
            server=self.control.server,
            authority=self.control.authority.cert,
            user=f"system:node:{self.name}",
            pair=client,
        )
        daemon = self._run(
            "kubelet",
            [
                str(self.control.binaries["kubelet"]),
                f"--config={config}",
                f"--kubeconfig={login}",
                f"--root-dir={self.folder / 'kubelet'}",
                f"--hostname-override={self.name}",
                f"--node-ip={address}",
                "--v=2",
            ],
        )
        process.await_ready(daemon, self._healthy, limit_s=_READY_S)

    def stop_kubelet(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """End the kubelet alone; the pods live on."""
        process.stop(self.layout, f"{self.name}-kubelet", how=how)

    def kill(self) -> None:
        """The power cut: everything on the node is gone at once, and its network too."""
        process.stop(self.layout, f"{self.name}-init", how=signal.SIGKILL)
        network.remove_node(self.layout, self.index)
        cgroups.remove(self.group)

    def remove_state(self) -> None:
        """Forget what the node's disk held, as a new machine of the same name."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def enter(self, *words: str) -> list[str]:
        """A command line that runs ``words`` inside the node."""
        daemon = process.find(self.layout, f"{self.name}-init")
        if daemon is None:
            raise StartError(f"node {self.name} does not run", hint="start it first")
        return ["nsenter", "--target", str(daemon.pid), "--mount", "--pid", "--net", *words]

    def _run(self, part: str, command: Sequence[str]) -> process.Daemon:
        return process.start(self.layout, f"{self.name}-{part}", self.enter(*command), forks=True)

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self.enter("ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    def _healthy(self) -> bool:
        script = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:10248/healthz', timeout=2)"
        return not subprocess.run(
            self.enter(sys.executable, "-S", "-c", script), capture_output=True, check=False, timeout=30
        ).returncode

    def _cni(self) -> dict[str, Any]:
        return {
            "cniVersion": "1.0.0",
            "name": "bed",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipMasq": False,
                    "hairpinMode": True,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder / "addresses"),
                        "ranges": [[{"subnet": str(self.layout.pods(self.index))}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "loopback"},
            ],
        }

    def _containerd_config(self) -> str:
        return f"""version = 2
root = "{self.folder / "containerd"}"
state = "{self.folder / "state"}"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
  address = "{self.socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Without the right to lower it (CAP_SYS_RESOURCE) sandboxes fail with "can't get final child's PID".
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI_PLUGINS}"
    conf_dir = "{self.folder / "cni"}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""

    def _kubelet_config(self) -> dict[str, Any]:
        resolver = self.folder / "resolv.conf"
        resolver.write_text("")
        address = str(self.layout.node_address(self.index))
        serving = self.control.authority.issue(
            f"serving-{self.name}", user=f"system:node:{self.name}", hosts=(address, self.name)
        )
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.control.authority.cert)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.cert),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "clusterDNS": [str(self.layout.control_address)],
            "clusterDomain": "cluster.local",
            "resolvConf": str(resolver),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.group}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "podLogsDir": str(self.folder / "pod-logs"),
            # A test machine's disk is often nearly full; nothing is to be evicted for it.
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
                "nodefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # As the controllers': a node's state is seen within seconds.
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "10s",
            "nodeLeaseDurationSeconds": 10,
            "syncFrequency": "10s",
            "serializeImagePulls": False,
            "registerNode": True,
        }
