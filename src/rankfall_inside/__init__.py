"""What travels into the training process. Standard library only, Python >= 3.8.

``from rankfall_inside import progress`` (or ``rankfall.inside`` where Rankfall is installed) is all that a script needs; names are loaded
when they are first used, because every Python of a job imports this package.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rankfall_inside.api import Final as Final
    from rankfall_inside.api import Retryable as Retryable
    from rankfall_inside.api import progress as progress
    from rankfall_inside.api import record as record

__all__ = ["Final", "Retryable", "progress", "record"]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'rankfall_inside' has no attribute {name!r}")
    from rankfall_inside import api

    value = globals()[name] = getattr(api, name)
    return value
