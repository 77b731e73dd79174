"""Registry of strategies: built in, registered in this process, or declared as entry points.

Entry points (group rankfall.strategies) load only when a job names one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from rankfall.model import Case, Diagnosis, RankfallError, SpecError, UsageError
from rankfall.model.patterns import anchored
from rankfall.verdict.diagnose import BUILT_IN, CAUSAL, Pick, Strategy, diagnose

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "rankfall.strategies"
FIELD: Final = "$.strategy"
_NAME: Final = anchored(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", limit=256)
_MAX_LISTED: Final = 60

_registered: dict[str, Strategy] = {}


def register_strategy(name: str, pick: Pick) -> None:
    """Registers a strategy in this process.

    A detached supervisor (the default) needs an entry point instead.

    Args:
        name: 1-40 lower-case letters, digits and dashes.
        pick: Function from a failed attempt's case to a diagnosis or None.

    Raises:
        UsageError: The name is invalid or belongs to another strategy, or ``pick`` is no function.
    """
    if not callable(pick):
        raise UsageError(f"pick is a {type(pick).__name__}, not a function", hint="pass a function of a case")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:_MAX_LISTED]!r} is not a name of a strategy",
            hint="allowed: 1-40 lower-case letters, digits, dashes",
        )
    held = BUILT_IN.get(name) or _registered.get(name)
    if held is not None and held.pick is not pick:
        raise UsageError(f"there is a strategy {name!r} already", hint="register yours under another name")
    _registered[name] = Strategy(name=name, pick=pick)


def known_strategies() -> tuple[str, ...]:
    """Returns all names that a job may choose, built-in first; loads nothing."""
    others = {*_registered, *(point.name for point in _declared())}
    return (*BUILT_IN, *sorted(name for name in others - set(BUILT_IN) if _NAME.fullmatch(name)))


def find_strategy(name: str | None, *, field: str = FIELD, elsewhere: bool = False) -> Strategy:
    """Returns the strategy with this name; ``causal`` for None.

    Args:
        name: From a job spec or flag.
        field: Field or flag in error messages.
        elsewhere: Another process needs the strategy; refuses one registered only in this process.

    Raises:
        SpecError: Unknown, declared by two packages, or not loadable.
    """
    if name is None:
        return CAUSAL
    held = BUILT_IN.get(name)
    if held is not None:
        return held
    if name in _registered and not elsewhere:
        return _registered[name]
    points = [point for point in _declared() if point.name == name]
    if not points and name in _registered:
        raise SpecError(
            field,
            f"{name!r} is registered in this process only, but the run's supervisor is another process",
            hint=f"submit with detach=False, or declare it as an entry point of {GROUP}",
        )
    if not points or not _NAME.fullmatch(name):
        raise SpecError(
            field, f"there is no strategy {name[:_MAX_LISTED]!r}", hint=f"allowed: {', '.join(known_strategies())}"
        )
    if len({point.value for point in points}) > 1:
        raise SpecError(
            field, f"{len(points)} installed packages declare {name!r}", hint="uninstall all but one of them"
        )
    return Strategy(name=name, pick=_loaded(points[0], field))


def diagnose_by(name: str | None, case: Case) -> Diagnosis:
    """Diagnoses by the named strategy; if unavailable, by ``causal`` with a note in the verdict.

    A run may outlive its environment, so nothing is refused.
    """
    try:
        strategy = find_strategy(name)
    except RankfallError as error:
        problem = f"the answer of the run's strategy; the strategy causal was used: {error.message}"
        return diagnose(msgspec.structs.replace(case, missing=(problem, *case.missing)))
    return diagnose(case, strategy=strategy)


def _declared() -> Iterable[EntryPoint]:
    from importlib import metadata  # noqa: PLC0415

    return metadata.entry_points(group=GROUP)


def _loaded(point: EntryPoint, field: str) -> Pick:
    try:
        found: object = point.load()
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:300]
        raise SpecError(field, f"strategy {point.name!r} ({point.value}) cannot be loaded: {words}") from error
    if not callable(found):
        raise SpecError(field, f"strategy {point.name!r} ({point.value}) is a {type(found).__name__} and not callable")
    pick: Pick = found
    return pick
