"""Pods of one attempt as the collector knows them, resumed from the journal.

Snapshots that cannot be written (full disk) are written later. Events outlive a pod that was deleted before the first
query.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from rankfall.collect.background import ProblemReporter, Stir
from rankfall.collect.pods.log_tailer import End, LogTailer, State
from rankfall.kube.client import Kube
from rankfall.kube.object_fields import (
    COMPLETION_INDEX,
    JOBSET_JOB,
    JOBSET_ROLE,
    TRAINING_INDEX,
    TRAINING_TYPE,
)
from rankfall.kube.resources import EVENTS
from rankfall.model.patterns import anchored, bounded
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.context_facts import EventFact, WorkFact, event_fact
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.pod_facts import ContainerFact, LogState, PodFact, later, pod_fact
from rankfall.rundir.cluster.pod_source import PodSource

_CLOSED: Final[dict[LogState, End]] = {"complete": "complete", "lost": "lost"}


class FollowedInstance:
    """One container instance: its tailer, and the tailer's result."""

    __slots__ = ("end", "tailer", "task")

    def __init__(self, end: End | None = None) -> None:
        self.task: asyncio.Task[None] | None = None
        self.tailer: LogTailer | None = None
        self.end = end

    @property
    def tried(self) -> bool:
        """True if its log is or was open, or could not be opened for a while."""
        return self.end is not None or (self.tailer is not None and self.tailer.tried)


class Followed:
    """One pod: newest snapshot, and logs by restart number."""

    __slots__ = ("fact", "idle", "logs")

    def __init__(self, fact: PodFact) -> None:
        self.fact = fact
        self.logs: dict[int, FollowedInstance] = {}
        # Instances that never ran.
        self.idle: set[int] = set()
        end = _CLOSED.get(fact.log)
        if end is not None:
            self.logs = {number: FollowedInstance(end) for number in instances_of(fact)}

    @property
    def log_state(self) -> LogState:
        """State of the stored log."""
        if not self.fact.over:
            return "open"
        ends = [log.end for log in self.logs.values()]
        if not ends:
            return "none"
        return "open" if None in ends else "lost" if "lost" in ends else "complete"


def instance_state(fact: PodFact, number: int) -> State:
    """State of one instance of a pod's training container by the newest snapshot."""
    main = fact.main
    if fact.gone or (main is not None and main.restarts > number + 1):
        return "gone"
    if main is None or main.restarts < number:
        return "ended" if fact.over else "waiting"
    if main.restarts > number:
        return "replaced"
    if main.state == "waiting":
        ended = fact.last is not None and fact.last.restarts == number
        return "ended" if ended or fact.over else "waiting"
    return "running" if main.state == "running" and not fact.over else "ended"


def instances_of(fact: PodFact) -> tuple[int, ...]:
    """Instances that have a log in this snapshot."""
    return tuple(sorted({one.restarts for one in (fact.last, fact.main) if one is not None and _ran(one)}))


def missed(fact: PodFact, known: Collection[int]) -> tuple[int, ...]:
    """Returns instances outside ``known`` that ended unobserved, in order; their logs are rarely available."""
    if fact.main is None:
        return ()
    restarts = fact.last.restarts if fact.last is not None else None
    return tuple(number for number in range(fact.main.restarts) if number != restarts and number not in known)


def idle_of(fact: PodFact) -> set[int]:
    """Returns instances that ended without having run, by this snapshot."""
    ends = (one for one in (fact.last, fact.main) if one is not None and one.state == "terminated")
    return {one.restarts for one in ends if not _ran(one)}


def _ran(container: ContainerFact) -> bool:
    """True if an instance ran; the kubelet reports never-started ones as terminated, without id."""
    ended = container.state == "terminated" and (container.id is not None or container.started is not None)
    return container.state == "running" or ended


