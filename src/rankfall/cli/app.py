"""Entry point: table of verbs, lazy loading, exit codes of failures.

``VERBS`` names each verb's module, imported only when it runs.

Exit codes: ``rankfall.model.errors``; 130 after Ctrl-C; 74 for a defect, traceback in a file; 0 when stdout's reader
ends. For ``run``, ``submit``, ``attach`` and ``wait``, stderr's last line names the code's origin.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource

from rankfall.cli import console

VERBS: Final = {
    "run": ("run", "Run a job here or on a cluster; restart it after failures."),
    "submit": ("run", "Run a job in the background; prints the run's id."),
    "retry": ("run", "Run the job of an ended run again, as a new run."),
    "ps": ("runs", "List the runs of this machine."),
    "status": ("runs", "Show a run's slots and ranks."),
    "logs": ("logs", "Show what the ranks printed, by rank, time, stream or pattern."),
    "attach": ("attach", "Watch a run; supervise it if no other process does."),
    "wait": ("attach", "Wait for a run's end and exit with its code."),
    "why": ("why", "Show which rank failed first, why, and on which node."),
    "report": ("why", "Write what happened as HTML, Markdown, JSON or an archive."),
    "cancel": ("attach", "Stop runs and everything they started."),
    "suspend": ("attach", "Stop a run without ending it; no budget is used."),
    "resume": ("attach", "Continue a suspended run, or start a lost supervisor again."),
    "resize": ("attach", "Give a run another number of nodes; no budget is used."),
    "rm": ("runs", "Delete the files of ended runs."),
    "prune": ("runs", "Delete the files of old runs."),
    "metrics": ("metrics", "Print or serve numbers of the runs for Prometheus."),
    "cp": ("cp", "Copy files to a run's folder and back."),
    "agent": ("agent", "Read a node's kernel log and record faults on its Node."),
    "controller": ("controller", "Watch all nodes; keep the scheduler away from bad ones."),
    "nodes": ("nodes", "Show the health of nodes; check, taint and clear them."),
    "doctor": ("doctor", "Check what this machine and its cluster can do for Rankfall."),
    "config": ("config", "Show settings, causes, exit codes, commands and formats."),
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
        """Verb; refuses unknown ones with similar names."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            args = _meant(ctx, args)
        name, found, rest = super().resolve_command(ctx, args)
        if not name or not found:
            return name, found, rest
        verb = load(name)
        if not ctx.resilient_parsing and (path := config_path()).exists():
            from rankfall.cli.options import defaults_of  # noqa: PLC0415

            ctx.default_map = {name: defaults_of(path, name, verb, verbs=VERBS, like=LIKE.get(name))}
        return name, verb, rest


def _meant(ctx: click.Context, args: list[str]) -> list[str]:
    """Translates a word of another tool, or fails."""
    word, *rest = args
    if word == "help":
        return [*rest, "--help"] if rest else _print(ctx, ctx.get_help())
    if word == "version":
        _version(ctx, ctx.command.params[0], value=True)
    words = table("words")
    if word in words["works"]:
        return [*words["works"][word].split(), *rest]
    if word in words["answers"]:
        raise _Answer(f"there is no command {word!r}: {words['answers'][word]}")
    from rankfall.cli.target import is_there  # noqa: PLC0415

    if is_there(word):
        import shlex  # noqa: PLC0415

        verb = "run" if word.endswith(".py") else "run -f" if word.endswith((".yaml", ".yml")) else "why"
        raise _Answer(f"there is no command {word[:60]!r}: use rankfall {verb} {shlex.quote(word)[:200]}")
    import difflib  # noqa: PLC0415

    near = difflib.get_close_matches(word, VERBS, n=2)
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    raise click.UsageError(f"there is no command {word[:60]!r}.{meant}", ctx=ctx)


def _print(ctx: click.Context, text: str) -> NoReturn:
    click.echo(text)
    ctx.exit()


@cache
def table(name: str) -> dict[str, Any]:
    """Returns ``words.toml`` or ``help.toml``."""
    import tomllib  # noqa: PLC0415
    from importlib import resources  # noqa: PLC0415

    return tomllib.loads(resources.files("rankfall.cli").joinpath(f"{name}.toml").read_text("utf-8"))


def config_path() -> Path:
    """Path of the user's ``config.toml``.

    Raises:
        UsageError: ``RANKFALL_CONFIG`` names a missing file.
    """
    chosen = os.environ.get("RANKFALL_CONFIG")
    if chosen:
        if not os.path.exists(chosen):  # noqa: PTH110 - Path.exists raises for a folder without access
            from rankfall.model.errors import UsageError  # noqa: PLC0415

            hint = "correct the path, or unset RANKFALL_CONFIG to use the file in ~/.config/rankfall"
            raise UsageError(f"RANKFALL_CONFIG names {chosen}, which does not exist", hint=hint)
        return Path(chosen)
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if folder.startswith("/") else Path.home() / ".config") / "rankfall" / "config.toml"


def load(verb: str) -> click.Command:
    """Returns a verb's command; flags have variables, as ``RANKFALL_RUN_NNODES``."""
    command: click.Command = getattr(importlib.import_module(f"rankfall.cli.commands.{VERBS[verb][0]}"), verb)
    _prepare(command, (verb, LIKE[verb]) if verb in LIKE else (verb,))
    return command


