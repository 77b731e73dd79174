"""Derives the ranks of torchrun's static rendezvous from a pod's manifest. Pure.

Any sign of another rendezvous, number or prefix means no proof. Lines without torchrun's prefix prove no rank.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from rankfall.kube.object_fields import COMPLETION_INDEX
from rankfall.model import numbers
from rankfall.model.patterns import anchored

_TORCHRUN: Final = ("torchrun", "torch.distributed.run")
_ELASTIC: Final = ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--standalone")
# Options that change a line's prefix.
_PREFIX: Final = ("--log-line-prefix-template", "--logs-specs")
_PREFIX_ENV: Final = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_FLAGS: Final = frozenset({"--standalone", "--virtual-local-rank", "-m", "--module", "--no-python", "--run-path"})
_VALUES: Final = frozenset(
    {
        *_ELASTIC[:-1],
        *_PREFIX,
        "--nnodes",
        "--nproc-per-node",
        "--max-restarts",
        "--monitor-interval",
        "--start-method",
        "--event-log-handler",
        "--role",
        "--log-dir",
        "--redirects",
        "--tee",
        "--local-ranks-filter",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--local-addr",
        "--duplicate-stdout-filters",
        "--duplicate-stderr-filters",
        "--signals-to-handle",
        "--shutdown-timeout",
    }
)
_SHORT: Final = {"-t": "--tee", "-r": "--redirects"}
# ``--tee`` for both streams of each rank.
_BOTH: Final = "3"
_ROLE: Final = "default"
_MOST: Final = 64
_PYTHON: Final = anchored(r"python[0-9.]*", limit=64)
_SHELL: Final = anchored(r"(?:ba|da)?sh", limit=64)
_SCRIPT: Final = anchored(r"-[a-z]*c", limit=16)
# Shell commands that print nothing.
_SILENT: Final = frozenset({"set", "export", "cd", "ulimit", "umask", "unset"})
_CONTROL: Final = (";", "&", "|", "`", "$(", "<", ">", "(", ")")
_BOTH_TO_STDOUT: Final = "2>&1"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a manifest proves.

    Attributes:
        roles: In torchrun's prefixes; empty without, None unknown.
        ranks: Global by local rank; empty if unproved.
    """

    roles: tuple[str, ...] | None = None
    ranks: dict[int, int] = {}


def launch_of(pod: Mapping[str, Any], container: str) -> Launch:
    """Facts that a manifest proves about the torchrun of one container."""
    spec, meta = pod.get("spec") or {}, pod.get("metadata") or {}
    own = next((one for one in spec.get("containers") or () if one.get("name") == container), None)
    # Variables from other objects may have any value.
    if own is None or own.get("envFrom"):
        return Launch()
    options = _options([*(own.get("command") or ()), *(own.get("args") or ())])
    if options is None:
        return Launch()
    env = _variables(own, meta)
    if any(_given(name, options, env) is not _ABSENT for name in _PREFIX) or _PREFIX_ENV in env:
        return Launch()
    tee, role = _given("--tee", options, env), _given("--role", options, env)
    if tee in {_ABSENT, "0"}:
        return Launch(roles=())
    if tee != _BOTH or role is None:
        return Launch()
    return Launch(roles=(_ROLE if role is _ABSENT else role,), ranks=_static_ranks(options, env))


# Neither on the command line nor a variable.
_ABSENT: Final = "\0"


def _given(name: str, options: Mapping[str, str], env: Mapping[str, str | None]) -> str | None:
    """Torchrun option's value; None if the manifest lacks it."""
    variable = "PET_" + name.removeprefix("--").upper().replace("-", "_")
    return options[name] if name in options else env.get(variable, _ABSENT)


def _static_ranks(options: Mapping[str, str], env: Mapping[str, str | None]) -> dict[int, int]:
    """Returns rank by local rank for a rendezvous that uses each node's configured rank."""
    if any(_given(name, options, env) is not _ABSENT for name in _ELASTIC):
        return {}
    node, count, nodes = (
        _number(_given(name, options, env)) for name in ("--node-rank", "--nproc-per-node", "--nnodes")
    )
    if node is None or nodes is None or not count or count > _MOST:
        return {}
    return {local: node * count + local for local in range(count)}


def _options(words: Sequence[Any]) -> dict[str, str] | None:
    """Container's torchrun options; None if a shell determines them."""
    plain = _plain(words)
    if plain is None:
        return None
    start = next((at for at, word in enumerate(plain) if word.rpartition("/")[2] in _TORCHRUN), None)
    if start is None or not _only_starts_python(plain[:start]):
        return None
    found: dict[str, str] = {}
    rest = plain[start + 1 :]
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word[:2] in _SHORT and len(word) > 2:  # noqa: PLR2004 - a letter with its value
            name, equals, value = word[:2], "=", word[2:]
        else:
            name, equals, value = word.partition("=")
        name = _SHORT.get(name, name.replace("_", "-"))
        if name in _FLAGS and not equals:
            found[name] = ""
        elif name not in _VALUES or (not equals and not rest):
            return None
        else:
            found[name] = value if equals else rest.pop(0)
    return None if not rest or any("$" in word for word in (*found.values(), rest[0])) else found


def _plain(words: Sequence[Any]) -> list[str] | None:
    """Only command's words without its shell, or None."""
    if not words or not all(isinstance(word, str) for word in words):
        return None
    if not _SHELL.fullmatch(words[0].rpartition("/")[2]):
        return list(words)
    script = next((words[at + 1] for at in range(1, len(words) - 1) if _SCRIPT.fullmatch(words[at])), None)
    if script is None:
        return None
    lines = [line.strip() for line in script.replace("\\\n", " ").replace(_BOTH_TO_STDOUT, " ").split("\n")]
    *before, last = [line for line in lines if line and not line.startswith("#")] or [""]
    if any(sign in line for line in (*before, last) for sign in _CONTROL):
        return None
    if any(line.split()[0] not in _SILENT or "PET_" in line or "TORCHELASTIC_" in line for line in before):
        return None
    try:
        found = shlex.split(last)
    except ValueError:
        return None
    return found[1:] if found[:1] == ["exec"] else found


def _only_starts_python(words: Sequence[str]) -> bool:
    """True if the words before torchrun are a Python with options, or if there are none."""
    return not words or (
        _PYTHON.fullmatch(words[0].rpartition("/")[2]) is not None and all(word.startswith("-") for word in words[1:])
    )


def _variables(container: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, str | None]:
    """Container's variables; a value is None if the manifest lacks it."""
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
    return numbers.whole(text, digits=6)
