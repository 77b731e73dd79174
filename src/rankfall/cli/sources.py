"""``logs --log-source``: what else may have a run's lines, taken into its record before that is shown.

Where that fails the record is shown as it is, and why is said: a person who asks for lines gets those that are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rankfall.cli import emit
from rankfall.model import EvidenceLost, InfrastructureError, LockHeld, UsageError
from rankfall.store import RunDir

if TYPE_CHECKING:
    from rankfall.observe.loki.settings import LokiSettings

Attempt = int | Literal["all"] | None
Taker = Callable[[RunDir, Attempt], None]


def taker(source: str, *, loki_url: str | None, follow: bool) -> Taker | None:
    """What takes lines in; None where only the record is wanted.

    Args:
        source: ``record``, ``loki`` or ``store``.
        loki_url: of the flag.
        follow: lines are followed.

    Raises:
        UsageError: flags that contradict each other, or settings of a wrong form.
    """
    if loki_url is not None and source != "loki":
        raise UsageError("--loki-url says nothing without --log-source loki", hint="give both, or neither")
    if source == "record":
        return None
    if follow:
        raise UsageError(
            f"--follow and --log-source {source} contradict each other",
            hint="what else there is, is taken in once; rankfall attach follows a run that goes on, its log store too",
        )
    if source == "store":
        return _from_store
    from rankfall.observe.loki.settings import loki_settings  # noqa: PLC0415 - only here

    settings = loki_settings(loki_url, os.environ)
    return lambda directory, attempt: _from_loki(directory, settings, attempt)


def _from_loki(directory: RunDir, settings: LokiSettings, attempt: Attempt) -> None:
    from rankfall.supervise.from_loki import take_from_loki  # noqa: PLC0415 - loads the HTTP client

    _tried("Loki", lambda: take_from_loki(directory, settings, attempts=_wanted(directory, attempt), say=_say))


def _from_store(directory: RunDir, attempt: Attempt) -> None:
    from rankfall.supervise.from_store import take_from_store  # noqa: PLC0415 - loads the client of Kubernetes

    _tried("the log store", lambda: take_from_store(directory, attempts=_wanted(directory, attempt), say=_say))


def _tried(what: str, take: Callable[[], int]) -> None:
    try:
        take()
    except LockHeld:
        _say(f"{what} is not asked: somebody records the run now, and takes its lines in")
    except (EvidenceLost, InfrastructureError) as error:
        _say(f"{what} could not be asked for all; what is shown may lack lines: {error.message}")


def _wanted(directory: RunDir, attempt: Attempt) -> frozenset[int] | None:
    if attempt is None:
        with directory.reader() as reader:
            attempt = reader.newest_attempt()
    return frozenset({attempt}) if isinstance(attempt, int) else None


def _say(text: str) -> None:
    emit.say(f"rankfall: {text}")
