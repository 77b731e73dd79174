"""Registry of diagnosis strategies that a job may choose by name.

Built in, registered by Python code of this process, or declared by installed packages (entry points of
group rankfall.strategies, loaded only when a job names one). Refuses unknown names before anything is
made, and names that are taken.
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
    """Make a strategy known to this process.

    A run that a process of its own supervises (``detach=True``, which is the default) does not have it: declare an entry point for that.

    Args:
        name: 1-40 lower-case letters, digits and dashes.
        pick: called with the case of an attempt that fell; gives the diagnosis, or None where it has nothing to choose from.

    Raises:
        UsageError: the name is not valid or is taken.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:_MAX_LISTED]!r} is no name of a strategy", hint="allowed: 1-40 lower-case letters, digits, dashes"
        )
    held = BUILT_IN.get(name) or _registered.get(name)
    if held is not None and held.pick is not pick:
        raise UsageError(f"there is a strategy {name!r} already", hint="register yours under another name")
    _registered[name] = Strategy(name=name, pick=pick)


def known_strategies() -> tuple[str, ...]:
    """All names that a job may choose, the built-in ones first; loads nothing."""
    others = {*_registered, *(point.name for point in _declared())}
    return (*BUILT_IN, *sorted(name for name in others - set(BUILT_IN) if _NAME.fullmatch(name)))


def find_strategy(name: str | None, *, field: str = FIELD, elsewhere: bool = False) -> Strategy:
    """The strategy of this name; ``causal`` for None.

    Args:
        name: as a job spec or a flag says it.
        field: where the name stands, for the refusal.
        elsewhere: another process will need it too, so one that only this process knows is refused.

    Raises:
        SpecError: nobody knows it, two packages declare it, or it cannot be loaded; names the field and the allowed values.
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
            f"{name!r} is registered in this process only, and the run's supervisor will be another one",
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
    """The diagnosis by the strategy of this name; by ``causal``, and the verdict says so, where this process does not have it.

    A run outlives the environment that it was submitted from, so nothing is refused here.
    """
    try:
        strategy = find_strategy(name)
    except RankfallError as error:
        problem = f"the answer of the run's strategy; causal answered: {error.message}"
        return diagnose(msgspec.structs.replace(case, missing=(problem, *case.missing)))
    return diagnose(case, strategy=strategy)


def _declared() -> Iterable[EntryPoint]:
    from importlib import metadata  # noqa: PLC0415 - most jobs choose none, and it loads much

    return metadata.entry_points(group=GROUP)


def _loaded(point: EntryPoint, field: str) -> Pick:
    try:
        found: object = point.load()
    except Exception as error:
        words = f"{type(error).__name__}: {error}"[:300]
        raise SpecError(field, f"strategy {point.name!r} ({point.value}) cannot be loaded: {words}") from error
    if not callable(found):
        raise SpecError(field, f"strategy {point.name!r} ({point.value}) is a {type(found).__name__} and no callable")
    pick: Pick = found
    return pick
