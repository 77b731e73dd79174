"""Writes the schema files: ``python -m rankfall.model.schemas``."""

from __future__ import annotations

import json
from pathlib import Path

from rankfall.model.schemas import DOCUMENTS, schema_of

for name in DOCUMENTS:
    text = json.dumps(schema_of(name), indent=2, sort_keys=True) + "\n"
    Path(__file__).with_name(f"{name}.json").write_text(text, encoding="utf-8")
