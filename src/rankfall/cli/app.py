"""The verbs and where each one lives. A verb's module is imported when that verb is run; ``--help`` needs none of them.

Built on click itself: typer, which was meant first, loads pydantic for every command since 0.29, 0.2 s before the first useful instruction.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

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
    "suspend": ("hold", "Stop a run without ending it; no budget is used."),
    "resume": ("hold", "Let a suspended run go on, or give a run its supervisor back."),
    "resize": ("resize", "Give a run another number of nodes; no budget is used."),
    "cp": ("cp", "Copy files to a run's folder and back."),
    "agent": ("agent", "Read a node's kernel log and show on its Node what concerns its health."),
    "controller": ("controller", "Watch all nodes for faults and keep the scheduler away from bad ones."),
    "nodes": ("nodes", "Show the health of nodes; check them, taint them, clear them, take the taints away."),
    "doctor": ("doctor", "Check what this machine can do for Rankfall."),
    "config": ("config", "Show formats: JSON schemas of the documents, exit codes, rights in a cluster."),
}
SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    # torchrun takes --nproc_per_node and --nproc-per-node alike, so does every flag here.
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
HELP: Final = """Runs a multi-node training job and says which rank fell first, why, and on which node.

\b
  rankfall run --nnodes 2 --nproc-per-node 2 train.py --lr 1e-3
  rankfall why                 the newest run
  rankfall why logs/           any pile of log files
  some-command | rankfall why -
"""


class ReaderGone(Exception):  # noqa: N818 - nothing is wrong
    """Whoever read stdout went away."""


class LazyGroup(click.Group):
    """Lists verbs by their one line of help, and loads the real one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """What ``--help`` needs to know of a verb."""
        return click.Command(cmd_name, help=VERBS[cmd_name][1]) if cmd_name in VERBS else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. click itself would end the process with 1 when the reader of a pipe goes away."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb itself; a mistyped one is refused with those near it."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - for a refusal only; start-up is watched

            near = difflib.get_close_matches(args[0], VERBS, n=2)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"There is no verb {args[0][:60]!r}.{meant}")
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and found else found, rest


def load(verb: str) -> click.Command:
    """The command behind a verb: the object of that name in its module."""
    command: click.Command = getattr(importlib.import_module(f"rankfall.cli.{VERBS[verb][0]}"), verb)
    return command


def command() -> click.Command:
    """The whole command line."""
    return LazyGroup(
        "rankfall",
        help=HELP,
        context_settings=SETTINGS,
        params=[
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Print the version.",
            )
        ],
    )


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001 - click's signature
    if value:
        from rankfall import __version__  # noqa: PLC0415 - one attribute, asked for rarely

        click.echo(f"rankfall {__version__}")
        ctx.exit()
