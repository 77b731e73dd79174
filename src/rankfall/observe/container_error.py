"""Flyte's ``ContainerError``: the one ``error.pb`` of old, and the many ``error-<id>.pb`` of distributed tasks.

Fields by number (flyteidl ``core/errors.proto``): code 1, message 2, kind 3, origin 4, timestamp 5, worker 6; the last two are missing in what
older and again the newest workers write. Where Flyte's own reader went wrong (errors.md section 1) this one differs: without a time a record is
never the earliest, an unreadable one is named and the others are used, and its worker is shown but names no rank.

Cost: time linear in the bytes of the file, of which at most ``MAX_FILE`` are read; memory a few times that.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rankfall.model import Evidence
from rankfall.model.patterns import bounded, linear
from rankfall.observe import wire
from rankfall.observe.classify import exception_meaning
from rankfall.observe.text import digest
from rankfall.observe.tracebacks import find_tracebacks
from rankfall.signatures.catalogue import Catalogue

MAX_FILE: Final = 4 << 20
_NAME: Final = bounded(r"error(?:[-_][\w.-]{1,200})?\.pb", limit=255)
# The words in a record that flytekit writes: traceback, then "Message:", then the exception once more.
_MESSAGE: Final = linear(r"(?m)^[ \t]*(?:Message|Error Message):[ \t\r]*$")
_CLOSING: Final = ("user error.", "system error.")
_CLOSING_HEAD: Final = "system error!"
_TYPE: Final = bounded(r"[A-Za-z_][\w.]{0,200}", limit=201)
# Text of an exception without a traceback, characters.
_MAX_TEXT: Final = 16 << 10
_ORIGINS: Final = ("unknown", "user", "system")
_RECOVERABLE: Final = 1
_NS: Final = 1_000_000_000
_MAX_SECONDS: Final = 1 << 33
# Whose clock it was is not known, and torchelastic's stamps, which elastic workers pass on, are whole seconds.
_UNCERTAIN_S: Final = 1.0
_MAX_WORKER: Final = 253


class ContainerError(msgspec.Struct, frozen=True, kw_only=True):
    """One error of one worker.

    Attributes:
        code: Flyte's word for the kind of error, such as ``USER:ValueError``.
        recoverable: whether the worker wants it to be tried again.
        origin: ``user``, ``system`` or ``unknown``; a number of a newer writer is ``unknown``.
        at: nanoseconds since the epoch; None where no time was written, or 1970.
        worker: name of the pod; "" where none was written.
    """

    code: str = ""
    message: str = ""
    recoverable: bool = False
    origin: str = "unknown"
    at: int | None = None
    worker: str = ""


def is_container_error(name: str) -> bool:
    """Whether a file of this name is one of Flyte's error files."""
    return _NAME.fullmatch(name) is not None


def read_container_error(data: bytes) -> ContainerError:
    """The error of an ``ErrorDocument``.

    Raises:
        wire.Malformed: it is none, or holds no error.
    """
    error = None
    for number, value in wire.fields(data):
        if number == 1:
            error = wire.bytes_of(value)
    if error is None:
        raise wire.Malformed("it holds no error")
    code = message = worker = ""
    kind = origin = 0
    at = None
    for number, value in wire.fields(error):
        if number == 1:
            code = _text(value)
        elif number == 2:  # noqa: PLR2004 - numbers of fields
            message = _text(value)
        elif number == 3:  # noqa: PLR2004
            kind = wire.number_of(value)
        elif number == 4:  # noqa: PLR2004
            origin = wire.number_of(value)
        elif number == 5:  # noqa: PLR2004
            at = _time(wire.bytes_of(value))
        elif number == 6:  # noqa: PLR2004
            worker = _text(value)[:_MAX_WORKER]
    if not code and not message:
        raise wire.Malformed("its error has neither code nor message")
    said = _ORIGINS[origin] if 0 <= origin < len(_ORIGINS) else "unknown"
    return ContainerError(
        code=code, message=message, recoverable=kind == _RECOVERABLE, origin=said, at=at, worker=worker
    )


def container_error_evidence(data: bytes, *, name: str, catalogue: Catalogue) -> Evidence | str:
    """Evidence of one file, or what is wrong with it in words.

    Args:
        data: the file, at most ``MAX_FILE`` bytes of it and one more when it is larger.
        name: path for people.
        catalogue: the signatures in force.
    """
    if not data:
        return f"{name} is empty"
    if len(data) > MAX_FILE:
        return f"{name} is larger than {MAX_FILE} bytes and was not used"
    try:
        error = read_container_error(data)
    except wire.Malformed as problem:
        return f"{name} is damaged: {problem}"
    chain, frame = _chain(error)
    # Flyte marks every exception that is not the user's own as recoverable: only with the user as its origin is that somebody's word.
    mark: Literal["retryable"] | None = "retryable" if error.recoverable and error.origin == "user" else None
    meaning = exception_meaning(catalogue, chain, frame=frame, mark=mark)
    identity = digest("container_error", error.code, error.message, error.worker, error.at)
    return Evidence(
        id=identity,
        source="record",
        slug=meaning.slug,
        role=meaning.role,
        trust="job",
        pod=error.worker or None,
        at=error.at,
        uncertainty=_UNCERTAIN_S if error.at is not None else None,
        # Names of files are random: what they say, and never what they are called, puts two of them in order.
        stream=f"worker {error.worker} {identity}",
        where=name,
        line=meaning.text[:2000],
        signature=meaning.signature,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
        peer_hosts=meaning.hosts,
        mark=mark,
        gpu=meaning.gpu,
    )


def _chain(error: ContainerError) -> tuple[list[tuple[str, str]], str]:
    """The exceptions of the message, the raised one first, and the top frame of the user's code."""
    chain: list[tuple[str, str]] = []
    frame = ""
    for item in find_tracebacks(error.message.encode("utf-8", "replace") + b"\n"):
        chain, frame = list(item.chain), item.frame
    if chain:
        return chain, frame
    mark = _MESSAGE.search(error.message)
    text = (_without_closing(error.message[mark.end() :] if mark else error.message) or error.message.strip())[
        :_MAX_TEXT
    ]
    kind, colon, words = text.partition(": ")
    if colon and _TYPE.fullmatch(kind.strip()):
        return [(kind.strip(), words)], ""
    named = error.code.rpartition(":")[2]
    return [(named if _TYPE.fullmatch(named) else "Exception", text)], ""


def _without_closing(text: str) -> str:
    """The message without the line that flytekit ends it with."""
    before, newline, last = text.strip().rpartition("\n")
    last = last.strip().lower()
    return before.strip() if newline and (last in _CLOSING or last.startswith(_CLOSING_HEAD)) else text.strip()


def _text(value: int | bytes) -> str:
    return wire.bytes_of(value).decode("utf-8", "replace")


def _time(data: bytes) -> int | None:
    """A protobuf Timestamp as nanoseconds; None for 1970, which is what a missing time reads as."""
    seconds = nanos = 0
    for number, value in wire.fields(data):
        if number == 1:
            seconds = wire.number_of(value)
        elif number == 2:  # noqa: PLR2004 - numbers of fields
            nanos = wire.number_of(value)
    if not 0 < seconds < _MAX_SECONDS or not 0 <= nanos < _NS:
        return None
    return seconds * _NS + nanos
