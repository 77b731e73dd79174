"""The exception tree of Rankfall. Every message says what happened, to what, and what to do next.

RankfallError
+-- UsageError              wrong flags, arguments, spec fields                 exit 2
|   +-- SpecError           a spec field is unknown, missing, contradictory
|   +-- Refused             a backend cannot do what the spec asks
+-- NotFound                run, job, file does not exist                       exit 66
+-- InfrastructureError     a slot could not be started, budget spent           exit 69
+-- EvidenceLost            the record is damaged or cannot be written          exit 74
|   +-- StoreError          the run directory cannot be read or written
|   +-- LockHeld            another supervisor holds the run
|   +-- HeldElsewhere       its supervisor is on another machine
+-- JobFailed               raised by Outcome.raise_for_status()                the rank's own code
"""

from __future__ import annotations

from typing import ClassVar


class RankfallError(Exception):
    """Root of all errors that Rankfall raises on purpose.

    Args:
        message: what happened, and to what.
        hint: the next step for the user; shown on a line of its own.
    """

    exit_code: ClassVar[int] = 74
    # The same may succeed later without anybody doing anything: a server that does not answer, or is busy.
    passing: bool = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message

    @property
    def in_one_line(self) -> str:
        """What happened, and the next step where one is known."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(RankfallError):
    """Wrong flags or arguments."""

    exit_code = 2


class SpecError(UsageError):
    """A field of the job spec is unknown, missing, of the wrong type or contradicts another one.

    Args:
        path: where the field is, as ``$.policies.max_restarts``.
        message: what is wrong, with the allowed values.
    """

    def __init__(self, path: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path


class Refused(UsageError):  # noqa: N818 - a refusal is no error of the program
    """A backend cannot do what the spec asks; names field, backend, version needed and the alternative."""


class NotFound(RankfallError):  # noqa: N818 - reads as the answer that it is
    """A run, a job or a file does not exist."""

    exit_code = 66


class InfrastructureError(RankfallError):
    """A slot could not be started or a budget is spent."""

    exit_code = 69


class EvidenceLost(RankfallError):  # noqa: N818 - reads as the answer that it is
    """Evidence or the connection to it is lost."""

    exit_code = 74


class StoreError(EvidenceLost):
    """The run directory cannot be read or written."""


class LockHeld(EvidenceLost):
    """Another process holds the run's writer lock."""


class HeldElsewhere(EvidenceLost):
    """A run in a cluster has its supervisor on another machine, or in another copy of its directory."""


class JobFailed(RankfallError):  # noqa: N818 - the job failed, not Rankfall
    """The job ended without success; raised by ``Outcome.raise_for_status()`` only."""

    def __init__(self, message: str, *, code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
