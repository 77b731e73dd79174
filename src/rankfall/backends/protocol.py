"""What every backend does, and the plan that it makes. A plan is data: it is shown by ``--dry-run``, kept in the store, and submitted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, runtime_checkable

import msgspec

from rankfall.backends.secrets import MASK, masked, masked_words
from rankfall.diagnose import CAUSAL
from rankfall.model import JobSpec
from rankfall.model.sizes import Left, SizeChange
from rankfall.observe.cluster.source import PodSource
from rankfall.store import RunDir

if TYPE_CHECKING:
    from rankfall.backends.cluster.workload import Workload

Launcher = Literal["torchrun", "plain", "exec"]
Rendezvous = Literal["static", "c10d", "none"]
# What can be seen of a slot without asking its records.
Life = Literal["absent", "starting", "running", "ended", "dead"]

PLAN_SCHEMA: Final = "rankfall.plan/1"


class SlotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One slot that would be started.

    Attributes:
        argv: the wrapper with the job's command.
        env: what Rankfall adds for this slot; the job's own variables stand in ``Plan.env``.
        cwd, slot_dir, stream_dir: absolute paths.
        instance: which start of the slot in this attempt, counted from 0.
    """

    slot: int
    instance: int = 0
    role: str
    node: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    slot_dir: str
    stream_dir: str


class ClusterPlan(PodSource, frozen=True, kw_only=True):
    """Where in a cluster an attempt lives, and what finds it again: its pods, and the object that makes them.

    Attributes:
        backend: ``job``, ``jobset`` or ``trainjob``.
        object: name of the workload.
        jobs: names of the workloads by role, where each role has one of its own; the first owns the others.
        excluded: nodes that were avoided, beside those of the spec.
        restart: how often Kubernetes itself had started the gang again before this attempt; its pods bear that number.
    """

    backend: str
    object: str
    jobs: dict[str, str] = msgspec.field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    restart: int = 0

    @property
    def workloads(self) -> tuple[str, ...]:
        """All of them, the one that owns the others first."""
        return tuple(self.jobs.values()) or (self.object,)

    def without(self, roles: Collection[str]) -> ClusterPlan:
        """The same place, in which these roles have no workload."""
        jobs = {role: name for role, name in self.jobs.items() if role not in roles}
        return msgspec.structs.replace(self, jobs=jobs, object=next(iter(jobs.values()), self.object))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that would be started. Making it creates nothing.

    Attributes:
        env: variables of the job spec, the same for all slots.
        role_env: variables over these, by role; roles that have none of their own are left out.
        removed: names taken out of the inherited environment, because they speak of another job.
        notes: what was chosen and why, for people.
        strategy: the one in force for this attempt, by name.
        cluster: where in a cluster; None on this machine.
        objects: manifests for people, with secrets masked; only while they are shown, never stored.
        sizes: nodes by role, as they were wished when the plan was made; empty = the spec's.
        slots: those that were begun with or joined since; some of them may have left.
        spare: of ``MIN:MAX`` nodes those that may still join.
        left: slots that left the gang while the attempt went on.
        outlived: bad ends (``slot`` or ``rank``, its number, process id) that the gang went on after.
        changes: what of that differs from the attempt before, and what changed while this one ran.
        left_out: roles that have done their work in an earlier attempt, and are not run again.
        port: the TCP port kept for the rendezvous or the ranks; None = none is needed.
    """

    schema: str = PLAN_SCHEMA
    attempt: int
    launcher: Launcher
    rdzv: Rendezvous = "none"
    slots: tuple[SlotPlan, ...]
    env: dict[str, str] = {}
    role_env: dict[str, dict[str, str]] = {}
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    port: int | None = None
    cluster: ClusterPlan | None = None
    objects: tuple[dict[str, Any], ...] = ()
    strategy: str = CAUSAL.name
    sizes: dict[str, int] = {}
    changes: tuple[SizeChange, ...] = ()
    left_out: tuple[str, ...] = ()
    spare: tuple[SlotPlan, ...] = ()
    left: tuple[Left, ...] = ()
    outlived: tuple[tuple[str, int, int | None], ...] = ()

    @property
    def gone(self) -> frozenset[int]:
        """Slots that left the gang."""
        return frozenset(one.slot for one in self.left)

    @property
    def present(self) -> tuple[SlotPlan, ...]:
        """Slots that belong to the gang."""
        gone = self.gone
        return tuple(slot for slot in self.slots if slot.slot not in gone) if gone else self.slots

    def env_of(self, role: str) -> dict[str, str]:
        """The job's variables as a role has them."""
        return {**self.env, **self.role_env.get(role, {})}

    def without(self, roles: Collection[str]) -> Plan:
        """The same plan, in which these roles are not run: they have done their work."""
        cluster = self.cluster.without(roles) if self.cluster is not None else None
        slots = tuple(one for one in self.slots if one.role not in roles)
        return msgspec.structs.replace(self, slots=slots, cluster=cluster, left_out=tuple(roles))

    def with_start(self, slot: int, instance: int) -> Plan:
        """The same plan, in which a slot is started again: under folders of its own.

        Args:
            slot: which one.
            instance: which start of it, more than 0.
        """
        slots = tuple(_started_again(one, instance) if one.slot == slot else one for one in self.slots)
        return msgspec.structs.replace(self, slots=slots)

    def size_text(self, spec: JobSpec) -> str:
        """How large the attempt is, in words: nodes and ranks of each role; a role outside the world has no ranks."""
        found = []
        for part in spec.parts:
            count = sum(slot.role == part.name for slot in self.slots)
            ranks = f" x {part.spec.nproc_per_node} ranks" if part.in_world or not spec.several_roles else ""
            found.append(f"{f'{part.name} ' if spec.several_roles else ''}{count} nodes{ranks}")
        return ", ".join(found)

    def document(self) -> dict[str, Any]:
        """The plan as plain data for people: values that look secret are masked."""
        slots, spare = _shown(self.slots), _shown(self.spare)
        own = {role: masked(env) for role, env in self.role_env.items()}
        plan = msgspec.structs.replace(self, slots=slots, spare=spare, env=masked(self.env), role_env=own)
        if self.cluster is not None:
            plan = msgspec.structs.replace(plan, cluster=msgspec.structs.replace(self.cluster, token=MASK))
        shown: dict[str, Any] = msgspec.to_builtins(plan)
        return shown

    def row(self) -> dict[str, Any]:
        """The plan as it is stored: without the job's own variables, which stand in the spec and nowhere else."""
        stored: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, env={}, role_env={}, objects=()))
        return stored

    @classmethod
    def of_row(cls, row: Mapping[str, Any], spec: JobSpec) -> Plan:
        """A stored plan.

        Raises:
            msgspec.ValidationError: it was not written by :meth:`row`.
        """
        return msgspec.structs.replace(msgspec.convert(row, cls), env=dict(spec.env), role_env=role_env(spec))


