"""Command line of the wrapper: ``python INSIDE wrap --stream-dir DIR [options] -- COMMAND ARGS...``.

INSIDE is the unpacked bundle or its zip. Who this slot is comes from the ``RANKFALL_*`` variables. Refuses unknown options with code 2;
everything else must not keep the command from running.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Sequence

USAGE = """\
usage: python INSIDE wrap --stream-dir DIR [--launcher exec|plain] [--nproc N] [--console] [--grace SECONDS] -- COMMAND ARGS...

  --stream-dir DIR   where the streams of this slot are stored
  --launcher NAME    exec: start COMMAND once (default); plain: start it as N ranks
  --nproc N          ranks of this slot (default 1)
  --console          also write whole lines to stdout, with the prefix [rank N]
  --grace SECONDS    between SIGTERM and SIGKILL for what the command leaves behind (default 5)
"""
_USAGE_CODE = 2
_BUSY_CODE = 125


class Options:
    """What the command line says; ``home`` is the directory that the hook is loaded from."""

    def __init__(self) -> None:
        self.stream_dir = ""
        self.launcher = "exec"
        self.nproc = 1
        self.console = False
        self.grace = 5.0
        self.command: list[str] = []
        self.home = ""

    @property
    def instance(self) -> str:
        """Name of this start of the slot: the last part of the stream directory."""
        return os.path.basename(self.stream_dir.rstrip("/"))


def parse(argv: Sequence[str]) -> Options:
    """Options from ``argv`` (without the program).

    Raises:
        ValueError: with a text for the user.
    """
    words = list(argv)
    if words[:1] != ["wrap"]:
        raise ValueError("the first argument must be: wrap")
    options = Options()
    position = 1
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        if name == "--":
            options.command = words[position:]
            break
        if name == "--console" and not equals:
            options.console = True
            continue
        if name not in ("--stream-dir", "--launcher", "--nproc", "--grace"):
            raise ValueError(f"unknown option {name}")
        if not equals:
            if position >= len(words):
                raise ValueError(f"{name} needs a value")
            value = words[position]
            position += 1
        _set(options, name, value)
    if not options.command:
        raise ValueError("no command after --")
    if not options.stream_dir:
        raise ValueError("--stream-dir is missing")
    return options


def _set(options: Options, name: str, value: str) -> None:
    if name == "--stream-dir":
        options.stream_dir = os.path.abspath(value)
    elif name == "--launcher":
        if value not in ("exec", "plain"):
            raise ValueError(f"--launcher is exec or plain, not {value}")
        options.launcher = value
    elif name == "--nproc":
        if not value.isdigit() or not 0 < int(value) <= 4096:  # noqa: PLR2004 - no node has more
            raise ValueError(f"--nproc is a number from 1 to 4096, not {value}")
        options.nproc = int(value)
    else:
        options.grace = max(0.0, float(value))


def main(argv: Sequence[str]) -> int:
    """Run the wrapper; its exit code is the command's."""
    _open_standard_files()
    try:
        options = parse(argv)
    except ValueError as error:
        sys.stderr.write(f"rankfall: {error}\n{USAGE}")
        return _USAGE_CODE
    try:
        os.setsid()
    except OSError:
        pass  # it leads a session already
    from rankfall_inside.slot import SlotBusyError, SlotFiles

    try:
        os.makedirs(options.stream_dir, exist_ok=True)
        files = SlotFiles(os.environ, instance=options.instance)
    except SlotBusyError as error:
        _say(f"another wrapper holds the slot directory {error}; this one does nothing")
        return _BUSY_CODE
    except (OSError, KeyError) as error:
        _say(f"the slot directory cannot be used ({error!r}); the command runs without records")
        _plainly(options)
    from rankfall_inside import home
    from rankfall_inside.wrapper import Wrapper

    options.home = home.prepare(files.path)
    return Wrapper(options, files, os.environ).run()


def _open_standard_files() -> None:
    """Closed ones would be taken by the first pipes, and the command would write into the wrong stream."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:  # noqa: PLR2004 - stderr
        os.set_inheritable(fd, True)
        fd = os.dup(fd)
    os.close(fd)


def _plainly(options: Options) -> NoReturn:
    from rankfall_inside import signals, spawn

    signals.reset_in_child()
    spawn.replace(options.command, os.environ)


def _say(text: str) -> None:
    try:
        os.write(2, f"rankfall: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
