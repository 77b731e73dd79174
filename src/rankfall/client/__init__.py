"""Public Python API: submits, watches, diagnoses and cancels runs.

Clients have no state; answers come from the run directory. Must not import ``cli``.
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
    """Loads a public name on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'rankfall.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
