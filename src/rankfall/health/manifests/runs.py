"""What a supervisor of runs needs to tell a node that it felled one, and to know that it is heard: rights without an account, to be bound by an administrator.

Whoever has them can have nodes tainted, so they are for accounts that an administrator trusts with that. RBAC names no fields: who may patch
``nodes/status`` may write any condition. The policy limits everybody who has these rights, and no right on Nodes themselves, to the one annotation.
"""

from __future__ import annotations

from typing import Final

from rankfall.health.manifests.admission import Object, admission, annotations_but, unchanged
from rankfall.model.health_answer import LEASE
from rankfall.model.health_verdict import MAX_VERDICTS_TEXT, VERDICTS_ANNOTATION

NAME: Final = "rankfall-runs"
#: A resource that no server has: to have this right says that the policy is meant.
_GROUP: Final = "rankfall.dev"
_WORD: Final = "runverdicts"
_RBAC: Final = "rbac.authorization.k8s.io"

#: Of a ClusterRole: a Node is read, and an annotation of it written by its status.
CLUSTER_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [_GROUP], "resources": [_WORD], "verbs": ["create"]},
)
#: Of a Role in the controller's namespace: whether one is there.
OWN_RULES: Final[tuple[Object, ...]] = (
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [LEASE], "verbs": ["get"]},
)


def runs_objects(*, namespace: str) -> list[Object]:
    """The rights as a ClusterRole and a Role, bound to nobody.

    Args:
        namespace: of the controller.
    """
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
    """A policy: who has these rights, and none to change Nodes themselves, writes the one annotation and nothing else."""
    note = f"metadata.?annotations[?'{VERDICTS_ANNOTATION}']"
    same = unchanged("metadata", ("labels", "finalizers", "ownerReferences"))
    validations = [
        ("object.status == oldObject.status", "of a node's status this account changes nothing"),
        (
            f"{annotations_but({VERDICTS_ANNOTATION})} && {same}",
            f"of a node this account writes {VERDICTS_ANNOTATION} alone",
        ),
        (
            f"object.{note}.orValue('').size() <= {MAX_VERDICTS_TEXT}",
            f"{VERDICTS_ANNOTATION} has {MAX_VERDICTS_TEXT} characters at most",
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
