"""Orders to the wrapper: signals from outside, and lines of ``ctl``. All that ends a slot early comes through here.

A signal is recorded, on the log channel before anything else, and passed on; a stop is marked as ours before it is sent. A second request
to end shortens the time: whoever sent it will not wait.
"""

from __future__ import annotations

import signal
import time

from rankfall_inside import foreign, procfs, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from rankfall_inside.commands import Commands
    from rankfall_inside.options import Options
    from rankfall_inside.slot import SlotFiles

# After a second request to end.
_HURRY_S = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
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
    def ending(self) -> bool:
        """Whether anybody has asked for the end."""
        return self.asked is not None or self.stop_reason is not None

    def signal(self, number: int, sender: int) -> None:
        """A signal to the wrapper itself: recorded with its sender and passed on to the command."""
        if number in _ENDING:
            seen = {"signal": number, "how": "received", "sender_pid": sender}
            words = procfs.cmdline(sender) if sender else ()
            if words:
                seen["sender"] = " ".join(records.safe_argv(words))[:200]
            seen["ours"] = sender > 0 and str(sender) == self._supervisor
            seen["reason"] = "signal from outside to the wrapper, passed on to the command"
            self._files.write("kill", {"pid": self._files.pid, "exit": seen}, False, True)
            if self.ending:
                self.hurry(_HURRY_S)
            elif self._options.alone and number in _LAST_CALLS:
                # Before the kubelet kills everything: ends and the last records are still told.
                self.hurry(self._options.grace)
            if not seen["ours"]:
                self._on_asked()
            self.asked = self.asked or seen
        self._commands.pass_on(number)

    def hurry(self, grace: float) -> None:
        """All that is left is killed in ``grace`` seconds at the latest."""
        due = time.monotonic() + grace
        self.deadline = due if self.deadline is None else min(self.deadline, due)

    def time_is_over(self) -> bool:
        """Whether somebody asked for the end and the time for it is over; with it goes the time to wait for whoever reads stdout."""
        if not self.ending:
            return False
        if self.deadline is None:
            self.hurry(self._options.grace)
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
                signum = foreign.whole(words[1])
                if signum is not None and 0 < signum < signal.NSIG:
                    for pid in self._commands.living():
                        self._commands.send(pid, signum, "asked for by the supervisor")

    def _stop(self, words: list[str]) -> None:
        said = foreign.real(words[1]) if len(words) > 1 else None
        grace = self._options.grace if said is None else max(0.0, min(said, _MAX_GRACE_S))
        if self.stop_reason is not None:
            self.hurry(grace)
            return
        self.stop_reason = words[2][:200] if len(words) > 2 else "stop"  # noqa: PLR2004 - verb, grace, reason
        for pid in self._commands.living():
            self._commands.send(pid, signal.SIGTERM, self.stop_reason)
        self.hurry(grace)
