"""Parses a torchrun command, adds missing flags and refuses contradictory ones.

Rankfall's flags come first, so the words after the user's script stay unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Final

import msgspec

from rankfall.model import JobSpec, SpecError

# torch.distributed.run of torch 2.4 to 2.15: flag -> has a value.
FLAGS: Final[Mapping[str, bool]] = {
    "nnodes": True,
    "nproc-per-node": True,
    "rdzv-backend": True,
    "rdzv-endpoint": True,
    "rdzv-id": True,
    "rdzv-conf": True,
    "standalone": False,
    "max-restarts": True,
    "monitor-interval": True,
    "start-method": True,
    "event-log-handler": True,
    "role": True,
    "module": False,
    "no-python": False,
    "run-path": False,
    "log-dir": True,
    "redirects": True,
    "tee": True,
    "log-line-prefix-template": True,
    "local-ranks-filter": True,
    "duplicate-stdout-filters": True,
    "duplicate-stderr-filters": True,
    "node-rank": True,
    "master-addr": True,
    "master-port": True,
    "local-addr": True,
    "logs-specs": True,
    "numa-binding": True,
    "signals-to-handle": True,
    "shutdown-timeout": True,
    "virtual-local-rank": False,
    "use-env": False,
    "use-numa-aware": False,
}
_SHORT: Final[Mapping[str, str]] = {"-m": "module", "-r": "redirects", "-t": "tee"}
_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch")
_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*")
_PYTHON_VALUES: Final = ("-W", "-X", "--check-hash-based-pycs")
# Most membership changes per attempt.
CHANGES: Final = 1000
# torch 2.15 shares one store between agents and ranks; a late node then waits forever for an address (seen: "wait
# timeout after 60000ms, keys: .../MASTER_ADDR").
ELASTIC_ENV: Final[Mapping[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
LOOPBACK: Final = "127.0.0.1"
_OURS: Final = "leave it out: Rankfall sets it for each slot"
_HINTS: Final[Mapping[str, str]] = {
    "nnodes": "give it to Rankfall: rankfall run --nnodes N -- torchrun ...",
    "nproc-per-node": "give it to Rankfall: rankfall run --nproc-per-node N -- torchrun ...",
    "max-restarts": "give it to Rankfall, which restarts every slot: rankfall run --max-restarts N -- torchrun ...",
    "rdzv-id": "leave it out: each attempt gets a new id",
    "rdzv-endpoint": "leave it out: each attempt gets a free port",
    "master-port": "leave it out: each attempt gets a free port",
    "standalone": "leave it out: Rankfall sets up the rendezvous of all nodes",
}
# Values that Rankfall chooses.
_CHOSEN: Final[Mapping[str, str]] = {
    "rdzv-id": "the new id of each attempt",
    "rdzv-endpoint": "the free port of each attempt",
    "master-port": "the free port of each attempt",
}


class TorchrunCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed torchrun command.

    Attributes:
        prefix: Words that start torchrun.
        rest: Flags, script and its arguments, unchanged.
        given: Flags with their values (empty for a switch).
    """

    prefix: tuple[str, ...]
    rest: tuple[str, ...]
    given: dict[str, str]


def parse(command: Sequence[str]) -> TorchrunCommand | None:
    """Parses the command; returns None if it is not torchrun."""
    length = _prefix_length(command)
    if not length:
        return None
    rest = tuple(command[length:])
    return TorchrunCommand(prefix=tuple(command[:length]), rest=rest, given=_given(rest))


def _prefix_length(command: Sequence[str]) -> int:
    program = PurePath(command[0]).name
    if program == "torchrun":
        return 1
    if not _PYTHON.fullmatch(program):
        return 0
    position = 1
    while position < len(command) and command[position].startswith("-"):
        word = command[position]
        if word == "-m":
            module = command[position + 1] if position + 1 < len(command) else ""
            return position + 2 if module in _MODULES else 0
        position += 2 if word in _PYTHON_VALUES else 1
    return 0


def _given(words: Sequence[str]) -> dict[str, str]:
    return {flag: value for flag, value, _ in _flags(words) if flag}


