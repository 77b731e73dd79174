"""Objects of the controller: account, rights, Deployment, policy for Node changes.

The optional policy (Kubernetes 1.30) prevents cordons and label changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rankfall.model.node_health.records import ANNOTATION, CONDITION
from rankfall.nodes.agent.api import EVENT_NAMESPACE
from rankfall.nodes.manifests import Object, account, admission, annotations_but, unchanged
from rankfall.nodes.rules.policy import Policy

NAME: Final = "rankfall-controller"
#: ConfigMaps: state, switches, settings file.
STATE: Final = "rankfall-controller-state"
SWITCHES: Final = "rankfall-controller"
SETTINGS: Final = "rankfall-controller-config"
PORT: Final = 8080
_FOLDER: Final = "/etc/rankfall"
_FILE: Final = "health.toml"
_RBAC: Final = "rbac.authorization.k8s.io"
_USER: Final = 65532
# Foreign fields of Nodes; only RBAC guards fields of later versions.
_SPEC: Final = ("unschedulable", "providerID", "podCIDR", "podCIDRs", "configSource", "externalID")
_STATUS: Final = (
    "capacity", "allocatable", "addresses", "nodeInfo", "images", "volumesInUse", "volumesAttached", "phase", "daemonEndpoints", "config",
    "runtimeHandlers", "features",
)  # fmt: skip
_META: Final = ("labels", "finalizers", "ownerReferences")

#: Watches Nodes, patches taint, annotation and condition.
CLUSTER_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
)
#: Rules for Events about Nodes.
EVENT_RULES: Final[tuple[Object, ...]] = ({"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},)
#: Rules in the controller's namespace. Creation cannot be limited by name.
OWN_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [NAME],
        "verbs": ["get", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [STATE], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [SWITCHES], "verbs": ["list", "watch"]},
)  # fmt: skip
#: Rules in exporter namespaces; cluster-wide to check for jobs.
POD_RULES: Final[tuple[Object, ...]] = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},)
#: Rules for checks or hooks that are Jobs.
JOB_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "delete"]},
    *POD_RULES,
)


def controller_objects(
    *,
    namespace: str,
    image: str,
    command: Sequence[str] = ("rankfall",),
    arguments: Sequence[str] = (),
    environment: Sequence[tuple[str, str]] = (),
    settings: str | None = None,
    jobs: bool = False,
    exporters: Collection[str] = (),
    occupied: bool = False,
    replicas: int = 2,
    pull: str = "IfNotPresent",
) -> list[Object]:
    """Returns the controller's objects without its namespace.

    ``settings`` is TOML text or None; ``occupied`` allows checks for jobs on nodes.
    """
    meta = {"name": NAME, "labels": {"app.kubernetes.io/name": NAME}}
    inside = {**meta, "namespace": namespace}
    subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}]
    own = [*OWN_RULES, *(JOB_RULES if jobs else ())]
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": inside},
        *_role("ClusterRole", meta, [*CLUSTER_RULES, *(POD_RULES if occupied else ())], subjects),
        *_role("Role", {**meta, "namespace": EVENT_NAMESPACE}, EVENT_RULES, subjects),
        *_role("Role", inside, own, subjects),
        *(
            each
            for name in sorted(set(exporters))
            for each in _role("Role", {**meta, "name": f"{NAME}-metrics", "namespace": name}, POD_RULES, subjects)
        ),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": inside,
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}}},
        },
    ]
    if settings is not None:
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {**inside, "name": SETTINGS},
                "data": {_FILE: settings},
            }
        )
    pod = _pod(
        image,
        [*command, "controller", "--metrics-address", f":{PORT}", *arguments],
        environment=environment,
        settings=settings is not None,
        pull=pull,
    )
    objects.append(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": inside,
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
                "template": {"metadata": {"labels": meta["labels"]}, "spec": pod},
            },
        }
    )
    return objects


def controller_admission(*, namespace: str, policy: Policy) -> list[Object]:
    """Returns a policy that lets this account change only Rankfall's taints, annotation and condition of a Node."""
    keys = "[" + ", ".join(f"'{key}'" for key in sorted(policy.keys)) + "]"
    others = f"{{0}}.spec.?taints.orValue([]).filter(t, !(t.key in {keys}))"
    conditions = f"{{0}}.status.?conditions.orValue([]).filter(c, c.type != '{CONDITION}')"
    ours = f"object.spec.?taints.orValue([]).filter(t, t.key in {keys})"
    validations = [
        (unchanged("spec", _SPEC), "this account may change only Rankfall's taints in a node's spec"),
        (f"{others.format('object')} == {others.format('oldObject')}", f"this account may change only taints with the keys {keys}"),
        (
            f"{ours}.all(t, t.effect == '{policy.effect}' || t in oldObject.spec.?taints.orValue([]))",
            f"Rankfall's taint must have the effect {policy.effect}",
        ),
        (annotations_but({ANNOTATION}), f"this account may write only the annotation {ANNOTATION}"),
        (unchanged("metadata", _META), "this account may change no labels, finalizers or owners of nodes"),
        (f"{conditions.format('object')} == {conditions.format('oldObject')}", f"this account may write only the condition {CONDITION}"),
        (unchanged("status", _STATUS), "this account may write only Rankfall's condition in a node's status"),
    ]  # fmt: skip
    who = ("controller", account(NAME, namespace=namespace))
    return admission(name=NAME, who=who, operations=("UPDATE",), validations=validations)


def _role(kind: str, meta: Object, rules: Sequence[Object], subjects: list[Object]) -> list[Object]:
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": meta, "rules": [dict(rule) for rule in rules]},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": meta["name"]},
            "subjects": subjects,
        },
    ]


def _pod(
    image: str, command: Sequence[str], *, environment: Sequence[tuple[str, str]], settings: bool, pull: str
) -> Object:
    env: list[Object] = [
        {"name": f"POD_{name.upper()}", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{name}"}}}
        for name in ("name", "namespace")
    ]
    env += [{"name": name, "value": value} for name, value in environment]
    container: Object = {
        "name": "controller",
        "image": image,
        "imagePullPolicy": pull,
        "command": list(command),
        "env": env,
        "ports": [{"name": "metrics", "containerPort": PORT}],
        # A waiting controller is ready; a hung step is not alive.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "metrics"},
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics"}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - a folder of the container
    }
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}]
    if settings:
        env.append({"name": "RANKFALL_HEALTH_CONFIG", "value": f"{_FOLDER}/{_FILE}"})
        container["volumeMounts"].append({"name": "settings", "mountPath": _FOLDER, "readOnly": True})
        volumes.append({"name": "settings", "configMap": {"name": SETTINGS}})
    return {
        "serviceAccountName": NAME,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _affinity(),
        "containers": [container],
        "volumes": volumes,
    }


def _affinity() -> Object:
    """Prefers nodes without GPUs, and one controller a node."""
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}]},
                }
            ]
        },
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
                    },
                }
            ]
        },
    }
