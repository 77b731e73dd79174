"""``config``: the formats that Rankfall reads and writes."""

from __future__ import annotations

from importlib import resources

import click

from rankfall.cli import emit
from rankfall.model import UsageError

_SCHEMAS = ("job", "record", "verdict", "runs", "status")


@click.group("config")
def config() -> None:
    """Show formats: JSON schemas of the documents."""


@config.command("schema")
@click.argument("name", default="job", metavar=f"[{'|'.join(_SCHEMAS)}]")
def schema(*, name: str) -> None:
    """Print the JSON schema of a document.

    An editor that knows the schema of `job` completes and checks job.yaml.
    """
    short = name.removeprefix("rankfall.").partition("/")[0]
    if short not in _SCHEMAS:
        raise UsageError(f"there is no document {name[:60]!r}", hint=f"allowed: {', '.join(_SCHEMAS)}")
    text = resources.files("rankfall.model.schemas").joinpath(f"rankfall.{short}-1.json").read_text("utf-8")
    emit.out(text.rstrip("\n"))


@config.command("exit-codes")
def exit_codes() -> None:
    """Print the table of ranks' exit codes and what is done about each by default, as Markdown."""
    from rankfall.model.exit_codes_page import page  # noqa: PLC0415 - a page of text that nothing else needs

    emit.out(page().rstrip("\n"))
