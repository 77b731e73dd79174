"""The verbs and where each one lives. A verb's module is imported when that verb is run; ``--help`` needs none of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click.core import Command, Context

VERBS: Final = {
    "run": ("run", "Run a job here and stay with it: output, causes, restarts."),
    "submit": ("run", "Run a job in the background; prints the run's id."),
    "ps": ("runs", "List the runs of this machine."),
    "status": ("runs", "Show a run's slots and ranks."),
    "logs": ("logs", "Show what the ranks printed, by rank, time, stream or pattern."),
    "attach": ("watch", "Go on watching a run; take it over when nobody supervises it."),
    "wait": ("watch", "Wait for a run's end and leave with its exit code."),
    "why": ("why", "Say which rank fell first, why, and where."),
    "cancel": ("watch", "Stop a run and everything it started."),
    "doctor": ("doctor", "Check what this machine can do for Rankfall."),
    "config": ("config", "Show formats: JSON schemas of the documents."),
}
SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    # torchrun takes --nproc_per_node and --nproc-per-node alike, so does every flag here.
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
HELP = """Runs a multi-node training job and says which rank fell first, why, and on which node.

\b
  rankfall run --nnodes 2 --nproc-per-node 2 train.py --lr 1e-3
  rankfall why                 the newest run
  rankfall why logs/           any pile of log files
  some-command | rankfall why -
"""


def verb_app(**settings: Any) -> typer.Typer:
    """An app for the verbs of one module, with the settings that all share."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=SETTINGS | settings,
    )


class LazyGroup(TyperGroup):
    """Lists verbs by their one line of help, and loads the real one when it is called."""

    def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002 - typer's signature
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:  # noqa: ARG002 - typer's signature
        """What ``--help`` needs to know of a verb."""
        return TyperCommand(cmd_name, help=VERBS[cmd_name][1]) if cmd_name in VERBS else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The verb itself."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and found else found, rest


def load(verb: str) -> Command:
    """The command behind a verb: the function of that name, or the group, in the module's ``app``."""
    app: typer.Typer = importlib.import_module(f"rankfall.cli.{VERBS[verb][0]}").app
    found = typer.main.get_command(app)
    return found.commands.get(verb, found) if isinstance(found, TyperGroup) else found


def command() -> Command:
    """The whole command line."""
    app = verb_app()

    @app.callback(cls=LazyGroup, help=HELP, no_args_is_help=True)
    def rankfall(
        *,
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version.")
        ] = False,
    ) -> None:
        """Nothing of its own; the verbs do everything."""

    found = typer.main.get_command(app)
    if isinstance(found, LazyGroup):
        # Suggestions for a mistyped verb come from this mapping.
        found.commands = _names(VERBS)
    return found


def _names(verbs: Iterable[str]) -> dict[str, Any]:
    return {verb: TyperCommand(verb, help=VERBS[verb][1]) for verb in verbs}


def _version(value: bool) -> None:  # noqa: FBT001 - typer calls it so
    if value:
        from rankfall import __version__  # noqa: PLC0415 - one attribute, asked for rarely

        typer.echo(f"rankfall {__version__}")
        raise typer.Exit
