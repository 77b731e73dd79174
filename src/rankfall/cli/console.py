"""Writes data to stdout and messages to stderr.

A reader that goes away (``| head``) ends the program without an error. Loaded at start-up.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import sys
from typing import IO, Any

import msgspec

from rankfall.render.formatting import wants_color


class Output(enum.StrEnum):
    """What ``-o`` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def document(data: Any, output: Output) -> str:
    """A struct or builtins as JSON or YAML text, with a newline at its end."""
    if output is Output.YAML:
        import yaml  # noqa: PLC0415 - only with -o yaml

        # Escaped as in JSON: yaml takes marks that reorder text for printable.
        text: str = yaml.safe_dump(msgspec.to_builtins(data), sort_keys=False, width=1000)
        return text
    # ASCII only: the text of a job must not reach a terminal in another shape than escaped.
    return json.dumps(msgspec.to_builtins(data), indent=2).replace("\x7f", "\\u007f") + "\n"


def out(text: str = "") -> None:
    """A line of data."""
    sys.stdout.write(text + "\n")


def say(text: str = "", *, quiet: bool = False) -> None:
    """A line of progress on stderr; one that takes nothing is no reason to stop."""
    if not quiet:
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def color_on(stream: IO[Any] | None = None) -> bool:
    """Whether that stream (stdout by default) takes colour."""
    return wants_color(stream or sys.stdout)


def width() -> int:
    """Columns to write into: the terminal's, at most 120; 100 without one."""
    return min(120, shutil.get_terminal_size((100, 24)).columns)


def open_missing_streams() -> None:
    """Give stdin, stdout and stderr that were closed before the start to /dev/null, so that no file of ours gets their numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - 0, 1 and 2 are the standard streams
        name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[fd]
        setattr(sys, name, os.fdopen(fd, mode))
    os.close(fd)


def tolerate_any_text() -> None:
    """Let stdout and stderr take every character, whatever the locale says; what they cannot show is escaped."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def close_quietly() -> None:
    """After the reader of stdout went away: let the interpreter's own flush at exit go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        return
    finally:
        os.close(null)
