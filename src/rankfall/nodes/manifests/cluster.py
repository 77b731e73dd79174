"""All objects of node health, and the rights by which runs report.

The runs' rights are bound to no account: who has them can have nodes tainted. A policy limits them to one annotation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rankfall.model.node_health.run_verdicts import LEASE, MAX_VERDICTS_TEXT, VERDICTS_ANNOTATION
from rankfall.nodes.config import load_config
from rankfall.nodes.controller.settings import AGENT, DMESG, Stream
from rankfall.nodes.manifests import Object, admission, annotations_but, unchanged
from rankfall.nodes.manifests.agent import agent_admission, agent_objects
from rankfall.nodes.manifests.controller import controller_admission, controller_objects

NAME: Final = "rankfall-runs"
#: A nonexistent resource whose right marks this policy's accounts.
_GROUP: Final = "rankfall.dev"
_WORD: Final = "runverdicts"
_RBAC: Final = "rbac.authorization.k8s.io"

#: Reads a Node and writes an annotation through its status.
CLUSTER_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [_GROUP], "resources": [_WORD], "verbs": ["create"]},
)
#: Detects a controller in its namespace.
OWN_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE], "verbs": ["get"]},
)


def runs_objects(*, namespace: str) -> list[Object]:
    """Returns the rights as an unbound ClusterRole and Role."""
    meta = {"name": NAME, "labels": {"app.kubernetes.io/name": NAME}}
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": meta,
            "rules": [dict(each) for each in CLUSTER_RULES],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": {**meta, "namespace": namespace},
            "rules": [dict(each) for each in OWN_RULES],
        },
    ]


def runs_admission() -> list[Object]:
    """Returns a policy: accounts with the runs' rights, and no others on Nodes, may change one annotation."""
    note = f"metadata.?annotations[?'{VERDICTS_ANNOTATION}']"
    same = unchanged("metadata", ("labels", "finalizers", "ownerReferences"))
    validations = [
        ("object.status == oldObject.status", "this account may change nothing in a node's status"),
        (
            f"{annotations_but({VERDICTS_ANNOTATION})} && {same}",
            f"this account may write only the annotation {VERDICTS_ANNOTATION} of a node",
        ),
        (
            f"object.{note}.orValue('').size() <= {MAX_VERDICTS_TEXT}",
            f"{VERDICTS_ANNOTATION} may have at most {MAX_VERDICTS_TEXT} characters",
        ),
    ]
    mine = f"authorizer.group('{_GROUP}').resource('{_WORD}').check('create').allowed()"
    more = "authorizer.group('').resource('nodes').check('patch').allowed()"
    return admission(
        name=NAME,
        who=("runs", f"{mine} && !{more}"),
        operations=("UPDATE",),
        resources=("nodes/status",),
        validations=validations,
    )


def cluster_objects(
    *,
    namespace: str,
    image: str,
    loki_url: str | None = None,
    agent: bool = True,
    injected: bool = False,
    admission: bool = False,
    config: Path | None = None,
    command: tuple[str, ...] = ("rankfall",),
    pull: str = "IfNotPresent",
) -> list[Object]:
    """Returns the objects in order of creation; policies are last.

    ``config`` is checked here, not by a failing pod. ``loki_url`` None means no Loki.

    Raises:
        SpecError: The file is unreadable or invalid.
    """
    settings = load_config(config)
    text = None if config is None else config.read_text("utf-8")
    # Only a privileged pod may read a device.
    level = "privileged" if agent else "restricted"
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
    ]
    arguments = ["--accept-injected-kmsg"] if injected else []
    if agent and namespace != AGENT.namespace:
        # The controller reads no lines of other namespaces.
        streams = (DMESG, Stream(namespace=namespace, daemon_set=AGENT.daemon_set))
        arguments += [word for each in streams for word in ("--stream", f"{each.namespace}/{each.daemon_set}")]
    objects += runs_objects(namespace=namespace)
    objects += controller_objects(
        namespace=namespace,
        image=image,
        command=command,
        arguments=arguments,
        environment=(("LOG_ENDPOINT", loki_url),) if loki_url else (),
        settings=text,
        jobs=bool(settings.checks) or any(hook.job is not None for hook in settings.hooks),
        occupied=bool(settings.hooks) or settings.policy.after_job,
        exporters=[each.namespace for each in settings.exporters if each.namespace is not None],
        pull=pull,
    )
    if agent:
        objects += agent_objects(namespace=namespace, image=image, command=command, injected=injected, pull=pull)
    if admission:
        objects += controller_admission(namespace=namespace, policy=settings.policy)
        objects += runs_admission()
        objects += agent_admission(namespace=namespace) if agent else []
    return objects
