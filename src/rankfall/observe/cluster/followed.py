"""What a session knows of each pod: the newest look, who follows its logs, and from both how far its log is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from rankfall.observe.cluster.follower import End, Follower, State
from rankfall.observe.cluster.podfacts import ContainerFact, LogState, PodFact

_CLOSED: Final[dict[LogState, End]] = {"complete": "complete", "lost": "lost"}


class InstanceFollowed:
    """One container instance: who follows it, and how that ended."""

    __slots__ = ("end", "follower", "task")

    def __init__(self, end: End | None = None) -> None:
        self.task: asyncio.Task[None] | None = None
        self.follower: Follower | None = None
        self.end = end

    @property
    def tried(self) -> bool:
        """Whether its log is, or was, open, or was asked for in vain for a while."""
        return self.end is not None or (self.follower is not None and self.follower.tried)


class Followed:
    """One pod: the newest look at it, and its logs by number of the container's restart.

    Args:
        fact: as an earlier session or process wrote it down, or the first look.
    """

    __slots__ = ("fact", "idle", "logs")

    def __init__(self, fact: PodFact) -> None:
        self.fact = fact
        self.logs: dict[int, InstanceFollowed] = {}
        # Instances that were seen and never ran: they have no log.
        self.idle: set[int] = set()
        end = _CLOSED.get(fact.log)
        if end is not None:
            self.logs = {number: InstanceFollowed(end) for number in instances_of(fact)}

    @property
    def log_state(self) -> LogState:
        """Whether all of its log is stored."""
        if not self.fact.over:
            return "open"
        ends = [log.end for log in self.logs.values()]
        if not ends:
            return "none"
        return "open" if None in ends else "lost" if "lost" in ends else "complete"


def instance_state(fact: PodFact, number: int) -> State:
    """State of one instance of a pod's training container by the newest look at the pod."""
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
    """Instances that have a log, by this look."""
    return tuple(sorted({one.restarts for one in (fact.last, fact.main) if one is not None and _ran(one)}))


def missed(fact: PodFact, known: Collection[int]) -> tuple[int, ...]:
    """Instances that came and went while nobody looked, in order: their logs can hardly be had any more.

    Args:
        fact: the newest look.
        known: instances that were seen before.
    """
    if fact.main is None:
        return ()
    shown = fact.last.restarts if fact.last is not None else None
    return tuple(number for number in range(fact.main.restarts) if number != shown and number not in known)


def idle_of(fact: PodFact) -> set[int]:
    """Instances that have ended without having run, by this look."""
    shown = (one for one in (fact.last, fact.main) if one is not None and one.state == "terminated")
    return {one.restarts for one in shown if not _ran(one)}


def _ran(container: ContainerFact) -> bool:
    """Whether an instance runs or ran. The kubelet also calls one terminated that it never started: that one has neither an id nor a beginning."""
    ended = container.state == "terminated" and (container.id is not None or container.started is not None)
    return container.state == "running" or ended
