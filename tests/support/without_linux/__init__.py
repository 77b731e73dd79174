"""A folder for ``PYTHONPATH``: Python then looks like one on macOS (see ``sitecustomize``)."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
