"""Creates a workload's config map, service and runtime once, owned by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from rankfall.backends.kubernetes.lifecycle.errors import (
    LaunchError,
    NameTaken,
    RetryBudget,
    Say,
    StillThere,
    look,
    resolve_create,
)
from rankfall.backends.kubernetes.lifecycle.ownership import (
    Object,
    deleting,
    described,
    marked,
    meta,
    owners_of,
    resource_of,
    same_identity,
    span,
    token_of,
    uid_of,
)
from rankfall.backends.kubernetes.lifecycle.remove import order_delete, teller
from rankfall.backends.kubernetes.lifecycle.wait_gone import Group, blocked, wait_gone
from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, Forbidden, KubeError, ObjectNotFound
from rankfall.kube.resources import SECRETS, Resource


async def wait_until_gone(
    kube: Kube, groups: Sequence[Group], *, namespace: str, label: str, patience: RetryBudget, say: Say
) -> None:
    """Waits until an old object and its dependents no longer exist.

    Raises:
        StillThere: The object remains; names the cause.
        KubeError: The object is unreadable.
    """
    began = time.monotonic()
    tell = teller(kube, f"waiting for the removal of the earlier {label}", say=say)
    waited = await wait_gone(kube, groups, namespace=namespace, until=patience.until, say=say, tell=tell)
    if waited.unseen is not None:
        raise waited.unseen
    if waited.left:
        found = await blocked(kube, waited.left)
        raise StillThere(
            f"cannot launch: the earlier {label} still exists after {span(time.monotonic() - began)}: {found.text}",
            hint=found.hint or "launch again later: the launch resumes",
        )


class Made(msgspec.Struct, frozen=True):
    """A new object of this launch, removed if the launch is refused."""

    resource: Resource
    name: str
    uid: str


class Ensurer:
    """Creates the objects of one launch; ``made`` is called with each new one."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        token: str,
        patience: RetryBudget,
        say: Say,
        made: Callable[[Made], None],
    ) -> None:
        self._kube, self._namespace, self._token = kube, namespace, token
        self._patience, self._say, self._made = patience, say, made

    async def ensure(self, manifest: Object, *, reference: Object | None, expected: bool = False) -> None:
        """Ensures that the object exists and that the workload owns it.

        ``reference`` is the owner reference; None if created before the workload. ``expected``: it probably exists, so
        read first.

        Raises:
            NameTaken: An object of this name belongs to another run.
            StillThere: An old object does not disappear.
            KubeError: Refused, or failed until the limit.
        """
        resource, name = resource_of(manifest), meta(manifest)["name"]
        body = marked(manifest, token=self._token, reference=reference)
        if resource == SECRETS:
            await self._ensure_secret(name, body)
            return
        found = None
        if expected:
            found = await look(self._kube, resource, name, namespace=self._namespace, patience=self._patience)
        while True:
            if found is None:
                found, new = await self._create(resource, name, body)
                if new:
                    return
                if found is None:
                    continue
            if await self._settle(resource, manifest, found, reference):
                return
            found = None

    async def _ensure_secret(self, name: str, body: Object) -> None:
        """Creates a Secret; its name is unique to this request, so an existing one is valid."""
        while True:
            try:
                new = await self._kube.create(SECRETS, body, namespace=self._namespace)
            except Forbidden as error:
                raise LaunchError(
                    f"the job has secret values, and a Secret for them cannot be created: {error.message}",
                    hint="let the account create and delete secrets (rankfall config rights), or make the Secret yourself and name it in "
                    "kubernetes.env_from",
                ) from error
            except KubeError as error:
                if isinstance(error, Conflict) and error.already_exists:
                    return
                await self._patience.or_raise(error)
            else:
                self._made(Made(SECRETS, name, uid_of(new)))
                return

    async def _settle(self, resource: Resource, manifest: Object, found: Object, reference: Object | None) -> bool:
        """True if the found object is suitable; else removes it, or requires that the caller reads again."""
        name = meta(manifest)["name"]
        label = resource.label(name, self._namespace)
        if not deleting(found):
            if self._is_done(found, reference):
                return True
            if not same_identity(found, manifest):
                raise NameTaken(
                    f"cannot launch: {label} exists and is not of this run ({described(found)})",
                    hint="give the job another name; this object was not changed",
                )
            if reference is not None and not owners_of(found) and token_of(found) == self._token:
                return await self._adopt(resource, found, reference)
            self._say(f"removing {label} of an earlier launch")
            await order_delete(
                self._kube,
                resource,
                name,
                namespace=self._namespace,
                uid=uid_of(found),
                propagation="Background",
                patience=self._patience,
            )
        await wait_until_gone(
            self._kube,
            [Group(resource=resource, name=name, uid=uid_of(found))],
            namespace=self._namespace,
            label=label,
            patience=self._patience,
            say=self._say,
        )
        return False

    def _is_done(self, found: Object, reference: Object | None) -> bool:
        if reference is None:
            # From an earlier, incomplete attempt.
            return not owners_of(found) and token_of(found) == self._token
        return any(one.get("uid") == reference["uid"] for one in owners_of(found))

    async def _create(self, resource: Resource, name: str, body: Object) -> tuple[Object | None, bool]:
        """Existing object, and True if created now; None = retry."""
        try:
            new = await self._kube.create(resource, body, namespace=self._namespace)
        except KubeError as error:
            return await resolve_create(
                error, self._kube, resource, name, namespace=self._namespace, patience=self._patience
            ), False
        self._made(Made(resource, name, uid_of(new)))
        return new, True

    async def _adopt(self, resource: Resource, found: Object, reference: Object) -> bool:
        try:
            await self._kube.patch(
                resource,
                meta(found)["name"],
                {"metadata": {"ownerReferences": [reference]}},
                kind="merge",
                namespace=self._namespace,
                resource_version=meta(found).get("resourceVersion"),
            )
        except ObjectNotFound:
            return False
        except KubeError as error:
            await self._patience.or_raise(error)
            return False
        return True
