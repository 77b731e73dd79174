"""Supervises one run: starts attempts, detects failures, carries out decisions.

Resumes from the run directory alone. Exported names load no observer and no backend. Never imports ``nodes``,
``client``, ``render`` or ``cli``.
"""

from rankfall.supervisor.detach import spawn_detached
from rankfall.supervisor.requests import (
    CancelRequest,
    Control,
    Suspension,
    read_cancel,
    read_suspension,
    request_cancel,
    request_resize,
    request_suspension,
)
from rankfall.supervisor.run_events import Event, read_events

__all__ = [
    "CancelRequest",
    "Control",
    "Event",
    "Suspension",
    "read_cancel",
    "read_events",
    "read_suspension",
    "request_cancel",
    "request_resize",
    "request_suspension",
    "spawn_detached",
]
