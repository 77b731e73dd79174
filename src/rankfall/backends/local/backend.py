"""The local backend: slots as process groups on this machine, with logical node names.

Needs nothing but Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from rankfall.backends import environment, payload
from rankfall.backends.local import processes
from rankfall.backends.local.planning import planned
from rankfall.backends.local.ports import Reservation
from rankfall.backends.plan import Plan, slot_plan
from rankfall.backends.protocol import Cancellation, HeldBy, Life, Source, SuspensionState
from rankfall.model import InfrastructureError, JobSpec
from rankfall.model.jobspec.secrets import pointer_of, secrets_of
from rankfall.rundir import RunDir
from rankfall.verdict.diagnose import CAUSAL


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
        """None: the lease of the run's directory is enough, because the slots live on this machine."""
        del run_dir, attempts, lost
        return None

    def let_go(self, *, over: bool) -> None:
        """Nothing is held beside the directory's lease."""

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
        """Start the slots that were never started, in order.

        Raises:
            InfrastructureError: a slot cannot be started; those before it run.
        """
        del cancellation
        if not plan.slots:
            return ()
        try:
            payload.unpack(Path(plan.slots[0].slot_dir).parents[4])
        except OSError as error:
            raise InfrastructureError(
                f"what travels into the slots cannot be unpacked: {error.strerror or error}",
                hint="check space and permissions of Rankfall's home",
            ) from error
        # Looked at again here: a supervisor that took over may have been started inside another job than the first.
        drop = environment.removed(os.environ)
        put_in = _secrets_for(plan)
        started = []
        for slot in plan.present:
            slot_dir = Path(slot.slot_dir)
            if processes.was_started(slot_dir):
                continue
            job = {name: put_in(value) for name, value in plan.env_of(slot.role).items()}
            env = environment.assembled(own=slot.env, job=job, drop=drop)
            pid = processes.start(tuple(map(put_in, slot.argv)), env=env, cwd=slot.cwd, slot_dir=slot_dir)
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
        found = processes.life(slot_dir)
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
        return tuple(n for n in sorted(slots_) if processes.tell(Path(slot_plan(plan, n).slot_dir), line))

    def request_stacks(self, plan: Plan, slots_: Collection[int]) -> tuple[int, ...]:
        """Ask slots for the stacks of their ranks; they come as records."""
        return tuple(n for n in sorted(slots_) if processes.tell(Path(slot_plan(plan, n).slot_dir), "stacks"))

    def end(self, plan: Plan, slots_: Collection[int], *, grace: float) -> int:
        """End by force what is left of slots: their wrapper too, when it is deaf; how many processes were ended."""
        count = 0
        for number in sorted(slots_):
            slot_dir = Path(slot_plan(plan, number).slot_dir)
            count += processes.end_members(slot_dir, grace=grace)
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
        departing = [one.slot for one in plan.left if one.why == "resize" and self.alive(plan, one.slot)]
        grace = float(RunDir(Path(plan.slots[0].slot_dir).parents[2]).spec.policies.grace_s)
        return set(self.stop(plan, departing, grace=grace, reason="fewer nodes are wished")) >= set(departing)

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

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        """None: there is nothing on this machine that somebody could take away in place of its processes."""
        del plan, surely
        return None

    def suspension_state(self, plan: Plan) -> SuspensionState | None:
        """None: nobody else suspends processes here."""
        del plan
        return None

    def clear(self, plan: Plan, *, cancellation: Cancellation | None = None) -> None:
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


def _secrets_for(plan: Plan) -> Callable[[str], str]:
    """What puts the secrets of the run into texts of its plan. They are read when the first reference is met.

    Raises:
        InfrastructureError: when it is called and they cannot be read.
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
                f"the run has no secret value for {pointer}", hint="submit the job again with its values"
            ) from None

    return put_in
