"""Asks the wrappers in pods for the stacks of their ranks, by exec; the stacks themselves come as records.

Needs the right to exec. A pod that cannot be told, for whatever reason, is left out of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from rankfall.backends.plan import ClusterPlan
from rankfall.kube.client import Kube
from rankfall.kube.errors import KubeError
from rankfall.kube.exec import execute

# For one pod, seconds.
_EXEC_S: Final = 10.0
_AT_ONCE: Final = 16
# The bundle's interpreter is looked for as the container's own start does.
_TELL: Final = (
    'for p in "${RANKFALL_PYTHON:-python3}" python3 python; do'
    ' command -v "$p" >/dev/null 2>&1 || continue; "$p" /rankfall/inside.pyz tell "$@" || exit 3; echo told; exit 0;'
    " done; exit 3"
)


async def ask_stacks(kube: Kube, place: ClusterPlan, pods: Mapping[int, str]) -> tuple[int, ...]:
    """Ask for stacks.

    Args:
        kube: an open client.
        place: of the attempt.
        pods: names of pods by slot.

    Returns:
        The slots that were told.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(slot: int, pod: str) -> int | None:
        async with gate:
            try:
                found = await execute(
                    kube,
                    pod,
                    ["sh", "-c", _TELL, "rankfall", "stacks"],
                    container=place.container,
                    namespace=place.namespace,
                    timeout=_EXEC_S,
                )
            except KubeError:
                return None
        # A connection that the API server loses to the kubelet reads as exit code 0.
        return slot if found.stdout.endswith(b"told\n") else None

    told = await asyncio.gather(*(one(slot, pod) for slot, pod in pods.items()))
    return tuple(slot for slot in told if slot is not None)
