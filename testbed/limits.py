"""Limits of this machine that beds raise for a while, and that the last of them puts back even when what raised them was killed."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from testbed.layout import Layout

# A follow of a log takes one inotify instance. Past the limit a kubelet answers with an error text in place of the log.
INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH = 8192
# In the folder of each bed that needs the limit: what it was before the first of them.
_BEFORE = "max_user_instances"


def raise_follows(layout: Layout) -> None:
    """Allow thousands of follows at once: by default a machine allows 128."""
    with _alone(layout):
        now = int(INSTANCES.read_text())
        before = next((int(path.read_text()) for path in _kept(layout)), now)
        if before < _ENOUGH:
            # Written first: a bed that is taken down after a kill finds it.
            (layout.folder / _BEFORE).write_text(f"{before}\n")
            INSTANCES.write_text(f"{max(now, _ENOUGH)}\n")


def restore(layout: Layout) -> None:
    """Put back what this bed has raised, unless another one still needs it. Nothing happens where it has not."""
    if not raised(layout):
        return
    own = layout.folder / _BEFORE
    with _alone(layout):
        before = own.read_text()
        own.unlink()
        if not _kept(layout):
            INSTANCES.write_text(before)


def raised(layout: Layout) -> bool:
    """Whether this bed needs the raised limit."""
    return (layout.folder / _BEFORE).exists()


def _kept(layout: Layout) -> list[Path]:
    return sorted(layout.folder.parent.glob(f"*/{_BEFORE}"))


@contextlib.contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    with (layout.folder.parent / "limits.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
