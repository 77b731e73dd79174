"""Runs one task per container instance that tails its log.

A log is complete when stored, compared with the wrapper's counts, and copied from its log store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from rankfall.collect.background import ProblemReporter, error_text
from rankfall.collect.pods.instance_folders import Instances
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.collect.pods.known_pods import (
    Followed,
    FollowedInstance,
    KnownPods,
    idle_of,
    instance_state,
    instances_of,
    missed,
)
from rankfall.collect.pods.log_tailer import End, LogTailer
from rankfall.collect.pods.rank_discovery import RankProber
from rankfall.collect.stores.log_store import StoreWatch
from rankfall.kube.client import Kube
from rankfall.rundir.cluster.clock_bounds import ClockFile
from rankfall.rundir.cluster.pod_facts import PodFact, stamp_ns
from rankfall.rundir.cluster.pod_source import PodSource

#: Seconds before errors that the client does not retry.
AGAIN_S: Final = 5.0
# Run time after which a log counts as having content.
_PAST_NS: Final = 10 * 10**9
_FEW: Final = 64
# Gap records of a container that restarted for days.
_MAX_MISSED: Final = 20


class LogTasks:
    """The logs of one session; ``once`` reads only their current content."""

    def __init__(
        self,
        kube: Kube,
        *,
        source: PodSource,
        pods: KnownPods,
        instances: Instances,
        stores: StoreWatch,
        clocks: ClockFile,
        troubles: ProblemReporter,
        once: bool,
        gather_s: float,
        refresh: Callable[[Followed], Awaitable[bool]],
    ) -> None:
        self._kube = kube
        self._source = source
        self._pods = pods
        self._instances = instances
        self._stores = stores
        self._clocks = clocks
        self._troubles = troubles
        self._once = once
        self._gather_s = gather_s
        self._refresh = refresh
        # Logs that could not be stored, with their position.
        self._unstored: dict[tuple[int, str, int], tuple[InstanceLog | None, int]] = {}
        self._identifier = RankProber(kube, namespace=source.namespace, trouble=troubles.say)

    @property
    def tried(self) -> bool:
        """True if each running container's log is open or could not be opened. Thread-safe."""
        return all(log.tried for pod in tuple(self._pods.by_uid.values()) for log in tuple(pod.logs.values()))

    def storing(self) -> bool:
        """True if every log with a failed write has stored new lines since."""
        for key, (stored, lines) in list(self._unstored.items()):
            if stored is not None and stored.cursor.lines > lines:
                del self._unstored[key]
        return not self._unstored

    def tasks(self) -> list[asyncio.Task[None]]:
        """Returns all tasks, including finished ones."""
        return [one.task for pod in self._pods.by_uid.values() for one in pod.logs.values() if one.task]

    def follow(self, pod: Followed, slot: int) -> None:
        """Starts a task for each new instance, including gone ones, whose lines are recorded as missing."""
        pod.idle |= idle_of(pod.fact)
        gone = missed(pod.fact, pod.logs.keys() | pod.idle)
        if len(gone) > _MAX_MISSED:
            self._troubles.say(
                f"starts of {pod.fact.name}",
                f"{pod.fact.name} was restarted {pod.fact.main.restarts if pod.fact.main else 0} times, most of them unrecorded: "
                f"missing lines are noted only for the newest {_MAX_MISSED}",
            )
        for number in (*gone[-_MAX_MISSED:], *instances_of(pod.fact)):
            if number not in pod.logs:
                log = pod.logs[number] = FollowedInstance()
                log.task = asyncio.create_task(self._read_all(pod, log, slot, number))
        pod.idle.update(gone[:-_MAX_MISSED])

    def give_up(self) -> None:
        """Records missing last lines of each log without end."""
        for pod in self._pods.by_uid.values():
            for number, log in pod.logs.items():
                if log.end is None and pod.fact.slot is not None:
                    try:
                        log.end = self._left(pod.fact, pod.fact.slot, number)
                    except OSError as error:
                        self._troubles.full(error)
            self._pods.write(pod)

    def _left(self, fact: PodFact, slot: int, number: int) -> End | None:
        state = instance_state(fact, number)
        if state == "waiting":
            return None
        stored = self._instances.open(slot, uid=fact.uid, number=number)
        self._last_words(fact, slot, number)
        end: End = "complete"
        if not (self._instances.settle(slot, uid=fact.uid, number=number) or stored.leave(unheard=state == "running")):
            stored.lose(f"no end of {fact.name} was reported by {fact.node}" if state == "running" else None)
            end = "lost"
        stored.cursor.closed = end
        stored.cursor.commit({})
        return end

    async def _read_all(self, pod: Followed, log: FollowedInstance, slot: int, number: int) -> None:
        uid = pod.fact.uid
        while log.end is None:
            try:
                stored = self._instances.open(slot, uid=uid, number=number)
                if (slot, uid, number) in self._unstored:
                    self._unstored[slot, uid, number] = (stored, stored.cursor.lines)
                self._clocks.watch(slot, stored)
                log.tailer = LogTailer(
                    self._kube,
                    pod=pod.fact.name,
                    namespace=self._source.namespace,
                    container=pod.fact.container or self._source.container,
                    log=stored,
                    state=lambda: instance_state(pod.fact, number),
                    unheard=lambda: pod.fact.unheard,
                    refresh=lambda: self._refresh(pod),
                    trouble=self._troubles.say,
                    gather_s=self._gather_s,
                    past=self._past(pod.fact, stored),
                )
                probes = self._source.look_inside and instance_state(pod.fact, number) in {"waiting", "running"}
                self._instances.prove(slot, uid=uid, number=number, fact=pod.fact, probes=probes)
                end = await self._read(pod, log.tailer, stored, slot=slot, number=number)
                if end is not None:
                    self._instances.prove(slot, uid=uid, number=number, fact=pod.fact, probes=False)
                    end = await self._settled(pod, stored, end, slot=slot, number=number)
                # A running one may deliver more.
                elsewhere = end is None or await self._stores.ended(
                    self._instances.folder(slot, uid=uid, number=number)
                )
                log.end = end if elsewhere else "lost"
                self._unstored.pop((slot, uid, number), None)
            except OSError as error:
                self._unstored[slot, uid, number] = (None, 0)
                self._troubles.full(error)
            except Exception as error:  # noqa: BLE001 - concerns one log; the others continue, and it is retried
                self._troubles.say(
                    f"log {type(error).__name__}",
                    f"the log of {pod.fact.name} is opened again after {error_text(error)}",
                )
            log.tailer = None
            self._instances.drop(slot, uid=uid, number=number)
            if self._once:
                break
            if log.end is None:
                await asyncio.sleep(AGAIN_S)
        pod.fact = msgspec.structs.replace(pod.fact, seen_ns=time.time_ns())
        self._pods.write(pod)

    def _past(self, fact: PodFact, stored: InstanceLog) -> bool:
        """True if a log should be read before following: none of it is stored, and it may be long."""
        if stored.cursor.last is not None or len(self._pods.by_uid) > _FEW:
            return False
        started = stamp_ns(fact.main.started) if fact.main is not None else None
        return started is not None and time.time_ns() - started > _PAST_NS

    async def _read(
        self, pod: Followed, tailer: LogTailer, stored: InstanceLog, *, slot: int, number: int
    ) -> End | None:
        """Reads a log and finds its ranks meanwhile, unless they are proved."""
        source, fact = self._source, pod.fact
        if source.marks is None or fact.ranks or fact.prefixes == () or not source.look_inside:
            return await (tailer.take() if self._once else tailer.run())
        folder = self._instances.folder(slot, uid=fact.uid, number=number)

        def runs() -> bool:
            return instance_state(pod.fact, number) == "running"

        if self._once:
            end = await tailer.take()
            if runs() and stored.routes.tagged:
                await self._identifier.look(fact.name, container=fact.container, log=stored, folder=folder)
            return end
        looking = asyncio.create_task(
            self._identifier.watch(fact.name, container=fact.container, log=stored, folder=folder, running=runs)
        )
        try:
            return await tailer.run()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _settled(self, pod: Followed, stored: InstanceLog, end: End, *, slot: int, number: int) -> End:
        """Compares the log with the wrapper's counts: a kubelet drops lines silently."""
        if end == "lost" or stored.cursor.printed is None:
            self._last_words(pod.fact, slot, number)
        # Long logs with two-byte line ends are read again.
        work = asyncio.ensure_future(asyncio.to_thread(self._instances.settle, slot, uid=pod.fact.uid, number=number))
        try:
            whole = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The caller closes the log after a cancel: the thread must release it first.
            await asyncio.gather(work, return_exceptions=True)
            raise
        return "complete" if whole else end

    def _last_words(self, fact: PodFact, slot: int, number: int) -> None:
        """Stores the records in an instance's status if its log lacks them."""
        for one in (fact.last, fact.main):
            if one is not None and one.restarts == number and one.message:
                self._instances.take_message(slot, one.message, uid=fact.uid, number=number)
