"""Fields of the API's objects as they may be: there, missing, or of a type that nobody expects. Pure.

Other controllers and other versions write these objects, and hands of people. So a part that is missing or of a wrong type is unknown, never an
error, and every text is bounded: messages of containers and conditions come from jobs and from strangers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rankfall.model import numbers

# Characters kept of a name, a reason, a stamp; and of a message.
MAX_WORD: Final = 256
MAX_TEXT: Final = 4096
# Not a number of the API: it has no index, code or count that is larger.
MOST: Final = 1 << 31


def mapping(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A field that holds an object; empty where it does not."""
    value = data.get(field)
    return value if isinstance(value, Mapping) else {}


def mappings(data: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    """A field that holds a list of objects: those of its items that are objects."""
    value = data.get(field)
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def word(value: Any, most: int = MAX_WORD) -> str | None:
    """The first ``most`` characters of a text; None where it is empty or none."""
    return value[:most] if isinstance(value, str) and value else None


def text(value: Any) -> str | None:
    """A message, bounded."""
    return word(value, MAX_TEXT)


def number(value: Any) -> int | None:
    """A whole number from 0, as a number or in digits (labels are texts); None where it is neither."""
    if isinstance(value, str):
        value = numbers.whole(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST else None


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of this type in an object's status; empty where there is none."""
    return next((one for one in mappings(mapping(item, "status"), "conditions") if one.get("type") == kind), {})
