"""torchelastic's own ``error.json``: read with care, because empty, truncated, list-shaped and mistyped ones are common (errors.md 2.2).

Its time is whole seconds; a missing or zero one is unknown, never earliest.

Cost: time linear in the bytes of a file, of which at most ``MAX_FILE`` are read; memory at most thirty times that, as JSON of small containers
takes.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from rankfall.model import Evidence, decoding, numbers
from rankfall.observe.classify import exception_meaning
from rankfall.observe.text import digest
from rankfall.observe.tracebacks import find_tracebacks
from rankfall.signatures.catalogue import Catalogue

MAX_FILE: Final = 1 << 20
_NS: Final = 1_000_000_000


def error_file_evidence(data: bytes, *, name: str, stream: str, catalogue: Catalogue) -> Evidence | str:
    """Evidence of one file, or what is wrong with it in words.

    Args:
        data: the file, at most ``MAX_FILE`` bytes of it and one more when it is larger.
        name: path for people.
        stream: speaker it belongs to.
        catalogue: the signatures in force.
    """
    if not data.strip():
        return f"{name} is empty"
    if len(data) > MAX_FILE:
        return f"{name} is larger than {MAX_FILE} bytes and was not used"
    try:
        document = decoding.decode(data)
    except msgspec.DecodeError:
        return f"{name} is damaged: not JSON"
    if not isinstance(document, dict) or "message" not in document:
        return f"{name} is no error record: it has no message"
    message = document["message"]
    text, stack, stamp = _fields(message, document)
    if text is None:
        return f"{name} is no error record: its message is neither text nor an object with one"
    chain: list[tuple[str, str]] = []
    frame = ""
    for item in find_tracebacks(stack.encode("utf-8", "replace") + b"\n"):
        chain, frame = list(item.chain), item.frame
    if not chain:
        kind, _, words = text.partition(": ")
        chain = [(kind, words)] if kind.replace(".", "").isidentifier() else [("Exception", text)]
    meaning = exception_meaning(catalogue, chain, frame=frame)
    seconds = _seconds(stamp)
    return Evidence(
        id=digest("elastic", name, text),
        source="record",
        slug=meaning.slug,
        role=meaning.role,
        trust="job",
        at=seconds * _NS if seconds else None,
        uncertainty=1.0 if seconds else None,
        stream=stream,
        where=name,
        line=meaning.text[:2000],
        signature=meaning.signature,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
    )


def _fields(message: Any, document: dict[str, Any]) -> tuple[str | None, str, Any]:
    if isinstance(message, str):
        return message, "", document.get("timestamp")
    if not isinstance(message, dict):
        return None, "", None
    text = message.get("message")
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    stack = extra.get("py_callstack")
    stamp = extra.get("timestamp", message.get("timestamp"))
    return (text if isinstance(text, str) else None), (stack if isinstance(stack, str) else ""), stamp


def _seconds(stamp: Any) -> int | None:
    value = stamp if isinstance(stamp, int | float) else numbers.real(stamp) if isinstance(stamp, str) else None
    return math.floor(value) if value is not None and 1 <= value < 1 << 33 else None
