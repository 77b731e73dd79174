"""Controls a running wrapper: outside signals, ``ctl`` lines and the ``tell`` command.

A second stop request shortens the grace time. ``tell`` is for callers that share no files.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from rankfall_inside import procfs, records, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Sequence

    from rankfall_inside.wrapper.commands import Commands
    from rankfall_inside.wrapper.options import Options
    from rankfall_inside.wrapper.slot_files import SlotFiles

# After a second stop request.
_HURRY_S = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# A kubelet stops a container with one of these, then SIGKILL.
_LAST_CALLS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_MAX_BUFFER = 1 << 16
_MAX_GRACE_S = 86_400.0


class Orders:
    """Requests to one wrapper; ``supervisor`` is a local supervisor's pid as text, or None."""

    def __init__(
        self,
        options: Options,
        files: SlotFiles,
        commands: Commands,
        *,
        supervisor: str | None,
        on_stacks: Callable[[], None],
        on_asked: Callable[[], None],
    ) -> None:
        self._options = options
        self._files = files
        self._commands = commands
        self._supervisor = supervisor
        self._on_stacks = on_stacks
        self._on_asked = on_asked
        self._buffer = b""
        self.asked: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        # Time of the final SIGKILL.
        self.deadline: float | None = None

    @property
    def stop_requested(self) -> bool:
        """True after any stop request."""
        return self.asked is not None or self.stop_reason is not None

    def signal(self, number: int, sender: int) -> None:
        """Records a signal with its sender and forwards it to the command."""
        if number in _STOP_SIGNALS:
            seen = {"signal": number, "how": "received", "sender_pid": sender}
            words = procfs.cmdline(sender) if sender else ()
            if words:
                seen["sender"] = " ".join(records.safe_argv(words))[:200]
            seen["ours"] = sender > 0 and str(sender) == self._supervisor
            seen["reason"] = "signal from outside to the wrapper, passed on to the command"
            self._files.write("kill", {"pid": self._files.pid, "exit": seen}, False, True)
            if self.stop_requested:
                self.shorten_grace(_HURRY_S)
            elif self._options.alone and number in _LAST_CALLS:
                # Last records can leave before the kubelet's SIGKILL.
                self.shorten_grace(self._options.grace)
            if not seen["ours"]:
                self._on_asked()
            self.asked = self.asked or seen
        self._commands.pass_on(number)

    def shorten_grace(self, grace: float) -> None:
        """Limits the remaining time to ``grace`` seconds."""
        due = time.monotonic() + grace
        self.deadline = due if self.deadline is None else min(self.deadline, due)

    def grace_expired(self) -> bool:
        """True if a stop was requested and its grace time is over."""
        if not self.stop_requested:
            return False
        if self.deadline is None:
            self.shorten_grace(self._options.grace)
        return self.deadline is not None and time.monotonic() >= self.deadline

    def time_left(self, most: float) -> float:
        """Returns remaining seconds, from 1 to ``most``; ``most`` without deadline."""
        if self.deadline is None:
            return most
        return max(1.0, min(most, self.deadline - time.monotonic()))

    def lines(self, data: bytes) -> None:
        """Processes bytes of ``ctl``."""
        self._buffer = (self._buffer + data)[-_MAX_BUFFER:]
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            words = line.decode("utf-8", "replace").split(None, 2)
            if words[:1] == ["stop"]:
                self._stop(words)
            elif words == ["stacks"]:
                self._on_stacks()
            elif words[:1] == ["signal"] and len(words) > 1:
                signum = untrusted.whole(words[1])
                if signum is not None and 0 < signum < signal.NSIG:
                    for pid in self._commands.living():
                        self._commands.send(pid, signum, "requested by the supervisor")

    def _stop(self, words: list[str]) -> None:
        seconds = untrusted.real(words[1]) if len(words) > 1 else None
        grace = self._options.grace if seconds is None else max(0.0, min(seconds, _MAX_GRACE_S))
        if self.stop_reason is not None:
            self.shorten_grace(grace)
            return
        self.stop_reason = words[2][:200] if len(words) > 2 else "stop"  # noqa: PLR2004 - verb, grace, reason
        for pid in self._commands.living():
            self._commands.send(pid, signal.SIGTERM, self.stop_reason)
        self.shorten_grace(grace)


DELIVERED, WRONG_USAGE, NOBODY = 0, 2, 3
# Writes up to PIPE_BUF are atomic.
_MAX_BYTES = 4096


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Writes one line into the slot's ``ctl``.

    Returns:
        0 delivered, 3 no reader, 2 wrong usage; the reason is on stderr.
    """
    words = " ".join(argv).split()
    folder = environ.get("RANKFALL_SLOT_DIR")
    if not _is_command(words):
        return _say(WRONG_USAGE, 'tell: give one of "stop GRACE REASON", "signal NUMBER", stacks')
    if not folder:
        return _say(WRONG_USAGE, "tell: RANKFALL_SLOT_DIR is not set: run it in the environment of the slot")
    line = " ".join(words).encode("utf-8", "backslashreplace")[: _MAX_BYTES - 1] + b"\n"
    try:
        # Fails without a reader.
        fd = os.open(os.path.join(folder, "ctl"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    except OSError as error:
        return _say(NOBODY, f"tell: no wrapper listens in {folder} ({error.strerror})")
    return DELIVERED


def _is_command(words: Sequence[str]) -> bool:
    if words[:1] == ["stop"]:
        return len(words) > 1 and _is_seconds(words[1])
    if words[:1] == ["signal"]:
        return len(words) == 2 and words[1].isdigit()  # noqa: PLR2004 - verb and number
    return list(words) == ["stacks"]


def _is_seconds(word: str) -> bool:
    seconds = untrusted.real(word)
    return seconds is not None and seconds >= 0


def _say(code: int, text: str) -> int:
    sys.stderr.write(f"rankfall: {text}\n")
    return code
