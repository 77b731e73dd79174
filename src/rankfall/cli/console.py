"""Writes data to stdout, messages to stderr; an ended reader (``| head``) is no error."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from rankfall.render.formatting import wants_color

# Seconds without a word.
_SLOW_S = 3.0
# True with --verbose or RANKFALL_DEBUG=1.
verbose = False


class Output(enum.StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def document(data: Any, output: Output, *, compact: bool = False) -> str:
    """Formats a struct or builtins as JSON (``compact``: on one line) or YAML with final newline."""
    import msgspec  # noqa: PLC0415 - a quarter of the start of --help

    if output is Output.YAML:
        import yaml  # noqa: PLC0415

        # json escapes text-reordering marks; yaml considers them printable.
        text: str = yaml.safe_dump(msgspec.to_builtins(data), sort_keys=False, width=1000)
        return text
    # ASCII only: job text must not reach a terminal unescaped.
    form: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    return json.dumps(msgspec.to_builtins(data), **form).replace("\x7f", "\\u007f") + "\n"


def out(text: str = "") -> None:
    """Prints a line of data."""
    sys.stdout.write(text + "\n")


def say(text: str = "", *, quiet: bool = False) -> None:
    """Prints a line to stderr; ignores a failing stderr."""
    if not quiet:
        with contextlib.suppress(OSError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


@contextlib.contextmanager
def notice_if_slow(text: str) -> Iterator[None]:
    """Prints ``text`` to stderr once if the block takes long."""
    timer = threading.Timer(_SLOW_S, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def color_on(stream: IO[Any] | None = None) -> bool:
    """True if the stream (default: stdout) accepts color."""
    return wants_color(stream or sys.stdout)


def shape(stream: IO[Any]) -> dict[str, Any]:
    """Returns width, color and cutting of a verdict's text; only a terminal needs cut lines."""
    return {"width": width(), "color": color_on(stream), "cut": not stream.closed and stream.isatty()}


def width() -> int:
    """Terminal columns, at most 120; 100 without terminal."""
    return min(120, shutil.get_terminal_size((100, 24)).columns)


def wants_area(*, live: bool | None) -> bool:
    """True if a status area may appear: both streams are one terminal, not dumb; ``live`` overrides CI."""
    try:
        out, err = (os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr))
        same = sys.stdout.isatty() and sys.stderr.isatty() and out.st_rdev == err.st_rdev
    except (OSError, ValueError):
        return False
    if not same or os.environ.get("TERM", "dumb") in {"dumb", ""}:
        return False
    return not os.environ.get("CI") if live is None else live


def open_missing_streams() -> set[str]:
    """Opens closed standard streams on /dev/null, so no other file gets their numbers; returns their names."""
    missing = set()
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - the standard streams
        name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[fd]
        setattr(sys, name, os.fdopen(fd, mode))
        missing.add(name)
    os.close(fd)
    return missing


def tolerate_any_text() -> None:
    """Makes stdout and stderr escape characters outside the locale."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def close_quietly() -> None:
    """Sends stdout's flush at exit to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        return
    finally:
        os.close(null)
