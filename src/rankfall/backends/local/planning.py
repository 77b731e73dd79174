"""Plans an attempt without containers: each role's launcher, each slot's command, environment and folders.

Refuses before anything is created. Unused fields become notes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends import environment, payload, torchrun
from rankfall.backends.command import (
    Command,
    Interpreter,
    check_hook,
    find_interpreter,
    given_torchrun,
    job_words,
    naming_role,
    read_command,
    world_launcher,
    world_rendezvous,
)
from rankfall.backends.local.processes import require_proc
from rankfall.backends.payload import CODE
from rankfall.backends.plan import Launcher, Plan, Rendezvous, SlotPlan, referred_words, variables
from rankfall.model import JobSpec, Kubernetes, Part, Refused, SpecError
from rankfall.rundir import RunDir


def unused(spec: JobSpec) -> tuple[str, ...]:
    """Returns notes about fields that a backend without containers does not use.

    Raises:
        Refused: A field is impossible there.
    """
    if spec.unattended:
        raise Refused(
            f"$.unattended: the {spec.backend} backend has no platform that would run the job alone",
            hint="leave unattended out; rankfall submit keeps a supervisor in the background",
        )
    notes = []
    plain = Kubernetes()
    given = [name for name in msgspec.structs.asdict(plain) if getattr(spec.kubernetes, name) != getattr(plain, name)]
    if given:
        notes.append(f"kubernetes: not used by the {spec.backend} backend ({', '.join(given)})")
    if spec.ttl_s is not None:
        notes.append(f"ttl_s: not used by the {spec.backend} backend; the run directory remains until you remove it")
    return tuple(notes)


HOST: Final = "127.0.0.1"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a slot: node, its address, and the words that start a command there."""

    node: str
    host: str = HOST
    words: tuple[str, ...] = ()


def planned(
    spec: JobSpec,
    run_dir: RunDir,
    attempt: int,
    *,
    nnodes: int | None,
    reserve: Callable[[], int],
    strategy: str,
    places: Sequence[Place] = (),
    notes: tuple[str, ...] = (),
) -> Plan:
    """Returns the plan of one attempt; ``reserve`` returns a port, after all checks.

    ``places`` by slot; without them all slots run here under logical node names.

    Raises:
        SpecError: Missing requirement or contradictory flags.
        Refused: Impossible on this machine.
        InfrastructureError: No port is free.
    """
    require_proc()
    notes = (*notes, *unused(spec))
    cwd, seen = _folder(spec, run_dir)
    own: list[_Own] = []
    for part in spec.parts:
        with naming_role(spec, part):
            own.append(_own(part, cwd=seen))
    launcher = world_launcher([(one.part, one.launcher) for one in own])
    rdzv: Rendezvous = world_rendezvous([(one.part, one.command) for one in own]) if launcher == "torchrun" else "none"
    start = _Start(
        run_dir=run_dir,
        attempt=attempt,
        cwd=cwd,
        rdzv=rdzv,
        port=reserve(),
        most=spec.world_nodes,
        least=spec.nnodes if spec.elastic else spec.world_nodes,
        strategy=strategy,
        referred=referred_words(spec),
        places=tuple(places) or tuple(Place(node=f"node{number}") for number in range(spec.slot_count)),
    )
    made = []
    for one in own:
        for number in one.part.slots:
            with naming_role(spec, one.part):
                made.append(_slot(spec, one, number, start))
    begun = len(made) if nnodes is None else nnodes
    names = [f"role {one.part.name}: {one.note}" if spec.several_roles else one.note for one in own]
    return Plan(
        attempt=attempt,
        launcher=launcher,
        rdzv=rdzv,
        slots=tuple(made[:begun]),
        spare=tuple(made[begun:]),
        **variables(spec),
        removed=tuple(name for name in environment.removed(os.environ) if name not in spec.env),
        notes=(*names, *notes),
        port=start.port,
        strategy=start.strategy,
    )


def choose_launcher(spec: JobSpec, command: Command, python: Interpreter) -> tuple[Launcher, str]:
    """Returns the launcher and the reason as text.

    Raises:
        SpecError: Required torch is missing.
    """
    if given_torchrun(spec, command):
        return "torchrun", f"launcher: the given {Path(command.words[0]).name}, completed for each slot"
    with_torch = f"torch {python.torch} in {python.path}"
    if spec.launcher == "torchrun" or (spec.elastic and spec.launcher == "auto"):
        if python.torch is None:
            raise SpecError(
                "$.launcher",
                f"torchrun is needed{' for MIN:MAX nodes' if spec.elastic else ''}, but {python.path} has no torch",
                hint="install torch there, or name another Python in $.python (--python)",
            )
        return "torchrun", f"launcher: torchrun ({with_torch})"
    if spec.launcher in {"plain", "exec"}:
        return spec.launcher, f"launcher: {spec.launcher} (requested)"
    if command.kind == "program":
        return "plain", "launcher: plain (the command is not a Python script; it is started once for each rank)"
    if python.torch is None:
        return "plain", f"launcher: plain (no torch in {python.path})"
    return "torchrun", f"launcher: torchrun ({with_torch})"


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    part: Part
    python: Interpreter
    command: Command
    launcher: Launcher
    note: str


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """Values shared by all slots: world sizes ``most`` and ``least``, placeholders ``referred``."""

    run_dir: RunDir
    attempt: int
    cwd: Path
    rdzv: Rendezvous
    port: int
    most: int
    least: int
    strategy: str
    referred: dict[str, str]
    places: tuple[Place, ...]


