"""Outcome of the slot: first failure of its ranks, end record, exit code.

The earliest failure decides even if uncertain: later ones may be consequences.
"""

from __future__ import annotations

import os
import signal
import time

from rankfall_inside import exit_codes
from rankfall_inside.wrapper import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping, Sequence

    from rankfall_inside.procfs import Stat
    from rankfall_inside.wrapper.commands import Commands
    from rankfall_inside.wrapper.control import Orders

# Bounds endlessly restarted ranks.
_MAX_KEPT = 1024
# Bounds endlessly failing threads.
_MAX_ERRORS = 8


class _End:
    """End of a rank or command; ``ours`` if Rankfall caused it."""

    __slots__ = ("at", "code", "group", "ours", "signum")

    def __init__(self, *, code: int | None, signum: int | None, ours: bool, group: str | None) -> None:
        self.at = time.time_ns()
        self.code = code
        self.signum = signum
        self.ours = ours
        self.group = group

    @property
    def bad(self) -> bool:
        return self.signum is not None or self.code != 0


class RankFailures:
    """Errors and ends of one slot's ranks."""

    def __init__(self) -> None:
        self._errors: dict[int, list[dict[str, Any]]] = {}
        # By ordinal; -1 for the command.
        self._ends: dict[int, _End] = {}
        self._asked: int | None = None

    def error(self, record: Mapping[str, Any]) -> None:
        """Stores an untrusted error record of a hook."""
        error, ordinal = record.get("error"), record.get("ordinal")
        if not isinstance(error, dict) or len(self._errors) >= _MAX_KEPT:
            return
        kept = dict(record, error={name: value for name, value in error.items() if name != "traceback"})
        found = self._errors.setdefault(ordinal if isinstance(ordinal, int) else -1, [])
        if len(found) < _MAX_ERRORS:
            found.append(kept)

    def ended(self, ordinal: int, *, code: int | None, signum: int | None, oom_kills: int | None, ours: bool) -> None:
        """Stores the end of a rank, or of the command (ordinal -1); ``ours``: Rankfall ended it."""
        if len(self._ends) < _MAX_KEPT:
            group = None if ours else exit_codes.of_exit(code=code, signum=signum, oom_kills=oom_kills)
            self._ends[ordinal] = _End(code=code, signum=signum, ours=ours, group=group)

    def asked(self) -> None:
        """Notes an outside request to end; later failures are no cause."""
        self._asked = self._asked or time.time_ns()

    def first_error(self) -> dict[str, Any] | None:
        """Returns the earliest error that ended its rank, or None."""
        found = [record for ordinal in self._errors for record in self._counted(ordinal)]
        return min(found, key=raised, default=None)

    def _counted(self, ordinal: int) -> list[dict[str, Any]]:
        errors, end = self._errors.get(ordinal, []), self._ends.get(ordinal)
        return errors if end is None else [record for record in errors if _ended(record, end)]

    def code(self) -> int | None:
        """Returns the exit code of the first failure's cause, or None if uncertain."""
        falls: list[tuple[int, str | None]] = []
        if self._asked is not None:
            falls.append((self._asked, "control"))
        ranks = (set(self._ends) | set(self._errors)) - {-1}
        for ordinal in ranks or {-1}:
            end, errors = self._ends.get(ordinal), self._counted(ordinal)
            if errors:
                first = min(errors, key=raised)
                # The kernel's counter proves it.
                proven = end.group if end is not None and end.group == "memory" else None
                falls.append((raised(first), exit_codes.of_error(first["error"]) or proven))
            elif end is not None and end.bad and not end.ours:
                falls.append((end.at, end.group))
        group = min(falls, key=lambda fall: fall[0])[1] if falls else None
        return None if group is None else exit_codes.CODES[group]


def _ended(record: Mapping[str, Any], end: _End) -> bool:
    """Returns True if this error ended its rank."""
    wanted = record["error"].get("exit_code")
    return end.code == wanted if isinstance(wanted, int) else end.bad


def raised(record: Mapping[str, Any]) -> int:
    """Returns an error's time in nanoseconds since the epoch; a value after all others if unknown."""
    for at in (record["error"].get("raised_ns"), record.get("at_ns")):
        if isinstance(at, int):
            return at
    return 1 << 63


_MAX_NOTES = 20


def exit_info(commands: Commands, orders: Orders, *, refused: str) -> dict[str, Any]:
    """Returns the slot's ``ExitInfo`` fields; ``refused`` is the reason for no start."""
    status, asked = commands.status, orders.asked
    how = "none" if not commands.started else "gone" if status is None else "wait"
    found: dict[str, Any] = dict(ranks.exit_fields(status), how=how)
    if refused:
        found.update(code=exit_codes.CODES["startup"], reason=refused)
    elif orders.stop_reason is not None:
        found.update(ours=True, reason=orders.stop_reason)
    elif asked is not None:
        found.update({name: asked[name] for name in ("sender_pid", "sender", "ours") if name in asked})
        found["reason"] = f"signal {asked['signal']} from outside"
    return found


def exit_code(commands: Commands, orders: Orders, *, refused: str, falls: RankFailures | None) -> int:
    """Returns the wrapper's exit code: the command's, as in a shell, or the cause's.

    ``falls`` None = the command's code; ``refused`` is the reason for no start, or "".
    """
    if refused:
        return exit_codes.CODES["startup"]
    if not commands.started:
        # foreign-text: a number that orders.py has checked
        return 128 + int(orders.asked["signal"] if orders.asked is not None else signal.SIGTERM)
    status = commands.status
    code = 128 + int(signal.SIGKILL)
    if status is not None:
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return (falls.code() or code) if code and falls is not None else code


def notes(
    gaps: list[str],
    *,
    left: Sequence[Stat],
    started: bool,
    refused: str,
    trouble: str,
    unwritten: int,
    unsent: int,
) -> list[str]:
    """Returns notes for the end record.

    ``gaps``: lost output; ``left``: processes that did not die; ``refused``: why the command did not start;
    ``trouble``: the wrapper's own error. ``unwritten`` and ``unsent`` count records.
    """
    found = gaps[:_MAX_NOTES] + [
        f"process {one.pid} ({one.comm}) did not exit after SIGKILL" for one in left[:_MAX_NOTES]
    ]
    if not started:
        found.append(refused or "the command was not started: the slot got a stop request before")
    if trouble:
        found.append(trouble)
    if unwritten:
        found.append(f"{unwritten} records could not be written")
    if unsent:
        found.append(f"{unsent} records did not fit on the log channel")
    return found
