"""Whether who records a run has its pods' logs open by now: the mark that a stop waits for.

A kubelet forgets a log with its pod, so lines that nobody reads by the time the pods are told to end may be gone a moment later. Whoever stops a
run that somebody records, or is about to, waits for this mark first. It names the recorder: that of an earlier one says nothing.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from rankfall.model import StoreError, decoding
from rankfall.store import RunDir
from rankfall.store.fs import make_folder
from rankfall.store.home import replace_file
from rankfall.store.lease import Holder

# How long a stop waits for that at most, seconds: a log that cannot be opened must not keep a job running.
FOLLOWED_S: Final = 30.0
_STEP_S: Final = 0.05


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Whose logs are open, and for whom."""

    attempt: int
    by: Holder


def mark_followed(run_dir: RunDir, attempt: int) -> None:
    """Say that this process, which holds the run's lease, has the logs of the attempt's pods open. Where it cannot be written, a stop waits in vain."""
    holder = run_dir.lease_holder()
    if holder is None:
        return
    path = _path(run_dir)
    with contextlib.suppress(OSError, StoreError):
        make_folder(path.parent)
        replace_file(path, msgspec.json.encode(Followed(attempt=attempt, by=holder)))


def is_followed(run_dir: RunDir) -> bool:
    """Whether somebody records the run's newest attempt, and has its logs open."""
    try:
        mark = decoding.decode(_path(run_dir).read_bytes(), kind=Followed)
    except (OSError, msgspec.MsgspecError):
        return False
    with run_dir.reader() as reader:
        newest = reader.newest_attempt()
    return (mark.attempt, mark.by) == (newest, run_dir.lease_holder())


def wait_until_followed(run_dir: RunDir) -> bool:
    """Wait for that; whether it came to be so in time."""
    until = time.monotonic() + FOLLOWED_S
    while not is_followed(run_dir):
        if time.monotonic() >= until:
            return False
        time.sleep(_STEP_S)
    return True


def _path(run_dir: RunDir) -> Path:
    return run_dir.path / "kube" / "followed.json"
