"""Public API for training scripts where Rankfall is installed; standard library only."""

from __future__ import annotations

from rankfall_inside.api import Final, Retryable, progress, record

__all__ = ["Final", "Retryable", "progress", "record"]