def _flags(words: Sequence[str]) -> Iterator[tuple[str | None, str, tuple[str, ...]]]:
    """Yields each flag with its value and words; None for an unknown flag of a newer torch."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        begin = position
        name, equals, value = words[position].partition("=")
        position += 1
        flag = _SHORT.get(name) or _flag(name)
        if flag is not None and not equals and FLAGS[flag] and position < len(words):
            value = words[position]
            position += 1
        yield flag, value, tuple(words[begin:position])


def without(command: TorchrunCommand, names: Collection[str]) -> tuple[str, ...]:
    """Command's words without these flags."""
    found = list(_flags(command.rest))
    length = sum(len(words) for _, _, words in found)
    kept = [word for flag, _, words in found if flag not in names for word in words]
    return (*command.prefix, *kept, *command.rest[length:])


def _flag(name: str) -> str | None:
    if not name.startswith("--"):
        return None
    plain = name[2:].replace("_", "-")
    if plain in FLAGS:
        return plain
    near = [flag for flag in FLAGS if flag.startswith(plain)]
    return near[0] if len(near) == 1 else None


def rendezvous_flags(
    *,
    spec: JobSpec,
    nnodes: int,
    most: int,
    node: int | str,
    backend: str,
    run: str,
    port: int,
    host: str = LOOPBACK,
    role: str | None = None,
) -> dict[str, str]:
    """Flags that combine all slots into one gang; elastic if ``most`` is above ``nnodes``."""
    flags = {
        "nnodes": f"{nnodes}:{most}" if most != nnodes else str(nnodes),
        "nproc-per-node": str(spec.nproc_per_node),
        # Each membership change costs the agents one restart.
        "max-restarts": "0" if nnodes == most else str(CHANGES),
        "rdzv-id": run,
        "rdzv-backend": backend,
        **({"role": role} if role is not None else {}),
    }
    if backend == "static":
        return flags | {"node-rank": str(node), "master-addr": host, "master-port": str(port)}
    flags["rdzv-endpoint"] = f"{host}:{port}"
    if host == LOOPBACK:
        # Slot 0 hosts the store, so the store lives as long as slot 0. Local slots start simultaneously: a short wait
        # suffices.
        quick = "" if nnodes == most else ",last_call_timeout=5,keep_alive_interval=2"
        flags |= {"rdzv-conf": f"is_host={1 if node == 0 else 0}{quick}", "local-addr": LOOPBACK}
    return flags


def as_words(flags: Mapping[str, str]) -> tuple[str, ...]:
    """Returns flags as words of a command line."""
    return tuple(word for name, value in flags.items() for word in (f"--{name}", value))


def merge(command: TorchrunCommand, flags: Mapping[str, str], *, env: Mapping[str, str]) -> tuple[str, ...]:
    """Adds Rankfall's flags to the user's torchrun.

    Raises:
        SpecError: A flag or ``PET_*`` variable contradicts the job.
    """
    theirs = {f"--{name}": (name, value) for name, value in command.given.items()}
    for name in FLAGS:
        variable = f"PET_{name.upper().replace('-', '_')}"
        if variable in env and name not in command.given:
            theirs[variable] = (name, env[variable])
    for word, (name, value) in theirs.items():
        ours = _contradicted(name, value, flags)
        if ours is not None:
            raise SpecError(
                "$.command", f"{word} {value}".rstrip() + f" contradicts {ours}", hint=_HINTS.get(name, _OURS)
            )
    fill = {name: value for name, value in flags.items() if name not in command.given}
    return (*command.prefix, *as_words(fill), *command.rest)


def _contradicted(name: str, value: str, flags: Mapping[str, str]) -> str | None:
    if name == "standalone":
        on = value.lower() not in {"0", "false", "no"}
        return f"--rdzv-backend {flags['rdzv-backend']}" if on else None
    if name in flags:
        return None if _same(name, value, flags[name]) else _CHOSEN.get(name, f"--{name} {flags[name]}")
    other_kind = ("rdzv-endpoint",) if flags["rdzv-backend"] == "static" else ("master-addr", "master-port")
    if name in other_kind and value:
        return f"--rdzv-backend {flags['rdzv-backend']}"
    return None


def _same(name: str, value: str, ours: str) -> bool:
    if name == "nnodes":
        low, _, high = value.partition(":")
        return (low, high or low) == (ours.partition(":")[0], ours.partition(":")[2] or ours)
    if name == "master-addr":
        return value == ours or (ours == LOOPBACK and value == "localhost")
    if name == "rdzv-conf":
        # Other keys are the user's.
        return "is_host" not in value
    return value == ours


def job_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Inherited environment overridden by the job's variables."""
    return {**os.environ, **env}
