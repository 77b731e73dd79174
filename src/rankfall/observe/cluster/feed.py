"""The one writer of an attempt's pods: watches them, follows their logs, writes everything into the run directory.

It runs in a thread with an event loop of its own, so that neither a slow disk nor a busy supervisor keeps it from reading, and it decides
nothing. Two feeds of one attempt must not run at once: the run's lease guards that. What it wrote is taken up again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.resources import PODS
from rankfall.kube.watch import watch
from rankfall.model import RankfallError
from rankfall.observe.cluster.clocks import ClockFile
from rankfall.observe.cluster.follower import End, Follower, State
from rankfall.observe.cluster.instances import Instances
from rankfall.observe.cluster.journal import JournalWriter, journal_path
from rankfall.observe.cluster.podfacts import PodFact, pod_fact
from rankfall.observe.cluster.source import PodSource
from rankfall.store import RunDir

# Between two tries after an error that the client itself does not repeat (rights, credentials, a full disk), seconds.
_AGAIN_S: Final = 5.0
_JOIN_S: Final = 10.0
_CLOCKS_S: Final = 1.0


class PodFeed:
    """Feed of one attempt.

    Args:
        run_dir: where everything goes.
        attempt, role: of the attempt.
        source: which pods.
        connect: makes a client; called in the feed's thread.
        trouble: told of difficulties in words, from the feed's thread, each kind once a minute at most.
    """

    def __init__(
        self,
        run_dir: RunDir,
        *,
        attempt: int,
        role: str,
        source: PodSource,
        connect: Callable[[], Kube],
        trouble: Callable[[str], None],
    ) -> None:
        self._source = source
        self._connect = connect
        self._trouble = trouble
        self._run_dir = run_dir
        self._attempt = attempt
        self._instances = Instances(run_dir, attempt=attempt, role=role, token=source.token)
        self._clocks = ClockFile(run_dir.path, attempt=attempt)
        self._pods: dict[str, PodFact] = {}
        self._logs: dict[str, End] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._said: dict[str, float] = {}
        self._thread = threading.Thread(target=self._thread_main, name=f"rankfall-pods-a{attempt}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._change: asyncio.Event | None = None
        self._lock = threading.Lock()
        self._over = False

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is in flight is dropped and comes again with the next feed. May be called again."""
        with self._lock:
            self._over = True
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    # -- the thread

    def _thread_main(self) -> None:
        with asyncio.Runner() as runner, contextlib.suppress(asyncio.CancelledError):
            runner.run(self._main())

    async def _main(self) -> None:
        stop, self._change = asyncio.Event(), asyncio.Event()
        with self._lock:
            self._stop, self._loop = stop, asyncio.get_running_loop()
            if self._over:
                return
        work = asyncio.ensure_future(self._work(stop))
        end = asyncio.ensure_future(stop.wait())
        await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        with self._lock:
            self._loop = None
        for task in (work, end, *self._tasks.values()):
            task.cancel()
        await asyncio.gather(work, end, *self._tasks.values(), return_exceptions=True)
        self._instances.close()

    async def _work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._once(stop)
            except (RankfallError, OSError) as error:
                self._say(f"pods cannot be watched: {error}")
                await asyncio.sleep(_AGAIN_S)

    async def _once(self, stop: asyncio.Event) -> None:
        journal = JournalWriter(journal_path(self._run_dir.path, self._attempt))
        try:
            async with self._connect() as kube:
                clocks = asyncio.ensure_future(self._write_clocks())
                try:
                    await self._watch(kube, journal, stop)
                finally:
                    clocks.cancel()
        finally:
            journal.close()

    async def _watch(self, kube: Kube, journal: JournalWriter, stop: asyncio.Event) -> None:
        source = self._source
        async for event in watch(kube, PODS, namespace=source.namespace, labels=source.selector, stop=stop):
            if event.type == "bookmark":
                continue
            fact = pod_fact(
                event.object, container=source.container, seen_ns=time.time_ns(), gone=event.type == "deleted"
            )
            if fact.uid and fact.attempt in {None, self._attempt}:
                self._see(kube, journal, fact)

    def _see(self, kube: Kube, journal: JournalWriter, fact: PodFact) -> None:
        held = self._pods.get(fact.uid)
        if fact.gone and held is not None:
            # The API's last words of a pod may be older than what was seen of it; what was seen stays.
            fact = msgspec.structs.replace(
                held, gone=True, seen_ns=fact.seen_ns, deleting=fact.deleting or held.deleting
            )
        self._pods[fact.uid] = fact
        self._write(journal, fact)
        if fact.slot is not None:
            for number in _instances_of(fact):
                key = (fact.uid, number)
                if key not in self._tasks:
                    self._tasks[key] = asyncio.ensure_future(self._follow(kube, journal, fact, number))
            if fact.gone and not _instances_of(fact):
                self._logs[fact.uid] = "none"
                self._write(journal, fact)
        self._wake()

    def _write(self, journal: JournalWriter, fact: PodFact) -> None:
        log = self._logs.get(fact.uid)
        journal.add(msgspec.structs.replace(fact, log=log) if log is not None else fact)

    # -- logs

    async def _follow(self, kube: Kube, journal: JournalWriter, fact: PodFact, number: int) -> None:
        uid, slot = fact.uid, fact.slot or 0
        while True:
            try:
                log = self._instances.open(slot, uid=uid, number=number)
                self._clocks.watch(slot, log)
                follower = Follower(
                    kube,
                    pod=fact.name,
                    namespace=self._source.namespace,
                    container=self._source.container,
                    log=log,
                    state=lambda: instance_state(self._pods[uid], number),
                    changed=self._changed,
                    trouble=self._say,
                )
                end = await follower.run()
            except OSError as error:
                self._say(f"the log of {fact.name} cannot be stored: {error.strerror or error}")
                self._instances.drop(slot, uid=uid, number=number)
                await asyncio.sleep(_AGAIN_S)
                continue
            break
        self._instances.drop(slot, uid=uid, number=number)
        newest = self._pods[uid]
        if number == newest.instance:
            self._logs[uid] = end
            with contextlib.suppress(OSError):
                self._write(journal, msgspec.structs.replace(newest, seen_ns=time.time_ns()))
            self._wake()

    async def _changed(self, seconds: float | None) -> None:
        """Wait for the next look at any pod, or so long."""
        change = self._change
        if change is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await change.wait()

    def _wake(self) -> None:
        if self._change is not None:
            self._change.set()
            self._change = asyncio.Event()

    async def _write_clocks(self) -> None:
        while True:
            await asyncio.sleep(_CLOCKS_S)
            with contextlib.suppress(OSError):
                self._clocks.write()

    def _say(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -60.0) >= 60.0:  # noqa: PLR2004 - a minute
            self._said[text] = now
            self._trouble(text)


def instance_state(fact: PodFact, number: int) -> State:
    """State of one instance of a pod's training container by the newest look at the pod."""
    main, last = fact.main, fact.last
    if main is not None and main.restarts > number:
        return "replaced" if main.restarts == number + 1 else "gone"
    if main is not None and main.restarts == number and main.state == "terminated":
        return "gone" if fact.gone else "ended"
    if last is not None and last.restarts == number and main is not None and main.state == "waiting":
        return "replaced"
    if fact.gone:
        return "gone"
    return "running" if main is not None and main.state == "running" else "waiting"


def _instances_of(fact: PodFact) -> tuple[int, ...]:
    """Instances that have a log, by this look."""
    found = {
        one.restarts for one in (fact.last, fact.main) if one is not None and one.state in {"running", "terminated"}
    }
    return tuple(sorted(found))
