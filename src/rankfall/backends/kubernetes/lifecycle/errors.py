"""Launch errors, transient API errors, and the retry budget of an operation."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection
from typing import Final

from rankfall.backends.kubernetes.lifecycle.ownership import Object, span
from rankfall.kube.client import Kube
from rankfall.kube.errors import (
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    ObjectNotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from rankfall.kube.request import Retry
from rankfall.kube.resources import Resource
from rankfall.model import InfrastructureError


class LaunchError(InfrastructureError):
    """An attempt could not be launched."""


class NameTaken(LaunchError):
    """A running or foreign object of this name exists; it stays unchanged."""


class StillThere(LaunchError):
    """An object that must disappear first remains after the limit."""


class Vanished(LaunchError):
    """Another user or controller deleted the object during its launch."""


Say = Callable[[str], None]

_BAD_REQUEST: Final = 400


def unseen(error: KubeError, names: Collection[str]) -> bool:
    """True if a refusal reports a just created object as missing.

    Webhooks read a lagging cache: Trainer refused 1 in 6 TrainJobs with a runtime milliseconds old (403, "not found").
    """
    refused = isinstance(error, Forbidden | Invalid) or (isinstance(error, ApiError) and error.status == _BAD_REQUEST)
    return refused and any(f'"{name}" not found' in error.message for name in names)


def passes(error: KubeError) -> bool:
    """True if the error may pass; check the failed request's effect before a retry."""
    if isinstance(error, Unreachable):
        return not error.tls
    return isinstance(error, Conflict | Expired | TooManyRequests | ServerError)


class RetryBudget:
    """Time limit and pauses of one operation; ``until`` is on the monotonic clock."""

    def __init__(self, *, until: float, say: Say, retry: Retry | None = None) -> None:
        self.until, self.say, self._retry = until, say, retry or Retry()
        self._rng = random.Random()  # noqa: S311 - for pauses, not for secrets
        self._tries = 0

    @property
    def left(self) -> float:
        """Remaining seconds, not below zero."""
        return max(0.0, self.until - time.monotonic())

    async def after(self, error: KubeError) -> bool:
        """Pauses after a transient error; False, without a pause, if the error is permanent or the time is over."""
        if not passes(error):
            return False
        self._tries += 1
        asked = error.retry_after if isinstance(error, ApiError) else None
        pause = self._retry.pause(self._tries, retry_after=asked, rng=self._rng)
        if pause > self.left:
            return False
        self.say(f"{error.message}; trying again, for up to {span(self.left)} more")
        await asyncio.sleep(pause)
        return True

    async def or_raise(self, error: KubeError) -> None:
        """Pauses after a transient failure.

        Raises:
            KubeError: Permanent or over budget.
        """
        if not await self.after(error):
            raise error


async def look(kube: Kube, resource: Resource, name: str, *, namespace: str, patience: RetryBudget) -> Object | None:
    """Returns the current object; None if it does not exist.

    Raises:
        KubeError: The object was unreadable until the budget was spent.
    """
    while True:
        try:
            found = await kube.get(resource, name, namespace=namespace)
        except ObjectNotFound:
            return None
        except KubeError as error:
            await patience.or_raise(error)
        else:
            return {**found, "apiVersion": resource.api_version, "kind": resource.kind}


async def resolve_create(
    error: KubeError, kube: Kube, resource: Resource, name: str, *, namespace: str, patience: RetryBudget
) -> Object | None:
    """Returns the object after a failed create; None after a pause if retryable.

    Raises:
        KubeError: Permanent or over budget.
    """
    if not passes(error):
        raise error
    if not (isinstance(error, Conflict) and error.already_exists):
        patience.say(f"{error.message}; checking whether the request took effect")
    found = await look(kube, resource, name, namespace=namespace, patience=patience)
    if found is None:
        await patience.or_raise(error)
    return found
