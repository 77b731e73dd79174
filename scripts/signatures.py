"""Writes the signatures as the program reads them: ``.venv/bin/python scripts/signatures.py``; a test compares them."""

from __future__ import annotations

from pathlib import Path

from rankfall.verdict.signatures import catalogue

Path(catalogue.__file__).with_name("data").joinpath(catalogue.PACKED).write_text(catalogue.pack(), encoding="utf-8")
