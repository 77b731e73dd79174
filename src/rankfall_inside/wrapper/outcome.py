"""How the slot ended: the first failure among its ranks, the end record's fields, the exit code.

An error counts only when its rank ended badly: threads and callers may have survived it. The earliest failure
decides even when its cause is uncertain, because a later certain one may be its consequence. All times are of
one machine's clock.
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

# A slot whose ranks are restarted for ever: the first ones are what is asked for.
_MAX_KEPT = 1024
# Threads may raise without end.
_MAX_ERRORS = 8


class _End:
    """How a rank, or the command, ended; ``ours`` when it was made to."""

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
        # By ordinal: the errors of a rank, in the order in which they came.
        self._errors: dict[int, list[dict[str, Any]]] = {}
        # By ordinal; -1 is the command itself.
        self._ends: dict[int, _End] = {}
        self._asked: int | None = None

    def error(self, record: Mapping[str, Any]) -> None:
        """Take in an error record of a hook: text of the job."""
        error, ordinal = record.get("error"), record.get("ordinal")
        if not isinstance(error, dict) or len(self._errors) >= _MAX_KEPT:
            return
        kept = dict(record, error={name: value for name, value in error.items() if name != "traceback"})
        found = self._errors.setdefault(ordinal if isinstance(ordinal, int) else -1, [])
        if len(found) < _MAX_ERRORS:
            found.append(kept)

    def ended(self, ordinal: int, *, code: int | None, signum: int | None, oom_kills: int | None, ours: bool) -> None:
        """Take in the end of a rank, or of the command itself (ordinal -1)."""
        if len(self._ends) < _MAX_KEPT:
            group = None if ours else exit_codes.of_exit(code=code, signum=signum, oom_kills=oom_kills)
            self._ends[ordinal] = _End(code=code, signum=signum, ours=ours, group=group)

    def asked(self) -> None:
        """Somebody outside told the whole slot to end; what falls from now on is no cause."""
        self._asked = self._asked or time.time_ns()

    def first_error(self) -> dict[str, Any] | None:
        """The error that was raised first, of those that ended their rank; None when there is none."""
        found = [record for ordinal in self._errors for record in self._counted(ordinal)]
        return min(found, key=raised, default=None)

    def _counted(self, ordinal: int) -> list[dict[str, Any]]:
        errors, end = self._errors.get(ordinal, []), self._ends.get(ordinal)
        return errors if end is None else [record for record in errors if _ended(record, end)]

    def code(self) -> int | None:
        """The exit code of the first fall's cause, or None when that is not sure."""
        falls: list[tuple[int, str | None]] = []
        if self._asked is not None:
            falls.append((self._asked, "control"))
        ranks = (set(self._ends) | set(self._errors)) - {-1}
        for ordinal in ranks or {-1}:
            end, errors = self._ends.get(ordinal), self._counted(ordinal)
            if errors:
                first = min(errors, key=raised)
                # The kernel's counter is proof, whatever the rank said of a worker that was killed.
                proven = end.group if end is not None and end.group == "memory" else None
                falls.append((raised(first), exit_codes.of_error(first["error"]) or proven))
            elif end is not None and end.bad and not end.ours:
                falls.append((end.at, end.group))
        group = min(falls, key=lambda fall: fall[0])[1] if falls else None
        return None if group is None else exit_codes.CODES[group]


def _ended(record: Mapping[str, Any], end: _End) -> bool:
    """Whether this error is what its rank ended with."""
    wanted = record["error"].get("exit_code")
    return end.code == wanted if isinstance(wanted, int) else end.bad


def raised(record: Mapping[str, Any]) -> int:
    """When an error was raised, in nanoseconds since the epoch; last of all when it does not say."""
    for at in (record["error"].get("raised_ns"), record.get("at_ns")):
        if isinstance(at, int):
            return at
    return 1 << 63


_MAX_NOTES = 20


def exit_info(commands: Commands, orders: Orders, *, refused: str) -> dict[str, Any]:
    """Fields of ``ExitInfo`` of the slot.

    Args:
        commands: what was started, and its status.
        orders: who asked for the end.
        refused: why nothing could be started; "" otherwise.
    """
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
    """The wrapper's exit code: the command's as a shell would say it, or the cause's.

    Args:
        commands: what was started, and its status.
        orders: who asked for the end.
        refused: why nothing could be started; "" otherwise.
        falls: knows the cause; None where the command's own code is wanted.
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
    """What is to be said of the end beside the exit.

    Args:
        gaps: what streams and copies of records have less than there was.
        left: processes that did not die.
        started: whether the command was.
        refused: why nothing could be started; "" otherwise.
        trouble: what the wrapper itself met; "" for nothing.
        unwritten: records that could not be written.
        unsent: records that found no room on the log channel.
    """
    found = gaps[:_MAX_NOTES] + [f"process {one.pid} ({one.comm}) did not die" for one in left[:_MAX_NOTES]]
    if not started:
        found.append(refused or "the command was not started: the slot was told to end before")
    if trouble:
        found.append(trouble)
    if unwritten:
        found.append(f"{unwritten} records could not be written")
    if unsent:
        found.append(f"{unsent} records found no room on the log channel")
    return found