class KnownPods:
    """Pods of one attempt; ``by_uid`` includes removed ones.

    Raises:
        OSError: The journal cannot be opened.
    """

    def __init__(
        self, run_dir: RunDir, *, attempt: int, source: PodSource, troubles: ProblemReporter, stir: Stir
    ) -> None:
        self._marks = source.marks
        self._troubles = troubles
        self._stir = stir
        self._journal = JournalWriter(journal_path(run_dir.path, attempt))
        self._unwritten: set[str] = set()
        self.by_uid = {uid: Followed(fact) for uid, fact in self._journal.pods.items()}

    def facts(self) -> list[PodFact]:
        """Newest snapshot of each pod."""
        return [pod.fact for pod in self.by_uid.values()]

    def there(self) -> set[str]:
        """UIDs of pods that existed when last observed."""
        return {uid for uid, pod in self.by_uid.items() if not pod.fact.gone}

    def take(self, fact: PodFact) -> Followed:
        """Records one snapshot of a pod without writing it."""
        pod = self.by_uid.get(fact.uid)
        if pod is not None:
            pod.fact = later(pod.fact, fact)
            return pod
        pod = self.by_uid[fact.uid] = Followed(self._placed(fact))
        if self._marks is not None and pod.fact.slot is None:
            self._troubles.say(f"place of {fact.uid}", f"{fact.name} has no number within its job: its log is not read")
        return pod

    def write(self, pod: Followed) -> None:
        """Writes a pod; :meth:`write_left` retries a failure."""
        try:
            self._add(pod)
        except OSError as error:
            self._unwritten.add(pod.fact.uid)
            self._troubles.full(error)
        else:
            self._stir()

    def write_left(self) -> bool:
        """Writes pods that failed before. Returns True if there were any.

        Raises:
            OSError: The pods still cannot be written.
        """
        left = tuple(self._unwritten)
        for uid in left:
            self._add(self.by_uid[uid])
            self._unwritten.discard(uid)
        return bool(left)

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()

    def _add(self, pod: Followed) -> None:
        self._journal.add(msgspec.structs.replace(pod.fact, log=pod.log_state))

    def _placed(self, fact: PodFact) -> PodFact:
        """Assigns a pod without a slot one that no pod has had, else that of an ended pod."""
        marks = self._marks
        if marks is None or marks.index or fact.slot is not None:
            return fact
        there: dict[int, bool] = {}
        for pod in self.by_uid.values():
            if pod.fact.slot is not None:
                there[pod.fact.slot] = there.get(pod.fact.slot, False) or not pod.fact.over
        slots = range(sum(marks.sizes.values()))
        free = [slot for slot in slots if slot not in there] or [slot for slot in slots if not there[slot]] or [*slots]
        return msgspec.structs.replace(fact, slot=free[0])


# Limits of requests: makers of pods, and deleted pods, of one query.
_MAX_MAKERS: Final = 32
_MAX_DELETED: Final = 64
# Events of a pod's maker and of its scheduler.
_CREATED: Final = bounded(r"Created pod: (\S{1,253})", limit=2_048)
_ASSIGNED: Final = bounded(r"Successfully assigned \S{1,512} to (\S{1,253})", limit=2_048)
# Name that a Job gives to a pod: its index, then five characters.
_INDEXED: Final = anchored(r"\S{1,247}-(\d{1,9})-[a-z0-9]{5}$", limit=512)


async def deleted_pods(
    kube: Kube, source: PodSource, *, works: Iterable[WorkFact], known: Collection[PodFact]
) -> list[PodFact]:
    """Pods of slots without any pod, from the Events of their makers and their own, as deleted.

    Raises:
        KubeError: The Events cannot be listed.
    """
    taken = {fact.slot for fact in known}
    names = {fact.name for fact in known}
    found: dict[int, PodFact] = {}
    for work in [work for work in works if work.uid and not work.gone][:_MAX_MAKERS]:
        about = await kube.list(EVENTS, namespace=source.namespace, fields=f"involvedObject.uid={work.uid}")
        for item in about.items:
            match = _CREATED.search(str(item.get("message") or ""))
            if match is None or match[1] in names or len(found) >= _MAX_DELETED:
                continue
            names.add(match[1])
            own = await kube.list(EVENTS, namespace=source.namespace, fields=f"involvedObject.name={match[1]}")
            seen_ns = time.time_ns()
            events = [event_fact(one, seen_ns=seen_ns) for one in own.items]
            fact = _deleted(match[1], work, events, source=source, seen_ns=seen_ns)
            if fact is None or fact.slot is None or fact.slot in taken:
                continue
            held = found.get(fact.slot)
            if held is None or (held.created or "") <= (fact.created or ""):
                found[fact.slot] = fact
    return list(found.values())


def _deleted(
    name: str, work: WorkFact, events: Iterable[EventFact], *, source: PodSource, seen_ns: int
) -> PodFact | None:
    """Facts of a deleted pod; None without an Event of it."""
    own = [event for event in events if event.kind == "Pod" and event.name == name and event.about]
    if not own:
        return None
    nodes = [match[1] for event in own if event.reason == "Scheduled" and (match := _ASSIGNED.search(event.message))]
    first = min((event.first for event in own if event.first), default=None)
    labels = _labels(name, work, owner=source.object)
    role = source.marks.place(labels, {})[0] if source.marks is not None else None
    container = source.container_of(role, "")
    running = [event for event in own if event.reason == "Started" and event.container in {container, None}]
    status = {"name": container, "state": {"running": {"startedAt": running[-1].last}}} if running else {}
    item: dict[str, Any] = {
        "metadata": {"name": name, "uid": own[-1].about, "labels": labels, "creationTimestamp": first},
        "spec": {"nodeName": nodes[-1] if nodes else None, "containers": [{"name": container}]},
        "status": {"containerStatuses": [status]},
    }
    return pod_fact(item, source=source, seen_ns=seen_ns, gone=True)


def _labels(name: str, work: WorkFact, *, owner: str) -> dict[str, str]:
    """Labels that a maker gives to a pod of this name, as far as names show them."""
    if work.kind != "Job":
        maker, _, number = name.rpartition("-")
        return {TRAINING_TYPE: maker.removeprefix(f"{work.name}-"), TRAINING_INDEX: number}
    match = _INDEXED.match(name)
    if match is None:
        return {}
    role, _, number = work.name.removeprefix(f"{owner}-").rpartition("-")
    return {COMPLETION_INDEX: match[1], JOBSET_JOB: number, JOBSET_ROLE: role}
