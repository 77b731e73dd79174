"""Executes ``examples/explain.ipynb`` and stores its outputs: ``make notebook``; a test executes it and compares them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import notebook  # noqa: E402 - found through the line above

NOTEBOOK = ROOT / "examples" / "explain.ipynb"
LIMIT_S = 300

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        found = notebook.executed(NOTEBOOK, home=Path(home), timeout=LIMIT_S)
    NOTEBOOK.write_text(notebook.text_of(found), "utf-8")
