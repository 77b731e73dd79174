"""The protocol of all backends and the types of their answers.

Supervisors know a backend by this protocol alone. Every method but ``plan`` can be called again without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from rankfall.backends.plan import Plan
from rankfall.model import JobSpec, Verdict
from rankfall.model.node_health.run_verdicts import NodeAnswer, RunVerdict
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.pod_source import PodSource

if TYPE_CHECKING:
    from rankfall.backends.kubernetes.workload import Workload

# What can be seen of a slot without asking its records.
Life = Literal["absent", "starting", "running", "ended", "dead"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where observations of a plan come from; ``evidence.attempt`` opens it.

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


class Cancellation(msgspec.Struct, frozen=True, kw_only=True):
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


class SuspensionState(msgspec.Struct, frozen=True, kw_only=True):
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

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
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

    def request_stacks(self, plan: Plan, slots: Collection[int]) -> tuple[int, ...]:
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

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        """That somebody else deleted the attempt's workload, as text for people; None where nothing says so.

        Args:
            plan: of the attempt.
            surely: only where it is certain, and not also where its own time to live may have removed it. A cluster that does not answer is an
                ``InfrastructureError`` then; else it is None.
        """
        ...

    def suspension_state(self, plan: Plan) -> SuspensionState | None:
        """Whether the attempt's workload is suspended; None where it cannot be, or cannot be seen now."""
        ...

    def clear(self, plan: Plan, *, cancellation: Cancellation | None = None) -> None:
        """Remove what an ended attempt left outside the run directory, before another one begins; waits until it is gone."""
        ...

    def release(self) -> None:
        """Let go of what is only needed while an attempt runs."""
        ...


@runtime_checkable
class VerdictPublishingBackend(Backend, Protocol):
    """A backend that can put a verdict where users of its platform look. Of jobs that Rankfall did not start none can."""

    def show(self, plan: Plan, verdict: Verdict) -> str | None:
        """Put a verdict on the attempt's object; what could not be done, in words. May be called again."""
        ...


@runtime_checkable
class NodeReportingBackend(Backend, Protocol):
    """A backend whose nodes are watched over by others, who want to know which node felled a run."""

    def report_node(self, plan: Plan, node: str, verdict: RunVerdict) -> str | None:
        """Tell a node what a verdict says of it; what could not be done, in words. May be called again."""
        ...

    def answered(self, plan: Plan, node: str, verdict: RunVerdict) -> NodeAnswer:
        """What became of it.

        Raises:
            InfrastructureError: nobody can be asked now.
        """
        ...


@runtime_checkable
class NativeBackend(Backend, Protocol):
    """A backend whose platform can restart and end a job by itself."""

    def workload(self, plan: Plan) -> Workload | None:
        """What the platform restarts and ends; None where nothing was launched until now."""
        ...
