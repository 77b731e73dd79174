"""``logs --log-source``: what else may have a run's lines, taken into its record before that is shown.

Where that fails the record is shown as it is, and why is said: a person who asks for lines gets those that are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rankfall.cli import emit
from rankfall.model import FINAL_STATES, EvidenceLost, InfrastructureError, LockHeld, UsageError
from rankfall.store import RunDir

if TYPE_CHECKING:
    from rankfall.observe.loki.settings import LokiSettings
    from rankfall.supervise.loki_follow import LokiFollow

Attempt = int | Literal["all"] | None


class Beside:
    """What takes lines in beside a view, until nothing more comes.

    Args:
        follow: under way.
    """

    def __init__(self, follow: LokiFollow) -> None:
        self._follow = follow
        self.over = follow.over

    def stop(self) -> None:
        """Let go of the run; what ended it before is said."""
        _tried("Loki", self._follow.stop)


Taker = Callable[[RunDir, Attempt], Beside | None]


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
    if source == "store":
        if follow:
            raise UsageError(
                "--follow and --log-source store contradict each other",
                hint="what else there is, is taken in once; rankfall attach follows a run that goes on, its log store too",
            )
        return _from_store
    from rankfall.observe.loki.settings import loki_settings  # noqa: PLC0415 - only here

    settings = loki_settings(loki_url, os.environ)
    return lambda directory, attempt: (_beside if follow else _from_loki)(directory, settings, attempt)


def _beside(directory: RunDir, settings: LokiSettings, attempt: Attempt) -> Beside | None:
    """Follow a run that is not over; of one that is, what there is is taken in once."""
    from rankfall.supervise.loki_follow import LokiFollow  # noqa: PLC0415 - loads the supervisor

    with directory.reader() as reader:
        over = reader.run().state in FINAL_STATES
    if over:
        _from_loki(directory, settings, attempt)
        return None
    found: list[Beside] = []
    _tried(
        "Loki",
        lambda: found.append(Beside(LokiFollow(directory, settings, attempts=_wanted(directory, attempt), say=_say))),
    )
    if not found:
        return None
    _say("lines come from Loki, and the API is not asked: logs that begin so are not followed by rankfall attach later")
    return found[0]


def _from_loki(directory: RunDir, settings: LokiSettings, attempt: Attempt) -> None:
    from rankfall.supervise.from_loki import take_from_loki  # noqa: PLC0415 - loads the HTTP client

    _tried("Loki", lambda: take_from_loki(directory, settings, attempts=_wanted(directory, attempt), say=_say))


def _from_store(directory: RunDir, attempt: Attempt) -> None:
    from rankfall.supervise.from_store import take_from_store  # noqa: PLC0415 - loads the client of Kubernetes

    _tried("the log store", lambda: take_from_store(directory, attempts=_wanted(directory, attempt), say=_say))


def _tried(what: str, take: Callable[[], object]) -> None:
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