def _prepare(command: click.Command, names: tuple[str, ...]) -> None:
    """Adds ``--verbose`` and the variables, once."""
    if isinstance(command, click.Group):
        for key, one in command.commands.items():
            _prepare(one, tuple(f"{name}_{key}" for name in names))
    if any(param.name == "verbose" for param in command.params):
        return
    for param in command.params:
        if isinstance(param, click.Option):
            given = [param.envvar] if isinstance(param.envvar, str) else []
            flag = max(param.opts, key=len).lstrip("-")
            param.envvar = [*given, *(f"rankfall_{name}_{flag}".replace("-", "_").upper() for name in names)]
            if param.help is None:
                param.help = table("help")[names[0].replace("_", " ")][flag]
    command.params.append(_verbose(hidden=True))


def _verbose(*, hidden: bool) -> click.Option:
    return click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_be_verbose,
        help="Print tracebacks of errors, as RANKFALL_DEBUG=1.",
    )


def _be_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001 - click's signature
    if value:
        console.verbose = True


def command() -> click.Command:
    """Whole command line."""
    return LazyGroup(
        "rankfall",
        help=HELP,
        context_settings=SETTINGS,
        params=[
            click.Option(
                ["-V", "--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_version,
                help="Print the version.",
            ),
            _verbose(hidden=False),
        ],
    )


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001 - click's signature
    if value:
        from rankfall import __version__  # noqa: PLC0415

        click.echo(f"rankfall {__version__}")
        ctx.exit()


# Verbs with the flags of another verb.
LIKE: Final = {"submit": "run"}
CANCELLED: Final = 130
DEFECT: Final = 74
USAGE: Final = 2
# Verbs that may exit with a rank's code, and ``submit``.
_OF_RUNS: Final = frozenset({"run", "submit", "retry", "attach", "wait"})
# Verbs whose output is their only effect.
_PRINTING: Final = frozenset({"ps", "status", "logs", "why", "metrics", "config"})


class _Answer(click.ClickException):
    """A message with the next step."""


class _Failed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(argv: Sequence[str]) -> int:
    """Runs one command line, without program name; returns the exit code, raises nothing."""
    console.verbose = os.environ.get("RANKFALL_DEBUG") == "1"
    missing = console.open_missing_streams()
    console.tolerate_any_text()
    if "stdout" in missing and argv and argv[0] in _PRINTING:
        return _report("cannot write to stdout: it is closed", "redirect it, for example to /dev/null", DEFECT)
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
            text = _report(
                f"cannot write to {error.filename or 'stdout'}: no space left on its device",
                "free space, or write to another place",
                DEFECT,
            )
            return _leave(text, argv)
        return _leave(_defect(error), argv)
    except MemoryError:
        hint = "raise its limit (ulimit -v, or of the container), or free memory"
        return _leave(_report("Rankfall itself has not enough memory", hint, DEFECT), argv)
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
    except _Answer as error:
        raise _Failed(_report(error.message, None, USAGE)) from None
    except click.NoSuchOption as error:
        raise _Failed(_report(*_unknown_option(error), USAGE)) from None
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        where = f"{context.command_path} --help" if context is not None else "rankfall --help"
        raise _Failed(_report(f"{error.format_message().strip()}{_source(error)}", where, USAGE)) from None
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        raise _Failed(known) from None
    return result if isinstance(result, int) else 0


def _unknown_option(error: click.NoSuchOption) -> tuple[str, str | None]:
    """Returns message and next step."""
    name = error.option_name.lstrip("-").replace("_", "-")
    verb = error.ctx.info_name if error.ctx is not None else None
    answers = table("words")["flags"].get(LIKE.get(verb or "", verb), {})
    if name in answers:
        return f"there is no option {error.option_name}: {answers[name]}", None
    if "*" in answers:
        return error.format_message(), answers["*"]
    return error.format_message(), f"{error.ctx.command_path if error.ctx else 'rankfall'} --help"


def _source(error: click.ClickException) -> str:
    """Returns a wrong value's origin."""
    param = getattr(error, "param", None)
    context = getattr(error, "ctx", None)
    if param is None or context is None:
        return ""
    source = context.get_parameter_source(param.name)
    if source is ParameterSource.ENVIRONMENT:
        return f" (from {next(name for name in param.envvar if os.environ.get(name))})"
    return f" (from {config_path()})" if source is ParameterSource.DEFAULT_MAP else ""


def _known(error: Exception) -> int | None:
    """Prints an error made for users and returns its exit code; None for other errors."""
    from rankfall.model.errors import MORE_FILES, JobFailed, RankfallError, is_file_limit  # noqa: PLC0415

    if console.verbose and isinstance(error, RankfallError):
        import traceback  # noqa: PLC0415

        traceback.print_exception(error)
    if isinstance(error, JobFailed):
        return _report(error.message, error.hint, error.code)
    limit = is_file_limit(error) or is_file_limit(error.__cause__)
    if isinstance(error, RankfallError):
        return _report(error.message, MORE_FILES if limit else error.hint, error.exit_code)
    if limit:
        return _report("too many open files", MORE_FILES, DEFECT)
    if isinstance(error, FileNotFoundError) and error.filename is None and not _has_folder():
        hint = "cd to a folder that exists, or give run and submit one with --cwd"
        return _report("the current folder no longer exists", hint, USAGE)
    return None


def _has_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _report(message: str, hint: str | None, code: int) -> int:
    from rankfall.render.escape import clean  # noqa: PLC0415

    console.say(f"rankfall: {clean(message, max_line=2000)}")
    if hint:
        console.say(f"  next: {clean(hint, max_line=2000)}")
    return code


def _defect(error: BaseException) -> int:
    import tempfile  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(error))
    if console.verbose:
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
