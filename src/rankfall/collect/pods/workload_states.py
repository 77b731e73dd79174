"""Stores the states of an attempt's workload and of a TrainJob's JobSet.

A workload with TTL 0 is removed immediately. A deleted JobSet gets a successor of the same name; its pods are excluded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, ObjectNotFound
from rankfall.kube.object_fields import (
    JOB_UID,
    JOBSET_NAME,
    JOBSET_RESTART,
    JOBSET_UID,
    execution_of,
    mapping,
    mappings,
    number,
    word,
)
from rankfall.kube.resources import JOBS, JOBSETS, TRAINJOBS, Resource
from rankfall.rundir.cluster.journal import JournalReader, SnapshotWriter, journal_path
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.cluster.workload_state import WorkloadFact, first_gang, native_state, workload_path

# Seconds that pods wait for the first list of JobSets.
_LISTED_S: Final = 5.0
_WATCHED: Final[Mapping[str, tuple[Resource, ...]]] = {
    "job": (JOBS,),
    "jobset": (JOBSETS,),
    "trainjob": (TRAINJOBS, JOBSETS),
}


async def sets_of_jobs(kube: Kube, name: str, *, namespace: str) -> dict[str, str]:
    """Owning JobSet's UID by Job UID.

    Raises:
        KubeError: The Jobs cannot be listed.
    """
    found = await kube.list(JOBS, namespace=namespace, labels=f"{JOBSET_NAME}={name}")
    return {uid: owner for item in found.items if (uid := _uid(item)) and (owner := _owner(item))}


def set_of(pod: Mapping[str, Any], sets: Mapping[str, str]) -> str | None:
    """UID of a pod's JobSet, or None; ``sets`` is by Job UID."""
    labels = mapping(mapping(pod, "metadata"), "labels")
    return word(labels.get(JOBSET_UID)) or sets.get(word(labels.get(JOB_UID)) or "")


async def pods_of_gang(
    kube: Kube,
    pods: Sequence[dict[str, Any]],
    gang: str,
    name: str,
    *,
    namespace: str,
    execution: int | None = None,
) -> Sequence[dict[str, Any]]:
    """Pods of one JobSet of a TrainJob, and of one ``execution``; an empty ``gang`` and None select all.

    Raises:
        KubeError: Their Jobs cannot be listed.
    """
    if execution is not None:
        pods = [pod for pod in pods if execution_of(pod) in {None, execution}]
    if not gang or not pods:
        return pods
    sets = await sets_of_jobs(kube, name, namespace=namespace)
    return [pod for pod in pods if set_of(pod, sets) == gang]


