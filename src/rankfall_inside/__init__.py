"""Part of Rankfall that runs in training processes; standard library only, Python >= 3.8.

Names load on first use, because every Python of a job imports this.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rankfall_inside.api import Final, Retryable, progress, record

__all__ = ["Final", "Retryable", "progress", "record"]


def __getattr__(name: str) -> object:
    """Loads a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'rankfall_inside' has no attribute {name!r}")
    from rankfall_inside import api

    value = globals()[name] = getattr(api, name)
    return value
