"""The secrets of one attempt in a cluster: one Secret object, owned by its workload, and what refers to it from the pods.

The workload itself never holds them: who may see Jobs may often not see Secrets. A secret argument is a variable of the container that Kubernetes puts
into the command. Nothing here reads a Secret: an account that may create one need not be able to see any.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from rankfall.backends.kubernetes.manifests.pod_overrides import Object
from rankfall.backends.kubernetes.manifests.request import Request, request_token
from rankfall.model import JobSpec
from rankfall.model.jobspec.secrets import masked_value, masked_words

_VARIABLE: Final = "RANKFALL_SECRET_"
_JSON: Final = "_JSON"


def secret_words(spec: JobSpec) -> dict[int, str]:
    """The secret arguments of a role's command by their place. The program itself is none."""
    label = masked_words(spec.command)
    return {number: word for number, word in enumerate(spec.command) if number and label[number] != word}


def word_reference(number: int) -> str:
    """What becomes an argument once the container starts: Kubernetes puts the variable in."""
    return f"$({_VARIABLE}{number})"


def in_json(word: str) -> str:
    """A word of a command within a list in JSON: a reference there is to the value as JSON has it."""
    return f"{word[:-1]}{_JSON})" if word.startswith(f"$({_VARIABLE}") else word


def secret_variables(request: Request, *, as_json: bool) -> list[Object]:
    """Variables that secret arguments refer to; before all others, because values of variables refer to them too.

    Args:
        request: of the role.
        as_json: also as they stand in a list in JSON.
    """
    found = []
    for number in secret_words(request.spec):
        found.append(_variable(request, f"{_VARIABLE}{number}", f"command.{number}"))
        if as_json:
            found.append(_variable(request, f"{_VARIABLE}{number}{_JSON}", f"command.{number}.json"))
    return found


def job_variables(request: Request, escaped: Mapping[str, str]) -> list[Object]:
    """The job's own variables; a secret one refers to the Secret.

    Args:
        request: of the role.
        escaped: their values as text of Kubernetes.
    """
    return [
        _variable(request, name, f"env.{name}")
        if _is_secret(name, request.spec.env[name])
        else {"name": name, "value": value}
        for name, value in escaped.items()
    ]


def without_values(request: Request, pod: Mapping[str, Any], *, at: str) -> tuple[Object, dict[str, str]]:
    """A pod template of the user whose secret variables refer to the Secret, and their values by its keys.

    A value that is made of other variables (``$(NAME)``) stays: a Secret's is not expanded.

    Args:
        request: of the role.
        pod: the template.
        at: what its keys begin with.
    """
    values: dict[str, str] = {}

    def put(value: Any, *, variables: bool = False) -> Any:
        if isinstance(value, Mapping):
            name, text = value.get("name"), value.get("value")
            if variables and isinstance(name, str) and isinstance(text, str) and _is_secret(name, text):
                if "$(" not in text.replace("$$", ""):
                    key = f"{at}.{len(values)}"
                    values[f"{request.part.name}.{key}"] = text.replace("$$", "$")
                    return _variable(request, name, key)
                return value
            return {key: put(inner, variables=key == "env") for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [put(item, variables=variables) for item in value]
        return value

    changed: Object = put(pod)
    return changed, values


def values_of(request: Request, *, as_json: bool) -> dict[str, str]:
    """The values of one role by the keys of the Secret."""
    part = request.part.name
    found = {f"{part}.env.{name}": value for name, value in request.spec.env.items() if _is_secret(name, value)}
    for number, word in secret_words(request.spec).items():
        found[f"{part}.command.{number}"] = word
        if as_json:
            found[f"{part}.command.{number}.json"] = json.dumps(word)[1:-1]
    for at, pod in (("pod", request.spec.kubernetes.pod), ("role-pod", request.part.pod)):
        found |= without_values(request, pod, at=at)[1]
    return found


def secret(request: Request, values: Mapping[str, str], *, labels: Mapping[str, str]) -> Object:
    """The Secret of an attempt.

    Args:
        request: of any of its roles.
        values: of all roles.
        labels: as on all objects of the attempt.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(request), "namespace": request.namespace, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


def secret_name(request: Request) -> str:
    """Of this request alone: what has the name was made by it, which nobody has to look at."""
    return f"{request.gang.names[0].object}-{request_token(request.token)[:8]}"


def _variable(request: Request, name: str, key: str) -> Object:
    reference = {"name": secret_name(request), "key": f"{request.part.name}.{key}"}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _is_secret(name: str, value: str) -> bool:
    return masked_value(name, value) != value
