"""The only place where the controller decides: receives observations, makes a step, has the result written.

A source waits until its observations are processed or stored. Records of Nodes that share a boot id are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rankfall.kube.errors import KubeError
from rankfall.kube.watch.watcher import Event
from rankfall.model.node_health.records import NodeFault, NodeHealth
from rankfall.nodes.config import ConfigFile
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache, NodeChange, with_memory
from rankfall.nodes.controller.notifier import LOG, Notifier
from rankfall.nodes.controller.persistent_state import MAX_WAITING, StateMap
from rankfall.nodes.controller.plan_writer import PlanWriter, Written, sole_writer
from rankfall.nodes.controller.settings import Settings, Switches
from rankfall.nodes.rules.fault_rules import Rules
from rankfall.nodes.rules.planner import Input, Plan, step
from rankfall.nodes.rules.policy import Policy


class ActiveRules:
    """The active rules and policy."""

    def __init__(self, config: ConfigFile, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._switches = Switches()
        self._policy = self._made()

    @property
    def rules(self) -> Rules:
        """The active rules."""
        return self._config.config.rules

    @property
    def policy(self) -> Policy:
        """The active policy; the same object until something changes."""
        made = self._made()
        if made != self._policy:
            self._policy = made
        return self._policy

    @property
    def reset_word(self) -> str:
        """The word that a person set to close the breaker; "" without one."""
        return self._switches.reset_word

    def switch(self, switches: Switches) -> bool:
        """Applies a person's switches. Returns True if they changed."""
        if switches == self._switches:
            return False
        if switches.problem is not None:
            LOG.warning("%s", switches.problem)
        if switches.kill != self._switches.kill:
            LOG.warning("the kill switch is %s", "on: no taint changes" if switches.kill else "off")
        self._switches = switches
        return True

    def _made(self) -> Policy:
        base = self._config.config.policy
        return msgspec.structs.replace(
            base,
            # A dry run requested while this process writes can only stop taint changes.
            kill_switch=base.kill_switch or self._switches.kill or (base.dry_run and not self._settings.dry_run),
            dry_run=self._settings.dry_run,
            accept_injected=base.accept_injected or self._settings.accept_injected,
        )


