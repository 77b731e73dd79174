"""The part of Rankfall that travels into training processes. Standard library only, Python >= 3.8.

``from rankfall_inside import progress`` (or ``rankfall.inside`` where Rankfall is installed) is all that a
script needs. Public names are loaded when they are first used, because every Python process of a job imports
this package.
`hook` runs in ranks, `wrapper` beside them, `delivery` takes records and logs out of the slot, `transfer`
copies files.
Modules directly below are shared by these, or are names that others depend on: ``__main__``, ``api``,
``sitecustomize``.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rankfall_inside.api import Final, Retryable, progress, record

__all__ = ["Final", "Retryable", "progress", "record"]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'rankfall_inside' has no attribute {name!r}")
    from rankfall_inside import api

    value = globals()[name] = getattr(api, name)
    return value
