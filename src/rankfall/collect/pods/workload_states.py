"""Keeps the states of the workload of an attempt, and of a TrainJob its JobSet: how each of them ended is known although it is gone a moment later.

A workload with a time to live of 0 s is removed in the second in which it ends, so a request now and then sees it run and then not at all. The watch
of what is around the pods brings the last state of what is deleted. The states also say which pods belong together: a TrainJob whose JobSet is
deleted gets another one of the same name, whose pods bear the same labels. The JobSet that was seen first is the gang of the attempt; pods of
another one are not its pods.
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
from rankfall.kube.object_fields import JOB_UID, JOBSET_NAME, JOBSET_UID, mapping, mappings, word
from rankfall.kube.resources import JOBS, JOBSETS, TRAINJOBS, Resource
from rankfall.rundir.cluster.journal import SnapshotWriter
from rankfall.rundir.cluster.pod_source import PodSource
from rankfall.rundir.cluster.workload_state import WorkloadFact, first_gang, native_state, workload_path

# How long pods wait for the first list of JobSets, seconds: without it all pods count as one gang.
_LISTED_S: Final = 5.0
_WATCHED: Final[Mapping[str, tuple[Resource, ...]]] = {
    "job": (JOBS,),
    "jobset": (JOBSETS,),
    "trainjob": (TRAINJOBS, JOBSETS),
}


async def sets_of_jobs(kube: Kube, name: str, *, namespace: str) -> dict[str, str]:
    """UID of the JobSet that owns each Job, by UID of the Job, of all Jobs that are there.

    Raises:
        KubeError: they cannot be listed.
    """
    found = await kube.list(JOBS, namespace=namespace, labels=f"{JOBSET_NAME}={name}")
    return {uid: owner for item in found.items if (uid := _uid(item)) and (owner := _owner(item))}


def set_of(pod: Mapping[str, Any], sets: Mapping[str, str]) -> str | None:
    """UID of the JobSet whose pod this is; None where neither its labels nor its Job say so.

    Args:
        pod: as the API gave it.
        sets: as :func:`sets_of_jobs` has them.
    """
    labels = mapping(mapping(pod, "metadata"), "labels")
    return word(labels.get(JOBSET_UID)) or sets.get(word(labels.get(JOB_UID)) or "")


async def pods_of_gang(
    kube: Kube, pods: Sequence[dict[str, Any]], gang: str, name: str, *, namespace: str
) -> Sequence[dict[str, Any]]:
    """Those of these pods that are of one JobSet of a TrainJob.

    Args:
        kube: an open client.
        pods: as the API gave them.
        gang: UID of the JobSet; empty = all of them are.
        name: of the JobSet.
        namespace: where.

    Raises:
        KubeError: their Jobs cannot be listed.
    """
    if not gang or not pods:
        return pods
    sets = await sets_of_jobs(kube, name, namespace=namespace)
    return [pod for pod in pods if set_of(pod, sets) == gang]


class WorkloadStates:
    """The states of the workload of one attempt.

    Args:
        kube: an open client.
        run: the run's directory.
        attempt: counted from 1.
        source: names the workload.
        full: told when what was seen cannot be written.

    Raises:
        OSError: the file cannot be opened.
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
        # Seen by this session; and the JobSet of each Job.
        self._there: set[str] = set()
        self._sets: dict[str, str] = {}
        # Jobs that the controller of a set made when that was gone already: a moment later they are gone too.
        self._late: set[str] = set()
        self._denied = JOBSETS not in self._resources
        self._listed = asyncio.Event()

    @property
    def gang(self) -> str:
        """UID of the JobSet whose pods are this attempt's; empty = every pod is."""
        return self._source.gang or first_gang(self._facts)

    async def take(self) -> None:
        """Read once what tells the gangs of a TrainJob apart; where that is refused or not served, nothing is known of it.

        Raises:
            KubeError: the server cannot be asked.
        """
        for resource in () if self._denied else self._resources:
            with contextlib.suppress(Forbidden, ObjectNotFound):
                name = f"metadata.name={self._source.object}"
                found = await self._kube.list(resource, namespace=self._source.namespace, fields=name)
                for item in found.items:
                    self.saw(resource, item)
            self.listed(resource)

    def saw(self, resource: Resource, item: Mapping[str, Any], *, gone: bool = False) -> None:
        """Take in one state of a workload, or of a Job that a set has made."""
        uid, owner = _uid(item), _owner(item)
        if resource not in self._resources:
            if resource == JOBS and owner is not None:
                self._made(uid, owner)
            return
        self._there.add(uid)
        held = self._facts.get(uid)
        if gone and "spec" not in item:
            # Of an object that vanished unseen only its name is left.
            if held is not None:
                self._write(msgspec.structs.replace(held, gone=True, vanished=True))
        elif uid:
            self._write(
                WorkloadFact(
                    seen_ns=time.time_ns(),
                    uid=uid,
                    kind=resource.kind,
                    # An object of a list does not repeat its kind.
                    state=native_state({**item, "kind": resource.kind}),
                    created=word(mapping(item, "metadata").get("creationTimestamp")),
                    gone=gone,
                )
            )

    def listed(self, resource: Resource, *, refused: bool = False) -> None:
        """All of a kind that are there have been seen: what an earlier session saw and is not among them vanished unseen.

        Args:
            resource: the kind.
            refused: they cannot be seen now, and nothing is known of them.
        """
        if resource not in self._resources:
            return
        for uid, fact in () if refused else tuple(self._facts.items()):
            if fact.kind == resource.kind and not fact.gone and uid not in self._there:
                self._write(msgspec.structs.replace(fact, gone=True, vanished=True))
        if resource == self._resources[-1]:
            self._listed.set()

    async def mine(self, pod: Mapping[str, Any]) -> bool:
        """Whether a pod that is seen for the first time is of this attempt's gang.

        Raises:
            KubeError: its Job cannot be asked for now.
        """
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
        """Whether a pod whose Job is gone already, and was never seen, was of this gang: it was if the next one was made later."""
        known = list(self._facts)
        later = [self._facts[uid] for uid in known[known.index(gang) + 1 :]] if gang in known else []
        after = next((one.created for one in later if one.kind == JOBSETS.kind and one.created), None)
        made = word(meta.get("creationTimestamp"))
        return made is not None and after is not None and made < after

    def write_left(self) -> bool:
        """Write what could not be written before; whether there was any.

        Raises:
            OSError: it still cannot be written.
        """
        left = tuple(self._unwritten)
        for uid in left:
            self._file.add(self._facts[uid])
            self._unwritten.discard(uid)
        return bool(left)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # -- what is seen

    def _write(self, fact: WorkloadFact) -> None:
        self._facts[fact.uid] = fact
        try:
            self._file.add(fact)
        except OSError as error:
            self._unwritten.add(fact.uid)
            self._full(error)


def _uid(item: Mapping[str, Any]) -> str:
    return word(mapping(item, "metadata").get("uid")) or ""


def _owner(item: Mapping[str, Any]) -> str | None:
    owners = mappings(mapping(item, "metadata"), "ownerReferences")
    return next((word(one.get("uid")) for one in owners if one.get("kind") == JOBSETS.kind), None)
