"""What size was wished for a run: a file of requests in the run directory that only grows. Of two for one role the newest is meant.

Anybody may ask; the supervisor, or the next one, carries it out. What was carried out stands in the plans of the attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from rankfall.model import JobSpec, decoding
from rankfall.model.policies import Positive
from rankfall.model.sizes import Left, first_sizes, sized
from rankfall.store.wishes import append_wish, read_wishes

if TYPE_CHECKING:
    from rankfall.store.place import RunPlace
    from rankfall.store.queries import Queries

RESIZE_NAME: Final = "resize"


class ResizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Who wished for how many nodes of which role, why, and when (nanoseconds since the epoch)."""

    role: str
    nodes: Positive
    at: int
    by: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """The request in one line."""
        words = f"{self.nodes} nodes of {self.role} wished by {self.by or 'somebody'}"
        return f"{words}: {self.reason}" if self.reason else words


def read_resizes(folder: Path) -> dict[str, ResizeRequest]:
    """The newest request for each role; what cannot be read is left out."""
    return {one.role: one for one in read_wishes(folder / RESIZE_NAME, ResizeRequest)}


def wished_sizes(folder: Path, spec: JobSpec) -> dict[str, int]:
    """Nodes of each role as they are to be: the spec's, and what was wished since."""
    sizes = first_sizes(spec)
    return sizes | {role: one.nodes for role, one in read_resizes(folder).items() if role in sizes}


def planned_sizes(plan: Mapping[str, object], spec: JobSpec) -> dict[str, int]:
    """Nodes of each role in the stored plan of an attempt."""
    said = plan.get("sizes")
    stored = said if isinstance(said, dict) else {}
    sizes = first_sizes(spec)
    return sizes | {role: stored[role] for role in sizes if isinstance(stored.get(role), int)}


def left_slots(plan: Mapping[str, object]) -> dict[int, str]:
    """Slots that left the gang while the attempt of this stored plan went on, each with why: ``resize``, ``lost`` or ``surplus``."""
    try:
        left = decoding.convert(plan.get("left", ()), tuple[Left, ...])
    except msgspec.ValidationError:
        return {}
    return {one.slot: one.why for one in left}


def attempt_spec(run_dir: RunPlace, tables: Queries, attempt: int) -> JobSpec:
    """The job as this attempt ran it.

    Raises:
        StoreError: the run's spec cannot be read.
    """
    spec = run_dir.spec
    if not (run_dir.path / RESIZE_NAME).exists():
        return spec
    plan = next((row.plan for row in tables.attempts() if row.attempt == attempt), {})
    return sized(spec, planned_sizes(plan, spec))


def append_resize(folder: Path, request: ResizeRequest) -> None:
    """Add a request.

    Raises:
        StoreError: it cannot be written.
    """
    append_wish(folder / RESIZE_NAME, request, verb="resize")