def sharing(boots: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    """Returns boot ids that more than one Node shows, with the names of these Nodes."""
    found: dict[str, list[str]] = {}
    for name, boot in boots.items():
        if boot:
            found.setdefault(boot, []).append(name)
    return {boot: tuple(sorted(names)) for boot, names in found.items() if len(names) > 1}


def refused(
    fault: NodeFault, *, shared: Mapping[str, tuple[str, ...]], boots: Mapping[str, str | None], owner: str | None
) -> tuple[str, ...]:
    """Returns the Nodes that share this record's kernel; empty if the fault counts.

    ``owner`` is the ring's configured Node.
    """
    if not shared or fault.source not in {"kmsg", "loki"} or fault.node == owner:
        return ()
    return shared.get(fault.boot or "") or shared.get(boots.get(fault.node) or "") or ()


#: Seconds between steps while deadlines are pending.
TICK_S: Final = 5.0
#: Seconds after an incomplete step.
AGAIN_S: Final = 1.0
#: Seconds in which changes accumulate.
_GATHER_S: Final = 0.02
_NOT_LOGGED: Final = frozenset({"seen", "harmless"})


class _Batch:
    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = tuple(inputs)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Loop:
    """Makes the decisions.

    Attributes:
        in_force: Active policy and rules.
        turning_since: Begin of the current step, ``time.monotonic``; None if idle.
    """

    def __init__(
        self,
        *,
        book: NodeCache,
        plan_writer: PlanWriter,
        state: StateMap,
        config: ConfigFile,
        settings: Settings,
        teller: Notifier,
        metrics: Metrics,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._book, self._plan_writer, self._state = book, plan_writer, state
        self._settings, self._notifier, self._metrics, self._clock = settings, teller, metrics, clock
        self.in_force = ActiveRules(config, settings)
        self._batches: list[_Batch] = []
        self._again: list[Input] = list(state.stored.waiting)
        self._memory: dict[str, NodeHealth] = {}
        self._awake = asyncio.Event()
        self._now = 0
        self._shared: dict[str, tuple[str, ...]] = {}
        self.turning_since: float | None = None

    # -- inputs

    async def give(self, inputs: Sequence[Input]) -> None:
        """Takes a source's observations; returns after they are processed or stored."""
        if not inputs:
            return
        batch = _Batch(inputs)
        self._batches.append(batch)
        self._awake.set()
        await batch.done

    def node_event(self, event: Event) -> None:
        """Takes one event of the Node watch."""
        change: NodeChange = self._book.take(event, policy=self.in_force.policy)
        if change.problem is not None:
            LOG.warning("node `%s`: %s", event.object["metadata"]["name"], change.problem)
        self._again += change.faults
        if change.relevant or change.faults:
            self._awake.set()

    def switch(self, switches: Switches) -> None:
        """Applies a person's switches."""
        if self.in_force.switch(switches):
            self._awake.set()

    def settings_changed(self) -> None:
        """Applies the newly loaded policy: assigns all Nodes to pools again and starts a round of decisions."""
        self._book.sort_anew(policy=self.in_force.policy)
        self._awake.set()

    # -- steps

    async def run(self) -> None:
        """Makes steps forever.

        Raises:
            LeadershipLost: This process may not act.
        """
        await self._book.until_complete()
        # All wake-ups so far belong to the next step.
        self._awake.clear()
        while True:
            self.turning_since = time.monotonic()
            finished = await self._guarded()
            self.turning_since = None
            limit = (TICK_S if self._busy() else None) if finished else AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._awake.wait()
                    await asyncio.sleep(_GATHER_S)
            self._awake.clear()

    async def _guarded(self) -> bool:
        try:
            with sole_writer():
                return await self._run_step()
        except KubeError as error:
            LOG.warning("no decision is possible now: %s", error.message)
            return False

    def _busy(self) -> bool:
        return bool(self._again) or any(
            node.view.record is not None and (node.view.record.causes or node.view.record.tainted)
            for node in self._book.nodes.values()
        )

    async def _run_step(self) -> bool:
        """Makes one step and writes it. Returns False if part of it must be repeated soon.

        Raises:
            KubeError: The persistent state cannot be stored; all inputs are still queued.
            LeadershipLost: As :meth:`run`.
        """
        policy, rules = self.in_force.policy, self.in_force.rules
        self._now = now = max(self._now, self._clock())
        batches = list(self._batches)
        inputs = [*self._again, *(each for batch in batches for each in batch.inputs)]
        count = len(self._again)
        await self._close_breaker(now)
        counting = self._own_kernel(inputs, now=now)
        plan = step(
            with_memory(self._book, self._memory if policy.dry_run else {}),
            counting,
            rules=rules,
            policy=policy,
            safety=self._state.stored.safety,
            now=now,
        )
        await self._state.keep(msgspec.structs.replace(self._state.stored, safety=plan.safety))
        if policy.dry_run:
            self._memory |= plan.records
        faults = {each.id: each for each in counting if isinstance(each, NodeFault)}
        for identity, outcome in plan.outcomes:
            if outcome not in _NOT_LOGGED:
                self._notifier.saw(faults[identity], outcome, now=now)
        written = await self._plan_writer.apply(plan, policy=policy, now=now)
        waits = self._left(counting, plan, written)
        await self._keep_waiting(waits)
        for identity, outcome in plan.outcomes:
            self._count(faults[identity], outcome, written)
        # Sources continue only after everything is processed or stored.
        del self._again[:count]
        self._again[:0] = waits
        self._batches = self._batches[len(batches) :]
        for batch in batches:
            if not batch.done.done():
                batch.done.set_result(None)
        await self._plan_writer.repair_conditions(rules=rules, policy=policy, now=now)
        self._measure(policy)
        reported = await self._tell(now)
        return reported and not any(result in {"changed", "later"} for result in written.values())

    async def _tell(self, now: int) -> bool:
        """Sends the Events of changes and stores the time up to which all are sent; False if some remain."""
        stored = self._state.stored
        until = await self._plan_writer.tell(now=now, until=stored.reported_until)
        await self._state.keep(msgspec.structs.replace(stored, reported_until=until))
        return not self._plan_writer.untold

    async def _close_breaker(self, now: int) -> None:
        stored = self._state.stored
        word = self.in_force.reset_word
        if not word or word == stored.reset_word:
            return
        safety = msgspec.structs.replace(stored.safety, trip=None, reset_at=now)
        await self._state.keep(msgspec.structs.replace(stored, safety=safety, reset_word=word))
        LOG.warning("the breaker is closed by %r", word)
        self._notifier.note("breaker_closed", now=now, by=word)

    def _own_kernel(self, inputs: Iterable[Input], *, now: int) -> list[Input]:
        boots = self._book.boots()
        self._shared = sharing(boots)
        owner = self._settings.shared_kernel_node
        kept: list[Input] = []
        for each in inputs:
            names = refused(each, shared=self._shared, boots=boots, owner=owner) if isinstance(each, NodeFault) else ()
            if not names or not isinstance(each, NodeFault):
                kept.append(each)
                continue
            self._metrics.add("health_evidence_total", source=each.source, outcome="shared_kernel")
            self._notifier.saw(
                each,
                f"refused: {', '.join(names[:5])} share one kernel; --shared-kernel-node NODE names its owner",
                now=now,
            )
        return kept

    def _left(self, inputs: Sequence[Input], plan: Plan, written: dict[str, Written]) -> list[Input]:
        """Returns inputs to repeat: deferred ones, and those of unwritten Nodes."""
        failed = {name for name, result in written.items() if result in {"changed", "later", "refused"}}
        left: list[Input] = [each for each in inputs if each.node in failed]
        known = {id(each) for each in left}
        return [*left, *(each for each in plan.deferred if id(each) not in known)]

    async def _keep_waiting(self, waits: Sequence[Input]) -> None:
        faults = tuple(each for each in waits if isinstance(each, NodeFault))
        if len(faults) > MAX_WAITING:
            LOG.error("%d observations wait for their Nodes; a restart would lose all but the newest %d", len(faults), MAX_WAITING)  # fmt: skip
        self._metrics.set("health_waiting", len(faults))
        await self._state.keep(msgspec.structs.replace(self._state.stored, waiting=faults[-MAX_WAITING:]))

    def _count(self, fault: NodeFault, outcome: str, written: dict[str, Written]) -> None:
        """Counts the outcome of an observation once it is final; repeated ones count later."""
        if written.get(fault.node, "written") == "written":
            kind = fault.code.partition("/")[0]
            self._metrics.add("health_evidence_total", source=fault.source, kind=kind, outcome=outcome)

    def _measure(self, policy: Policy) -> None:
        records = [node.view.record for node in self._book.nodes.values()]
        states: Counter[str] = Counter(each.state if each is not None else "healthy" for each in records)
        self._metrics.replace("health_nodes", "state", dict(states))
        held: Counter[str] = Counter(each.held for each in records if each is not None and each.held is not None)
        self._metrics.replace("health_held_nodes", "reason", dict(held))
        self._metrics.set("health_breaker_open", float(self._state.stored.safety.trip is not None))
        self._metrics.set("health_kill_switch", float(policy.kill_switch is True))
