"""Protocol of all backends, the supervisors' only access to them, and its answer types."""

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

Life = Literal["absent", "starting", "running", "ended", "dead"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source of observations of a plan; ``evidence.attempt`` opens it.

    Attributes:
        kind: ``pods``, or a kind of path.
        path: Absolute; for pods the run directory.
        slot: None = shared.
        pods: Pods and access to their API.
    """

    kind: Literal["records", "slot_dir", "streams", "pods"]
    path: str
    slot: int | None = None
    pods: PodSource | None = None


class Cancellation(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks for a long operation, called in its thread; a true ``over()`` ends it with ``Abandoned``."""

    say: Callable[[str], None]
    over: Callable[[], bool]


class HeldBy(msgspec.Struct, frozen=True, kw_only=True):
    """Another supervisor of the same run, safe to display.

    Attributes:
        who: User, machine and process; empty = unknown.
        since: Duration by that machine's clock.
        alive: True if its lease changed during observation.
    """

    who: str = ""
    since: str = ""
    alive: bool = False


class PlatformEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Reason for which the platform ends a job: slug and text for users."""

    slug: str
    text: str


class SuspensionState(msgspec.Struct, frozen=True, kw_only=True):
    """Suspension of an attempt's workload in its cluster.

    Attributes:
        state: ``held``; ``free`` (or ended); ``gone`` = removed by another user.
        since: Whole seconds as nanoseconds since the epoch, server time.
        queue: Kueue queue that releases it, or empty.
    """

    state: Literal["held", "free", "gone"]
    since: int | None = None
    queue: str = ""


class Backend(Protocol):
    """Starts and stops slots. All methods but ``plan`` are safe to repeat.

    Attributes:
        strategy: Default strategy.
        avoids_nodes: True if ``plan`` can exclude nodes.
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
        """Plans an attempt; refuses impossible jobs. ``nnodes``: initial ``MIN:MAX`` nodes, None = maximum."""
        ...

    def hold(self, run_dir: RunDir, *, attempts: int, lost: Callable[[str], None]) -> HeldBy | None:
        """Tries once to become a run's only supervisor; None = success.

        Call it before any submission, with the directory's lease held. ``lost`` is called in another thread.

        Raises:
            EvidenceLost: The directory is an old copy.
        """
        ...

    def let_go(self, *, over: bool) -> None:
        """Ends the supervision; ``over`` = the run has ended."""
        ...

    def submit(self, plan: Plan, *, cancellation: Cancellation | None = None) -> tuple[int, ...]:
        """Starts the slots that were never started and returns their numbers."""
        ...

    def adopt(self, plan: Plan) -> None:
        """Takes over a plan that another process submitted."""
        ...

    def start_again(self, plan: Plan, slot: int) -> None:
        """Starts one unstarted slot as planned, unless the platform does.

        Raises:
            InfrastructureError: The slot cannot be started.
        """
        ...

    def life(self, plan: Plan, slot: int) -> Life:
        """Current state of a slot."""
        ...

    def alive(self, plan: Plan, slot: int) -> bool:
        """True if the slot's wrapper is starting or running."""
        ...

    def exit_code(self, plan: Plan, slot: int) -> int | None:
        """Returns a command's exit code; None if unknown."""
        ...

    def stop(self, plan: Plan, slots: Collection[int], *, grace: float, reason: str) -> tuple[int, ...]:
        """Requests slots to end; returns those that received the request."""
        ...

    def request_stacks(self, plan: Plan, slots: Collection[int]) -> tuple[int, ...]:
        """Requests stacks of ranks; returns the slots that received the request."""
        ...

    def end(self, plan: Plan, slots: Collection[int], *, grace: float) -> int:
        """Kills remains of slots without a responsive wrapper; returns the number of processes."""
        ...

    def resizes(self, plan: Plan) -> bool:
        """True if slots can join and leave during this attempt."""
        ...

    def resize(self, plan: Plan) -> bool:
        """Starts joined slots and stops removed ones; returns True if nothing remains to do."""
        ...

    def sources(self, plan: Plan) -> tuple[Source, ...]:
        """Sources of the plan's observations."""
        ...

    def deleted_externally(self, plan: Plan, *, surely: bool = False) -> str | None:
        """Returns a message if another user or controller deleted the workload, else None.

        ``surely``: only if certain, not if the time to live may have expired; no answer raises ``InfrastructureError``.
        """
        ...

    def suspension_state(self, plan: Plan) -> SuspensionState | None:
        """Workload's suspension; None if unsupported or unknown."""
        ...

    def clear(self, plan: Plan, *, cancellation: Cancellation | None = None) -> None:
        """Removes an ended attempt's objects outside the run directory; waits for their end."""
        ...

    def release(self) -> None:
        """Releases resources such as ports and connections, needed only while an attempt runs."""
        ...


@runtime_checkable
class VerdictPublishingBackend(Backend, Protocol):
    """A backend that publishes verdicts on its platform; not for foreign jobs."""

    def show(self, plan: Plan, verdict: Verdict) -> str | None:
        """Publishes a verdict; returns a message on failure, else None. Repeatable."""
        ...


@runtime_checkable
class NodeReportingBackend(Backend, Protocol):
    """A backend whose platform monitors nodes and accepts reports about failed ones."""

    def report_node(self, plan: Plan, node: str, verdict: RunVerdict) -> str | None:
        """Reports a verdict about a node; returns a message on failure, else None. Repeatable."""
        ...

    def answered(self, plan: Plan, node: str, verdict: RunVerdict) -> NodeAnswer:
        """Returns the answer to a report.

        Raises:
            InfrastructureError: The platform does not answer now.
        """
        ...


@runtime_checkable
class StepBackend(Backend, Protocol):
    """A backend whose slots run on other machines and share only files: ``life`` alone shows an end without record."""

    def end_reason(self, plan: Plan) -> PlatformEnd | None:
        """Returns why the platform ends the whole job now; None if it does not, or does not answer."""
        ...


@runtime_checkable
class NativeBackend(Backend, Protocol):
    """A backend whose platform restarts and ends jobs itself."""

    def workload(self, plan: Plan) -> Workload | None:
        """Launched object; None before the launch."""
        ...
