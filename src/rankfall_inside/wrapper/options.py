"""Command line of the wrapper, its checks, and messages on stderr."""

from __future__ import annotations

import os

from rankfall_inside import untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence


def say(text: str) -> None:
    """Writes one line to stderr."""
    try:
        os.write(2, f"rankfall: {text}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        return


USAGE = """\
usage: python INSIDE wrap (--stream-dir DIR | --console) [options] -- COMMAND ARGS...
       python INSIDE tell "stop GRACE REASON" | "signal NUMBER" | stacks

  --stream-dir DIR   folder for the streams of this slot; without it they go to stdout only
  --console          write whole lines to stdout; lines of a rank get the prefix [rank N]
  --launcher NAME    exec: start COMMAND once (default); plain: start it as N ranks;
                     torchrun: start the words in RANKFALL_TORCHRUN (a JSON list) once; auto: torchrun where its Python has torch, else plain
  --nproc N          ranks of this slot (default 1)
  --grace SECONDS    time from SIGTERM to SIGKILL for processes that the command leaves (default 5)
  --wait-for HOST    start the command when this name resolves; may be repeated
  --code SHA256      unpack the code of this name, from the folder of INSIDE, into the slot directory; without it the command does not start
  --chdir DIR        the command's folder
  --log-store DIR    store the streams of ranks below DIR, a shared volume, or in s3://BUCKET/PREFIX, and not on stdout
  --exit-code NAME   command: the command's own code (default); cause: 200-219 if the cause of a failure is certain

`tell` sends a command to the wrapper of RANKFALL_SLOT_DIR. Exit codes: 0 sent, 3 no wrapper listens, 2 wrong usage.
"""
LAUNCHERS = ("exec", "plain", "torchrun", "auto")
EXIT_CODES = ("command", "cause")
_MAX_NPROC = 4096
_SWITCHES = ("--console",)
_VALUES = (
    "--stream-dir",
    "--launcher",
    "--nproc",
    "--grace",
    "--wait-for",
    "--exit-code",
    "--code",
    "--chdir",
    "--log-store",
)


class Options:
    """Parsed command line; ``home`` is the hook's directory."""

    def __init__(self) -> None:
        self.stream_dir = ""
        self.launcher = "exec"
        self.nproc = 1
        self.console = False
        self.grace = 5.0
        self.wait_for: list[str] = []
        self.exit_code = "command"
        self.code = ""
        self.chdir = ""
        self.log_store = ""
        self.command: list[str] = []
        self.home = ""

    @property
    def instance(self) -> str:
        """Name of this start: the stream directory's last part, else the environment's, else 0."""
        if self.stream_dir:
            return os.path.basename(self.stream_dir.rstrip("/"))
        return os.environ.get("RANKFALL_INSTANCE") or "0"

    @property
    def alone(self) -> bool:
        """True if no files are shared with a supervisor, as in a pod."""
        return not self.stream_dir


def parse(argv: Sequence[str]) -> Options:
    """Parses ``argv`` without the program.

    Raises:
        ValueError: Invalid, with a message for the user.
    """
    words = list(argv)
    if words[:1] != ["wrap"]:
        raise ValueError("the first argument must be `wrap` or `tell`")
    options = Options()
    position = 1
    while position < len(words):
        name, equals, value = words[position].partition("=")
        position += 1
        if name == "--":
            options.command = words[position:]
            break
        if name in _SWITCHES and not equals:
            options.console = True
            continue
        if name not in _VALUES:
            raise ValueError(f"unknown option {name}")
        if not equals:
            if position >= len(words):
                raise ValueError(f"{name} needs a value")
            value = words[position]
            position += 1
        _set(options, name, value)
    if not options.command:
        raise ValueError("no command after --")
    if not options.stream_dir and not options.console:
        raise ValueError("--stream-dir and --console are both missing: the output would be lost")
    if options.log_store and options.stream_dir:
        raise ValueError("--log-store is for a slot without --stream-dir")
    return options


def _set(options: Options, name: str, value: str) -> None:
    if name == "--stream-dir":
        options.stream_dir = os.path.abspath(value)
    elif name == "--launcher":
        options.launcher = _one_of(name, value, LAUNCHERS)
    elif name == "--exit-code":
        options.exit_code = _one_of(name, value, EXIT_CODES)
    elif name == "--code":
        options.code = value
    elif name == "--log-store":
        options.log_store = value if value.startswith("s3://") else os.path.abspath(value)
    elif name == "--chdir":
        options.chdir = value
    elif name == "--wait-for":
        if not value:
            raise ValueError("--wait-for needs a host name")
        options.wait_for.append(value)
    elif name == "--nproc":
        number = untrusted.whole(value)
        if number is None or not 0 < number <= _MAX_NPROC:
            raise ValueError(f"--nproc is a number from 1 to {_MAX_NPROC}, not {value[:60]}")
        options.nproc = number
    else:
        # foreign-text: the command line of the wrapper, which the supervisor writes
        options.grace = max(0.0, float(value))


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value}")
    return value
