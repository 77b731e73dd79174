"""Creates a workload's config map, service and runtime, each once and owned by the workload.

An old object in the way must be gone first; when it does not go, the launch fails with the name of what holds
it.
"""

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
    """Wait until nothing of an old object is there.

    Args:
        kube: an open client.
        groups: the object and what goes with it.
        namespace: where.
        label: how messages name it.
        patience: its end is the end of the wait.
        say: takes lines for people.

    Raises:
        StillThere: it is not gone in time; names what blocks it.
        KubeError: it cannot be seen.
    """
    began = time.monotonic()
    tell = teller(kube, f"waiting for the earlier {label} to go", say=say)
    waited = await wait_gone(kube, groups, namespace=namespace, until=patience.until, say=say, tell=tell)
    if waited.unseen is not None:
        raise waited.unseen
    if waited.left:
        found = await blocked(kube, waited.left)
        raise StillThere(
            f"cannot launch: the earlier {label} is not gone after {span(time.monotonic() - began)}: {found.text}",
            hint=found.hint or "launch again later: the same call goes on where this one ended",
        )


class Made(msgspec.Struct, frozen=True):
    """An object that this launch made, so that a refused launch can take it back."""

    resource: Resource
    name: str
    uid: str


class Ensurer:
    """Makes the objects of one launch.

    Args:
        kube: an open client.
        namespace: where.
        token: of the request.
        patience: of the whole launch.
        say: takes lines for people.
        made: told of each object that is new.
    """

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
        """Make it so that the object is there and owned by the workload.

        Args:
            manifest: of the object.
            reference: of the workload; None = there is none yet: the object comes before it.
            expected: it is probably there, so look before it is sent.

        Raises:
            NameTaken: an object of this name is there that is not of this run.
            StillThere: an old one does not go.
            KubeError: it is refused, or could not be asked for until patience was over.
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
        """Create a Secret. Its name is this request's alone, so one that is there was made by it; no account has to see Secrets for that."""
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
        """Whether what is there will do; if not, it is gone now, or to be looked at again."""
        name = meta(manifest)["name"]
        label = resource.label(name, self._namespace)
        if not deleting(found):
            if self._is_done(found, reference):
                return True
            if not same_identity(found, manifest):
                raise NameTaken(
                    f"cannot launch: {label} is there and not of this run ({described(found)})",
                    hint="it was left alone; give the job another name",
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
            # Of an earlier try of this very launch, which got no further.
            return not owners_of(found) and token_of(found) == self._token
        return any(one.get("uid") == reference["uid"] for one in owners_of(found))

    async def _create(self, resource: Resource, name: str, body: Object) -> tuple[Object | None, bool]:
        """What is there now, and whether it was made just now; None: nothing, try again."""
        try:
            new = await self._kube.create(resource, body, namespace=self._namespace)
        except KubeError as error:
            return await resolve_create(
                error, self._kube, resource, name, namespace=self._namespace, patience=self._patience
            ), False
        self._made(Made(resource, name, uid_of(new)))
        return new, True

    async def _adopt(self, resource: Resource, found: Object, reference: Object) -> bool:
        """Give an owner to what was made before its owner was; False: it has changed, or whether it worked is not known."""
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
