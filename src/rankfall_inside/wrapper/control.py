"""Control of a running wrapper: signals from outside, lines of ``ctl``, and the ``tell`` command.

All that ends a slot early comes through here. A signal is recorded, on the log channel first, and passed on;
a stop is marked as ours before it is sent. A second request to end shortens the grace time. ``tell`` is for
callers that can exec into the container but share no files.
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

# After a second request to end.
_HURRY_S = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# With one of these a kubelet stops a container (the image chooses which), and a SIGKILL to everything follows.
_LAST_CALLS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_MAX_BUFFER = 1 << 16
_MAX_GRACE_S = 86_400.0


class Orders:
    """What was asked of one wrapper.

    Args:
        options: of the wrapper.
        files: of the slot.
        commands: what signals are passed on to.
        supervisor: pid of the supervisor as text, when there is one on this machine.
        on_stacks: called when stacks are asked for.
        on_asked: called when somebody outside wants the slot to end.
    """

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
        # The first signal from outside that asked for the end, as fields of ExitInfo.
        self.asked: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        # When all that is left is killed.
        self.deadline: float | None = None

    @property
    def stop_requested(self) -> bool:
        """Whether anybody has asked for the end."""
        return self.asked is not None or self.stop_reason is not None

    def signal(self, number: int, sender: int) -> None:
        """A signal to the wrapper itself: recorded with its sender and passed on to the command."""
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
                # Before the kubelet kills everything: ends and the last records are still told.
                self.shorten_grace(self._options.grace)
            if not seen["ours"]:
                self._on_asked()
            self.asked = self.asked or seen
        self._commands.pass_on(number)

    def shorten_grace(self, grace: float) -> None:
        """All that is left is killed in ``grace`` seconds at the latest."""
        due = time.monotonic() + grace
        self.deadline = due if self.deadline is None else min(self.deadline, due)

    def grace_expired(self) -> bool:
        """Whether somebody asked for the end and the time for it is over; with it goes the time to wait for whoever reads stdout."""
        if not self.stop_requested:
            return False
        if self.deadline is None:
            self.shorten_grace(self._options.grace)
        return self.deadline is not None and time.monotonic() >= self.deadline

    def time_left(self, most: float) -> float:
        """What is left of the time to end, seconds, at most ``most`` and at least one; ``most`` where there is no such time."""
        if self.deadline is None:
            return most
        return max(1.0, min(most, self.deadline - time.monotonic()))

    def lines(self, data: bytes) -> None:
        """Bytes of ``ctl``."""
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
                        self._commands.send(pid, signum, "asked for by the supervisor")

    def _stop(self, words: list[str]) -> None:
        said = untrusted.real(words[1]) if len(words) > 1 else None
        grace = self._options.grace if said is None else max(0.0, min(said, _MAX_GRACE_S))
        if self.stop_reason is not None:
            self.shorten_grace(grace)
            return
        self.stop_reason = words[2][:200] if len(words) > 2 else "stop"  # noqa: PLR2004 - verb, grace, reason
        for pid in self._commands.living():
            self._commands.send(pid, signal.SIGTERM, self.stop_reason)
        self.shorten_grace(grace)


DELIVERED, WRONG_USAGE, NOBODY = 0, 2, 3
# A write of up to PIPE_BUF bytes is never mixed with another's.
_MAX_BYTES = 4096


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write one line into ``ctl`` of the slot directory.

    Args:
        argv: words of the command; given as one word or as many.
        environ: names the slot directory.

    Returns:
        0 told, 3 nobody listens, 2 wrong usage; the reason is on stderr.
    """
    words = " ".join(argv).split()
    folder = environ.get("RANKFALL_SLOT_DIR")
    if not _is_command(words):
        return _say(WRONG_USAGE, 'tell: give one of "stop GRACE REASON", "signal NUMBER", stacks')
    if not folder:
        return _say(WRONG_USAGE, "tell: RANKFALL_SLOT_DIR is not set: run it in the environment of the slot")
    line = " ".join(words).encode("utf-8", "backslashreplace")[: _MAX_BYTES - 1] + b"\n"
    try:
        # Without a reader a pipe cannot be opened so, and a wrapper that is gone reads no more.
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
    said = untrusted.real(word)
    return said is not None and said >= 0


def _say(code: int, text: str) -> int:
    sys.stderr.write(f"rankfall: {text}\n")
    return code
