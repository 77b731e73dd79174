"""Event loop of the wrapper on epoll; asyncio would slow each start."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

# For pipes that any process of the job may fill.
MAX_READ = 1 << 16


class Loop:
    """Calls handlers of readable or ended descriptors; owns the descriptors that it reads."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], Any]] = {}
        self._writers: dict[int, Callable[[], Any]] = {}
        self._paused: set[int] = set()

    def watch(self, fd: int, handler: Callable[[], Any]) -> None:
        """Calls ``handler`` while ``fd`` is readable."""
        self._poll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Removes and closes ``fd``; idempotent."""
        if self._handlers.pop(fd, None) is not None:
            if fd in self._paused:
                self._paused.discard(fd)
            else:
                self._poll.unregister(fd)
            os.close(fd)

    def pause(self, fd: int) -> None:
        """Stops reading ``fd`` until :meth:`resume`; its writers block."""
        if fd in self._handlers and fd not in self._paused:
            # epoll reports the end of a pipe for any event mask.
            self._poll.unregister(fd)
            self._paused.add(fd)

    def resume(self, fd: int) -> None:
        """Reads ``fd`` again."""
        if fd in self._paused:
            self._paused.discard(fd)
            self._poll.register(fd, select.EPOLLIN)

    def watch_write(self, fd: int, handler: Callable[[], Any]) -> None:
        """Calls ``handler`` while ``fd`` is writable; does not own ``fd``.

        Raises:
            OSError: Unsupported kind of file.
        """
        self._poll.register(fd, select.EPOLLOUT)
        self._writers[fd] = handler

    def unwatch_write(self, fd: int) -> None:
        """Removes ``fd``."""
        if self._writers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def run_once(self, timeout: float) -> None:
        """Waits at most ``timeout`` seconds and calls handlers of ready descriptors."""
        for fd, _ in self._poll.poll(max(0.0, timeout)):
            handler = self._writers.get(fd) or self._handlers.get(fd)
            if handler is not None and fd not in self._paused:
                handler()


def read_available(fd: int) -> bytes:
    """Returns at most :data:`MAX_READ` available bytes; nothing if unreadable."""
    try:
        return os.read(fd, MAX_READ)
    except OSError:
        return b""
