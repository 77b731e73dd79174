"""An attempt's secrets: a Secret owned by its workload, and the pods' references to it.

Rankfall creates and deletes Secrets and never reads one.
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
    """Returns a command's secret arguments by index, without the program."""
    label = masked_words(spec.command)
    return {number: word for number, word in enumerate(spec.command) if number and label[number] != word}


def word_reference(number: int) -> str:
    """Reference that Kubernetes replaces with the argument."""
    return f"$({_VARIABLE}{number})"


def in_json(word: str) -> str:
    """Converts a word for JSON; its reference expands escaped."""
    return f"{word[:-1]}{_JSON})" if word.startswith(f"$({_VARIABLE}") else word


def secret_variables(request: Request, *, as_json: bool) -> list[Object]:
    """Returns variables of secret arguments; ``as_json`` adds JSON-escaped values."""
    found = []
    for number in secret_words(request.spec):
        found.append(_variable(request, f"{_VARIABLE}{number}", f"command.{number}"))
        if as_json:
            found.append(_variable(request, f"{_VARIABLE}{number}{_JSON}", f"command.{number}.json"))
    return found


def job_variables(request: Request, escaped: Mapping[str, str]) -> list[Object]:
    """Job's variables; secret ones refer to the Secret."""
    return [
        _variable(request, name, f"env.{name}")
        if _is_secret(name, request.spec.env[name])
        else {"name": name, "value": value}
        for name, value in escaped.items()
    ]


def without_values(request: Request, pod: Mapping[str, Any], *, at: str) -> tuple[Object, dict[str, str]]:
    """Returns the user's pod template with references for secret values, and these by key.

    Values with ``$(NAME)`` stay, because a Secret's value is not expanded.
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
    """Returns a role's secret values by Secret key."""
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
    """Secret of an attempt."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(request), "namespace": request.namespace, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }


def secret_name(request: Request) -> str:
    """Returns a name unique to this request."""
    return f"{request.gang.names[0].object}-{request_token(request.token)[:8]}"


def _variable(request: Request, name: str, key: str) -> Object:
    reference = {"name": secret_name(request), "key": f"{request.part.name}.{key}"}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _is_secret(name: str, value: str) -> bool:
    return masked_value(name, value) != value
