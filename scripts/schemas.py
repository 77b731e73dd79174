"""Writes the JSON schemas of the public documents: ``.venv/bin/python scripts/schemas.py``; a test compares them."""

from __future__ import annotations

import json
from pathlib import Path

from rankfall.model import schemas

for name in schemas.DOCUMENTS:
    text = json.dumps(schemas.schema_of(name), indent=2, sort_keys=True) + "\n"
    Path(schemas.__file__).with_name(f"{name}.json").write_text(text, encoding="utf-8")
