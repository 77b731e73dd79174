"""JSON for records without ``import json``: that import costs a rank several milliseconds of its start.

Writes only; knows None, bool, int, float, str, list, tuple and dict with string keys, and refuses everything else. Text comes out as
ASCII; lone surrogates, which strict readers refuse, become their backslash escapes as text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _pure_quote(text: str) -> str:
    from json.encoder import py_encode_basestring_ascii

    return str(py_encode_basestring_ascii(text))


try:
    from _json import encode_basestring_ascii as _quote
except ImportError:  # an interpreter without the accelerator
    _quote = _pure_quote


def clean(text: str) -> str:
    """``text`` without lone surrogates: each becomes the six characters of its escape."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text


def dumps(value: Any) -> str:
    """JSON text of ``value``, ASCII only.

    Raises:
        TypeError: a type that JSON of records does not have.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return str(_quote(clean(str.__str__(value))))
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        # NaN and the infinities are no JSON.
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, dict):
        return "{" + ",".join(_quote(clean(str(key))) + ":" + dumps(item) for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([dumps(item) for item in value]) + "]"
    raise TypeError(f"records hold no {type(value).__name__}")
