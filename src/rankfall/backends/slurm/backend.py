"""The Slurm backend: starts each slot's wrapper as a step and watches the step's srun, a child of the supervisor.

Slots write into the shared run directory. Requests reach a wrapper through a second, short step on its node.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.backends.local import processes
from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.local.planning import Place, planned
from rankfall.backends.plan import Plan, slot_plan
from rankfall.backends.protocol import HeldBy, Life, PlatformEnd
from rankfall.backends.slurm import allocation
from rankfall.model import InfrastructureError, JobSpec, Refused, decoding
from rankfall.rundir import RunDir
from rankfall.rundir.lease import start_ticks, write_file

# Below the ephemeral ports of Linux, so no client holds one by chance.
_PORTS: Final = range(20_000, 32_000)
# Seconds after srun's end for files of the slot to become visible here.
_LATE_S: Final = 5.0
_STEP_S: Final = 0.5
_KILL_WAIT_S: Final = 15.0
# Writes to the FIFO of a wrapper; one that does not read loses the line.
_TELL: Final = 'test -p "$1" && printf "%s\\n" "$0" 1<>"$1"'


class _Home(msgspec.Struct, frozen=True, kw_only=True):
    """Slurm job and host that started the steps of a run."""

    job: str
    host: str


class SlurmBackend(LocalBackend):
    """The backend for a run inside an allocation; spare nodes replace those to avoid."""

    def __init__(self) -> None:
        super().__init__()
        self._spare = 0
        # Adopted clients: process id and start.
        self._adopted: dict[Path, tuple[int, int] | None] = {}
        self._ended: dict[Path, float] = {}
        self._messengers: list[subprocess.Popen[bytes]] = []

    @property
    def avoids_nodes(self) -> bool:  # type: ignore[override]
        """True if the allocation has more nodes than the last plan."""
        return self._spare > 0

    def plan(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        nnodes: int | None = None,
        exclude: Collection[str] = (),
    ) -> Plan:
        """Plans an attempt on nodes of the allocation; creates nothing.

        Raises:
            SpecError: Missing requirement or contradictory flags.
            Refused: No allocation, or it is too small.
            InfrastructureError: Slurm does not answer.
        """
        if spec.elastic:
            raise Refused("$.nnodes: MIN:MAX nodes are not supported by slurm", hint="give one number")
        found = allocation.read(os.environ)
        nodes = found.chosen(spec.slot_count, exclude=exclude)
        self._spare = len(found.nodes) - len(nodes)
        again = sorted({node.name for node in nodes} & set(exclude))
        notes = (f"Slurm job {found.job} has no other nodes: {', '.join(again)} again",) if again else ()

        def place(slot: int) -> Place:
            words = allocation.step_words(
                found.job,
                node=nodes[slot].name,
                name=step_name(run_dir.id, attempt, slot),
                environ=os.environ,
            )
            return Place(node=nodes[slot].name, host=nodes[slot].address, words=words)

        first_here = nodes[0].name == os.environ.get("SLURMD_NODENAME")
        return planned(
            spec,
            run_dir,
            attempt,
            nnodes=nnodes,
            reserve=lambda: self._reserve(0).port if first_here else random.choice(_PORTS),  # noqa: S311 - no secret
            strategy=spec.strategy or self.strategy,
            places=[place(slot) for slot in range(len(nodes))],
            notes=(f"Slurm job {found.job}: nodes {', '.join(node.name for node in nodes)}", *notes),
        )

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """Returns None: the directory's lease suffices.

        Raises:
            InfrastructureError: The steps run and their clients are on another machine.
        """
        del attempts, lost
        path = run_dir.path / "slurm.json"
        own = _Home(job=os.environ.get("SLURM_JOB_ID", ""), host=socket.gethostname())
        try:
            home = decoding.decode(path.read_bytes(), kind=_Home)
        except (OSError, msgspec.DecodeError):
            home = own
        if home.host != own.host and allocation.runs(home.job):
            raise InfrastructureError(
                f"run {run_dir.id} runs in Slurm job {home.job}, and only a process on {home.host} can supervise it",
                hint=f"srun --jobid={home.job} --overlap --nodes=1 --ntasks=1 --pty rankfall attach {run_dir.id}, or scancel {home.job}",
            )
        write_file(path, msgspec.json.encode(own))
        return None

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Environment of a slot's srun, which hands it to the wrapper."""
        env = allocation.step_environment(own)
        # A number that means another process on another machine.
        env.pop("RANKFALL_SUPERVISOR_PID", None)
        return env | {"RANKFALL_HEARTBEATS": "1"}

    def adopt(self, plan: Plan) -> None:
        """Does nothing: the port is on another machine, or its owner listens."""

    def life(self, plan: Plan, slot: int) -> Life:
        """Returns a slot's state by its srun and its files."""
        slot_dir = Path(slot_plan(plan, slot).slot_dir)
        if self._client_lives(slot_dir):
            return "running" if (slot_dir / "lock").exists() else "starting"
        if not processes.was_started(slot_dir):
            return "absent"
        if "end.json" in _names(slot_dir):
            return "ended"
        since = self._ended.setdefault(slot_dir, time.monotonic())
        return "dead" if time.monotonic() - since >= _LATE_S else "running"

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """Returns None: srun ends with 0 after the failure of its node."""
        del plan, slot
        return None

    def end_reason(self, plan: Plan) -> PlatformEnd | None:
        """Returns why Slurm ends the job of these steps now, else None."""
        return allocation.end_reason(_job_of(plan))

    def stop(self, plan: Plan, slots_: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Requests slots to end: SIGTERM, after ``grace`` seconds SIGKILL."""
        return self._tell(plan, slots_, f"stop {max(0.0, grace):g} {reason}")

    def request_stacks(self, plan: Plan, slots_: Collection[int]) -> tuple[int, ...]:
        """Requests the stacks of ranks; they arrive as records."""
        return self._tell(plan, slots_, "stacks")

    def end(self, plan: Plan, slots_: Collection[int], *, grace: float) -> int:
        """Ends the steps of slots: a request to their wrappers, after ``grace`` seconds SIGKILL; returns their number."""
        numbers = sorted(slots_)
        job = _job_of(plan)
        names = {step_name(_run_of(plan).id, plan.attempt, number) for number in numbers}
        found = self._steps(job, names)
        seen = set(found)
        if found:
            for number in numbers:
                # Wrappers record a signal by scancel as one of another user.
                one = slot_plan(plan, number)
                self._send(job, one.node, Path(one.slot_dir) / "ctl", f"stop {grace:g} its step was to end")
        deadline = time.monotonic() + grace
        killed = False
        while found and time.monotonic() <= deadline + _KILL_WAIT_S:
            if not killed and time.monotonic() >= deadline:
                killed = True
                allocation.send("KILL", found)
            time.sleep(_STEP_S)
            found = self._steps(job, names)
            seen |= set(found)
        for number in numbers:
            # An srun whose step has ended.
            slot_dir = Path(slot_plan(plan, number).slot_dir)
            processes.end_members(slot_dir, grace=1.0)
            self._reap(slot_dir)
        return len(seen)

    @staticmethod
    def _steps(job: str, names: Collection[str]) -> list[str]:
        """Ids of live steps; none if the job is over or the controller does not answer."""
        try:
            return allocation.steps(job, names)
        except InfrastructureError:
            return []

    def resizes(self, plan: Plan) -> bool:
        """False: a new number of nodes is a new attempt."""
        del plan
        return False

    def release(self) -> None:
        """Releases the port and reaps ended clients."""
        super().release()
        self._reap_messengers()

    def _client_lives(self, slot_dir: Path) -> bool:
        if self._reap(slot_dir):
            return False
        if slot_dir in self._children.values():
            return True
        if slot_dir not in self._adopted:
            self._adopted[slot_dir] = min(processes.living(slot_dir), key=lambda one: one[1], default=None)
        held = self._adopted[slot_dir]
        return held is not None and start_ticks(held[0]) == held[1]

    def _tell(self, plan: Plan, numbers: Collection[int], line: str) -> tuple[int, ...]:
        return tuple(number for number in sorted(numbers) if self._deliver(plan, number, line))

    def _deliver(self, plan: Plan, number: int, line: str) -> bool:
        one = slot_plan(plan, number)
        slot_dir = Path(one.slot_dir)
        if one.node == os.environ.get("SLURMD_NODENAME") and processes.tell(slot_dir, line):
            return True
        # The wrapper of a step that is only starting reads nothing yet.
        return self.life(plan, number) == "running" and self._send(_job_of(plan), one.node, slot_dir / "ctl", line)

    def _send(self, job: str, node: str, path: Path, line: str) -> bool:
        words = allocation.step_words(job, node=node, name="rankfall-tell", environ={})
        text = line.replace("\n", " ")[:2000]
        try:
            messenger = subprocess.Popen(
                (*words, "/bin/sh", "-c", _TELL, text, str(path)),
                env=allocation.step_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return False
        self._reap_messengers()
        self._messengers.append(messenger)
        return True

    def _reap_messengers(self) -> None:
        self._messengers = [one for one in self._messengers if one.poll() is None]


def step_name(run: str, attempt: int, slot: int) -> str:
    """Name of a slot's step."""
    return f"{run}-a{attempt}-s{slot}"


def _run_of(plan: Plan) -> RunDir:
    return RunDir(Path(plan.slots[0].slot_dir).parents[2])


def _job_of(plan: Plan) -> str:
    words = plan.slots[0].argv
    return next((word.partition("=")[2] for word in words if word.startswith("--jobid=")), "")


def _names(folder: Path) -> list[str]:
    try:
        # Unlike the check of one name, a listing makes a network file system fetch the folder again.
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
