"""Files of one slot: directory, lock, records, kill marks and end; see docs/architecture.md."""

from __future__ import annotations

import errno
import fcntl
import os
import time

from rankfall_inside import private_files, procfs, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from rankfall_inside.delivery.console import Channel

# Most preallocated records.
_MOST_RESERVED = 64
FOLDERS = ("claims", "pipes", "progress", "stacks", "errors")


class SlotBusyError(Exception):
    """Another wrapper uses this slot directory."""


class SlotFiles:
    """Opens the slot directory for one wrapper.

    Raises:
        OSError: Directory not creatable or writable.
        SlotBusyError: Another wrapper uses it.
    """

    def __init__(self, environ: Mapping[str, str], *, instance: str) -> None:
        self.path = os.path.abspath(environ["RANKFALL_SLOT_DIR"])
        self.pid = os.getpid()
        # Until set, records are files only.
        self.channel: Channel | None = None
        for name in FOLDERS:
            private_files.make_folders(os.path.join(self.path, name))
        self._lock = self._take_lock()
        self._clear()
        self.records = environ.get("RANKFALL_RECORD_DIR") or os.path.join(self.path, "records")
        try:
            private_files.make_folders(self.records)
        except OSError:
            self.records = os.path.join(self.path, "records")
            private_files.make_folders(self.records)
        self.place: dict[str, Any] = dict(records.place(environ), instance=instance, boot_id=procfs.boot_id())
        self._oom_path = procfs.oom_counter_path()
        self._oom_start = procfs.oom_kills(self._oom_path)
        self._kills = private_files.open_file(
            os.path.join(self.path, "kills.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        self.unwritten = 0
        self._reserve = records.Reserve(self.path, 0)

    def reserve(self, count: int) -> None:
        """Preallocates space for ``count`` records in case the disk fills up."""
        self._reserve = records.Reserve(self.path, min(count, _MOST_RESERVED))

    def _take_lock(self) -> int:
        fd = private_files.open_file(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some shared file systems have no flock; the supervisor starts each slot once anyway.
            if error.errno in (errno.EAGAIN, errno.EACCES):
                os.close(fd)
                raise SlotBusyError(self.path) from error
        os.ftruncate(fd, 0)
        pid = os.getpid()
        os.write(fd, f"{pid} {procfs.start_ticks(pid) or 0} {procfs.boot_id() or '-'}\n".encode("ascii"))
        return fd

    def _clear(self) -> None:
        """Removes claims and pipes of an earlier container, because an emptyDir outlives it."""
        for name in FOLDERS:
            folder = os.path.join(self.path, name)
            for entry in os.listdir(folder):
                os.unlink(os.path.join(folder, entry))
        try:
            os.unlink(os.path.join(self.path, "end.json"))
        except OSError:
            pass

    def control(self) -> int:
        """Opens ``ctl`` for reading, also as a writer so that it never ends."""
        path = os.path.join(self.path, "ctl")
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def notices(self) -> int:
        """Opens ``notify`` for reading."""
        path = os.path.join(self.path, "notify")
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def oom_kills(self) -> int | None:
        """Returns OOM kills of the cgroup since the start; None if unreadable."""
        now = procfs.oom_kills(self._oom_path)
        return None if now is None or self._oom_start is None else now - self._oom_start

    def write(self, kind: str, fields: Mapping[str, Any], sync: bool, first: bool = False) -> None:  # noqa: FBT001, FBT002 - passed on as a callback
        """Writes a record to the log channel (``first`` = before queued lines), then as a file.

        ``unwritten`` counts failures of both.
        """
        record = self._new(kind, fields)
        delivered = self._tell(record, first=first)
        stored = self._store(record, sync=sync)
        if not delivered and not stored:
            self.unwritten += 1

    def _store(self, record: dict[str, Any], *, sync: bool) -> bool:
        return records.write(record, self.records, sync=sync) or self._reserve.store(record, self.records)

    def _new(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        return records.new(kind, writer="wrapper", fields=dict(self.place, **fields))

    def _tell(self, record: dict[str, Any], *, first: bool = False) -> bool:
        return self.channel is not None and self.channel.send(record, first=first)

    def tell(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Sends a short-lived record to the log channel only."""
        if self.channel is not None and self.channel.active:
            self._tell(records.new(kind, writer="wrapper", fields=fields))

    def write_heartbeat(self, _kind: str, fields: Mapping[str, Any]) -> None:
        """Replaces a rank's file in ``heartbeats``, for a supervisor on another machine that shares only files."""
        folder = os.path.join(self.path, "heartbeats")
        path = os.path.join(folder, "{}.json".format(fields.get("ordinal")))
        found = {name: fields.get(name) for name in ("step", "phase", "cpu_s")}
        try:
            private_files.make_folders(folder)
            private_files.replace_file(path, records.dumps(dict(found, at_ns=time.time_ns())).encode("ascii"))
        except OSError:
            pass  # the next one follows soon

    def pass_on(self, record: dict[str, Any], *, stored: bool) -> None:
        """Sends a hook's record to the log channel, and to the folder if not stored."""
        reported = self._tell(record)
        if not stored and not self._store(record, sync=False) and not reported:
            self.unwritten += 1

    def mark_kill(self, pid: int, signum: int, reason: str, fields: Mapping[str, Any]) -> None:
        """Records the wrapper's own signal before it is sent."""
        mark = {"pid": pid, "signal": int(signum), "reason": reason, "at_ns": time.time_ns()}
        try:
            os.write(self._kills, records.dumps(mark).encode("ascii") + b"\n")
        except OSError:
            pass  # the record has it
        named = dict(fields, pid=pid, exit={"signal": int(signum), "how": "sent", "ours": True, "reason": reason})
        self.write("kill", named, False)

    def finish(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Writes the ``slot_end`` record and ``end.json``; returns the record."""
        record = self._new("slot_end", fields)
        reported = self._tell(record)
        if not self._store(record, sync=True) and not reported:
            self.unwritten += 1
        try:
            private_files.replace_file(os.path.join(self.path, "end.json"), records.encode(record) + b"\n", sync=True)
        except OSError:
            pass  # the record has it
        self._reserve.close()
        return record
