"""Requests to a run's supervisor: append-only files in the run directory.

Any user may append one; the supervisor, or the next, carries it out. A torn line is skipped.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from rankfall.model import JobSpec, StoreError, decoding
from rankfall.model.jobspec.policies import Positive
from rankfall.model.jobspec.sizes import Left, first_sizes, sized
from rankfall.rundir.lease import private

if TYPE_CHECKING:
    from rankfall.rundir.database import Queries
    from rankfall.rundir.layout import RunPaths

_LONGEST: Final = 200


def who() -> str:
    """User as ``alice@laptop``: printable ASCII, at most 200 characters."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = str(os.getuid())
    text = f"{name}@{socket.gethostname()}".encode("ascii", "backslashreplace").decode("ascii")
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_LONGEST]


T = TypeVar("T", bound=msgspec.Struct)

_MAX_FILE: Final = 1 << 20


def read_requests(path: Path, kind: type[T]) -> list[T]:
    """Returns all requests, oldest first."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_FILE).split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(decoding.decode(line, kind=kind))
        except msgspec.MsgspecError:
            continue
    return found


def append_request(path: Path, request: msgspec.Struct, *, verb: str) -> None:
    """Appends a request as one line, so that simultaneous ones lose nothing.

    Raises:
        StoreError: The file cannot be written.
    """
    try:
        fd = private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, b"\n" + msgspec.json.encode(request) + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StoreError(
            f"cannot {verb} {path.parent.name}: {error.strerror or error}", hint="free space in the run directory"
        ) from error


RESIZE_NAME: Final = "resize"


class ResizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a role's number of nodes; ``at`` is its time in nanoseconds since the epoch."""

    role: str
    nodes: Positive
    at: int
    by: str = ""
    reason: str = ""

    @property
    def text(self) -> str:
        """The request in one line."""
        words = f"{self.nodes} nodes of {self.role} requested by {self.by or 'an unknown user'}"
        return f"{words}: {self.reason}" if self.reason else words


def read_resizes(folder: Path) -> dict[str, ResizeRequest]:
    """Newest request for each role; unreadable ones are omitted."""
    return {one.role: one for one in read_requests(folder / RESIZE_NAME, ResizeRequest)}


def requested_sizes(folder: Path, spec: JobSpec) -> dict[str, int]:
    """Returns each role's requested nodes: the spec's, changed by requests."""
    sizes = first_sizes(spec)
    return sizes | {role: one.nodes for role, one in read_resizes(folder).items() if role in sizes}


def planned_sizes(plan: Mapping[str, object], spec: JobSpec) -> dict[str, int]:
    """Number of nodes of each role in the stored plan of an attempt."""
    value = plan.get("sizes")
    stored = value if isinstance(value, dict) else {}
    sizes = first_sizes(spec)
    return sizes | {role: stored[role] for role in sizes if isinstance(stored.get(role), int)}


def left_slots(plan: Mapping[str, object]) -> dict[int, str]:
    """Slots that left during the planned attempt, with reasons: ``resize``, ``lost``, ``surplus``."""
    try:
        left = decoding.convert(plan.get("left", ()), tuple[Left, ...])
    except msgspec.ValidationError:
        return {}
    return {one.slot: one.why for one in left}


def attempt_spec(run_dir: RunPaths, tables: Queries, attempt: int) -> JobSpec:
    """Returns the job spec as this attempt ran it.

    Raises:
        StoreError: The spec cannot be read.
    """
    spec = run_dir.spec
    if not (run_dir.path / RESIZE_NAME).exists():
        return spec
    plan = next((row.plan for row in tables.attempts() if row.attempt == attempt), {})
    return sized(spec, planned_sizes(plan, spec))


def append_resize(folder: Path, request: ResizeRequest) -> None:
    """Appends a resize request.

    Raises:
        StoreError: The file cannot be written.
    """
    append_request(folder / RESIZE_NAME, request, verb="resize")
