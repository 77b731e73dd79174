"""Executes the code cells of a notebook in order in one process, as Jupyter does: inside an event loop, with ``await``.

``python tests/support/notebook.py NOTEBOOK RESULT`` writes the notebook with its outputs. Knows nbformat 4 without magics.
Standard library only; jupyter and its forty packages are not needed to prove that cells work.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from inspect import iscoroutine
from pathlib import Path
from typing import Any


def executed(path: Path, *, home: Path, timeout: float) -> dict[str, Any]:
    """Returns the notebook with new outputs; runs are stored in ``home``.

    Raises:
        RuntimeError: A cell raised; the message is its traceback.
    """
    home.mkdir(parents=True, exist_ok=True)
    result = home / "executed.ipynb"
    command = (sys.executable, __file__, str(path), str(result))
    env = os.environ | {"RANKFALL_HOME": str(home / "runs")}
    done = subprocess.run(
        command, cwd=path.parent, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{path.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return found


def text_of(notebook: Mapping[str, Any]) -> str:
    """Formats a notebook as Jupyter stores it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


async def _execute(notebook: dict[str, Any], name: str) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = await _cell("".join(cell["source"]), space, f"{name}, cell {number}")
        cell["execution_count"], cell["outputs"] = number, []
        if printed.getvalue():
            cell["outputs"].append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
        if value is not None:
            data = {"text/plain": _lines(repr(value))}
            if hasattr(value, "_repr_html_"):
                data = {"text/html": _lines(value._repr_html_()), **data}
            cell["outputs"].append(
                {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
            )


async def _cell(source: str, space: dict[str, Any], name: str) -> Any:
    """Value of the last expression, unless a semicolon ends it."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    await _run(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
    if not isinstance(last, ast.Expr):
        return None
    code = compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = await _run(code, space)
    return None if source.rstrip().endswith(";") else value


async def _run(code: Any, space: dict[str, Any]) -> Any:
    value = eval(code, space)  # noqa: S307 - the repository's own notebook
    return await value if iscoroutine(value) else value


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    given = json.loads(source.read_text("utf-8"))
    asyncio.run(_execute(given, source.name))
    target.write_text(text_of(given), "utf-8")
