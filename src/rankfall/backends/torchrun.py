"""Parses a command that is torchrun itself, fills in missing flags and refuses flags that contradict the job.

Flags may be spelled with dashes or underscores, with ``=`` or a space, abbreviated as argparse allows, or set
as ``PET_*`` variables. Rankfall's flags come first, so that nothing after the user's script is touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final

import msgspec

from rankfall.model import JobSpec, SpecError

# torch.distributed.run of torch 2.4 to 2.15: flag -> whether a value follows.
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
# Python's own options that take the next word as their value.
_PYTHON_VALUES: Final = ("-W", "-X", "--check-hash-based-pycs")
# How often a gang of MIN:MAX nodes may change in one attempt before torchrun itself gives up.
CHANGES: Final = 1000
# For a gang that may change. torch 2.15 lets its agents share one store with the ranks; a node that joins a later round then waits for an
# address that nobody writes again (seen: "wait timeout after 60000ms, keys: .../MASTER_ADDR").
ELASTIC_ENV: Final[Mapping[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
LOOPBACK: Final = "127.0.0.1"
_OURS: Final = "leave it out: Rankfall sets it for each slot"
_HINTS: Final[Mapping[str, str]] = {
    "nnodes": "give it to Rankfall: rankfall run --nnodes N -- torchrun ...",
    "nproc-per-node": "give it to Rankfall: rankfall run --nproc-per-node N -- torchrun ...",
    "max-restarts": "Rankfall restarts the whole gang itself: rankfall run --max-restarts N -- torchrun ...",
    "rdzv-id": "leave it out: each attempt gets an id of its own",
    "rdzv-endpoint": "leave it out: a free port is kept for each attempt",
    "master-port": "leave it out: a free port is kept for each attempt",
    "standalone": "leave it out: Rankfall makes the rendezvous of all nodes itself",
}


class TorchrunCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A torchrun command, taken apart.

    Attributes:
        prefix: the words that start torchrun.
        rest: flags, script and its arguments, as they were.
        given: flags with their values (empty for a switch).
    """

    prefix: tuple[str, ...]
    rest: tuple[str, ...]
    given: dict[str, str]


def parse(command: Sequence[str]) -> TorchrunCommand | None:
    """The command taken apart; None when it is not torchrun."""
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
    found: dict[str, str] = {}
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        name, equals, value = words[position].partition("=")
        position += 1
        flag = _SHORT.get(name) or _flag(name)
        if flag is None:
            # A flag of a newer torch: passed on untouched; whether a value follows it, only torch knows.
            continue
        if not equals and FLAGS[flag] and position < len(words):
            value = words[position]
            position += 1
        found[flag] = value
    return found


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
    """The flags that make one gang of all slots.

    Args:
        spec: the job, of the slot's role alone.
        nnodes: nodes that are needed at least.
        most: nodes at most; more than ``nnodes`` is elastic.
        node: place of this slot among those with ranks, or text that becomes it in the slot.
        backend: ``static`` or ``c10d``.
        run: rendezvous id; each attempt has its own.
        port: TCP port of the rendezvous.
        host: where the first of them is reached; this machine for local slots.
        role: torchrun's own name of the role, where there are several: ranks are numbered within each one too.
    """
    flags = {
        "nnodes": f"{nnodes}:{most}" if most != nnodes else str(nnodes),
        "nproc-per-node": str(spec.nproc_per_node),
        # A node that comes or goes costs its peers' agents one each; of a rank that falls by itself the supervisor takes care.
        "max-restarts": "0" if nnodes == most else str(CHANGES),
        "rdzv-id": run,
        "rdzv-backend": backend,
        **({"role": role} if role is not None else {}),
    }
    if backend == "static":
        return flags | {"node-rank": str(node), "master-addr": host, "master-port": str(port)}
    flags["rdzv-endpoint"] = f"{host}:{port}"
    if host == LOOPBACK:
        # One host of the store by decision, not by who comes first: it lives as long as slot 0. Elsewhere torch finds it by itself: the
        # machine whose own address the endpoint's name leads to.
        # All slots start at once and share one clock, so one that does not come, or went, need not be waited for as long as by default.
        quick = "" if nnodes == most else ",last_call_timeout=5,keep_alive_interval=2"
        flags |= {"rdzv-conf": f"is_host={1 if node == 0 else 0}{quick}", "local-addr": LOOPBACK}
    return flags


def as_words(flags: Mapping[str, str]) -> tuple[str, ...]:
    """Flags as words of a command line."""
    return tuple(word for name, value in flags.items() for word in (f"--{name}", value))


def merge(command: TorchrunCommand, flags: Mapping[str, str], *, env: Mapping[str, str]) -> tuple[str, ...]:
    """The user's torchrun with our flags filled in.

    Args:
        command: as parsed.
        flags: ours for this slot.
        env: the job's environment, for ``PET_*``.

    Raises:
        SpecError: a flag or variable says something else than the job does.
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
    """What of ours a flag contradicts, in words; None when it may stand."""
    if name == "standalone":
        on = value.lower() not in {"0", "false", "no"}
        return f"--rdzv-backend {flags['rdzv-backend']}" if on else None
    if name in flags:
        return None if _same(name, value, flags[name]) else f"--{name} {flags[name]}"
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
        # Other keys are the user's; only who hosts the store is ours.
        return "is_host" not in value
    return value == ours


def job_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The inherited environment with the job's own variables over it."""
    return {**os.environ, **env}
