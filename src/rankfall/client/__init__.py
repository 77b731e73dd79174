"""The public Python API: submit, watch, explain and cancel runs.

One async client; the sync one wraps it. Every answer is read from the run directory, so a client holds no
state and can be thrown away at any moment.
No async method blocks the event loop: files are read in a thread. Names are loaded on first use: a command
that only creates a run needs no event loop.
May import ``supervisor``, ``explain``, ``render.line_selection``, ``backends``, the run directory and
``model``; never ``cli``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall.client.client import Client
    from rankfall.client.run import Run
    from rankfall.client.submission import complete, create_run
    from rankfall.client.sync import SyncClient, SyncRun

_WHERE = {
    "Client": "rankfall.client.client",
    "Run": "rankfall.client.run",
    "SyncClient": "rankfall.client.sync",
    "SyncRun": "rankfall.client.sync",
    "complete": "rankfall.client.submission",
    "create_run": "rankfall.client.submission",
}

__all__ = ["Client", "Run", "SyncClient", "SyncRun", "complete", "create_run"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'rankfall.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
