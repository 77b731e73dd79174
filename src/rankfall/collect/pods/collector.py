"""Collects an attempt's pods in a thread with an event loop: watches them and tails logs.

Two collectors of one attempt must not run simultaneously; the run's lease prevents that. Errors are retried until a
stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from rankfall.collect.background import CancellableWork, ProblemReporter, Stir, error_text, undisturbed
from rankfall.collect.pods.cluster_context import ContextCollector, LeasePoller, name_only
from rankfall.collect.pods.instance_folders import Instances
from rankfall.collect.pods.known_pods import Followed, KnownPods, deleted_pods
from rankfall.collect.pods.log_tailer import GATHER_S
from rankfall.collect.pods.log_tasks import AGAIN_S, LogTasks
from rankfall.collect.pods.workload_states import WorkloadStates
from rankfall.collect.stores.log_store import StoreWatch
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import PODS
from rankfall.kube.watch.watcher import watch
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.clock_bounds import ClockFile
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact, pod_fact
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.layout import context_path

# Seconds between writes of clocks and of failed data.
KEEP_S: Final = 1.0
# Seconds after a pod's due end, well above the kubelet's margin.
OVERDUE_S: Final = 60.0
_GRACE_S: Final = 30
# A connection that recovers immediately is no problem.
_MIN_REPORTED: Final = 3


class Session:
    """The work of one connection; ``once`` allows only :meth:`take`.

    Raises:
        OSError: The journal cannot be opened.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        run_dir: RunDir,
        attempt: int,
        source: PodSource,
        troubles: ProblemReporter,
        once: bool = False,
        gather_s: float = GATHER_S,
        stir: Stir = undisturbed,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._kube = kube
        self._over = over
        self._source = source
        self._troubles = troubles
        self._pods = KnownPods(run_dir, attempt=attempt, source=source, troubles=troubles, stir=stir)
        self._foreign = run_dir.foreign
        self._named = source.named or attempt
        self._apart = {uid for other in source.apart for uid in JournalReader.read(journal_path(run_dir.path, other))}
        self._stores = StoreWatch(run_dir, attempt=attempt, troubles=troubles)
        self._clocks = ClockFile(run_dir.path, attempt=attempt)
        self._instances = Instances(
            run_dir,
            attempt=attempt,
            role_of=source.role_of,
            token=source.token,
            named=self._named,
            stores=self._stores.accepting,
            stir=stir,
            foreign=source.marks is not None,
        )
        self._logs = LogTasks(
            kube,
            source=source,
            pods=self._pods,
            instances=self._instances,
            stores=self._stores,
            clocks=self._clocks,
            troubles=troubles,
            once=once,
            gather_s=gather_s,
            refresh=self._refresh,
        )
        self._workload = WorkloadStates(kube, run=run_dir.path, attempt=attempt, source=source, full=troubles.full)
        self._cluster_context = ContextCollector(
            kube,
            path=context_path(run_dir.path, attempt),
            source=source,
            pods=self._pods.facts,
            full=troubles.full,
            workload=self._workload,
        )
        self._leases = LeasePoller(
            kube, nodes=lambda: {fact.node for fact in self._pods.facts() if fact.node}, on_lease=self._clocks.node
        )
        # By UID: monotonic time at which a terminating pod is overdue.
        self._due: dict[str, float] = {}
        self._watch_failures = 0
        self._listed = False

    @property
    def following(self) -> bool:
        """True if all pods were listed and each running container's log is open or could not be opened. Thread-safe."""
        return self._listed and self._logs.tried

    @property
    def blind(self) -> bool:
        """True if the pods cannot be watched at present. Thread-safe."""
        return not self._listed or self._watch_failures > 0

    async def run(self) -> None:
        """Works until canceled."""
        keepers = [
            asyncio.create_task(work)
            for work in (
                self._keep(),
                self._check_overdue_pods(),
                self._stores.run(),
                self._cluster_context.run(),
                self._leases.run(),
            )
        ]
        try:
            while True:
                try:
                    await self._watch()
                except KubeError as error:
                    self._troubles.say("watch refused", f"pods cannot be watched: {error.message}")
                await asyncio.sleep(AGAIN_S)
        finally:
            await self._close(keepers)

    async def take(self) -> None:
        """Reads the current state: all pods, and the present content of each log.

        Raises:
            KubeError: The pods cannot be listed.
            OSError: Data could not be stored.
        """
        source = self._source
        try:
            await self._workload.take()
            found = await self._kube.list(
                PODS, namespace=source.namespace, labels=source.selector or None, fields=source.fields or None
            )
            unseen = self._pods.there()
            # In order of creation, for pods numbered by it.
            for item in sorted(found.items, key=lambda item: str(item["metadata"].get("creationTimestamp"))):
                await self._saw(item, gone=False, unseen=unseen)
            self._vanished(unseen)
            await self._see_deleted()
            await self._cluster_context.take()
            while tasks := [task for task in self._logs.tasks() if not task.done()]:
                await asyncio.wait(tasks)
            self._clocks.server(self._kube.server_ahead)
            self._clocks.write()
        finally:
            await self._close([])

    async def _close(self, keepers: list[asyncio.Task[None]]) -> None:
        tasks = [*keepers, *self._logs.tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._over():
            self._logs.give_up()
        self._instances.close()
        self._cluster_context.close()
        self._pods.close()
        self._workload.close()

    # -- pods

    async def _watch(self) -> None:
        source = self._source
        unseen: set[str] | None = self._pods.there()
        events = watch(
            self._kube,
            PODS,
            namespace=source.namespace,
            labels=source.selector or None,
            fields=source.fields or None,
            keep=name_only,
            trouble=self._report_watch_problem,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                if event.type == "bookmark":
                    if unseen is not None:
                        self._troubles.over("watch refused")
                        self._vanished(unseen)
                        if not self._listed:
                            await self._see_deleted()
                        unseen, self._listed = None, True
                    continue
                await self._saw(event.object, gone=event.type == "deleted", unseen=unseen)

    async def _saw(self, pod: dict[str, Any], *, gone: bool, unseen: set[str] | None) -> None:
        fact = pod_fact(pod, source=self._source, seen_ns=time.time_ns(), gone=gone)
        if unseen is not None:
            unseen.discard(fact.uid)
        if fact.uid in self._apart:
            return
        known = fact.uid in self._pods.by_uid
        mine = fact.uid and not gone and fact.attempt in {None, self._named} and self._source.mine(pod)
        if known or (mine and await self._workload.mine(pod)):
            self._see(fact)

    def _report_watch_problem(self, error: KubeError | None) -> None:
        self._watch_failures = self._watch_failures + 1 if error is not None else 0
        if error is None:
            self._troubles.over("watch")
        elif self._watch_failures >= _MIN_REPORTED:
            self._troubles.say("watch", f"pods cannot be watched: {error.message}")

    def _vanished(self, unseen: set[str]) -> None:
        for uid in unseen:
            self._see(msgspec.structs.replace(self._pods.by_uid[uid].fact, gone=True, seen_ns=time.time_ns()))

    def _see(self, fact: PodFact) -> None:
        pod = self._pods.take(fact)
        if pod.fact.deleting is not None and not pod.fact.over:
            grace = _GRACE_S if pod.fact.grace_s is None else pod.fact.grace_s
            self._due.setdefault(fact.uid, time.monotonic() + grace + OVERDUE_S)
        if pod.fact.slot is not None:
            self._logs.follow(pod, pod.fact.slot)
        self._pods.write(pod)
        for one in pod.logs.values():
            if one.tailer is not None:
                one.tailer.look()

    async def _see_deleted(self) -> None:
        """Finds pods of a foreign job that were deleted before the first query, and their Events."""
        known = self._pods.facts()
        if self._foreign is None or {fact.slot for fact in known} >= set(range(sum(self._foreign.slots.values()))):
            return
        await self._cluster_context.take()
        try:
            found = await deleted_pods(self._kube, self._source, works=self._cluster_context.works(), known=known)
        except KubeError:
            return  # reported with the pods' Events
        for fact in found:
            self._see(fact)
        self._cluster_context.settle()

    async def _refresh(self, pod: Followed) -> bool:
        """Reads a pod now, because the watch may lag or be broken. Returns True if the server still has it."""
        try:
            found = await self._kube.get(PODS, pod.fact.name, namespace=self._source.namespace)
        except KubeError:
            return False
        fact = pod_fact(found, source=self._source, seen_ns=time.time_ns())
        if fact.uid != pod.fact.uid:
            return False
        self._see(fact)
        return True

    # -- periodic work

    async def _check_overdue_pods(self) -> None:
        """Finds pods without a reported end. Each is read again first, because the watch may have been down."""
        while True:
            await asyncio.sleep(KEEP_S)
            for uid in [uid for uid, due in self._due.items() if time.monotonic() >= due]:
                pod = self._pods.by_uid[uid]
                if pod.fact.over:
                    del self._due[uid]
                elif await self._refresh(pod) and not pod.fact.over:
                    del self._due[uid]
                    pod.fact = msgspec.structs.replace(pod.fact, overdue=True, seen_ns=time.time_ns())
                    self._pods.write(pod)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            self._clocks.server(self._kube.server_ahead)
            try:
                self._clocks.write()
                self._pods.write_left()
                self._workload.write_left()
            except OSError as error:
                self._troubles.full(error)
            else:
                if self._logs.storing():
                    self._troubles.stored()


_JOIN_S: Final = 10.0


class PodCollector:
    """The collector thread of one attempt; callbacks run in it."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        source: PodSource,
        connect: Callable[[], Kube],
        trouble: Callable[[str], None],
        once: bool = False,
        gather_s: float = GATHER_S,
        stir: Stir = undisturbed,
    ) -> None:
        self._run_dir = run_dir
        self._attempt = attempt
        self._source = source
        self._connect = connect
        self._once = once
        self._gather_s = gather_s
        self._stir = stir
        self._troubles = ProblemReporter(trouble)
        self._thread = threading.Thread(target=self._thread_main, name=f"rankfall-pods-a{attempt}", daemon=True)
        self._cancellable = CancellableWork()
        self._session: Session | None = None
        self._over = False

    def start(self) -> None:
        """Starts the thread; does not wait."""
        self._thread.start()

    @property
    def done(self) -> bool:
        """True if the thread ended by itself; only with ``once``."""
        return self._thread.ident is not None and not self._thread.is_alive()

    @property
    def following(self) -> bool:
        """True if all pods were listed and each running container's log is open or could not be opened."""
        session = self._session
        return session is not None and session.following

    @property
    def blind(self) -> bool:
        """True if the pods cannot be watched at present."""
        session = self._session
        return session is None or session.blind

    def stop(self, *, over: bool = False) -> None:
        """Ends the thread; the next collector reads unfinished data. Idempotent.

        ``over``: none follows, so logs without end are lost.
        """
        self._over = self._over or over
        self._cancellable.end()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    # -- the thread

    def _thread_main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._cancellable.run(self._work()))

    async def _work(self) -> None:
        while True:
            try:
                async with self._connect() as kube:
                    session = self._session = Session(
                        kube,
                        run_dir=self._run_dir,
                        attempt=self._attempt,
                        source=self._source,
                        troubles=self._troubles,
                        once=self._once,
                        gather_s=self._gather_s,
                        stir=self._stir,
                        over=lambda: self._over,
                    )
                    await (session.take() if self._once else session.run())
            except Exception as error:  # noqa: BLE001 - a silently dead collector would leave the run waiting forever
                self._troubles.say(
                    f"feed {type(error).__name__}",
                    f"the pods of attempt {self._attempt} are not followed: {error_text(error)}",
                )
            if self._once:
                return
            await asyncio.sleep(AGAIN_S)
