"""How long a controller takes a denial for a server that only starts: such a server denies what it has not read yet.

It says "not yet ready to handle request", or simply 403. A denial that lasts longer ends the controller, with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from rankfall.health.controller.telling import LOG
from rankfall.kube.errors import ApiError, Forbidden, KubeError, ServerError, TooManyRequests, Unauthorized
from rankfall.kube.watch import Pace

#: So long a denial is doubted, seconds.
DENIED_S: Final = 60.0
_AGAIN_S: Final = 2.0


def doubting() -> Pace:
    """The pace of a watch that doubts a denial."""
    return Pace(denied=DENIED_S, doubting=True)


async def until_done(call: Callable[[], Awaitable[None]]) -> None:
    """Call until it is answered.

    Args:
        call: may be made any number of times.

    Raises:
        ApiError: a refusal that lasts.
    """
    until = time.monotonic() + DENIED_S
    while True:
        try:
            return await call()
        except ApiError as error:
            doubted = isinstance(error, Forbidden | Unauthorized) and time.monotonic() < until
            if not doubted and not isinstance(error, ServerError | TooManyRequests):
                raise
            LOG.warning("%s", error.message)
        except KubeError as error:
            LOG.warning("%s", error.message)
        await asyncio.sleep(_AGAIN_S)
