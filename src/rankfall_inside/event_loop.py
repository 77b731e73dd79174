"""The wrapper's event loop: file descriptors and one time-out on epoll.

asyncio would slow the start of every slot.
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# At once from a pipe that everybody in the job may fill.
MAX_READ = 1 << 16


class Loop:
    """Calls a handler whenever its descriptor is readable or at its end; owns the descriptors that it reads."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], Any]] = {}
        self._writers: dict[int, Callable[[], Any]] = {}
        self._paused: set[int] = set()

    def watch(self, fd: int, handler: Callable[[], Any]) -> None:
        """Call ``handler`` while ``fd`` is readable."""
        self._poll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Forget and close ``fd``; may be called again."""
        if self._handlers.pop(fd, None) is not None:
            if fd in self._paused:
                self._paused.discard(fd)
            else:
                self._poll.unregister(fd)
            os.close(fd)

    def pause(self, fd: int) -> None:
        """Leave ``fd`` unread until :meth:`resume`: whoever writes to it waits."""
        if fd in self._handlers and fd not in self._paused:
            # Not only its events: the end of a pipe is reported whatever was asked for.
            self._poll.unregister(fd)
            self._paused.add(fd)

    def resume(self, fd: int) -> None:
        """Read ``fd`` again."""
        if fd in self._paused:
            self._paused.discard(fd)
            self._poll.register(fd, select.EPOLLIN)

    def watch_write(self, fd: int, handler: Callable[[], Any]) -> None:
        """Call ``handler`` while ``fd`` takes more; ``fd`` is only borrowed.

        Raises:
            OSError: this kind of file has no such event.
        """
        self._poll.register(fd, select.EPOLLOUT)
        self._writers[fd] = handler

    def unwatch_write(self, fd: int) -> None:
        """Forget ``fd``."""
        if self._writers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def run_once(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds and call the handlers of what is ready."""
        for fd, _ in self._poll.poll(max(0.0, timeout)):
            handler = self._writers.get(fd) or self._handlers.get(fd)
            # Paused by a handler of the same turn.
            if handler is not None and fd not in self._paused:
                handler()


def read_available(fd: int) -> bytes:
    """What a pipe holds, at most :data:`MAX_READ` bytes; nothing where it cannot be read."""
    try:
        return os.read(fd, MAX_READ)
    except OSError:
        return b""
