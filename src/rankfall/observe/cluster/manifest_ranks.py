"""Ranks that a pod's own manifest proves: torchrun's static rendezvous, where the group rank is the node rank that it was given. Pure.

Everything that could make it another rendezvous, or another number, proves nothing: c10d in any word or variable, a word that a shell would fill
in, a number of ranks that is not written out. The completion index alone proves nothing either: only a variable that torchrun reads does.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rankfall.kube.labels import COMPLETION_INDEX

_TORCHRUN: Final = ("torchrun", "torch.distributed.run")
_ELASTIC: Final = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone")
_ELASTIC_ENV: Final = ("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_STANDALONE")
_MOST: Final = 64


def static_ranks(pod: Mapping[str, Any], container: str) -> dict[int, int]:
    """Global rank by local rank; empty where the manifest proves none.

    Args:
        pod: the object.
        container: that has the ranks.
    """
    spec, meta = pod.get("spec") or {}, pod.get("metadata") or {}
    own = next((one for one in spec.get("containers") or () if one.get("name") == container), None)
    if own is None:
        return {}
    words = [*(own.get("command") or ()), *(own.get("args") or ())]
    options = _options(words)
    env = _variables(own, meta)
    # Variables from elsewhere may say anything.
    if options is None or own.get("envFrom") or any(option in options for option in _ELASTIC):
        return {}
    if any(name in env for name in _ELASTIC_ENV):
        return {}
    node = _number(options.get("--node-rank", env.get("PET_NODE_RANK")))
    count = _number(options.get("--nproc-per-node", env.get("PET_NPROC_PER_NODE")))
    nodes = options.get("--nnodes", env.get("PET_NNODES"))
    if node is None or not count or count > _MOST or nodes is None or _number(nodes) is None:
        return {}
    return {local: node * count + local for local in range(count)}


def _options(words: Sequence[Any]) -> dict[str, str] | None:
    """Options of the one torchrun in a command, up to its script; None where there is no such, or a shell decides about its words."""
    if not all(isinstance(word, str) for word in words):
        return None
    plain: list[str] = []
    for word in words:
        if any(mark in word for mark in _TORCHRUN) and any(space in word for space in " \n"):
            try:
                plain += shlex.split(word)
            except ValueError:
                return None
        else:
            plain.append(word)
    starts = [at for at, word in enumerate(plain) if word.rpartition("/")[2] in _TORCHRUN]
    if len(starts) != 1:
        return None
    found: dict[str, str] = {}
    rest = plain[starts[0] + 1 :]
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        name = name.replace("_", "-")
        if not equals and rest and not rest[0].startswith("-"):
            # A flag without a value before the script swallows the script: what follows is then its words, which say nothing.
            value = rest.pop(0)
        found[name] = value
    # What comes after (a second torchrun, a loop) is the shell's.
    return None if any(sign in word for word in plain for sign in (";", "&&", "||", "|", "`", "$(")) else found


def _variables(container: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables of a container; None = there is one, and its value is not in the manifest."""
    found: dict[str, str | None] = {}
    for one in container.get("env") or ():
        name = one.get("name")
        if not isinstance(name, str):
            continue
        value = one.get("value")
        path = ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if isinstance(path, str) and COMPLETION_INDEX in path:
            held = (meta.get("annotations") or {}).get(
                COMPLETION_INDEX, (meta.get("labels") or {}).get(COMPLETION_INDEX)
            )
            value = held if isinstance(held, str) else None
        elif "valueFrom" in one:
            value = None
        found[name] = value
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 7 else None  # noqa: PLR2004 - more than any node or rank
