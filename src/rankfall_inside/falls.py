"""What the wrapper has learnt about how its ranks fell: which error came first, and which exit code says the cause.

An error counts only when its rank ended badly: threads and callers may have survived it. The earliest fall decides, whatever it is: when its
cause is not sure, a later one that is sure may well be its consequence. Times are of one machine's clock, so they may be compared.
"""

from __future__ import annotations

import time

from rankfall_inside import causes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

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


class Falls:
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
            group = None if ours else causes.of_exit(code=code, signum=signum, oom_kills=oom_kills)
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
                falls.append((raised(first), causes.of_error(first["error"]) or proven))
            elif end is not None and end.bad and not end.ours:
                falls.append((end.at, end.group))
        group = min(falls, key=lambda fall: fall[0])[1] if falls else None
        return None if group is None else causes.CODES[group]


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
