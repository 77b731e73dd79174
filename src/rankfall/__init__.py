"""Runs a multi-node training job and reports which rank failed first, why and where.

Public names load on first use (PEP 562).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankfall.client import Client, Run, SyncClient
    from rankfall.model import JobSpec, RankfallError, Verdict
    from rankfall.strategy_registry import register_strategy

__version__ = "0.1.0"

_WHERE = {
    "Client": "rankfall.client",
    "Run": "rankfall.client",
    "SyncClient": "rankfall.client",
    "JobSpec": "rankfall.model",
    "RankfallError": "rankfall.model",
    "Verdict": "rankfall.model",
    "register_strategy": "rankfall.strategy_registry",
}

__all__ = ["Client", "JobSpec", "RankfallError", "Run", "SyncClient", "Verdict", "__version__", "register_strategy"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Loads a public name on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'rankfall' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
