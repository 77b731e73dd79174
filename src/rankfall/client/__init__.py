"""The public Python API: submit, watch, ask why, cancel. One async client; the sync one is a thin face of it.

Every answer is read from the run directory; a client holds no truth of its own and can be thrown away at any moment. No async method
blocks the event loop: files are read in a thread, waiting is asyncio's. Names are loaded when they are first used: a command that only makes a
run needs no event loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall.client.client import Client as Client
    from rankfall.client.making import complete as complete
    from rankfall.client.making import create_run as create_run
    from rankfall.client.run import Run as Run
    from rankfall.client.sync import SyncClient as SyncClient
    from rankfall.client.sync import SyncRun as SyncRun

_WHERE = {
    "Client": "rankfall.client.client",
    "Run": "rankfall.client.run",
    "SyncClient": "rankfall.client.sync",
    "SyncRun": "rankfall.client.sync",
    "complete": "rankfall.client.making",
    "create_run": "rankfall.client.making",
}

__all__ = ["Client", "Run", "SyncClient", "SyncRun", "complete", "create_run"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'rankfall.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
