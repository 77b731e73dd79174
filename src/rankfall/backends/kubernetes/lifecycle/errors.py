"""Errors of a launch, which API errors are transient, and the retry budget of one operation.

The client repeats requests that are safe to repeat blindly; here are the failures that need a look at the
server first. Pauses grow, are bounded, and each is logged.
"""

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


class NameTaken(LaunchError):  # noqa: N818 - reads as the answer that it is
    """An object of this name is there: it runs, or it is not ours. It is left alone."""


class StillThere(LaunchError):  # noqa: N818 - reads as the answer that it is
    """What has to be gone first is not gone in time."""


class Vanished(LaunchError):  # noqa: N818 - reads as the answer that it is
    """Somebody else deleted the object while it was being launched."""


Say = Callable[[str], None]

_BAD_REQUEST: Final = 400


def unseen(error: KubeError, names: Collection[str]) -> bool:
    """Whether a refusal says that one of the objects that were made just now is not there.

    Admission webhooks read from a cache that is a moment behind the server: Trainer's refused 1 in 6 TrainJobs whose TrainingRuntime was
    a few milliseconds old, with 403 and "not found".
    """
    refused = isinstance(error, Forbidden | Invalid) or (isinstance(error, ApiError) and error.status == _BAD_REQUEST)
    return refused and any(f'"{name}" not found' in error.message for name in names)


def passes(error: KubeError) -> bool:
    """Whether the same request may succeed later, when one has looked what became of this one.

    409 is among them: quotas that are counted just now, and objects that change meanwhile, answer it. A server whose certificate is refused is not.
    """
    if isinstance(error, Unreachable):
        return not error.tls
    return isinstance(error, Conflict | Expired | TooManyRequests | ServerError)


class RetryBudget:
    """The pauses of one piece of work.

    Args:
        until: end of patience on the monotonic clock.
        say: told of each pause with its reason.
        retry: pace; the number of tries in it does not count, the time does.
    """

    def __init__(self, *, until: float, say: Say, retry: Retry | None = None) -> None:
        self.until, self.say, self._retry = until, say, retry or Retry()
        self._rng = random.Random()  # noqa: S311 - of pauses, not of secrets
        self._tries = 0

    @property
    def left(self) -> float:
        """Seconds, not below zero."""
        return max(0.0, self.until - time.monotonic())

    async def after(self, error: KubeError) -> bool:
        """Pause after a failure that passes; False when it does not, or the time would be over."""
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
        """Pause after a failure that passes.

        Raises:
            KubeError: the failure itself, when it does not pass or the time would be over.
        """
        if not await self.after(error):
            raise error


async def look(kube: Kube, resource: Resource, name: str, *, namespace: str, patience: RetryBudget) -> Object | None:
    """What is there now; None = nothing.

    Raises:
        KubeError: it cannot be seen, until patience was over.
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
    """What is there after a create that failed; None = nothing, after a pause: it may be sent again.

    Raises:
        KubeError: the failure does not pass, or patience is over.
    """
    if not passes(error):
        raise error
    if not (isinstance(error, Conflict) and error.already_exists):
        patience.say(f"{error.message}; looking whether it was done all the same")
    found = await look(kube, resource, name, namespace=namespace, patience=patience)
    if found is None:
        await patience.or_raise(error)
    return found
