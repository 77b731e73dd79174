"""Before a launch may go on, an old object has to be gone; when it does not go, the launch ends with the name of what holds it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rankfall.backends.cluster.launch_errors import StillThere
from rankfall.backends.cluster.launch_patience import Patience, Say
from rankfall.backends.cluster.ownership import span
from rankfall.backends.cluster.remove import teller
from rankfall.backends.cluster.remove_blockers import blocked
from rankfall.backends.cluster.remove_wait import Group, wait_gone
from rankfall.kube.client import Kube


async def until_gone(
    kube: Kube, groups: Sequence[Group], *, namespace: str, shown: str, patience: Patience, say: Say
) -> None:
    """Wait until nothing of an old object is there.

    Args:
        kube: an open client.
        groups: the object and what goes with it.
        namespace: where.
        shown: how messages name it.
        patience: its end is the end of the wait.
        say: takes lines for people.

    Raises:
        StillThere: it is not gone in time; names what blocks it.
        KubeError: it cannot be seen.
    """
    began = time.monotonic()
    tell = teller(kube, f"waiting for the earlier {shown} to go", say=say)
    waited = await wait_gone(kube, groups, namespace=namespace, until=patience.until, say=say, tell=tell)
    if waited.unseen is not None:
        raise waited.unseen
    if waited.left:
        found = await blocked(kube, waited.left)
        raise StillThere(
            f"cannot launch: the earlier {shown} is not gone after {span(time.monotonic() - began)}: {found.text}",
            hint=found.hint or "launch again later: the same call goes on where this one ended",
        )
