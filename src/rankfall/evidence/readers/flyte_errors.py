"""Reads Flyte's error.pb and error-<id>.pb files of a run's workers.

Such a worker exits 0 despite its failure. Used only if a rank's recorder is silent; files older than the
attempt are refused.

Cost: at most ``MAX_FILE`` bytes are read; memory a few times that.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from rankfall.evidence.readers.classify import exception_meaning
from rankfall.evidence.readers.tracebacks import find_tracebacks
from rankfall.model import Evidence, RankFacts, SlotFacts
from rankfall.model.evidence import digest
from rankfall.model.patterns import bounded, linear
from rankfall.rundir.reader_guard import Budget, ReaderGuard
from rankfall.rundir.records import read_untrusted_file
from rankfall.verdict.signatures.catalogue import Catalogue

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
# A varint has 64 bits, seven a byte.
_MAX_VARINT: Final = 10
_MAX_FIELD: Final = (1 << 29) - 1


class Malformed(ValueError):
    """The bytes are not a valid message."""


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields a message's fields in order: number, and unsigned number or bytes.

    Raises:
        Malformed: Truncated, or an invalid element.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not 0 < number <= _MAX_FIELD:
            raise Malformed(f"field {number} cannot be")
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind == LENGTH:
            length, at = _varint(data, at)
            value, at = _bytes(data, at, length)
        elif kind in {FIXED64, FIXED32}:
            taken, at = _bytes(data, at, 8 if kind == FIXED64 else 4)
            value = int.from_bytes(taken, "little")
        else:
            raise Malformed(f"field {number} has wire type {kind}, which is not used")
        yield number, value


def number_of(value: int | bytes) -> int:
    """Returns ``value`` as a signed 64-bit number.

    Raises:
        Malformed: ``value`` is a text or message.
    """
    if isinstance(value, bytes):
        raise Malformed("a text is in the place of a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def bytes_of(value: int | bytes) -> bytes:
    """Returns ``value`` as the bytes of a text or message.

    Raises:
        Malformed: ``value`` is a number.
    """
    if isinstance(value, int):
        raise Malformed("a number is in the place of a text")
    return value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit means that more bytes follow
            if value >= 1 << 64:
                break
            return value, at + index + 1
    raise Malformed(f"there is no whole number at byte {at}")


def _bytes(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if length > len(data) - at:
        raise Malformed(f"{length} bytes are announced at byte {at}, but only {len(data) - at} follow")
    return data[at : at + length], at + length


MAX_FILE: Final = 4 << 20
_NAME: Final = bounded(r"error(?:[-_][\w.-]{1,200})?\.pb", limit=255)
# flytekit's format: traceback, "Message:", the exception again.
_MESSAGE: Final = linear(r"(?m)^[ \t]*(?:Message|Error Message):[ \t\r]*$")
_LAST_LINES: Final = ("user error.", "system error.")
_LAST_LINE_HEAD: Final = "system error!"
_TYPE: Final = bounded(r"[A-Za-z_][\w.]{0,200}", limit=201)
# Maximum characters without a traceback.
_MAX_TEXT: Final = 16 << 10
_ORIGINS: Final = ("unknown", "user", "system")
_RECOVERABLE: Final = 1
_NS: Final = 1_000_000_000
_MAX_SECONDS: Final = 1 << 33
# Unknown clock; elastic workers pass on whole seconds.
_UNCERTAIN_S: Final = 1.0
_MAX_WORKER: Final = 253


class ContainerError(msgspec.Struct, frozen=True, kw_only=True):
    """One error of one worker.

    Attributes:
        code: As ``USER:ValueError``.
        recoverable: The worker requests a retry.
        at: Nanoseconds since the epoch; None if the file has 1970.
        worker: Pod, or "".
    """

    code: str = ""
    message: str = ""
    recoverable: bool = False
    origin: str = "unknown"
    at: int | None = None
    worker: str = ""


def is_container_error(name: str) -> bool:
    """True if a file of this name is one of Flyte's error files."""
    return _NAME.fullmatch(name) is not None