class WorkloadStates:
    """The states of one attempt's workload.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(
        self, kube: Kube, *, run: Path, attempt: int, source: PodSource, full: Callable[[OSError], None]
    ) -> None:
        self._kube = kube
        self._source = source
        self._full = full
        self._resources = _WATCHED.get(source.backend, ())
        self._file: SnapshotWriter[WorkloadFact] = SnapshotWriter(workload_path(run, attempt), WorkloadFact)
        self._facts = dict(self._file.newest)
        self._unwritten: set[str] = set()
        # Objects observed now, and the JobSet of each Job.
        self._there: set[str] = set()
        self._sets: dict[str, str] = {}
        # Jobs created after their set's removal; they vanish soon.
        self._late: set[str] = set()
        self._denied = JOBSETS not in self._resources
        self._listed = asyncio.Event()
        # Execution of this attempt, by its first pod, and the newest of earlier attempts.
        self._execution = max(_executions(run, attempt), default=None)
        past = (one for other in source.apart for one in _executions(run, other))
        self._past = max(past, default=-1) if source.backend == "jobset" else -1

    @property
    def gang(self) -> str:
        """UID of this attempt's JobSet; empty without one."""
        return self._source.gang or first_gang(self._facts)

    async def take(self) -> None:
        """Reads the objects that separate a TrainJob's gangs; ignores a refusal.

        Raises:
            KubeError: The server cannot be queried.
        """
        for resource in () if self._denied else self._resources:
            with contextlib.suppress(Forbidden, ObjectNotFound):
                name = f"metadata.name={self._source.object}"
                found = await self._kube.list(resource, namespace=self._source.namespace, fields=name)
                for item in found.items:
                    self.saw(resource, item)
            self.listed(resource)

    def saw(self, resource: Resource, item: Mapping[str, Any], *, gone: bool = False) -> None:
        """Records one state of a workload, or of a set's Job."""
        uid, owner = _uid(item), _owner(item)
        if resource not in self._resources:
            if resource == JOBS and owner is not None:
                self._made(uid, owner)
            return
        self._there.add(uid)
        held = self._facts.get(uid)
        if gone and "spec" not in item:
            # Only the name remains after an unobserved removal.
            if held is not None:
                self._write(msgspec.structs.replace(held, gone=True, vanished=True))
        elif uid:
            self._write(
                WorkloadFact(
                    seen_ns=time.time_ns(),
                    uid=uid,
                    kind=resource.kind,
                    # Objects of a list omit their kind.
                    state=native_state({**item, "kind": resource.kind}),
                    created=word(mapping(item, "metadata").get("creationTimestamp")),
                    gone=gone,
                )
            )

    def listed(self, resource: Resource, *, refused: bool = False) -> None:
        """Marks objects of earlier sessions as vanished, after a complete list; with ``refused`` none."""
        if resource not in self._resources:
            return
        for uid, fact in () if refused else tuple(self._facts.items()):
            if fact.kind == resource.kind and not fact.gone and uid not in self._there:
                self._write(msgspec.structs.replace(fact, gone=True, vanished=True))
        if resource == self._resources[-1]:
            self._listed.set()

    async def mine(self, pod: Mapping[str, Any]) -> bool:
        """True if a new pod belongs to this attempt's gang.

        Raises:
            KubeError: Its Job cannot be queried.
        """
        execution = execution_of(pod)
        if not await self._of_gang(pod) or (execution is not None and not self._fits(pod, execution)):
            return False
        self._execution = execution if self._execution is None else self._execution
        return True

    def _fits(self, pod: Mapping[str, Any], execution: int) -> bool:
        """True if a pod's execution is this attempt's; an old pod may outlive a suspension."""
        if self._execution is not None:
            return execution == self._execution
        states = [fact.state for fact in self._facts.values() if fact.kind == JOBSETS.kind and not fact.gone]
        restart = number(mapping(mapping(pod, "metadata"), "labels").get(JOBSET_RESTART))
        old = any(restart == state.restarts and execution < (state.execution or 0) for state in states)
        return not old and execution > self._past

    async def _of_gang(self, pod: Mapping[str, Any]) -> bool:
        if self._denied:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTED_S):
                await self._listed.wait()
        sets = (uid for uid, fact in self._facts.items() if fact.kind == JOBSETS.kind)
        gang = self.gang or next(sets, "")
        if not gang:
            return True
        if set_of(pod, self._sets) is None:
            try:
                made = await sets_of_jobs(self._kube, self._source.object, namespace=self._source.namespace)
            except Forbidden:
                self._denied = True
                return True
            for uid, owner in made.items():
                self._made(uid, owner)
        found, meta = set_of(pod, self._sets), mapping(pod, "metadata")
        if found is None:
            return self._is_of(gang, meta)
        return found == gang and mapping(meta, "labels").get(JOB_UID) not in self._late

    def _made(self, job: str, owner: str) -> None:
        held = self._facts.get(owner)
        if job not in self._sets and held is not None and held.gone:
            self._late.add(job)
        self._sets[job] = owner

    def _is_of(self, gang: str, meta: Mapping[str, Any]) -> bool:
        """True if a pod of a vanished Job was created before the gang after ``gang``, so belongs to ``gang``."""
        known = list(self._facts)
        later = [self._facts[uid] for uid in known[known.index(gang) + 1 :]] if gang in known else []
        after = next((one.created for one in later if one.kind == JOBSETS.kind and one.created), None)
        made = word(meta.get("creationTimestamp"))
        return made is not None and after is not None and made < after

    def write_left(self) -> bool:
        """Writes facts that failed before. Returns True if there were any.

        Raises:
            OSError: The facts still cannot be written.
        """
        left = tuple(self._unwritten)
        for uid in left:
            self._file.add(self._facts[uid])
            self._unwritten.discard(uid)
        return bool(left)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    # -- storage

    def _write(self, fact: WorkloadFact) -> None:
        self._facts[fact.uid] = fact
        try:
            self._file.add(fact)
        except OSError as error:
            self._unwritten.add(fact.uid)
            self._full(error)


def _executions(run: Path, attempt: int) -> set[int]:
    pods = JournalReader.read(journal_path(run, attempt)).values()
    return {fact.execution for fact in pods if fact.execution is not None}


def _uid(item: Mapping[str, Any]) -> str:
    return word(mapping(item, "metadata").get("uid")) or ""


def _owner(item: Mapping[str, Any]) -> str | None:
    owners = mappings(mapping(item, "metadata"), "ownerReferences")
    return next((word(one.get("uid")) for one in owners if one.get("kind") == JOBSETS.kind), None)
