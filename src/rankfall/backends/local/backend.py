"""The local backend: slots as process groups, with logical node names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from rankfall.backends import environment, payload
from rankfall.backends.local import processes
from rankfall.backends.local.planning import planned
from rankfall.backends.local.processes import Reservation
from rankfall.backends.plan import Plan, slot_plan
from rankfall.backends.protocol import Cancellation, HeldBy, Life, Source, SuspensionState
from rankfall.model import InfrastructureError, JobSpec
from rankfall.model.jobspec.secrets import pointer_of, secrets_of
from rankfall.rundir import RunDir
from rankfall.verdict.diagnose import CAUSAL


class LocalBackend:
    """The embedded backend. One object handles one run's successive attempts."""

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
        """Plans an attempt; creates nothing, but reserves a port until the next plan or :meth:`release`.

        Raises:
            SpecError: Missing requirement or contradictory flags.
            Refused: Impossible on this machine.
            InfrastructureError: No port is free.
        """
        del exclude
        return planned(
            spec,
            run_dir,
            attempt,
            nnodes=nnodes,
            reserve=lambda: self._reserve(0).port,
            strategy=spec.strategy or self.strategy,
        )

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """Returns None: the directory's lease suffices."""
        del run_dir, attempts, lost
        return None

    def let_go(self, *, over: bool) -> None:
        """Does nothing: there is no other lease."""

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
        """Starts the slots that were never started, in order.

        Raises:
            InfrastructureError: A slot cannot start; earlier ones run.
        """
        del cancellation
        if not plan.slots:
            return ()
        home = Path(plan.slots[0].slot_dir).parents[4]
        try:
            payload.unpack(home)
        except OSError as error:
            raise InfrastructureError(
                f"cannot unpack Rankfall's code for the slots: {error.strerror or error}",
                hint=f"check space and permissions of Rankfall's home, {home}",
            ) from error
        # A later supervisor may run inside another job.
        drop = environment.removed(os.environ)
        put_in = _secrets_for(plan)
        started = []
        for slot in plan.present:
            slot_dir = Path(slot.slot_dir)
            if processes.was_started(slot_dir):
                continue
            job = {name: put_in(value) for name, value in plan.env_of(slot.role).items()}
            env = self.environment(environment.assembled(own=slot.env, job=job, drop=drop))
            pid = processes.start(tuple(map(put_in, slot.argv)), env=env, cwd=slot.cwd, slot_dir=slot_dir)
            if pid is not None:
                self._children[pid] = slot_dir
                started.append(slot.slot)
        return tuple(started)

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """Environment of a slot's first process, from that of its wrapper."""
        return dict(own)

    def start_again(self, plan: Plan, slot: int) -> None:
        """Starts one slot as planned if it has not started yet.

        Raises:
            InfrastructureError: The slot cannot be started.
        """
        self.submit(msgspec.structs.replace(plan, slots=(slot_plan(plan, slot),)))

    def adopt(self, plan: Plan) -> None:
        """Reserves an adopted plan's port, unless its owner already listens."""
        try:
            self._reserve(plan.port or 0)
        except InfrastructureError:
            return

    def life(self, plan: Plan, slot: int) -> Life:
        """Returns a slot's state; reaps its wrapper if it is an ended child."""
        slot_dir = Path(slot_plan(plan, slot).slot_dir)
        gone = self._reap(slot_dir)
        found = processes.life(slot_dir)
        if found == "absent" and not slot_dir.parents[2].is_dir():
            # Without the run directory no file shows the slot's state.
            return "running" if processes.members(slot_dir) else "dead"
        return "dead" if gone and found == "starting" else found

    def alive(self, plan: Plan, slot: int) -> bool:
        """True if the slot's wrapper is starting or running."""
        return self.life(plan, slot) in {"starting", "running"}

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """Wrapper's exit code; None while it runs, after a signal, or if not a child."""
        slot_dir = Path(slot_plan(plan, slot).slot_dir)
        self._reap(slot_dir)
        status = self._exits.get(slot_dir, -1)
        return os.WEXITSTATUS(status) if status >= 0 and os.WIFEXITED(status) else None

    def stop(self, plan: Plan, slots_: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Requests slots to end: SIGTERM, after ``grace`` seconds SIGKILL."""
        line = f"stop {max(0.0, grace):g} {reason}"
        return tuple(n for n in sorted(slots_) if processes.tell(Path(slot_plan(plan, n).slot_dir), line))

    def request_stacks(self, plan: Plan, slots_: Collection[int]) -> tuple[int, ...]:
        """Requests the stacks of ranks; they arrive as records."""
        return tuple(n for n in sorted(slots_) if processes.tell(Path(slot_plan(plan, n).slot_dir), "stacks"))

    def end(self, plan: Plan, slots_: Collection[int], *, grace: float) -> int:
        """Kills remains of slots; returns the number of processes."""
        count = 0
        for number in sorted(slots_):
            slot_dir = Path(slot_plan(plan, number).slot_dir)
            count += processes.end_members(slot_dir, grace=grace)
            self._reap(slot_dir)
        return count

    def resizes(self, plan: Plan) -> bool:
        """True if torchrun starts new rounds for joining and departing slots."""
        # A restored plan has no port that a joining slot could use.
        return plan.launcher == "torchrun" and plan.rdzv == "c10d" and plan.port is not None

    def resize(self, plan: Plan) -> bool:
        """Starts joined slots and stops removed ones; returns True if nothing remains to do.

        Raises:
            InfrastructureError: A slot cannot be started.
        """
        self.submit(plan)
        departing = [one.slot for one in plan.left if one.why == "resize" and self.alive(plan, one.slot)]
        grace = float(RunDir(Path(plan.slots[0].slot_dir).parents[2]).spec.policies.grace_s)
        return set(self.stop(plan, departing, grace=grace, reason="fewer nodes are requested")) >= set(departing)

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Returns all slots' records, then each one's directory and streams."""
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

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        """Returns None: there is no object."""
        del plan, surely
        return None

    def suspension_state(self, plan: Plan) -> SuspensionState | None:
        """Returns None: no other program suspends processes here."""
        del plan
        return None

    def clear(self, plan: Plan, *, cancellation: Cancellation | None = None) -> None:
        """Does nothing: no objects exist outside the run directory."""

    def release(self) -> None:
        """Releases the port and reaps ended wrappers."""
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
                f"cannot reserve a TCP port for the job: {error.strerror or error}", hint="end programs that use ports"
            ) from error
        return self._port

    def _reap(self, slot_dir: Path) -> bool:
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


def _secrets_for(plan: Plan) -> Callable[[str], str]:
    """Returns a function that inserts the run's secrets, read at first use.

    Raises:
        InfrastructureError: The secrets are unreadable.
    """
    known: dict[str, str] = {}

    def put_in(text: str) -> str:
        pointer = pointer_of(text)
        if pointer is None:
            return text
        if not known:
            whole = RunDir(Path(plan.slots[0].slot_dir).parents[2]).whole_spec()
            known.update({place: found.text for place, found in secrets_of(whole).items()})
        try:
            return known[pointer]
        except KeyError:
            raise InfrastructureError(
                f"the run has no secret value for {pointer}", hint="submit the job again with its secret values"
            ) from None

    return put_in
