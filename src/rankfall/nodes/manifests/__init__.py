"""Objects of an installation as data: agent, controller, rights, admission policies.

Reads only the settings file; sends no request. Here is what all modules use: ValidatingAdmissionPolicy on Nodes, because
RBAC cannot limit fields.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

Object = dict[str, Any]

_API: Final = "admissionregistration.k8s.io/v1"


def admission(
    *,
    name: str,
    who: tuple[str, str],
    operations: Sequence[str],
    validations: Sequence[tuple[str, str]],
    resources: Sequence[str] = ("nodes", "nodes/status"),
) -> list[Object]:
    """Returns a ValidatingAdmissionPolicy and its binding; other changes are denied.

    ``who`` is a word and a CEL expression; ``validations`` are expressions and messages.
    """
    word, match = who
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
    }
    return [
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [rule]},
                "matchConditions": [{"name": word, "expression": match}],
                "validations": [{"expression": expression, "message": message} for expression, message in validations],
            },
        },
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def account(name: str, *, namespace: str) -> str:
    """Returns the condition that a request is from this service account."""
    return f"request.userInfo.username == 'system:serviceaccount:{namespace}:{name}'"


def unchanged(part: str, fields: Collection[str]) -> str:
    """Returns the condition that these fields of a part of the object are unchanged."""
    return " && ".join(f"object.{part}.?{field} == oldObject.{part}.?{field}" for field in fields)


def annotations_but(allowed: Collection[str]) -> str:
    """Returns the condition that all other annotations are unchanged."""
    own = " || ".join(f"k == '{key}'" for key in sorted(allowed))
    halves = [
        f"{one}.metadata.?annotations.orValue({{}}).all(k, {own} || {other}.metadata.?annotations[?k] == {one}.metadata.?annotations[?k])"
        for one, other in (("object", "oldObject"), ("oldObject", "object"))
    ]
    return " && ".join(halves)
