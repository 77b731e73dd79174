"""Errors of Loki requests. No answer is never treated as an answer without lines."""

from __future__ import annotations

from rankfall.model import InfrastructureError


class LokiError(InfrastructureError):
    """Loki could not be asked, or its answer is no answer.

    Args:
        retry_after: seconds that the server wants to be left alone.
        passing: the same may succeed later: 429, 5xx, no answer.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after: float | None = None, passing: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after
        self.passing = passing


class LimitRefused(LokiError):  # noqa: N818 - reads as the answer that it is
    """The server gives fewer lines at once than were asked for.

    Args:
        most: as it said; None = it did not say.
    """

    def __init__(self, message: str, *, most: int | None) -> None:
        super().__init__(message)
        self.most = most
