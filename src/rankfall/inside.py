"""What a training script may use where Rankfall is installed.

``progress``, ``record``, ``Retryable`` and ``Final`` of ``rankfall_inside.api``; public API, standard
library only.
"""

from __future__ import annotations

from rankfall_inside.api import Final, Retryable, progress, record

__all__ = ["Final", "Retryable", "progress", "record"]
