"""The notebook of the examples: all its cells work with the real package, and its stored outputs are those of a run."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.notebook import executed, text_of
from support.patience import scaled

NOTEBOOK = Path(__file__).parents[2] / "examples" / "explain.ipynb"
#: What differs from run to run: temporary folders, ids, times, numbers of lines.
VARYING = re.compile(r"/\S*/(?=train\.py|console\.txt)|[0-9a-f]{32}|(?<=explain-)[0-9a-f]{6}|(?<=\d{4}-\d\d-\d\dT)\S+")


def outputs(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Outputs of each code cell, without what varies; of rich ones only their HTML."""
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        rows = []
        for output in cell["outputs"]:
            data = output.get("data", {"text": output.get("text")})
            kind = next(iter(data))
            rows.append({"type": output["output_type"], kind: VARYING.sub("*", "".join(data[kind]))})
        found.append(rows)
    return found


@pytest.mark.timeout(300)
def test_i24_p9_every_cell_works_and_the_stored_outputs_are_of_them(tmp_path: Path) -> None:
    stored = json.loads(NOTEBOOK.read_text("utf-8"))
    fresh = executed(NOTEBOOK, home=tmp_path, timeout=scaled(200))
    assert outputs(stored) == outputs(fresh)
    html = [row["text/html"] for cell in outputs(fresh) for row in cell if "text/html" in row]
    assert len(html) == 2
    assert "Rank 2 on node1 raised ValueError" in html[0]
    assert "Rank 3 raised KeyError" in html[1]


def test_i24_p9_the_notebook_is_one_that_jupyter_reads() -> None:
    text = NOTEBOOK.read_text("utf-8")
    stored = json.loads(text)
    assert (stored["nbformat"], text_of(stored)) == (4, text)
    ids = [cell["id"] for cell in stored["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in stored["cells"]:
        if cell["cell_type"] == "code":
            ast.parse("".join(cell["source"]))  # no magics
    for target in re.findall(r"\]\(([^)#]+)\)", "".join("".join(cell["source"]) for cell in stored["cells"])):
        assert (NOTEBOOK.parent / target).exists(), target


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1\n{}['gone']", "KeyError: 'gone'"),
        ("from rankfall import SyncClient\nSyncClient().runs()", "SyncClient cannot run inside an event loop"),
    ],
)
def test_i24_p9_a_cell_that_raises_fails_with_its_traceback(tmp_path: Path, source: str, words: str) -> None:
    """Cells run inside an event loop, as those of Jupyter."""
    path = tmp_path / "bad.ipynb"
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": [source], "outputs": [], "execution_count": None}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    with pytest.raises(RuntimeError, match=words) as caught:
        executed(path, home=tmp_path, timeout=scaled(60))
    assert "bad.ipynb, cell 1" in str(caught.value)
