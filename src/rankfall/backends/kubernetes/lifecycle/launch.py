"""Launches one attempt idempotently: kills and repetitions still result in exactly one workload.

The workload is created suspended, then its companions; then it is released. The workload's token identifies its
request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal

import msgspec

from rankfall.backends.kubernetes.lifecycle.companions import Ensurer, Made, wait_until_gone
from rankfall.backends.kubernetes.lifecycle.errors import (
    LaunchError,
    NameTaken,
    RetryBudget,
    Say,
    Vanished,
    look,
    passes,
    resolve_create,
    unseen,
)
from rankfall.backends.kubernetes.lifecycle.ownership import (
    Object,
    Standing,
    deleting,
    described,
    finished,
    label,
    marked,
    meta,
    owner_reference,
    standing,
    suspended,
    uid_of,
)
from rankfall.backends.kubernetes.lifecycle.remove import order_delete
from rankfall.backends.kubernetes.lifecycle.wait_gone import groups_of, pods_of
from rankfall.backends.kubernetes.manifests.names import LABEL_RUN
from rankfall.kube.client import Kube
from rankfall.kube.errors import ApiError, Invalid, KubeError, ObjectNotFound
from rankfall.kube.resources import TRAINJOBS, Resource
from rankfall.kube.secret import excerpt


def check_replaceable(found: Object, state: Standing, *, name: str, replace: bool, removed: bool) -> None:
    """Checks that an object may be removed; ``removed`` = this launch already removed one.

    Raises:
        NameTaken: Foreign, alive, or just created by another client.
    """
    whose = described(found)
    if state == "foreign":
        raise NameTaken(
            f"cannot launch {name}: an object of this name exists and is not of this run ({whose})",
            hint="give the job another name; this object was not changed",
        )
    if state == "alive" and not replace:
        raise NameTaken(
            f"cannot launch {name}: an object of this name {'exists and is suspended' if suspended(found) else 'already runs'} ({whose})",
            hint=f"watch it with rankfall attach {excerpt(label(found, LABEL_RUN))}, or replace it with --replace",
        )
    if removed:
        raise NameTaken(
            f"cannot launch {name}: another client created an object of this name meanwhile ({whose})",
            hint="stop one of them: two clients launch the same run",
        )


def going(found: Object) -> str:
    """Describes why an object is removed, and its owner."""
    condition = finished(found)
    return f"which {f'has ended ({condition})' if condition else 'is to be replaced'} ({described(found)})"


Outcome = Literal["created", "adopted", "recreated"]

# Seconds that a webhook may miss new objects (over 30 on a busy control plane); pause.
_UNSEEN_S: Final = 120.0
_UNSEEN_STEP_S: Final = 0.25


class Launched(msgspec.Struct, frozen=True):
    """Result of a launch.

    Attributes:
        uid: Workload UID.
        outcome: ``created``; ``adopted`` = from the same request; ``recreated`` = an earlier one was removed.
        requests: Requests sent meanwhile.
    """

    uid: str
    outcome: Outcome
    requests: int


async def launch(
    kube: Kube,
    workload: dict[str, Any],
    companions: Sequence[dict[str, Any]],
    *,
    resource: Resource,
    request_token: str,
    hold: bool,
    replace: bool = False,
    wait_s: float = 300.0,
    say: Say,
    first: Sequence[dict[str, Any]] = (),
    others: Sequence[dict[str, Any]] = (),
    owner: str | None = None,
) -> Launched:
    """Creates a workload and its companions, and releases it unless ``hold``.

    ``first`` precede the workload; ``others`` are workloads that the first one owns, released before it.

    Raises:
        NameTaken: The object runs or is foreign.
        StillThere: An earlier object remains; names the cause.
        Vanished: Another user or controller deleted the workload.
        KubeError: Refused, or unreachable until the limit.
    """
    if not label(workload, LABEL_RUN):
        raise ValueError(f"a workload without label {LABEL_RUN}: it could not be distinguished from a foreign one")
    began = kube.counters.requests
    launcher = _Launch(
        kube, workload, resource, token=request_token, owner=owner, replace=replace, wait_s=wait_s, say=say
    )
    uid, outcome = await launcher.run(first, companions, others, hold=hold)
    return Launched(uid, outcome, kube.counters.requests - began)


class _Launch:
    def __init__(
        self,
        kube: Kube,
        workload: Object,
        resource: Resource,
        *,
        token: str,
        owner: str | None,
        replace: bool,
        wait_s: float,
        say: Say,
    ) -> None:
        self._kube, self._resource, self._token, self._replace, self._say = kube, resource, token, replace, say
        self._name = meta(workload)["name"]
        self._space = meta(workload).get("namespace") or kube.namespace
        self._body = marked(workload, token=token, owner=owner)
        self._body["spec"] = {**workload["spec"], "suspend": True}
        self._patience = RetryBudget(until=time.monotonic() + wait_s, say=say)
        self._seen_by: float | None = None
        self._made: list[Made] = []
        self._removed = self._runs = False
        self._ensurer = Ensurer(
            kube, namespace=self._space, token=token, patience=self._patience, say=say, made=self._made.append
        )

    @property
    def _label(self) -> str:
        return self._resource.label(self._name, self._space)

    async def run(
        self, first: Sequence[Object], companions: Sequence[Object], others: Sequence[Object], *, hold: bool
    ) -> tuple[str, Outcome]:
        """Runs all steps; returns the UID and the outcome."""
        try:
            found, outcome = await self._workload(first)
            self._runs = not suspended(found)
            if not finished(found):
                reference, again = owner_reference(found), outcome == "adopted"
                for manifest in first:
                    await self._ensurer.ensure(manifest, reference=reference, expected=True)
                for manifest in companions:
                    await self._ensurer.ensure(manifest, reference=reference, expected=again)
                for manifest in others:
                    held = {**manifest, "spec": {**manifest["spec"], "suspend": True}}
                    await self._ensurer.ensure(held, reference=reference, expected=again)
                if suspended(found) and not hold:
                    # Once it runs, all others are released.
                    for manifest in others:
                        await self._release_other(meta(manifest)["name"])
                    await self._release(self._name, uid_of(found))
        except (ApiError, LaunchError) as error:
            # After a transient error objects remain for a retry.
            if not self._runs and not (isinstance(error, KubeError) and passes(error)):
                await self._take_back()
            raise
        return uid_of(found), outcome

    async def _workload(self, first: Sequence[Object]) -> tuple[Object, Outcome]:
        # An old workload could own objects of ``first``.
        found = await self._look() if first else None
        if found is None and self._resource == TRAINJOBS:
            # A removed TrainJob disappears before its children.
            await self._gone(None)
        while True:
            if found is None:
                for manifest in first:
                    await self._ensurer.ensure(manifest, reference=None)
                found, new = await self._create(after={meta(manifest)["name"] for manifest in first})
                if found is None:
                    continue
                if new:
                    return found, "recreated" if self._removed else "created"
            state = standing(found, self._body, token=self._token)
            if state == "same":
                self._made.append(Made(self._resource, self._name, uid_of(found)))
                return found, "recreated" if self._removed else "adopted"
            await self._clear(found, state)
            found = None

    async def _create(self, *, after: Collection[str]) -> tuple[Object | None, bool]:
        """Workload and True if this call created it; None after a pause if the caller shall retry.

        ``after``: names of objects just created, which a webhook may not see yet.
        """
        try:
            new = await self._kube.create(self._resource, self._body, namespace=self._space)
        except KubeError as error:
            if unseen(error, after):
                if self._seen_by is None:
                    self._seen_by = time.monotonic() + min(self._patience.left, _UNSEEN_S)
                    self._patience.say(f"{error.message}; the admission webhook does not know it yet, trying again")
                if time.monotonic() < self._seen_by:
                    await asyncio.sleep(_UNSEEN_STEP_S)
                    return None, False
            return await resolve_create(
                error, self._kube, self._resource, self._name, namespace=self._space, patience=self._patience
            ), False
        self._made.append(Made(self._resource, self._name, uid_of(new)))
        return {**new, "apiVersion": self._resource.api_version, "kind": self._resource.kind}, True

    async def _look(self) -> Object | None:
        return await look(self._kube, self._resource, self._name, namespace=self._space, patience=self._patience)

    async def _clear(self, found: Object, state: Standing) -> None:
        if state != "deleting":
            check_replaceable(found, state, name=self._label, replace=self._replace, removed=self._removed)
            self._say(f"removing {self._label}, {going(found)}")
            # Foreground deletion retains the object until its children are deleted, also for a repeated call.
            await order_delete(
                self._kube,
                self._resource,
                self._name,
                namespace=self._space,
                uid=uid_of(found),
                propagation="Background" if self._resource == TRAINJOBS else "Foreground",
                patience=self._patience,
            )
            self._removed = True
        await self._gone(uid_of(found))

    async def _gone(self, uid: str | None) -> None:
        await wait_until_gone(
            self._kube,
            groups_of(self._resource, self._name, uid=uid, pods=pods_of(self._resource, self._name)),
            namespace=self._space,
            label=self._label,
            patience=self._patience,
            say=self._say,
        )

    async def _release_other(self, name: str) -> None:
        found = await look(self._kube, self._resource, name, namespace=self._space, patience=self._patience)
        if found is None or deleting(found):
            raise self._vanished(name)
        if suspended(found) and not finished(found):
            await self._release(name, uid_of(found))

    def _vanished(self, name: str) -> Vanished:
        return Vanished(
            f"{self._resource.label(name, self._space)} was deleted by another client during the launch",
            hint="launch it again if you still need it; nothing of it runs",
        )

    async def _release(self, name: str, uid: str) -> None:
        """Releases exactly this object, not another one of its name."""
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/spec/suspend", "value": False},
        ]
        while True:
            try:
                await self._kube.patch(self._resource, name, patch, kind="json", namespace=self._space)
            except KubeError as error:
                # A failed test is 422, like a refusal.
                if not (passes(error) or isinstance(error, Invalid | ObjectNotFound)):
                    raise
                found = await look(self._kube, self._resource, name, namespace=self._space, patience=self._patience)
                if found is None or uid_of(found) != uid or deleting(found):
                    raise self._vanished(name) from error
                if not suspended(found):
                    return
                await self._patience.or_raise(error)
            else:
                return

    async def _take_back(self) -> None:
        """Removes all objects of this request, so that none stays suspended."""
        for made in reversed(self._made):
            try:
                await order_delete(
                    self._kube,
                    made.resource,
                    made.name,
                    namespace=self._space,
                    uid=made.uid,
                    propagation="Background",
                    patience=self._patience,
                )
            except KubeError as error:
                self._say(f"{error.message}; {made.resource.label(made.name, self._space)} remains in the cluster")
