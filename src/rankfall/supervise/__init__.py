"""One run's loop: resumable from the run directory alone. ``rankfall.supervise.loop.supervise`` is the loop itself."""

from rankfall.supervise.control import CancelRequest, Control, read_cancel, request_cancel
from rankfall.supervise.detach import spawn_detached
from rankfall.supervise.events import Event, read_events
from rankfall.supervise.resizing import request_resize
from rankfall.supervise.suspension import Suspension, read_suspension, request_hold

__all__ = [
    "CancelRequest",
    "Control",
    "Event",
    "Suspension",
    "read_cancel",
    "read_events",
    "read_suspension",
    "request_cancel",
    "request_hold",
    "request_resize",
    "spawn_detached",
]
