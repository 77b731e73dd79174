"""Rankfall runs a multi-node training job and says which rank fell first, why, and on which node.

Importing this package is cheap on purpose: names of the public API are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall.client import Client as Client
    from rankfall.client import Run as Run
    from rankfall.client import SyncClient as SyncClient
    from rankfall.model import JobSpec as JobSpec
    from rankfall.model import RankfallError as RankfallError
    from rankfall.model import Verdict as Verdict
    from rankfall.observe.strategies import register_strategy as register_strategy

__version__ = "0.1.0"

_WHERE = {
    "Client": "rankfall.client",
    "Run": "rankfall.client",
    "SyncClient": "rankfall.client",
    "JobSpec": "rankfall.model",
    "RankfallError": "rankfall.model",
    "Verdict": "rankfall.model",
    "register_strategy": "rankfall.observe.strategies",
}

__all__ = ["Client", "JobSpec", "RankfallError", "Run", "SyncClient", "Verdict", "__version__", "register_strategy"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'rankfall' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