def role_env(spec: JobSpec) -> dict[str, dict[str, str]]:
    """The roles' own variables."""
    return {role.name: dict(role.env) for role in spec.roles if role.env}


def _shown(slots: Iterable[SlotPlan]) -> tuple[SlotPlan, ...]:
    return tuple(msgspec.structs.replace(slot, argv=masked_words(slot.argv), env=masked(slot.env)) for slot in slots)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where observations of a plan come from; ``observe`` opens it.

    Attributes:
        kind: ``pods`` is a cluster's; the others are places in a file system.
        path: absolute; of pods the path of the run directory, into which they are fed.
        slot: None for what all slots share.
        pods: which pods, and how to reach their API.
    """

    kind: Literal["records", "slot_dir", "streams", "pods"]
    path: str
    slot: int | None = None
    pods: PodSource | None = None


class Company(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits for a call that may take minutes. Both are called in the caller's thread.

    Attributes:
        say: takes lines for people: what is waited for, and why.
        over: whether something else is wished by now; the call then ends with ``Abandoned``.
    """

    say: Callable[[str], None]
    over: Callable[[], bool]


class HeldBy(msgspec.Struct, frozen=True, kw_only=True):
    """Another supervisor of the same run, in words that are safe to show.

    Attributes:
        who: user, machine and process; empty = nobody, or not known: it was taken by somebody just now.
        since: how long, by that machine's clock.
        alive: it gave a sign of life while we looked.
    """

    who: str = ""
    since: str = ""
    alive: bool = False


