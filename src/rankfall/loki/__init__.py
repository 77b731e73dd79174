"""Loki client that yields each line once.

Independent of runs and nodes. Imports model and HTTP parts of kube (sessions, tls, files, retry, secret, errors).

A failed query never counts as empty.
"""

from __future__ import annotations

from rankfall.model import InfrastructureError


class LokiError(InfrastructureError):
    """The request to Loki failed, or the answer is invalid.

    Args:
        retry_after: Seconds, as the server requests.
        passing: True if a retry may help: 429, 5xx, no answer.
    """

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after: float | None = None, passing: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after
        self.passing = passing


class LimitRefused(LokiError):
    """The server returns fewer lines than requested; ``most`` is its limit, if named."""

    def __init__(self, message: str, *, most: int | None) -> None:
        super().__init__(message)
        self.most = most
