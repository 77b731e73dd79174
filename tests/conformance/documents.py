"""What two backends say of the same job, made comparable: the paths of ``ignored_paths.json`` are taken out, and nothing else is left out.

The evidence of a verdict stands in the order of times, which are ignored, so it is compared in an order of its own.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

PATHS: Final = Path(__file__).with_name("ignored_paths.json")
_ABSENT: Final = "(ignored)"
_TEXTS: Final = "ids within texts"


def ignored() -> tuple[str, ...]:
    """The committed list. ``name[]`` is each item of a list, ``*`` each value of an object."""
    return tuple(path for name, group in _groups().items() if name != _TEXTS for path in group)


def comparable(documents: dict[str, Any]) -> dict[str, Any]:
    """The same documents without what may differ.

    Args:
        documents: ``status``, and ``verdicts`` by attempt.
    """
    found: dict[str, Any] = _texts(copy.deepcopy(documents), re.compile("|".join(_groups()[_TEXTS])))
    for path in ignored():
        *way, last = path.split(".")
        for holder in _follow(found, way):
            if last in holder:
                holder[last] = _ABSENT
    for verdict in found.get("verdicts", {}).values():
        verdict["evidence"].sort(key=lambda piece: json.dumps(piece, sort_keys=True))
    return found


def _groups() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(PATHS.read_text())
    return found


def _texts(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, dict):
        return {key: _texts(one, pattern) for key, one in value.items()}
    if isinstance(value, list):
        return [_texts(one, pattern) for one in value]
    return pattern.sub(_ABSENT, value) if isinstance(value, str) else value


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two documents differ, in words; a list that is longer is one difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if key not in one or key not in other:
                yield f"{path}.{key}: only {'there' if key in other else 'here'}"
            else:
                yield from differences(one[key], other[key], f"{path}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{path}[{number}]")
    elif one != other:
        yield f"{path}: {one!r} | {other!r}"


def _follow(value: Any, way: list[str]) -> Iterator[dict[str, Any]]:
    if not way:
        if isinstance(value, dict):
            yield value
        return
    first, *rest = way
    if first == "*":
        below = list(value.values()) if isinstance(value, dict) else []
    else:
        name = first.removesuffix("[]")
        below = [value[name]] if isinstance(value, dict) and name in value else []
        if first.endswith("[]"):
            below = [item for one in below for item in (one or [])]
    for one in below:
        yield from _follow(one, rest)