class HeldBack(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an attempt's workload is suspended in its cluster.

    Attributes:
        state: ``held`` = it is, by whomever; ``free`` = it is not, or it has ended; ``gone`` = somebody removed it.
        since: by the server's clock, in whole seconds; nanoseconds since the epoch. None = the server has not said.
        queue: of Kueue, that it is released by; empty = by none.
    """

    state: Literal["held", "free", "gone"]
    since: int | None = None
    queue: str = ""


class Backend(Protocol):
    """Starts and stops slots somewhere. All methods but ``plan`` can be called again without harm.

    Attributes:
        strategy: how a root is chosen in jobs that name no strategy themselves.
        avoids_nodes: whether ``plan`` can keep slots off a node; this machine alone cannot.
    """

    strategy: str
    avoids_nodes: bool

    def plan(
        self,
        spec: JobSpec,
        run_dir: RunDir,
        attempt: int,
        *,
        nnodes: int | None = None,
        exclude: Collection[str] = (),
    ) -> Plan:
        """What would be started, on other nodes than those of ``exclude``; refuses what cannot work.

        ``nnodes`` is how many of the spec's ``MIN:MAX`` nodes there are at first; None = the most.
        """
        ...

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """One try to become the only supervisor of a run, also among machines; None = we are. Called before anything is submitted.

        Args:
            run_dir: the run; its directory's lease is held.
            attempts: the newest attempt that it knows.
            lost: told in words, from another thread, when somebody else supervises the run.

        Raises:
            EvidenceLost: the directory is an old copy.
        """
        ...

    def let_go(self, *, over: bool) -> None:
        """Supervise the run no more; ``over`` = it has ended."""
        ...

    def submit(self, plan: Plan, *, company: Company | None = None) -> tuple[int, ...]:
        """Start the slots that were never started; the numbers of those."""
        ...

    def adopt(self, plan: Plan) -> None:
        """Take over a plan that another process submitted."""
        ...

    def start_again(self, plan: Plan, slot: int) -> None:
        """Start one slot as the start that this plan says, where it was not started yet and the platform does not do so itself.

        Raises:
            InfrastructureError: it cannot be started.
        """
        ...

    def life(self, plan: Plan, slot: int) -> Life:
        """What is seen of a slot now."""
        ...

    def alive(self, plan: Plan, slot: int) -> bool:
        """Whether its wrapper runs or is starting."""
        ...

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """The exit code of a slot's command as its parent saw it; None where nobody here could."""
        ...

    def stop(self, plan: Plan, slots: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Ask slots to end; the numbers of those that could be told."""
        ...

    def ask_stacks(self, plan: Plan, slots: Collection[int]) -> tuple[int, ...]:
        """Ask slots for the stacks of their ranks; the numbers of those that could be told."""
        ...

    def end(self, plan: Plan, slots: Collection[int], *, grace: float) -> int:
        """End by force what is left of slots whose wrapper is gone or deaf; how many processes were ended."""
        ...

    def resizes(self, plan: Plan) -> bool:
        """Whether slots can join and leave this attempt while the others run on."""
        ...

    def resize(self, plan: Plan) -> bool:
        """Start those that joined the plan and tell those to end that left it by a resize; whether nothing of that is left to be done."""
        ...

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Where the observations of a plan come from."""
        ...

    def withdrawn(self, plan: Plan) -> str | None:
        """That somebody else took the attempt away on purpose, in words; None where nothing says so."""
        ...

    def held_back(self, plan: Plan) -> HeldBack | None:
        """Whether the attempt's workload is suspended; None where it cannot be, or cannot be seen now."""
        ...

    def clear(self, plan: Plan, *, company: Company | None = None) -> None:
        """Remove what an ended attempt left outside the run directory, before another one begins; waits until it is gone."""
        ...

    def release(self) -> None:
        """Let go of what is only needed while an attempt runs."""
        ...


@runtime_checkable
class NativeBackend(Backend, Protocol):
    """A backend whose platform can restart and end a job by itself."""

    def workload(self, plan: Plan) -> Workload | None:
        """What the platform restarts and ends; None where nothing was launched until now."""
        ...


def slot_plan(plan: Plan, slot: int) -> SlotPlan:
    """The plan of one slot.

    Raises:
        KeyError: the plan has no such slot.
    """
    for one in plan.slots:
        if one.slot == slot:
            return one
    raise KeyError(slot)


def _started_again(slot: SlotPlan, instance: int) -> SlotPlan:
    """The folders of a slot bear its number of the start; they stand in its words and variables too."""
    before, folder = Path(slot.slot_dir), Path(slot.stream_dir)
    moved = {
        slot.slot_dir: str(before.with_name(f"{slot.role}-{slot.slot}.{instance}")),
        slot.stream_dir: str(folder.with_name(str(instance))),
    }

    def new(word: str) -> str:
        for old, now in moved.items():
            if word == old or word.startswith(f"{old}/"):
                return now + word[len(old) :]
        return word

    return msgspec.structs.replace(
        slot,
        instance=instance,
        argv=tuple(map(new, slot.argv)),
        env={name: new(value) for name, value in slot.env.items()} | {"RANKFALL_INSTANCE": str(instance)},
        slot_dir=moved[slot.slot_dir],
        stream_dir=moved[slot.stream_dir],
    )


def as_paths(slot: SlotPlan) -> tuple[Path, Path]:
    """Slot directory and stream directory."""
    return Path(slot.slot_dir), Path(slot.stream_dir)