def read_container_error(data: bytes) -> ContainerError:
    """Returns the error of an ``ErrorDocument``.

    Raises:
        Malformed: Not an ``ErrorDocument``, or without error.
    """
    error = None
    for number, value in fields(data):
        if number == 1:
            error = bytes_of(value)
    if error is None:
        raise Malformed("it holds no error")
    code = message = worker = ""
    kind = origin = 0
    at = None
    for number, value in fields(error):
        if number == 1:
            code = _text(value)
        elif number == 2:  # noqa: PLR2004 - numbers of fields
            message = _text(value)
        elif number == 3:  # noqa: PLR2004
            kind = number_of(value)
        elif number == 4:  # noqa: PLR2004
            origin = number_of(value)
        elif number == 5:  # noqa: PLR2004
            at = _time(bytes_of(value))
        elif number == 6:  # noqa: PLR2004
            worker = _text(value)[:_MAX_WORKER]
    if not code and not message:
        raise Malformed("its error has neither code nor message")
    name = _ORIGINS[origin] if 0 <= origin < len(_ORIGINS) else "unknown"
    return ContainerError(
        code=code, message=message, recoverable=kind == _RECOVERABLE, origin=name, at=at, worker=worker
    )


def container_error_evidence(data: bytes, *, name: str, catalogue: Catalogue) -> Evidence | str:
    """Evidence of one file, or a message about its problem."""
    if not data:
        return f"{name} is empty"
    if len(data) > MAX_FILE:
        return f"{name} is larger than {MAX_FILE} bytes and was not used"
    try:
        error = read_container_error(data)
    except Malformed as problem:
        return f"{name} is damaged: {problem}"
    chain, frame = _chain(error)
    # Flyte marks all system exceptions as recoverable; only a user's mark is deliberate.
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
        # By content: file names are random.
        stream=f"worker {error.worker} {identity}",
        where=name,
        line=meaning.text[:2000],
        signature=meaning.signature,
        retry=meaning.retry,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
        peer_hosts=meaning.hosts,
        mark=mark,
        gpu=meaning.gpu,
    )


def _chain(error: ContainerError) -> tuple[list[tuple[str, str]], str]:
    """Exceptions of the message, the raised one first, and the top frame of the user's code."""
    chain: list[tuple[str, str]] = []
    frame = ""
    for item in find_tracebacks(error.message.encode("utf-8", "replace") + b"\n"):
        chain, frame = list(item.chain), item.frame
    if chain:
        return chain, frame
    mark = _MESSAGE.search(error.message)
    text = (_without_last_line(error.message[mark.end() :] if mark else error.message) or error.message.strip())[
        :_MAX_TEXT
    ]
    kind, colon, words = text.partition(": ")
    if colon and _TYPE.fullmatch(kind.strip()):
        return [(kind.strip(), words)], ""
    named = error.code.rpartition(":")[2]
    return [(named if _TYPE.fullmatch(named) else "Exception", text)], ""


def _without_last_line(text: str) -> str:
    """Message without flytekit's closing line."""
    before, newline, last = text.strip().rpartition("\n")
    last = last.strip().lower()
    return before.strip() if newline and (last in _LAST_LINES or last.startswith(_LAST_LINE_HEAD)) else text.strip()


def _text(value: int | bytes) -> str:
    return bytes_of(value).decode("utf-8", "replace")


def _time(data: bytes) -> int | None:
    """Returns a protobuf Timestamp in nanoseconds; None for 1970 (missing)."""
    seconds = nanos = 0
    for number, value in fields(data):
        if number == 1:
            seconds = number_of(value)
        elif number == 2:  # noqa: PLR2004 - numbers of fields
            nanos = number_of(value)
    if not 0 < seconds < _MAX_SECONDS or not 0 <= nanos < _NS:
        return None
    return seconds * _NS + nanos


FOLDER: Final = "errors"
# Maximum files of a folder: one a rank.
MAX_FILES: Final = 8192
# Elastic workers pass on whole seconds, rounded down.
_STAMP_NS: Final = 1_000_000_000
_MAX_PROBLEMS: Final = 16


