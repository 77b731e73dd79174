"""Objects of the agent: account, rights, DaemonSet, policy.

The agent's pod must be privileged: with CAP_SYSLOG and the device mounted, the device control group refuses the open
(tried).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rankfall.model.node_health.kernel_reports import REPORT_ANNOTATION, REPORT_CONDITION
from rankfall.nodes.agent.api import EVENT_NAMESPACE
from rankfall.nodes.manifests import Object, account, admission

NAME: Final = "rankfall-agent"
STATE: Final = "/var/lib/rankfall-agent"
PORT: Final = 8081
_RBAC: Final = "rbac.authorization.k8s.io"

#: Annotation and condition are written through the status, which changes no spec.
CLUSTER_RULES: Final[tuple[Object, ...]] = ({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},)
#: Rules for Events about Nodes.
EVENT_RULES: Final[tuple[Object, ...]] = ({"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},)


def agent_objects(
    *,
    namespace: str,
    image: str,
    command: Sequence[str] = ("rankfall",),
    labels: dict[str, str] | None = None,
    node_selector: dict[str, str] | None = None,
    injected: bool = False,
    pull: str = "IfNotPresent",
) -> list[Object]:
    """Returns the agent's objects without its namespace.

    The namespace must allow privileged pods (``pod-security.kubernetes.io/enforce: privileged``).
    """
    meta = {"name": NAME, "labels": {"app.kubernetes.io/name": NAME, **(labels or {})}}
    inside = {**meta, "namespace": namespace}
    subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": inside},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": meta,
            "rules": [dict(rule) for rule in CLUSTER_RULES],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": NAME},
            "subjects": subjects,
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": {**meta, "namespace": EVENT_NAMESPACE},
            "rules": [dict(rule) for rule in EVENT_RULES],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {**meta, "namespace": EVENT_NAMESPACE},
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": NAME},
            "subjects": subjects,
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": inside,
            "spec": {
                "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
                "template": {
                    "metadata": {"labels": inside["labels"]},
                    "spec": _pod(image, command, node_selector=node_selector, injected=injected, pull=pull),
                },
            },
        },
    ]


def _pod(
    image: str, command: Sequence[str], *, node_selector: dict[str, str] | None, injected: bool, pull: str
) -> Object:
    pod: Object = {
        "serviceAccountName": NAME,
        # A tainted node must stay observed.
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        # The pod of an Xid's process is read from /proc.
        "hostPID": True,
        "terminationGracePeriodSeconds": 10,
        "containers": [
            {
                "name": "agent",
                "image": image,
                "imagePullPolicy": pull,
                "command": [
                    *command,
                    "agent",
                    "--state",
                    STATE,
                    "--probe-address",
                    f":{PORT}",
                    *(["--accept-injected-kmsg"] if injected else []),
                ],
                "ports": [{"name": "probe", "containerPort": PORT}],
                # A minute apart: an idle agent should stay idle.
                "livenessProbe": {
                    "httpGet": {"path": "/healthz", "port": "probe"},
                    "periodSeconds": 60,
                    "timeoutSeconds": 10,
                    "failureThreshold": 5,
                },
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "48Mi"},
                    "limits": {"cpu": "500m", "memory": "96Mi"},
                },
                "securityContext": {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0},
                "volumeMounts": [
                    {"name": "kmsg", "mountPath": "/dev/kmsg", "readOnly": True},
                    {"name": "state", "mountPath": STATE},
                ],
            }
        ],
        "volumes": [
            {"name": "kmsg", "hostPath": {"path": "/dev/kmsg", "type": "CharDevice"}},
            {"name": "state", "hostPath": {"path": STATE, "type": "DirectoryOrCreate"}},
        ],
    }
    if node_selector:
        pod["nodeSelector"] = dict(node_selector)
    return pod


def agent_admission(*, namespace: str) -> list[Object]:
    """Returns a policy that lets this account change only one annotation and one condition of its pod's Node.

    Needs Kubernetes 1.32: a pod's token names its node.
    """
    node = "authentication.kubernetes.io/node-name"
    notes = (
        "(has({0}.metadata.annotations) ? {0}.metadata.annotations : {{}})"
        f".all(k, k == '{REPORT_ANNOTATION}' || (has({{1}}.metadata.annotations) && k in {{1}}.metadata.annotations && "
        "{1}.metadata.annotations[k] == {0}.metadata.annotations[k]))"
    )
    others = f"{{0}}.status.conditions.filter(c, c.type != '{REPORT_CONDITION}')"
    same = [
        f"object.status.?{field} == oldObject.status.?{field}" for field in ("capacity", "allocatable", "addresses")
    ]
    validations = [
        (
            f"'{node}' in request.userInfo.extra && request.userInfo.extra['{node}'][0] == object.metadata.name",
            "an agent may write only the Node that its pod runs on",
        ),
        (
            f"{notes.format('object', 'oldObject')} && {notes.format('oldObject', 'object')}",
            f"an agent may write only the annotation {REPORT_ANNOTATION}",
        ),
        ("object.metadata.?labels == oldObject.metadata.?labels", "an agent may write no labels"),
        (
            f"{others.format('object')} == {others.format('oldObject')}",
            f"an agent may write only the condition {REPORT_CONDITION}",
        ),
        (" && ".join(same), "an agent may not write a node's resources and addresses"),
    ]
    return admission(
        name=NAME,
        who=("agent", account(NAME, namespace=namespace)),
        operations=("CREATE", "UPDATE", "DELETE"),
        validations=validations,
    )
