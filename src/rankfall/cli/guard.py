"""Runs the command line and turns every way to fail into a message, a next step and an exit code; a traceback only when asked for.

After a failed ``run``, ``submit``, ``attach`` or ``wait`` the last line of stderr says that the code is Rankfall's, as it says of every end of a run.

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
# Verbs whose code may be a rank's own, and the start of a run in the background.
_OF_RUNS: Final = frozenset({"run", "submit", "attach", "wait"})


class _Failed(Exception):  # noqa: N818 - carries an exit code; what went wrong has been said
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


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
    except _Failed as failed:
        return _leave(failed.code, argv)
    except (BrokenPipeError, ReaderGone):
        emit.close_quietly()
        return 0
    except KeyboardInterrupt:
        emit.say("interrupted")
        return _leave(CANCELLED, argv)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            said = _report(
                "stdout cannot take more: no space left on its device", "free space, or write to another place", DEFECT
            )
            return _leave(said, argv)
        return _leave(_defect(error), argv)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a person gets a sentence, not a traceback
        return _leave(_defect(error), argv)
    return code


def _leave(code: int, argv: Sequence[str]) -> int:
    """Say whose code it is, where that could be asked."""
    if argv and argv[0] in _OF_RUNS:
        emit.say(f"rankfall-exit: rankfall {code}")
    return code


def _invoke(argv: Sequence[str]) -> int:
    try:
        result = command().main(args=list(argv), prog_name="rankfall", standalone_mode=False)
    except click.Abort:
        # click makes it of Ctrl-C too.
        emit.say("interrupted")
        raise _Failed(CANCELLED) from None
    except click.exceptions.NoArgsIsHelpError as error:
        emit.say(error.format_message())
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
    """Report an error that was made for the user; None for all others."""
    from rankfall.model.errors import JobFailed, RankfallError  # noqa: PLC0415 - a start without a failure need not load it

    if os.environ.get("RANKFALL_DEBUG") == "1" and isinstance(error, RankfallError):
        traceback.print_exception(error)
    if isinstance(error, JobFailed):
        return _report(error.message, error.hint, error.code)
    if isinstance(error, RankfallError):
        return _report(error.message, error.hint, error.exit_code)
    return None


def _report(message: str, hint: str | None, code: int) -> int:
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
    return _report(f"a defect of Rankfall itself: {type(error).__name__}: {str(error)[:300]}", hint, DEFECT)