def _own(part: Part, *, cwd: Path) -> _Own:
    python = find_interpreter(part.spec, cwd=cwd)
    command = read_command(part.spec, cwd=cwd)
    check_hook(part.spec, command, python)
    launcher, note = choose_launcher(part.spec, command, python)
    return _Own(part=part, python=python, command=command, launcher=launcher, note=note)


def _slot(spec: JobSpec, one: _Own, number: int, start: _Start) -> SlotPlan:
    part, run_dir, attempt = one.part, start.run_dir, start.attempt
    index = part.index_of(number)
    position = (part.first_node or 0) + index
    place = start.places[number]
    node, host = place.node, start.places[_first_of_world(spec)].host
    env = environment.identity(part.spec, run_dir, attempt=attempt, slot=number, node=node, strategy=start.strategy)
    if spec.several_roles:
        env |= {
            **environment.place(spec, part, hosts={one.name: start.places[one.base].host for one in spec.parts}),
            "RANKFALL_INDEX": str(index),
        }
    if one.launcher != "torchrun":
        env |= {"MASTER_ADDR": host, "MASTER_PORT": str(start.port)}
    if one.launcher == "plain":
        env |= {
            "RANKFALL_PLAIN_NNODES": str(start.most),
            "RANKFALL_PLAIN_NODE_RANK": str(position),
            "TORCHELASTIC_RUN_ID": f"{run_dir.id}-a{attempt}",
        }
    if spec.elastic:
        env |= {name: value for name, value in torchrun.ELASTIC_ENV.items() if name not in part.spec.env}
    flags = None
    if one.launcher == "torchrun":
        flags = torchrun.rendezvous_flags(
            spec=part.spec,
            nnodes=start.least,
            most=start.most,
            node=position,
            backend=start.rdzv,
            run=f"{run_dir.id}-a{attempt}",
            port=start.port,
            host=host,
            role=part.name if spec.several_roles else None,
        )
        if start.rdzv == "c10d":
            flags["local-addr"] = place.host
    slot_dir = run_dir.slot_dir(attempt, part.name, number)
    stream_dir = run_dir.stream_dir(attempt, part.name, number)
    job = job_words(
        one.command,
        python=one.python.path,
        flags=flags,
        # A temporary folder would never be removed.
        log_dir=str(slot_dir / "torchelastic"),
        env=torchrun.job_environment(part.spec.env),
    )
    wrapper = (
        *place.words,
        # -I -S: PYTHONPATH and local .pth files do not affect the wrapper.
        *(sys.executable, "-I", "-S", str(payload.location(run_dir.path.parent.parent)), "wrap"),
        *("--stream-dir", str(stream_dir), "--launcher", "plain" if one.launcher == "plain" else "exec"),
        *("--nproc", str(part.spec.nproc_per_node), "--grace", f"{spec.policies.grace_s:g}", "--"),
    )
    return SlotPlan(
        slot=number,
        role=part.name,
        node=node,
        argv=(*wrapper, *(start.referred.get(word, word) for word in job)),
        env=env,
        cwd=str(start.cwd),
        slot_dir=str(slot_dir),
        stream_dir=str(stream_dir),
    )


def _first_of_world(spec: JobSpec) -> int:
    return next((part.base for part in spec.parts if part.in_world), 0)


def _folder(spec: JobSpec, run_dir: RunDir) -> tuple[Path, Path]:
    """Returns working directory and its files' current folder; they differ before submission."""
    if spec.code_folders:
        cwd = run_dir.path / CODE / (spec.cwd or "")
        return cwd, _checked(cwd if run_dir.path.is_dir() else _source(spec), spec)
    cwd = _checked(Path(spec.cwd).expanduser().absolute() if spec.cwd else Path.cwd(), spec)
    return cwd, cwd


def _source(spec: JobSpec) -> Path:
    """Topmost code folder with the command's first word, else the topmost."""
    folders = [Path(folder).expanduser().absolute() / (spec.cwd or "") for folder in reversed(spec.code_folders)]
    words = spec.command[:1]
    return next((folder for folder in folders if words and (folder / words[0]).is_file()), folders[0])


def _checked(cwd: Path, spec: JobSpec) -> Path:
    field = "$.code" if spec.code_folders and spec.cwd is None else "$.cwd"
    if not cwd.is_dir():
        raise SpecError(field, f"{str(cwd)!r} is not a folder", hint="give a folder that exists")
    if not os.access(cwd, os.X_OK):
        raise SpecError(field, f"{str(cwd)!r} cannot be opened", hint="check its permissions")
    return cwd