class FlyteErrorFiles:
    """Finds and reads the error files of an attempt, each file once.

    Attributes:
        problems: Messages about unused files.
        any: True if the last search found a file of this attempt.
    """

    def __init__(self, shared: Path, *, catalogue: Catalogue, attempt: int, guard: ReaderGuard | None = None) -> None:
        self._guard = guard or ReaderGuard()
        self._budget: Budget | None = None
        self._shared = shared / FOLDER
        self._catalogue = catalogue
        self._attempt = attempt
        self._read: dict[Path, tuple[Evidence | str, int]] = {}
        self.problems: list[str] = []
        self.any = False

    def evidence(
        self,
        *,
        slots: Mapping[int, tuple[SlotFacts, Path]],
        ranks: Iterable[RankFacts],
        known: Collection[Evidence],
        budget: Budget | None = None,
    ) -> list[Evidence]:
        """Evidence for slots whose logs and records give no cause; cached files cost no budget."""
        self._budget = budget
        spoken = {e.slot for e in known if e.role == "primary" and e.source in {"log", "record"}}
        by_pod = {facts.pod: number for number, (facts, _) in slots.items() if facts.pod}
        of_slot: dict[int, list[int]] = {}
        for sheet in ranks:
            if sheet.slot is not None and sheet.rank not in of_slot.setdefault(sheet.slot, []):
                of_slot[sheet.slot].append(sheet.rank)
        found: list[Evidence] = []
        self.any = False
        for number, (_, folder) in slots.items():
            for piece in self._pieces(folder / FOLDER, slots[number][0].started_at):
                self.any = True
                found += self._placed(piece, number, slots, of_slot, spoken)
        begun = min((facts.started_at for facts, _ in slots.values() if facts.started_at), default=None)
        for piece in self._pieces(self._shared, begun):
            slot = by_pod.get(piece.pod or "")
            if piece.pod is not None and slot is None:
                self._problem(f"{piece.where} names worker {piece.pod[:100]!r}, which is not a worker of this attempt")
                continue
            self.any = True
            if slot is not None:
                found += self._placed(piece, slot, slots, of_slot, spoken)
            elif not spoken:
                found.append(msgspec.structs.replace(piece, attempt=self._attempt))
        return found

    def _placed(
        self,
        piece: Evidence,
        slot: int,
        slots: Mapping[int, tuple[SlotFacts, Path]],
        of_slot: Mapping[int, list[int]],
        spoken: Collection[int | None],
    ) -> list[Evidence]:
        if slot in spoken:
            return []
        facts, ranks = slots[slot][0], of_slot.get(slot, [])
        alone = ranks[0] if len(ranks) == 1 else None
        return [
            msgspec.structs.replace(
                piece, slot=slot, node=facts.node, rank=alone, pod=facts.pod or piece.pod, attempt=self._attempt
            )
        ]

    def _pieces(self, folder: Path, begun: int | None) -> list[Evidence]:
        if not folder.is_dir():
            # Most jobs have no such files.
            return []
        try:
            with os.scandir(folder) as entries:
                names = sorted(e.name for e in entries if is_container_error(e.name))
        except OSError:
            return []
        if len(names) > MAX_FILES:
            self._problem(f"{_short(folder)} holds {len(names)} error files; {MAX_FILES} of them were read")
        found = []
        for name in names[:MAX_FILES]:
            piece, written = self._file(folder / name)
            if isinstance(piece, str):
                self._problem(piece)
            elif begun is not None and (piece.at if piece.at is not None else written) + _STAMP_NS < begun:
                self._problem(f"{piece.where} is older than this attempt and was not used")
            else:
                found.append(piece)
        return found

    def _file(self, path: Path) -> tuple[Evidence | str, int]:
        """Returns a file's evidence and modification time; cached."""
        held = self._read.get(path)
        if held is not None:
            return held
        if self._budget is not None and self._budget.spent:
            return "there was no time to read all error files", 0
        try:
            data, written = read_untrusted_file(path, limit=MAX_FILE + 1)
        except OSError as error:
            return f"{_short(path)} cannot be read: {error.strerror}", 0
        name = _short(path)
        failed: Evidence | str = f"{name} could not be read"
        held = (
            self._guard.read(
                lambda: container_error_evidence(data, name=name, catalogue=self._catalogue),
                otherwise=failed,
                what="error file",
                where=name,
                data=data,
            ),
            written,
        )
        # A damaged file may be unfinished and complete at the next poll.
        if not isinstance(held[0], str):
            self._read[path] = held
        return held

    def _problem(self, text: str) -> None:
        if text not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(text)


def _short(path: Path) -> str:
    return "/".join(path.parts[-5:])
