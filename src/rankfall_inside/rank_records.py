"""How a rank writes its records: onto a disk, and what no disk takes into the wrapper's pipe."""

from __future__ import annotations

import os

from rankfall_inside.rank_state import state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How long an ending rank waits for a busy wrapper to take its record, when no disk did.
_SEND_S = 2.0


def write(kind: str, fields: dict[str, Any], *, sync: bool) -> bool:
    """Write one record of this rank; what no disk takes goes to the wrapper, which has the log channel."""
    from rankfall_inside import records

    environ = os.environ
    record = records.new(kind, writer="hook", fields=fields)
    if records.write(record, environ.get("RANKFALL_RECORD_DIR") or os.path.join(state.slot_dir, "records"), sync=sync):
        if "RANKFALL_CHANNEL" in environ:
            tell_wrapper([b"record\n"], patience_s=0.0)
        return True
    return tell_wrapper(records.pieces(record), patience_s=_SEND_S)


def tell_wrapper(lines: list[bytes], *, patience_s: float) -> bool:
    """Write lines of at most 4,096 bytes into the wrapper's pipe; False when it did not take them within ``patience_s``."""
    import time

    due = time.monotonic() + patience_s
    try:
        fd = os.open(os.path.join(state.slot_dir, "notify"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        for line in lines:
            while True:
                try:
                    os.write(fd, line)
                    break
                except BlockingIOError:
                    if time.monotonic() >= due:
                        return False
                    time.sleep(0.005)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
