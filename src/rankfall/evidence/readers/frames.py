"""Frames of one exception: the innermost place of the user's code, and what the frames show about its origin."""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model.patterns import bounded

_LIBRARY = bounded(rb"(?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|<frozen ", limit=1024)
# Functions of data loaders and error files.
_LOADER: Final = frozenset({b"_get_data", b"_get_batch", b"_try_get_data", b"_try_get_batch"})
_REPORT: Final = frozenset({b"__post_init__", b"_get_error_data"})
# Frames that show an exception's origin: path end, functions, name.
_ORIGINS: Final = (
    (b"elastic/multiprocessing/errors/__init__.py", _REPORT, "damaged_report"),
    (b"torch/utils/data/dataloader.py", _LOADER, "data_loader"),
    (b"torch/multiprocessing/spawn.py", frozenset({b"join"}), "launcher"),
    (b"torch/distributed/launch.py", frozenset({b"main"}), "launcher"),
    (
        b"accelerate/commands/launch.py",
        frozenset({b"simple_launcher", b"multi_gpu_launcher", b"deepspeed_launcher", b"launch_command"}),
        "launcher",
    ),
    (b"multiprocessing/util.py", frozenset({b"_exit_function", b"_run_finalizers", b"__call__"}), "clean_up"),
    (
        b"multiprocessing/resource_tracker.py",
        frozenset({b"main", b"_stop", b"_stop_locked", b"unregister"}),
        "clean_up",
    ),
    (b"weakref.py", frozenset({b"_exitfunc", b"__call__", b"remove"}), "clean_up"),
    (b"threading.py", frozenset({b"_shutdown"}), "clean_up"),
    (b"concurrent/futures/thread.py", frozenset({b"_python_exit"}), "clean_up"),
    (b"concurrent/futures/process.py", frozenset({b"_python_exit"}), "clean_up"),
    (b"tempfile.py", frozenset({b"_cleanup"}), "clean_up"),
    (b"logging/__init__.py", frozenset({b"shutdown"}), "clean_up"),
    (b"", frozenset({b"__del__"}), "clean_up"),
)


class Frames(msgspec.Struct):
    """Frames that were read so far, the outermost first.

    Attributes:
        count: Number of frames.
        origins: ``damaged_report``, ``data_loader``, ``launcher``, ``clean_up`` (finalizers, interpreter exit).
    """

    count: int = 0
    origins: set[str] = msgspec.field(default_factory=set)
    _innermost: bytes = b""
    _user: bytes = b""

    @property
    def place(self) -> bytes:
        """``file:function`` of the innermost frame outside libraries, else of the innermost; empty without frames."""
        return self._user or self._innermost

    def add(self, path: bytes, function: bytes) -> None:
        """Adds the next inner frame."""
        self._innermost = path.rpartition(b"/")[2] + b":" + function
        if not _LIBRARY.search(path):
            self._user = self._innermost
        self.count += 1
        for suffix, functions, origin in _ORIGINS:
            if path.endswith(suffix) and function in functions:
                self.origins.add(origin)

    def chain(self) -> None:
        """Begins the next exception of a chain; the innermost place is that of the last one."""
        self._innermost = self._user = b""

    def clear(self) -> None:
        """Removes everything."""
        self.count, self._innermost, self._user = 0, b"", b""
        self.origins.clear()
