"""``config``: the formats that Rankfall reads and writes."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from rankfall.cli import emit
from rankfall.cli.app import verb_app
from rankfall.model import UsageError

app = verb_app()
_SCHEMAS = ("job", "record", "verdict", "runs", "status")


@app.callback(no_args_is_help=True)
def config() -> None:
    """Show formats: JSON schemas of the documents."""


@app.command("schema")
def schema(
    name: Annotated[str, typer.Argument(help=f"Which document: {', '.join(_SCHEMAS)}.")] = "job",
) -> None:
    """Print the JSON schema of a document.

    An editor that knows the schema of `job` completes and checks job.yaml.
    """
    short = name.removeprefix("rankfall.").partition("/")[0]
    if short not in _SCHEMAS:
        raise UsageError(f"there is no document {name[:60]!r}", hint=f"allowed: {', '.join(_SCHEMAS)}")
    text = resources.files("rankfall.model.schemas").joinpath(f"rankfall.{short}-1.json").read_text("utf-8")
    emit.out(text.rstrip("\n"))
