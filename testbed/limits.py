"""Limits of this machine that a bed raises for a while, and puts back even when what raised them was killed."""

from __future__ import annotations

from pathlib import Path

from testbed.layout import Layout

# A follow of a log takes one inotify instance. Past the limit a kubelet answers with an error text in place of the log.
INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH = 8192
_BEFORE = "max_user_instances"


def raise_follows(layout: Layout) -> None:
    """Allow thousands of follows at once: by default a machine allows 128."""
    before = INSTANCES.read_text()
    if int(before) < _ENOUGH:
        # Written first: a bed that is taken down after a kill finds it.
        (layout.folder / _BEFORE).write_text(before)
        INSTANCES.write_text(str(_ENOUGH))


def restore(layout: Layout) -> None:
    """Put back what this bed has raised. Nothing happens where it has not."""
    kept = layout.folder / _BEFORE
    if kept.exists():
        INSTANCES.write_text(kept.read_text())
        kept.unlink()
