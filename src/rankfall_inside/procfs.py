"""Reads process data from /proc and the OOM counter of the cgroup; unreadable values are None.

Many kernels lack ``/proc/PID/task/TID/children``. Pid plus start time identifies a process.
"""

from __future__ import annotations

import os

from rankfall_inside import untrusted

_MAX_ENVIRON = 1 << 20
_MAX_CMDLINE = 1 << 16
_CGROUPS = "/sys/fs/cgroup"
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Stat:
    """Line of ``/proc/PID/stat``; ``start`` in ticks since boot, ``cpu_s`` in seconds, ``exit_status`` of wait(2)."""

    __slots__ = ("comm", "cpu_s", "exit_status", "pid", "ppid", "start", "state")

    def __init__(
        self, *, pid: int, comm: str, state: str, ppid: int, cpu_s: float, start: int, exit_status: int
    ) -> None:
        self.pid = pid
        self.comm = comm
        self.state = state
        self.ppid = ppid
        self.cpu_s = cpu_s
        self.start = start
        self.exit_status = exit_status


def at_once(path: str, flags: int) -> int:
    """Opens without waiting for a pipe's other end; usable as ``opener``."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def read_bounded(path: str, limit: int) -> bytes | None:
    """Returns the first ``limit`` bytes of a file, or None if unreadable."""
    try:
        fd = at_once(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        while limit > 0:
            part = os.read(fd, min(limit, 1 << 16))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


# foreign-text: numbers that the kernel writes
def _parse(data: bytes | None, pid: int) -> Stat | None:
    if not data:
        return None
    # The name may contain spaces and parentheses.
    left, right = data.find(b"("), data.rfind(b")")
    fields = data[right + 2 :].split()
    try:
        return Stat(
            pid=pid,
            comm=data[left + 1 : right].decode("utf-8", "replace"),
            state=fields[0].decode("ascii"),
            ppid=int(fields[1]),
            cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
            start=int(fields[19]),
            exit_status=int(fields[49]),
        )
    except (IndexError, ValueError):
        return None


def stat(pid: int) -> Stat | None:
    """Returns the state of ``pid``, also of a zombie; None if gone."""
    return _parse(read_bounded(f"/proc/{pid}/stat", 4096), pid)


def start_ticks(pid: int) -> int | None:
    """Returns the start time of ``pid`` in ticks since boot; None if it does not exist."""
    found = stat(pid)
    return None if found is None else found.start


def snapshot() -> dict[int, Stat]:
    """Returns all visible processes by pid."""
    found: dict[int, Stat] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        pid = untrusted.whole(name)
        if pid is not None:
            one = stat(pid)
            if one is not None:
                found[one.pid] = one
    return found


def descendants(root: int, processes: dict[int, Stat] | None = None) -> list[Stat]:
    """Returns all processes below ``root``, parents before children."""
    table = snapshot() if processes is None else processes
    children: dict[int, list[Stat]] = {}
    for one in table.values():
        children.setdefault(one.ppid, []).append(one)
    found: list[Stat] = []
    seen: set[int] = {root}
    queue = [root]
    while queue:
        for one in children.get(queue.pop(0), ()):
            if one.pid not in seen:
                seen.add(one.pid)
                found.append(one)
                queue.append(one.pid)
    return found


def environ(pid: int) -> dict[str, str] | None:
    """Returns the environment at the start of ``pid``, or None if unreadable."""
    data = read_bounded(f"/proc/{pid}/environ", _MAX_ENVIRON)
    if data is None:
        return None
    found: dict[str, str] = {}
    for item in data.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals:
            found[os.fsdecode(name)] = os.fsdecode(value)
    return found


def cmdline(pid: int) -> tuple[str, ...]:
    """Returns the command line; empty for kernel threads, zombies and if unreadable."""
    data = read_bounded(f"/proc/{pid}/cmdline", _MAX_CMDLINE) or b""
    return tuple(os.fsdecode(word) for word in data.split(b"\0")[:-1])


# foreign-text: a mask that the kernel writes
def catches(pid: int, signum: int) -> bool:
    """Returns True if ``pid`` handles ``signum`` (SigCgt)."""
    for line in (read_bounded(f"/proc/{pid}/status", 1 << 14) or b"").splitlines():
        if line.startswith(b"SigCgt:"):
            try:
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
            except (IndexError, ValueError):
                return False
    return False


def boot_id() -> str | None:
    """Returns the kernel's boot id, or None."""
    data = read_bounded("/proc/sys/kernel/random/boot_id", 64)
    return data.decode("ascii", "replace").strip() or None if data else None


def threads(pid: int) -> list[dict[str, str]]:
    """Returns ``tid``, ``comm``, ``state``, ``cpu_s``, ``wchan``, ``syscall`` of at most 256 threads, as text."""
    try:
        names = sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:256]
    except (OSError, ValueError):
        return []
    found = []
    for name in names:
        base = f"/proc/{pid}/task/{name}/"
        # foreign-text: a name in /proc, which sorted() has read as a number
        one = _parse(read_bounded(base + "stat", 4096), int(name))
        if one is None:
            continue
        wchan = (read_bounded(base + "wchan", 128) or b"").decode("ascii", "replace").strip()
        syscall = (read_bounded(base + "syscall", 256) or b"").decode("ascii", "replace").strip()
        found.append(
            {
                "tid": name,
                "comm": one.comm,
                "state": one.state,
                "cpu_s": f"{one.cpu_s:.2f}",
                "wchan": wchan,
                "syscall": syscall,
            }
        )
    return found


def oom_counter_path() -> str | None:
    """Returns the file with this cgroup's OOM counter: ``memory.events`` (v2), ``memory.oom_control`` (v1), or None."""
    paths = {}
    for line in (read_bounded("/proc/self/cgroup", 1 << 14) or b"").decode("utf-8", "replace").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths["v1"] = path
        elif number == "0" and not controllers:
            paths["v2"] = path
    for version, base, name in (
        ("v1", _CGROUPS + "/memory", "memory.oom_control"),
        ("v2", _CGROUPS, "memory.events"),
        ("v2", _CGROUPS + "/unified", "memory.events"),
    ):
        if version in paths:
            # A container may show the host's path.
            for candidate in (base + paths[version].rstrip("/") + "/" + name, base + "/" + name):
                if oom_kills(candidate) is not None:
                    return candidate
    return None


def oom_kills(path: str | None) -> int | None:
    """Returns the number of OOM kills in the counter's file; None if unreadable, never 0 then."""
    if path is None or not os.path.isabs(path):
        return None
    for line in (read_bounded(path, 1 << 14) or b"").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == b"oom_kill":  # noqa: PLR2004 - name and value
            return untrusted.whole(words[1])
    return None
