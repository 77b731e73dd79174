"""Entry point: table of verbs, lazy loading, exit codes of failures.

``VERBS`` names each verb's module, imported only when it runs. Built on click: typer loads pydantic, 0.2 s a start.

Exit codes: ``rankfall.model.errors``; 130 after Ctrl-C; 74 for a defect, traceback in a file; 0 when stdout's reader
ends. For ``run``, ``submit``, ``attach`` and ``wait``, stderr's last line names the code's origin.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any, Final

import click

from rankfall.cli import console

VERBS: Final = {
    "run": ("run", "Run a job on this machine or a cluster; show its output, restart it after failures."),
    "submit": ("run", "Run a job in the background; prints the run's id."),
    "ps": ("runs", "List the runs of this machine."),
    "status": ("runs", "Show a run's slots and ranks."),
    "logs": ("logs", "Show what the ranks printed, by rank, time, stream or pattern."),
    "attach": ("attach", "Watch a run; supervise it if no other process does."),
    "wait": ("attach", "Wait for a run's end and exit with its code."),
    "why": ("why", "Show which rank failed first, why, and on which node."),
    "report": ("why", "Write what happened to a run as HTML, Markdown, JSON or an archive."),
    "cancel": ("attach", "Stop a run and everything it started."),
    "suspend": ("modify", "Stop a run without ending it; no budget is used."),
    "resume": ("modify", "Continue a suspended run, or start a lost supervisor again."),
    "resize": ("modify", "Give a run another number of nodes; no budget is used."),
    "cp": ("cp", "Copy files to a run's folder and back."),
    "agent": ("agent", "Read a node's kernel log and record what concerns its health on its Node."),
    "controller": ("controller", "Watch all nodes for faults and keep the scheduler away from bad ones."),
    "nodes": ("nodes", "Show the health of nodes; check, taint and clear nodes, remove taints."),
    "doctor": ("doctor", "Check what this machine can do for Rankfall."),
    "config": (
        "config",
        "Show formats: JSON schemas of the documents, exit codes, causes, commands, rights in a cluster.",
    ),
}
SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    # All flags accept underscores, as torchrun does.
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
HELP: Final = """Runs a multi-node training job and shows which rank failed first, why, and on which node.

\b
  rankfall run --nnodes 2 --nproc-per-node 2 train.py --lr 1e-3
  rankfall why                 the newest run
  rankfall why logs/           any folder or files of logs
  some-command | rankfall why
"""


class ReaderGone(Exception):
    """The reader of stdout ended."""


class LazyGroup(click.Group):
    """Lists verbs with their help; loads one on call."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All verbs, in table order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Returns a verb's stub for ``--help``; None for an unknown verb."""
        return click.Command(cmd_name, help=VERBS[cmd_name][1]) if cmd_name in VERBS else None

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; click itself would exit with 1 on a closed pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the verb; refuses unknown ones with similar names."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415

            near = difflib.get_close_matches(args[0], VERBS, n=2)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"There is no command {args[0][:60]!r}.{meant}")
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if name and found else found, rest


def load(verb: str) -> click.Command:
    """Returns the command of a verb."""
    command: click.Command = getattr(importlib.import_module(f"rankfall.cli.commands.{VERBS[verb][0]}"), verb)
    return command


def command() -> click.Command:
    """Returns the whole command line."""
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
        from rankfall import __version__  # noqa: PLC0415

        click.echo(f"rankfall {__version__}")
        ctx.exit()


CANCELLED: Final = 130
DEFECT: Final = 74
USAGE: Final = 2
# Verbs that may exit with a rank's code, and ``submit``.
_OF_RUNS: Final = frozenset({"run", "submit", "attach", "wait"})


class _Failed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(argv: Sequence[str]) -> int:
    """Runs one command line, without program name; returns the exit code, raises nothing."""
    console.open_missing_streams()
    console.tolerate_any_text()
    try:
        code = _invoke(argv)
        sys.stdout.flush()
    except _Failed as failed:
        return _leave(failed.code, argv)
    except (BrokenPipeError, ReaderGone):
        console.close_quietly()
        return 0
    except KeyboardInterrupt:
        console.say("interrupted")
        return _leave(CANCELLED, argv)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            said = _report(
                "cannot write to stdout: no space left on its device", "free space, or write to another place", DEFECT
            )
            return _leave(said, argv)
        return _leave(_defect(error), argv)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person gets a sentence, not a traceback
        return _leave(_defect(error), argv)
    return code


def _leave(code: int, argv: Sequence[str]) -> int:
    """Prints the origin of the exit code to stderr for verbs of runs; returns the code."""
    if argv and argv[0] in _OF_RUNS:
        console.say(f"rankfall-exit: rankfall {code}")
    return code


def _invoke(argv: Sequence[str]) -> int:
    try:
        result = command().main(args=list(argv), prog_name="rankfall", standalone_mode=False)
    except click.Abort:
        # click raises it for Ctrl-C too.
        console.say("interrupted")
        raise _Failed(CANCELLED) from None
    except click.exceptions.NoArgsIsHelpError as error:
        console.say(error.format_message())
        raise _Failed(USAGE) from None
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        where = f"{context.command_path} --help" if context is not None else "rankfall --help"
        raise _Failed(_report(error.format_message().strip(), where, USAGE)) from None
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        raise _Failed(known) from None
    return result if isinstance(result, int) else 0


def _known(error: Exception) -> int | None:
    """Prints an error made for users and returns its exit code; None for other errors."""
    from rankfall.model.errors import JobFailed, RankfallError  # noqa: PLC0415

    if os.environ.get("RANKFALL_DEBUG") == "1" and isinstance(error, RankfallError):
        traceback.print_exception(error)
    if isinstance(error, JobFailed):
        return _report(error.message, error.hint, error.code)
    if isinstance(error, RankfallError):
        return _report(error.message, error.hint, error.exit_code)
    return None


def _report(message: str, hint: str | None, code: int) -> int:
    from rankfall.render.escape import clean  # noqa: PLC0415

    console.say(f"rankfall: {clean(message, max_line=2000)}")
    if hint:
        console.say(f"  next: {clean(hint, max_line=2000)}")
    return code


def _defect(error: BaseException) -> int:
    text = "".join(traceback.format_exception(error))
    if os.environ.get("RANKFALL_DEBUG") == "1":
        console.say(text)
        return DEFECT
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="rankfall-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.write(text)
        hint = f"details are in {file.name}; please report them"
    except OSError:
        hint = "RANKFALL_DEBUG=1 shows the details; please report them"
    return _report(f"a defect of Rankfall itself: {type(error).__name__}: {str(error)[:300]}", hint, DEFECT)
