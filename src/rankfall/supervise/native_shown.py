"""The state of an unattended run while nothing terminal was said of it: what its workload, its slots and its pods show."""

from __future__ import annotations

from collections.abc import Callable

from rankfall.kube.errors import KubeError
from rankfall.model import RankFacts, RunState, SlotFacts
from rankfall.observe.cluster.native_state import NativeState
from rankfall.store import RunDir
from rankfall.supervise.ledger import Ledger
from rankfall.supervise.suspension import read_suspension


class ShownState:
    """Writes the run's state when it has changed.

    Args:
        run_dir: the run.
        ledger: of the run's lease.
        waits: why slots do not begin, in the platform's words.
        phases: of the pods by UID, by the API where nobody follows them; raises ``KubeError``.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        ledger: Ledger,
        waits: Callable[[], str | None],
        phases: Callable[[], dict[str, str]],
    ) -> None:
        self._run_dir = run_dir
        self._spec = run_dir.spec
        self._ledger = ledger
        self._waits = waits
        self._phases = phases
        self._shown: tuple[RunState, str | None] | None = None

    def show(
        self,
        state: NativeState,
        slots: tuple[SlotFacts, ...],
        ranks: tuple[RankFacts, ...],
        *,
        begun: bool,
        fed: bool,
        now: int,
    ) -> None:
        """Write the state as it is.

        Args:
            state: of the workload.
            slots: fact sheets of the attempt.
            ranks: as slots.
            begun: the workload was seen to go on before.
            fed: somebody follows the pods, so the sheets tell.
            now: nanoseconds since the epoch.
        """
        shown = self._state(state, slots, ranks, begun=begun, fed=fed)
        if shown != self._shown:
            self._shown = shown
            self._ledger.set_run(shown[0], reason=shown[1], at=now)

    def _state(
        self, state: NativeState, slots: tuple[SlotFacts, ...], ranks: tuple[RankFacts, ...], *, begun: bool, fed: bool
    ) -> tuple[RunState, str | None]:
        if state.phase == "suspended":
            queue = self._spec.kubernetes.queue
            if queue is not None and not begun:
                return "queued", f"waits for queue {queue}"
            hold = read_suspension(self._run_dir.path, initially=self._spec.suspend)
            return "suspended", hold.text if hold.suspended else None
        most = self._spec.policies.max_restarts
        restarted = f"attempt {state.restarts + 1} of {most + 1}" if state.restarts else None
        if ranks or any(facts.state in {"running", "ended"} for facts in slots):
            return "running", restarted
        if not fed and any(phase in {"Running", "Succeeded"} for phase in self._phases_now().values()):
            return "running", restarted
        return ("restarting" if restarted else "starting"), restarted or self._waits()

    def _phases_now(self) -> dict[str, str]:
        try:
            return self._phases()
        except KubeError:
            return {}
