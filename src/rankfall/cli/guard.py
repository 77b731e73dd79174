"""Runs the command line and turns every way to fail into a message, a next step and an exit code; a traceback only when asked for.

Exit codes: those of the exception tree in ``rankfall.model.errors``; 130 after Ctrl-C; 74 for a defect of Rankfall itself, with the
traceback in a file; 141 never: a reader of stdout that goes away ends the program quietly with 0.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Final

from rankfall.cli import emit
from rankfall.cli.app import command

CANCELLED: Final = 130
DEFECT: Final = 74
USAGE: Final = 2


def run(argv: Sequence[str]) -> int:
    """Run one command line.

    Args:
        argv: words after the program's name.

    Returns:
        The exit code; nothing is raised.
    """
    emit.tolerate_any_text()
    try:
        code = _invoke(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        emit.close_quietly()
        return 0
    except KeyboardInterrupt:
        emit.say("interrupted")
        return CANCELLED
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _fail(
                "stdout cannot take more: no space left on its device", "free space, or write to another place", DEFECT
            )
        return _defect(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person gets a sentence, not a traceback
        return _defect(error)
    return code


def _invoke(argv: Sequence[str]) -> int:
    import typer  # noqa: PLC0415 - loaded by the app already; here for its two exceptions

    try:
        result = command().main(args=list(argv), prog_name="rankfall", standalone_mode=False)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        emit.say("aborted")
        return CANCELLED
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        return known
    return result if isinstance(result, int) else 0


def _known(error: Exception) -> int | None:
    """Report an error that was made for the user; None for all others."""
    from rankfall.model.errors import JobFailed, RankfallError  # noqa: PLC0415 - a start without a failure need not load it

    if os.environ.get("RANKFALL_DEBUG") == "1" and isinstance(error, RankfallError):
        traceback.print_exception(error)
    if isinstance(error, JobFailed):
        return _fail(error.message, error.hint, error.code)
    if isinstance(error, RankfallError):
        return _fail(error.message, error.hint, error.exit_code)
    told = getattr(error, "format_message", None)
    return _usage(error, told()) if told is not None else None


def _usage(error: Exception, text: str) -> int:
    """A refusal of the option parser, whose exceptions live in another place in each version of typer."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        emit.say(str(error))
        return USAGE
    where = f"{context.command_path} --help" if context is not None else "rankfall --help"
    return _fail(text.strip(), where, USAGE)


def _fail(message: str, hint: str | None, code: int) -> int:
    from rankfall.report.escape import clean  # noqa: PLC0415 - as above

    emit.say(f"rankfall: {clean(message, max_line=2000)}")
    if hint:
        emit.say(f"  next: {clean(hint, max_line=2000)}")
    return code


def _defect(error: BaseException) -> int:
    text = "".join(traceback.format_exception(error))
    if os.environ.get("RANKFALL_DEBUG") == "1":
        emit.say(text)
        return DEFECT
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="rankfall-", suffix=".txt", delete=False, errors="replace"
        ) as file:
            file.write(text)
        hint = f"details are in {file.name}; please report them"
    except OSError:
        hint = "RANKFALL_DEBUG=1 shows the details; please report them"
    return _fail(f"a defect of Rankfall itself: {type(error).__name__}: {str(error)[:300]}", hint, DEFECT)
