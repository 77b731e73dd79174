"""The wrapper's event loop: file descriptors and one time-out, on epoll. asyncio would cost the start of every slot."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Loop:
    """Calls a handler whenever its descriptor is readable or at its end; owns the descriptors."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], Any]] = {}

    def watch(self, fd: int, handler: Callable[[], Any]) -> None:
        """Call ``handler`` while ``fd`` is readable."""
        self._poll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Forget and close ``fd``; may be called again."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)
            os.close(fd)

    def turn(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds and call the handlers of what is ready."""
        for fd, _ in self._poll.poll(max(0.0, timeout)):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
