"""Slots as process groups on this machine, with logical node names. Needs nothing but Python.

Refuses what cannot work before anything is created: a missing script, program, interpreter or folder, flags that contradict the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends import bundle, environment, slots, torchrun
from rankfall.backends.code import CODE
from rankfall.backends.command import Command, check_hook, given_torchrun, job_words, read_command
from rankfall.backends.gang import told_of, world_launcher, world_rendezvous
from rankfall.backends.interpreter import Interpreter, find_interpreter
from rankfall.backends.local_limits import unused
from rankfall.backends.plan import Launcher, Plan, Rendezvous, SlotPlan, role_env, slot_plan
from rankfall.backends.ports import Reservation
from rankfall.backends.protocol import Company, HeldBack, HeldBy, Life, Source
from rankfall.diagnose import CAUSAL
from rankfall.model import InfrastructureError, JobSpec, Part, SpecError
from rankfall.store import RunDir

HOST: Final = "127.0.0.1"


class LocalBackend:
    """The embedded backend. One object serves one run's attempts, one after the other."""

    strategy = CAUSAL.name
    avoids_nodes = False

    def __init__(self) -> None:
        self._port: Reservation | None = None
        self._children: dict[int, Path] = {}
        self._exits: dict[Path, int] = {}

    def plan(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        nnodes: int | None = None,
        exclude: Collection[str] = (),
    ) -> Plan:
        """What would be started. Creates nothing; a port is kept until the next plan or :meth:`release`.

        Args:
            spec: the job.
            run_dir: where it would live; need not exist.
            attempt: counted from 1.
            nnodes: how many of ``MIN:MAX`` nodes there are at first; None = the most.
            exclude: all nodes are this machine, so none can be avoided.

        Raises:
            SpecError: something the job needs is missing, or its flags contradict the job.
            Refused: ``inside: require`` cannot be kept, or the job asks for what only a cluster can do.
            InfrastructureError: no port is free.
        """
        notes = unused(spec)
        del exclude
        cwd, seen = _folder(spec, run_dir)
        own: list[_Own] = []
        for part in spec.parts:
            with told_of(spec, part):
                own.append(_own(part, cwd=seen))
        launcher = world_launcher([(one.part, one.launcher) for one in own])
        rdzv: Rendezvous = (
            world_rendezvous([(one.part, one.command) for one in own]) if launcher == "torchrun" else "none"
        )
        start = _Start(
            run_dir=run_dir,
            attempt=attempt,
            cwd=cwd,
            rdzv=rdzv,
            port=self._reserve(0).port,
            most=spec.world_nodes,
            least=spec.nnodes if spec.elastic else spec.world_nodes,
            strategy=spec.strategy or self.strategy,
        )
        made = []
        for one in own:
            for number in one.part.slots:
                with told_of(spec, one.part):
                    made.append(_slot(spec, one, number, start))
        begun = len(made) if nnodes is None else nnodes
        names = [f"role {one.part.name}: {one.note}" if spec.several_roles else one.note for one in own]
        return Plan(
            attempt=attempt,
            launcher=launcher,
            rdzv=rdzv,
            slots=tuple(made[:begun]),
            spare=tuple(made[begun:]),
            env=dict(spec.env),
            role_env=role_env(spec),
            removed=tuple(name for name in environment.removed(os.environ) if name not in spec.env),
            notes=(*names, *notes),
            port=start.port,
            strategy=start.strategy,
        )

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """None: the lease of the run's directory is enough, because the slots live on this machine."""
        del run_dir, attempts, lost
        return None

    def let_go(self, *, over: bool) -> None:
        """Nothing is held beside the directory's lease."""

    def submit(self, plan: Plan, *, company: Company | None = None) -> tuple[int, ...]:
        """Start the slots that were never started, in order.

        Raises:
            InfrastructureError: a slot cannot be started; those before it run.
        """
        del company
        if not plan.slots:
            return ()
        try:
            bundle.unpack(Path(plan.slots[0].slot_dir).parents[4])
        except OSError as error:
            raise InfrastructureError(
                f"what travels into the slots cannot be unpacked: {error.strerror or error}",
                hint="check space and permissions of Rankfall's home",
            ) from error
        # Looked at again here: a supervisor that took over may have been started inside another job than the first.
        drop = environment.removed(os.environ)
        started = []
        for slot in plan.present:
            slot_dir = Path(slot.slot_dir)
            env = environment.assembled(own=slot.env, job=plan.env_of(slot.role), drop=drop)
            pid = slots.start(slot.argv, env=env, cwd=slot.cwd, slot_dir=slot_dir)
            if pid is not None:
                self._children[pid] = slot_dir
                started.append(slot.slot)
        return tuple(started)

    def start_again(self, plan: Plan, slot: int) -> None:
        """Start one slot as the start that this plan says, where it was not started yet.

        Raises:
            InfrastructureError: it cannot be started.
        """
        self.submit(msgspec.structs.replace(plan, slots=(slot_plan(plan, slot),)))

    def adopt(self, plan: Plan) -> None:
        """Keep the port of a plan that another process submitted, where its owner does not listen on it yet."""
        try:
            self._reserve(plan.port or 0)
        except InfrastructureError:
            return

    def life(self, plan: Plan, slot: int) -> Life:
        """What is seen of a slot now; reaps its wrapper when it is ours and has ended."""
        slot_dir = Path(slot_plan(plan, slot).slot_dir)
        gone = self._reap(slot_dir)
        found = slots.life(slot_dir)
        return "dead" if gone and found == "starting" else found

    def alive(self, plan: Plan, slot: int) -> bool:
        """Whether its wrapper runs or is starting."""
        return self.life(plan, slot) in {"starting", "running"}

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """The wrapper's own exit code, which is its command's; None while it runs, when a signal ended it, or when it is not our child."""
        slot_dir = Path(slot_plan(plan, slot).slot_dir)
        self._reap(slot_dir)
        status = self._exits.get(slot_dir, -1)
        return os.WEXITSTATUS(status) if status >= 0 and os.WIFEXITED(status) else None

    def stop(self, plan: Plan, slots_: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Ask slots to end: SIGTERM to their command, after ``grace`` seconds SIGKILL to all below it."""
        line = f"stop {max(0.0, grace):g} {reason}"
        return tuple(n for n in sorted(slots_) if slots.tell(Path(slot_plan(plan, n).slot_dir), line))

    def ask_stacks(self, plan: Plan, slots_: Collection[int]) -> tuple[int, ...]:
        """Ask slots for the stacks of their ranks; they come as records."""
        return tuple(n for n in sorted(slots_) if slots.tell(Path(slot_plan(plan, n).slot_dir), "stacks"))

    def end(self, plan: Plan, slots_: Collection[int], *, grace: float) -> int:
        """End by force what is left of slots: their wrapper too, when it is deaf; how many processes were ended."""
        count = 0
        for number in sorted(slots_):
            slot_dir = Path(slot_plan(plan, number).slot_dir)
            count += slots.end_members(slot_dir, grace=grace)
            self._reap(slot_dir)
        return count

    def resizes(self, plan: Plan) -> bool:
        """Whether torchrun makes a new round when slots come or go."""
        return plan.launcher == "torchrun" and plan.rdzv == "c10d"

    def resize(self, plan: Plan) -> bool:
        """Start the slots that joined, and stop those that left by a resize; whether all of them were told.

        Raises:
            InfrastructureError: a slot cannot be started.
        """
        self.submit(plan)
        leaving = [one.slot for one in plan.left if one.why == "resize" and self.alive(plan, one.slot)]
        grace = float(RunDir(Path(plan.slots[0].slot_dir).parents[2]).spec.policies.grace_s)
        return set(self.stop(plan, leaving, grace=grace, reason="fewer nodes are wished")) >= set(leaving)

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Records of all slots, then slot directory and streams of each."""
        if not plan.slots:
            return ()
        shared = Source(kind="records", path=plan.slots[0].env["RANKFALL_RECORD_DIR"])
        own = [
            source
            for slot in plan.slots
            for source in (
                Source(kind="slot_dir", path=slot.slot_dir, slot=slot.slot),
                Source(kind="streams", path=slot.stream_dir, slot=slot.slot),
            )
        ]
        return (shared, *own)

    def withdrawn(self, plan: Plan) -> str | None:
        """None: there is nothing on this machine that somebody could take away in place of its processes."""
        del plan
        return None

    def held_back(self, plan: Plan) -> HeldBack | None:
        """None: nobody else suspends processes here."""
        del plan
        return None

    def clear(self, plan: Plan, *, company: Company | None = None) -> None:
        """Nothing of an ended attempt is left outside the run directory."""

    def release(self) -> None:
        """Let go of the port, and of the wrappers that have ended."""
        if self._port is not None:
            self._port.close()
            self._port = None
        for slot_dir in set(self._children.values()):
            self._reap(slot_dir)

    def _reserve(self, port: int) -> Reservation:
        if self._port is not None:
            self._port.close()
            self._port = None
        try:
            self._port = Reservation(port)
        except OSError as error:
            raise InfrastructureError(
                f"no TCP port can be kept for the job: {error.strerror or error}", hint="end programs that hold ports"
            ) from error
        return self._port

    def _reap(self, slot_dir: Path) -> bool:
        """Whether a wrapper of ours has ended; what is another process's child is its parent's matter."""
        for pid, folder in list(self._children.items()):
            if folder != slot_dir:
                continue
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                done, status = pid, -1
            if not done:
                return False
            del self._children[pid]
            self._exits[slot_dir] = status
        return slot_dir in self._exits


def choose_launcher(spec: JobSpec, command: Command, python: Interpreter) -> tuple[Launcher, str]:
    """The launcher and, in words, why.

    Raises:
        SpecError: torchrun is asked for, or needed, and the job's Python has no torch.
    """
    if given_torchrun(spec, command):
        return "torchrun", f"launcher: the given {Path(command.words[0]).name}, completed for each slot"
    with_torch = f"torch {python.torch} in {python.path}"
    if spec.launcher == "torchrun" or (spec.elastic and spec.launcher == "auto"):
        if python.torch is None:
            raise SpecError(
                "$.launcher",
                f"torchrun is needed{' for MIN:MAX nodes' if spec.elastic else ''}, and {python.path} has no torch",
                hint="install torch there, or name another Python in $.python (--python)",
            )
        return "torchrun", f"launcher: torchrun ({with_torch})"
    if spec.launcher in {"plain", "exec"}:
        return spec.launcher, f"launcher: {spec.launcher} (asked for)"
    if command.kind == "program":
        return "plain", "launcher: plain (the command is a program of its own; it is started once for each rank)"
    if python.torch is None:
        return "plain", f"launcher: plain (no torch in {python.path})"
    return "torchrun", f"launcher: torchrun ({with_torch})"


class _Own(msgspec.Struct, frozen=True, kw_only=True):
    """What one role starts, and how."""

    part: Part
    python: Interpreter
    command: Command
    launcher: Launcher
    note: str


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """What all slots of an attempt share; ``most`` and ``least`` are the nodes of the world."""

    run_dir: RunDir
    attempt: int
    cwd: Path
    rdzv: Rendezvous
    port: int
    most: int
    least: int
    strategy: str


def _own(part: Part, *, cwd: Path) -> _Own:
    python = find_interpreter(part.spec, cwd=cwd)
    command = read_command(part.spec, cwd=cwd)
    check_hook(part.spec, command, python)
    launcher, note = choose_launcher(part.spec, command, python)
    return _Own(part=part, python=python, command=command, launcher=launcher, note=note)


def _slot(spec: JobSpec, one: _Own, number: int, start: _Start) -> SlotPlan:
    """The plan of one slot."""
    part, run_dir, attempt = one.part, start.run_dir, start.attempt
    index = part.index_of(number)
    position = (part.first_node or 0) + index
    node = f"node{number}"
    env = environment.identity(part.spec, run_dir, attempt=attempt, slot=number, node=node, strategy=start.strategy)
    if spec.several_roles:
        env |= {
            **environment.place(spec, part, hosts={one.name: HOST for one in spec.parts}),
            "RANKFALL_INDEX": str(index),
        }
    if one.launcher != "torchrun":
        env |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(start.port)}
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
            role=part.name if spec.several_roles else None,
        )
    slot_dir = run_dir.slot_dir(attempt, part.name, number)
    stream_dir = run_dir.stream_dir(attempt, part.name, number)
    job = job_words(
        one.command,
        python=one.python.path,
        flags=flags,
        # Its error files belong to the slot, not to a temporary folder that nobody removes.
        log_dir=str(slot_dir / "torchelastic"),
        env=torchrun.job_environment(part.spec.env),
    )
    wrapper = (
        # -I -S: neither the job's PYTHONPATH nor this environment's .pth files reach the wrapper.
        *(sys.executable, "-I", "-S", str(bundle.location(run_dir.path.parent.parent)), "wrap"),
        *("--stream-dir", str(stream_dir), "--launcher", "plain" if one.launcher == "plain" else "exec"),
        *("--nproc", str(part.spec.nproc_per_node), "--grace", f"{spec.policies.grace_s:g}", "--"),
    )
    return SlotPlan(
        slot=number,
        role=part.name,
        node=node,
        argv=(*wrapper, *job),
        env=env,
        cwd=str(start.cwd),
        slot_dir=str(slot_dir),
        stream_dir=str(stream_dir),
    )


