"""``config``: prints JSON schemas, exit codes, causes, commands and cluster rights."""

from __future__ import annotations

from importlib import resources

import click

from rankfall.cli import console
from rankfall.model import UsageError

_SCHEMAS = (
    "job",
    "record",
    "verdict",
    "runs",
    "status",
    "nodes",
    "nodehealth",
    "nodefault",
    "kernelreport",
    "kernelline",
)


@click.group("config")
def config() -> None:
    """Show formats: JSON schemas of the documents, exit codes, causes, commands, rights in a cluster."""


@config.command("schema")
@click.argument("name", default="job", metavar=f"[{'|'.join(_SCHEMAS)}]")
def schema(*, name: str) -> None:
    """Print the JSON schema of a document.

    With that of `job`, editors complete and check job.yaml.
    """
    short = name.removeprefix("rankfall.").partition("/")[0]
    if short not in _SCHEMAS:
        raise UsageError(f"there is no document {name[:60]!r}", hint=f"allowed: {', '.join(_SCHEMAS)}")
    text = resources.files("rankfall.model.schemas").joinpath(f"rankfall.{short}-1.json").read_text("utf-8")
    console.out(text.rstrip("\n"))


@config.command("exit-codes")
def exit_codes() -> None:
    """Print ranks' exit codes and their default actions, as Markdown."""
    from rankfall.model.exit_codes import page  # noqa: PLC0415 - rare

    console.out(page().rstrip("\n"))


@config.command("causes")
def causes() -> None:
    """Print causes, evidence and remedies, as Markdown."""
    from rankfall.render.tables import causes_page  # noqa: PLC0415 - rare

    console.out(causes_page().rstrip("\n"))


@config.command("commands")
def commands() -> None:
    """Print all commands with their options, as Markdown."""
    from rankfall.cli.reference import commands_page  # noqa: PLC0415 - loads every command

    console.out(commands_page().rstrip("\n"))


@config.command("rights")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="job|jobset|trainjob",
    help="Only the rights that this backend needs; repeatable.",
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the jobs.")
def rights(*, backends: tuple[str, ...], namespace: str) -> None:
    """Print the Role for an account in its jobs' namespace, as YAML.

    For kubectl apply -f -; then bind the Role to the account yourself.
    """
    from rankfall.backends.kubernetes.rights import (  # noqa: PLC0415 - only here
        BACKENDS,
        manifest,
        role,
    )

    for name in backends:
        if name not in BACKENDS:
            raise UsageError(
                f"backend {name[:60]!r} needs no rights in a cluster"
                if name == "local"
                else f"there is no backend {name[:60]!r}",
                hint=f"allowed: {', '.join(BACKENDS)}",
            )
    console.out(manifest(role(namespace=namespace, backends=backends or BACKENDS)).rstrip("\n"))
