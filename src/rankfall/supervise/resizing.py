"""Another size for a run that has begun: what is wished, whether an attempt is stopped for it, and what is said of one that was.

A resize is a wish like a suspension: it uses no budget, the total deadline goes on, and how an attempt ends that was decided before the wish
stands.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from rankfall.diagnose import stopped_by_wish
from rankfall.model import Diagnosis
from rankfall.model.sizes import SizeChange
from rankfall.store import RunDir
from rankfall.store.resizes import ResizeRequest, append_resize, read_resizes, wished_sizes
from rankfall.store.who import who

# How an attempt is called in the store that ended because the next one has another size.
RESIZED: Final = "resized"
_MAX_REASON: Final = 1000


def request_resize(run_dir: RunDir, *, role: str, nodes: int, reason: str = "") -> ResizeRequest:
    """Ask for another size.

    Raises:
        StoreError: it cannot be written.
    """
    made = ResizeRequest(role=role, nodes=nodes, at=time.time_ns(), by=who(), reason=reason[:_MAX_REASON])
    append_resize(run_dir.path, made)
    return made


def unmet(run_dir: RunDir, sizes: Mapping[str, int]) -> ResizeRequest | None:
    """The newest request that these sizes do not fulfil; None where all are as they are to be."""
    wished = wished_sizes(run_dir.path, run_dir.spec)
    open_ones = [one for role, one in read_resizes(run_dir.path).items() if sizes.get(role) != wished.get(role)]
    return max(open_ones, key=lambda one: one.at, default=None)


def changes(
    run_dir: RunDir, *, before: Mapping[str, int], after: Mapping[str, int], done_at: int | None
) -> tuple[SizeChange, ...]:
    """What leads from one size to the other, with who asked for it.

    Args:
        run_dir: the run.
        before: nodes by role until then.
        after: nodes by role from then on.
        done_at: when it held, nanoseconds since the epoch; None while it is only meant.
    """
    asked = read_resizes(run_dir.path)
    return tuple(
        SizeChange(
            role=role,
            before=before[role],
            nodes=nodes,
            asked_at=asked[role].at,
            by=asked[role].by,
            reason=asked[role].reason,
            done_at=done_at,
        )
        for role, nodes in after.items()
        if role in asked and before.get(role, nodes) != nodes
    )


def resized_diagnosis(request: ResizeRequest, *, run: str, attempt: int) -> Diagnosis:
    """What is said of an attempt that was stopped for another size: nothing fell, and the run goes on at once."""
    return stopped_by_wish(request.text, how="resized", run=run, attempt=attempt, role=request.role)
