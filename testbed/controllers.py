"""JobSet and Kubeflow Trainer: their definitions and webhooks from their own modules, their controllers as processes of the control plane.

Their webhooks are reached by address: there is no pod that a service could select.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import yaml

from testbed import process
from testbed.answers import answers
from testbed.client import Kubectl, Object, load
from testbed.control import ControlPlane
from testbed.together import together

JOBSET_PORT, TRAINER_PORT = 9443, 9444
_JOBSET_HEALTH, _TRAINER_HEALTH = 8081, 8082
_JOBSET_METRICS, _TRAINER_METRICS = 8443, 8444
TRAINER_NAMESPACE = "kubeflow-system"
_TRAINER_SERVICE = "kubeflow-trainer-controller-manager"
_TRAINER_SECRET = "kubeflow-trainer-webhook-cert"  # noqa: S105 - the name of an object
_TRAINER_HOOKS = {
    "ValidatingWebhookConfiguration": "validator.trainer.kubeflow.org",
    "MutatingWebhookConfiguration": "defaulter.trainer.kubeflow.org",
}
_READY_S = 90.0


class Controllers:
    """Installs and runs both controllers.

    Args:
        control: the control plane.
        kubectl: with the rights of the administrator.
        files: component -> folder of its own manifests.
    """

    def __init__(self, control: ControlPlane, kubectl: Kubectl, files: Mapping[str, Path]) -> None:
        self.control = control
        self.kubectl = kubectl
        self.files = files

    def start(self) -> None:
        """Everything of both."""
        self.install()
        together(self.start_jobset, self.start_trainer)

    def install(self) -> None:
        """Definitions, webhooks and namespaces of both; the controllers may start in any order afterwards."""
        jobset, trainer = self.files["jobset"] / "config/components", self.files["trainer"] / "manifests/base"
        # The bare definition: the kustomized one asks a conversion webhook that does not exist.
        definitions = load(
            *sorted((jobset / "crd/bases").glob("*.yaml")), *sorted((trainer / "crds").glob("trainer*.yaml"))
        )
        self.kubectl.define(definitions)
        self.kubectl.apply([_namespace(TRAINER_NAMESPACE), _namespace("jobset-system")])
        self.kubectl.apply([*self._jobset_webhooks(jobset), *self._trainer_objects(trainer)])

    def start_jobset(self) -> None:
        """The JobSet controller."""
        layout = self.control.layout
        folder = layout.folder / "jobset"
        folder.mkdir(exist_ok=True)
        pair = self.control.authority.issue(
            "jobset-webhook", user="jobset-webhook", hosts=(str(layout.control_address),)
        )
        (folder / "tls.crt").write_bytes(pair.cert.read_bytes())
        (folder / "tls.key").write_bytes(pair.key.read_bytes())
        config = folder / "config.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
                    "kind": "Configuration",
                    "leaderElection": {"leaderElect": False},
                    "internalCertManagement": {"enable": False},
                    "webhook": {"port": JOBSET_PORT, "certDir": str(folder)},
                    "health": {"healthProbeBindAddress": f":{_JOBSET_HEALTH}"},
                    "metrics": {"bindAddress": f":{_JOBSET_METRICS}"},
                }
            )
        )
        self._start("jobset", f"--config={config}", health=_JOBSET_HEALTH)

    def start_trainer(self) -> None:
        """The Trainer controller. It makes its own certificate, keeps it in a Secret, and waits for it as files."""
        layout = self.control.layout
        own_tmp = layout.folder / "trainer-tmp"
        daemon = self._start("trainer", *self._trainer_settings(), own_tmp=own_tmp)
        hand_certificate(self.kubectl, daemon, _TRAINER_SECRET, namespace=TRAINER_NAMESPACE, own_tmp=own_tmp)
        self._await(daemon, _TRAINER_HEALTH)

    def _trainer_settings(self) -> tuple[str, ...]:
        """Its ports: by flags, from 2.1 by its own configuration file."""
        usual = self.files["trainer"] / "manifests/base/manager/controller_manager_config.yaml"
        if not usual.is_file():
            return (
                f"--webhook-server-port={TRAINER_PORT}",
                f"--health-probe-bind-address=:{_TRAINER_HEALTH}",
                f"--metrics-bind-address=:{_TRAINER_METRICS}",
            )
        settings = yaml.safe_load(usual.read_text())
        settings["webhook"]["port"] = TRAINER_PORT
        settings["health"]["healthProbeBindAddress"] = f":{_TRAINER_HEALTH}"
        settings["metrics"]["bindAddress"] = f":{_TRAINER_METRICS}"
        settings["leaderElection"]["leaderElect"] = False
        path = self.control.layout.folder / "trainer.yaml"
        path.write_text(yaml.safe_dump(settings))
        return (f"--config={path}",)

    def _start(
        self, name: str, *arguments: str, health: int | None = None, own_tmp: Path | None = None
    ) -> process.Daemon:
        login = self.control.kubeconfig(name, user=f"testbed:{name}", groups=("system:masters",))
        daemon = process.start(
            self.control.layout,
            name,
            [str(self.control.binaries[name]), f"--kubeconfig={login}", *arguments],
            namespace=self.control.layout.control_namespace,
            own_tmp=own_tmp,
        )
        if health is not None:
            self._await(daemon, health)
        return daemon

    def _await(self, daemon: process.Daemon, port: int) -> None:
        address = str(self.control.layout.control_address)
        process.await_ready(daemon, lambda: answers(address, port, "/readyz"), limit_s=_READY_S)

    def _jobset_webhooks(self, folder: Path) -> list[Object]:
        objects = load(folder / "webhook/manifests.yaml")
        authority = base64.b64encode(self.control.authority.cert.read_bytes()).decode()
        for item in objects:
            item["metadata"]["name"] = f"jobset-{item['metadata']['name']}"
            for hook in item["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                url = f"https://{self.control.layout.control_address}:{JOBSET_PORT}{path}"
                hook["clientConfig"] = {"url": url, "caBundle": authority}
                if "pod" in path:
                    # As the project's own patch does: otherwise no pod at all could start while the controller is away.
                    exists = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
                    hook["objectSelector"] = {"matchExpressions": [exists]}
        return objects

    def _trainer_objects(self, folder: Path) -> list[Object]:
        hooks = load(folder / "webhook/manifests.yaml")
        for item in hooks:
            # The names by which the controller finds them, to write its certificate's authority there.
            item["metadata"]["name"] = _TRAINER_HOOKS[item["kind"]]
            for hook in item["webhooks"]:
                hook["clientConfig"]["service"] |= {"name": _TRAINER_SERVICE, "namespace": TRAINER_NAMESPACE}
        meta = {"namespace": TRAINER_NAMESPACE}
        address = str(self.control.layout.control_address)
        return [
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta | {"name": _TRAINER_SECRET}},
            *service_at(_TRAINER_SERVICE, namespace=TRAINER_NAMESPACE, address=address, port=TRAINER_PORT),
            *hooks,
        ]


def service_at(name: str, *, namespace: str, address: str, port: int) -> list[Object]:
    """A Service of port 443 for one address that is no pod's: without a selector, with a hand-made EndpointSlice.

    Args:
        name: of both.
        namespace: of both.
        address: where the API server finds it.
        port: of that address.
    """
    meta = {"name": name, "namespace": namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"ports": [{"name": "webhook", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta | {"labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]


def hand_certificate(kubectl: Kubectl, daemon: process.Daemon, secret: str, *, namespace: str, own_tmp: Path) -> None:
    """Do what a mounted Secret does: wait until a controller has written its certificate there, and put it before it as files.

    Args:
        kubectl: with the rights of the administrator.
        daemon: the controller.
        secret: that it writes to.
        namespace: of the secret.
        own_tmp: what the controller sees as /tmp.

    Raises:
        StartError: the controller ended, or wrote none.
    """
    found: dict[str, str] = {}

    def made() -> bool:
        found.update(kubectl.get("secret", "-n", namespace, secret).get("data") or {})
        return {"tls.crt", "tls.key", "ca.crt"} <= found.keys()

    process.await_ready(daemon, made, limit_s=_READY_S)
    folder = own_tmp / "k8s-webhook-server" / "serving-certs"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ca.crt", "tls.key", "tls.crt"):
        (folder / name).write_bytes(base64.b64decode(found[name]))


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
