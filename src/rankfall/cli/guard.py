"""Runs the command line and turns every way to fail into a message, a next step and an exit code; a traceback only when asked for.

Exit codes: those of the exception tree in ``rankfall.model.errors``; 130 after Ctrl-C; 74 for a defect of Rankfall itself, with the
traceback in a file; 0 when the reader of stdout goes away.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Final

import click

from rankfall.cli import emit
from rankfall.cli.app import ReaderGone, command

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
    emit.open_missing_streams()
    emit.tolerate_any_text()
    try:
        code = _invoke(argv)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderGone):
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
    try:
        result = command().main(args=list(argv), prog_name="rankfall", standalone_mode=False)
    except click.Abort:
        # click makes it of Ctrl-C too.
        emit.say("interrupted")
        return CANCELLED
    except click.exceptions.NoArgsIsHelpError as error:
        emit.say(error.format_message())
        return USAGE
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        where = f"{context.command_path} --help" if context is not None else "rankfall --help"
        return _fail(error.format_message().strip(), where, USAGE)
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
    return None


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
