"""What a feed does while it holds a connection: sees the pods, follows each container's log, writes both down.

A fault of one log is that log's alone: it is tried again and nothing else waits for it. What could not be written (a full disk) is written
when it can be. Whatever an earlier session or process saw is taken up from the journal: a pod that vanished meanwhile is seen to be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.resources import PODS
from rankfall.kube.watch import watch
from rankfall.observe.cluster.around_feed import AroundFeed
from rankfall.observe.cluster.clocks import ClockFile
from rankfall.observe.cluster.followed import Followed, InstanceFollowed, idle_of, instance_state, instances_of, missed
from rankfall.observe.cluster.follower import GATHER_S, End, Follower
from rankfall.observe.cluster.identify import Identifier, tagged
from rankfall.observe.cluster.instance import InstanceLog
from rankfall.observe.cluster.instances import Instances
from rankfall.observe.cluster.journal import JournalReader, JournalWriter, journal_path
from rankfall.observe.cluster.lease_looks import LeaseLooks
from rankfall.observe.cluster.places import around_path
from rankfall.observe.cluster.podfacts import PodFact, later, pod_fact
from rankfall.observe.cluster.source import PodSource
from rankfall.observe.cluster.store_watch import StoreWatch
from rankfall.observe.cluster.troubles import Troubles, in_words
from rankfall.store import RunDir

# Between two tries after an error that the client itself does not repeat (rights, credentials, a full disk), seconds.
AGAIN_S: Final = 5.0
# Between two writings of clocks, and of what could not be written before.
KEEP_S: Final = 1.0
# How long nobody may say that a pod has ended after it was to, seconds: the kubelet's own margin many times over.
OVERDUE_S: Final = 60.0
_GRACE_S: Final = 30
# A connection that breaks and stands again at once is no difficulty.
_WORTH_TELLING: Final = 3
# Of a container that was restarted in vain for days there is no use in a record for each time.
_MAX_MISSED: Final = 20


class Session:
    """One connection's work.

    Args:
        kube: an open client.
        run_dir: where everything goes.
        attempt: counted from 1.
        source: which pods.
        troubles: takes difficulties.
        once: :meth:`take` will be called: what is there now, and no more.
        gather_s: how long lines are left to gather.
        stir: called when there is more to see than further lines: a pod that changed, a stream's first bytes.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        run_dir: RunDir,
        attempt: int,
        source: PodSource,
        troubles: Troubles,
        once: bool = False,
        gather_s: float = GATHER_S,
        stir: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._stir = stir
        self._gather_s = gather_s
        self._once = once
        self._source = source
        self._troubles = troubles
        self._journal = JournalWriter(journal_path(run_dir.path, attempt))
        self._named = source.named or attempt
        self._apart = {uid for other in source.apart for uid in JournalReader.read(journal_path(run_dir.path, other))}
        self._stores = StoreWatch(run_dir, attempt=attempt, troubles=troubles)
        self._instances = Instances(
            run_dir,
            attempt=attempt,
            role_of=source.role_of,
            token=source.token,
            named=self._named,
            stores=self._stores.accepting,
            on_stream=stir,
            foreign=source.marks is not None,
        )
        self._identifier = Identifier(kube, namespace=source.namespace, trouble=troubles.say)
        self._clocks = ClockFile(run_dir.path, attempt=attempt)
        self._pods = {uid: Followed(fact) for uid, fact in self._journal.pods.items()}
        self._around = AroundFeed(
            kube,
            path=around_path(run_dir.path, attempt),
            source=source,
            pods=lambda: [pod.fact for pod in self._pods.values()],
            full=self._full,
        )
        self._leases = LeaseLooks(
            kube, nodes=lambda: {pod.fact.node for pod in self._pods.values() if pod.fact.node}, told=self._clocks.node
        )
        self._unwritten: set[str] = set()
        # When pods that are to end are overdue, on the monotonic clock.
        self._due: dict[str, float] = {}
        self._watch_failures = 0
        self._listed = False

    @property
    def following(self) -> bool:
        """Whether all pods are known and the log of each container that runs is open, or was tried in vain. May be asked from any thread."""
        return self._listed and all(log.tried for pod in tuple(self._pods.values()) for log in tuple(pod.logs.values()))

    async def run(self) -> None:
        """Work until cancelled."""
        keepers = [
            asyncio.create_task(work)
            for work in (
                *(self._keep(), self._wait_for_ends(), self._stores.run(), self._around.run()),
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
        """Take all that is there now: the pods as they are, and of each log what it holds.

        Raises:
            KubeError: the pods cannot be listed.
            OSError: what came could not be stored.
        """
        source = self._source
        try:
            found = await self._kube.list(
                PODS, namespace=source.namespace, labels=source.selector or None, fields=source.fields or None
            )
            unseen = {uid for uid, pod in self._pods.items() if not pod.fact.gone}
            # In the order in which they were made, for those that are numbered by it.
            for item in sorted(found.items, key=lambda item: str(item["metadata"].get("creationTimestamp"))):
                self._saw(item, gone=False, unseen=unseen)
            self._vanished(unseen)
            await self._around.take()
            while tasks := [task for task in self._tasks() if not task.done()]:
                await asyncio.wait(tasks)
            self._clocks.server(self._kube.server_ahead)
            self._clocks.write()
        finally:
            await self._close([])

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [one.task for pod in self._pods.values() for one in pod.logs.values() if one.task]

    async def _close(self, keepers: list[asyncio.Task[None]]) -> None:
        tasks = [*keepers, *self._tasks()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._instances.close()
        self._around.close()
        self._journal.close()

    # -- pods

    async def _watch(self) -> None:
        source = self._source
        unseen: set[str] | None = {uid for uid, pod in self._pods.items() if not pod.fact.gone}
        events = watch(
            self._kube,
            PODS,
            namespace=source.namespace,
            labels=source.selector or None,
            fields=source.fields or None,
            keep=_name_only,
            trouble=self._watch_trouble,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                if event.type == "bookmark":
                    if unseen is not None:
                        self._troubles.over("watch refused")
                        self._vanished(unseen)
                        unseen, self._listed = None, True
                    continue
                self._saw(event.object, gone=event.type == "deleted", unseen=unseen)

    def _saw(self, pod: dict[str, Any], *, gone: bool, unseen: set[str] | None) -> None:
        """Take one pod of the API in, where it is this attempt's."""
        fact = pod_fact(pod, source=self._source, seen_ns=time.time_ns(), gone=gone)
        if unseen is not None:
            unseen.discard(fact.uid)
        if fact.uid in self._apart:
            return
        mine = fact.uid and not gone and fact.attempt in {None, self._named} and self._source.mine(pod)
        if fact.uid in self._pods or mine:
            self._see(fact)

    def _watch_trouble(self, error: KubeError | None) -> None:
        self._watch_failures = self._watch_failures + 1 if error is not None else 0
        if error is None:
            self._troubles.over("watch")
        elif self._watch_failures >= _WORTH_TELLING:
            self._troubles.say("watch", f"pods cannot be watched: {error.message}")

    def _vanished(self, unseen: set[str]) -> None:
        """These were there when somebody looked last, and are not in the list."""
        for uid in unseen:
            self._see(msgspec.structs.replace(self._pods[uid].fact, gone=True, seen_ns=time.time_ns()))

    def _see(self, fact: PodFact) -> None:
        pod = self._pods.get(fact.uid)
        if pod is None:
            pod = self._pods[fact.uid] = Followed(self._placed(fact))
            if self._source.marks is not None and pod.fact.slot is None:
                self._troubles.say(
                    f"place of {fact.uid}", f"{fact.name} does not say which pod of its job it is: its log is not read"
                )
        else:
            pod.fact = later(pod.fact, fact)
        if pod.fact.deleting is not None and not pod.fact.over:
            grace = _GRACE_S if pod.fact.grace_s is None else pod.fact.grace_s
            self._due.setdefault(fact.uid, time.monotonic() + grace + OVERDUE_S)
        if pod.fact.slot is not None:
            self._follow_all(pod, pod.fact.slot)
        self._write(pod)
        for one in pod.logs.values():
            if one.follower is not None:
                one.follower.look()

    def _follow_all(self, pod: Followed, slot: int) -> None:
        """Follow each instance that is not followed yet, those that are gone too: it is written down that their lines are missing."""
        pod.idle |= idle_of(pod.fact)
        gone = missed(pod.fact, pod.logs.keys() | pod.idle)
        if len(gone) > _MAX_MISSED:
            self._troubles.say(
                f"starts of {pod.fact.name}",
                f"{pod.fact.name} was started again {pod.fact.main.restarts if pod.fact.main else 0} times, most of them unseen: "
                f"only of the newest {_MAX_MISSED} it is written down that their lines are missing",
            )
        for number in (*gone[-_MAX_MISSED:], *instances_of(pod.fact)):
            if number not in pod.logs:
                log = pod.logs[number] = InstanceFollowed()
                log.task = asyncio.create_task(self._follow(pod, log, slot, number))
        # The rest is not asked about again.
        pod.idle.update(gone[:-_MAX_MISSED])

    def _placed(self, fact: PodFact) -> PodFact:
        """A pod that bears no place gets one that none has had, else that of one that has ended; written down with it, so it stays."""
        marks = self._source.marks
        if marks is None or marks.index or fact.slot is not None:
            return fact
        there: dict[int, bool] = {}
        for pod in self._pods.values():
            if pod.fact.slot is not None:
                there[pod.fact.slot] = there.get(pod.fact.slot, False) or not pod.fact.over
        slots = range(sum(marks.sizes.values()))
        free = [slot for slot in slots if slot not in there] or [slot for slot in slots if not there[slot]] or [*slots]
        return msgspec.structs.replace(fact, slot=free[0])

    def _write(self, pod: Followed) -> None:
        fact = msgspec.structs.replace(pod.fact, log=pod.log_state)
        try:
            self._journal.add(fact)
        except OSError as error:
            self._unwritten.add(fact.uid)
            self._full(error)
        else:
            self._stir()

    # -- logs

    async def _follow(self, pod: Followed, log: InstanceFollowed, slot: int, number: int) -> None:
        uid = pod.fact.uid
        while log.end is None:
            try:
                stored = self._instances.open(slot, uid=uid, number=number)
                self._clocks.watch(slot, stored)
                log.follower = Follower(
                    self._kube,
                    pod=pod.fact.name,
                    namespace=self._source.namespace,
                    container=pod.fact.container or self._source.container,
                    log=stored,
                    state=lambda: instance_state(pod.fact, number),
                    refresh=lambda: self._refresh(pod),
                    trouble=self._troubles.say,
                    gather_s=self._gather_s,
                )
                self._instances.tell(
                    slot, uid=uid, number=number, ranks=pod.fact.ranks, proof="the manifest's static node rank"
                )
                end = await self._read(pod, log.follower, stored, slot=slot, number=number)
                if end is not None:
                    end = await self._settled(pod, stored, end, slot=slot, number=number)
                # Of one that runs on there may come more.
                elsewhere = end is None or await self._stores.ended(
                    self._instances.folder(slot, uid=uid, number=number)
                )
                log.end = end if elsewhere else "lost"
            except OSError as error:
                self._full(error)
            except Exception as error:  # noqa: BLE001 - of one log; the others go on, and its reader must not wait for ever without a word
                self._troubles.say(
                    f"log {type(error).__name__}", f"the log of {pod.fact.name} is opened again after {in_words(error)}"
                )
            log.follower = None
            self._instances.drop(slot, uid=uid, number=number)
            if self._once:
                break
            if log.end is None:
                await asyncio.sleep(AGAIN_S)
        pod.fact = msgspec.structs.replace(pod.fact, seen_ns=time.time_ns())
        self._write(pod)

    async def _read(
        self, pod: Followed, follower: Follower, stored: InstanceLog, *, slot: int, number: int
    ) -> End | None:
        """Read a log, and look meanwhile which ranks write it where nothing proves that yet."""
        source, fact = self._source, pod.fact
        if source.marks is None or fact.ranks or not source.look_inside:
            return await (follower.take() if self._once else follower.run())
        folder = self._instances.folder(slot, uid=fact.uid, number=number)

        def runs() -> bool:
            return instance_state(pod.fact, number) == "running"

        if self._once:
            end = await follower.take()
            if runs() and tagged(stored):
                await self._identifier.look(fact.name, container=fact.container, log=stored, folder=folder)
            return end
        looking = asyncio.create_task(
            self._identifier.watch(fact.name, container=fact.container, log=stored, folder=folder, running=runs)
        )
        try:
            return await follower.run()
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _settled(self, pod: Followed, stored: InstanceLog, end: End, *, slot: int, number: int) -> End:
        """Compare what came with what was printed: what a kubelet leaves out nobody sees in the log. All is stored: no end was lost."""
        if end == "lost" or stored.cursor.printed is None:
            self._last_words(pod.fact, slot, number)
        # Of a long log whose lines end in two bytes each is looked at.
        work = asyncio.ensure_future(asyncio.to_thread(self._instances.settle, slot, uid=pod.fact.uid, number=number))
        try:
            whole = await asyncio.shield(work)
        except asyncio.CancelledError:
            # The log is closed behind whoever cancels: the thread must have let go of it before.
            await asyncio.gather(work, return_exceptions=True)
            raise
        return "complete" if whole else end

    def _last_words(self, fact: PodFact, slot: int, number: int) -> None:
        """What an instance left in its status is all there is of what its log did not give."""
        for one in (fact.last, fact.main):
            if one is not None and one.restarts == number and one.message:
                self._instances.take_message(slot, one.message, uid=fact.uid, number=number)

    async def _refresh(self, pod: Followed) -> bool:
        """Look at a pod now: the watch may be behind, or broken. Whether it is there, by the server's own word."""
        try:
            found = await self._kube.get(PODS, pod.fact.name, namespace=self._source.namespace)
        except KubeError:
            return False
        fact = pod_fact(found, source=self._source, seen_ns=time.time_ns())
        if fact.uid != pod.fact.uid:
            return False
        self._see(fact)
        return True

    # -- keeping

    async def _wait_for_ends(self) -> None:
        """Notice pods of which nobody says that they have ended. Looked at once more each: we may have been blind meanwhile."""
        while True:
            await asyncio.sleep(KEEP_S)
            for uid in [uid for uid, due in self._due.items() if time.monotonic() >= due]:
                pod = self._pods[uid]
                if pod.fact.over:
                    del self._due[uid]
                elif await self._refresh(pod) and not pod.fact.over:
                    del self._due[uid]
                    pod.fact = msgspec.structs.replace(pod.fact, overdue=True, seen_ns=time.time_ns())
                    self._write(pod)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            self._clocks.server(self._kube.server_ahead)
            try:
                self._clocks.write()
                if not self._unwritten:
                    continue
                for uid in tuple(self._unwritten):
                    self._journal.add(msgspec.structs.replace(self._pods[uid].fact, log=self._pods[uid].log_state))
                    self._unwritten.discard(uid)
            except OSError as error:
                self._full(error)
            else:
                self._troubles.over("disk")

    def _full(self, error: OSError) -> None:
        self._troubles.say(
            "disk", f"what comes from the cluster cannot be stored: {in_words(error)}; it is tried again"
        )


def _name_only(item: dict[str, Any]) -> dict[str, Any]:
    """What the watch remembers of a pod for the day it vanishes unseen; the rest is known here."""
    meta = item["metadata"]
    return {"metadata": {name: meta.get(name) for name in ("name", "uid")}}