def _folder(spec: JobSpec, run_dir: RunDir) -> tuple[Path, Path]:
    """Where the job runs, and where its files can be looked at now: before the submission the code is not there yet."""
    if spec.code_folders:
        cwd = run_dir.path / CODE / (spec.cwd or "")
        return cwd, _checked(cwd if run_dir.path.is_dir() else _source(spec), spec)
    cwd = _checked(Path(spec.cwd).expanduser().absolute() if spec.cwd else Path.cwd(), spec)
    return cwd, cwd


def _source(spec: JobSpec) -> Path:
    """Of the folders of the code the one on top that has the command's first word, else the one on top."""
    folders = [Path(folder).expanduser().absolute() / (spec.cwd or "") for folder in reversed(spec.code_folders)]
    words = spec.command[:1]
    return next((folder for folder in folders if words and (folder / words[0]).is_file()), folders[0])


def _checked(cwd: Path, spec: JobSpec) -> Path:
    field = "$.code" if spec.code_folders and spec.cwd is None else "$.cwd"
    if not cwd.is_dir():
        raise SpecError(field, f"{str(cwd)!r} is no folder", hint="give a folder that exists")
    if not os.access(cwd, os.X_OK):
        raise SpecError(field, f"{str(cwd)!r} cannot be entered", hint="check its permissions")
    return cwd
