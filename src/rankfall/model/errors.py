"""Exceptions of Rankfall. Each message states the problem, the object and the next step.

RankfallError
+-- UsageError              flags, arguments, spec fields               exit 2
|   +-- SpecError           spec field
|   +-- Refused             unsupported by the backend
+-- NotFound                run, job, file                              exit 66
+-- InfrastructureError     failed start, unreachable platform          exit 69
+-- EvidenceLost            damaged or unwritable data                  exit 74
|   +-- StoreError          run directory
|   +-- LockHeld            another supervisor
|   +-- HeldElsewhere       another machine
+-- JobFailed               Outcome.raise_for_status()                  the rank's code
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final

# Next step where no further file can be opened.
MORE_FILES: Final = "raise the limit of open files, as with ulimit -n 1024"


def is_file_limit(error: BaseException | None) -> bool:
    """True if this process, or the machine, has as many open files as it may have."""
    return isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}


class RankfallError(Exception):
    """Base of all deliberate errors.

    Args:
        message: Problem and object.
        hint: Next step, on a separate line.

    Attributes:
        exit_code: Exit code of the command line.
        passing: True if a retry may succeed.
    """

    exit_code: ClassVar[int] = 74
    # True if a retry may succeed: a busy or silent server.
    passing: bool = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message

    @property
    def in_one_line(self) -> str:
        """Message and hint in one line."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(RankfallError):
    """Wrong flags or arguments."""

    exit_code = 2


class SpecError(UsageError):
    """A spec field is unknown, missing, contradictory or of the wrong type.

    Args:
        path: Path of the field, as ``$.policies.max_restarts``.
        message: Fault and allowed values.
        hint: Next step.
    """

    def __init__(self, path: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path


class Refused(UsageError):
    """The backend cannot do this; names field, backend, required version and alternative."""


class NotFound(RankfallError):
    """A run, job or file does not exist."""

    exit_code = 66


class InfrastructureError(RankfallError):
    """A slot did not start, or a platform or check failed."""

    exit_code = 69


class EvidenceLost(RankfallError):
    """Evidence, or its connection, is lost."""

    exit_code = 74


class StoreError(EvidenceLost):
    """The run directory cannot be read or written."""


class LockHeld(EvidenceLost):
    """Another process holds the run's writer lock."""


class HeldElsewhere(EvidenceLost):
    """The cluster run's supervisor uses another machine or directory copy."""


class JobFailed(RankfallError):
    """The job failed; only ``Outcome.raise_for_status()`` raises it.

    Args:
        message: Run, end and cause.
        code: Exit code of the rank that failed first.
        hint: Next step.
    """

    def __init__(self, message: str, *, code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
