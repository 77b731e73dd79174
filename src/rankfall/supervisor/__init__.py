"""Supervises one run: starts attempts, detects failures, decides and carries out decisions.

Resumable from the run directory alone. The root holds what both drivers share. ``attended`` drives runs
that Rankfall restarts, ``attempt`` watches one attempt of them, ``unattended`` records runs that Kubernetes
restarts by itself.
The names exported here load no observer and no backend: the client uses them at start-up.
May import ``backends``, ``collect``, ``evidence``, ``strategy_registry``, the run directory, ``verdict``
and ``model``; never ``nodes``, ``client``, ``render`` or ``cli``.
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
