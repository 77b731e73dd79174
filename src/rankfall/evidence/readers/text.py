"""Decodes, bounds and normalizes text of jobs.

Cost: linear in the given bytes; a decoded line has at most ``MAX_LINE``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rankfall.model.patterns import bounded, linear

MAX_LINE: Final = 2000
# Bytes compared in one step.
_BLOCK: Final = 64 << 10

_NORMAL: Final = (
    (bounded(r"0x[0-9a-fA-F]+", limit=2_000), "PTR"),
    (bounded(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}\b", limit=2_000), "UUID"),
    # Only from a word's beginning: otherwise quadratic time.
    (bounded(r"(?<![\w./-])(?:[\w.-]*/)+([\w.-]+)", limit=2_000), r"\1"),
    (bounded(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", limit=2_000), "ADDR"),
    (bounded(r"(?i)\b(rank|worker|node|host|pid|port|gpu|slot|cuda:)([ :=_\[(-]*)\d+", limit=2_000), r"\1\2#"),
    (bounded(r"\d{4,}", limit=2_000), "#"),
)


def decode(data: bytes, *, limit: int = MAX_LINE) -> str:
    """Decodes a line for display: at most ``limit`` bytes, without text before a carriage return."""
    line = data.rstrip(b"\r\n")
    line = line[line.rfind(b"\r") + 1 :]
    if len(line) > limit:
        line = line[:limit] + b" ..."
    return line.decode("utf-8", "replace")


# Bytes of a line with escaped line ends that are read.
MAX_ESCAPED: Final = 64 << 10
_ESCAPE: Final = bounded(rb"\\(.)", limit=MAX_ESCAPED)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b""}
_END_OF_STRING: Final = {quote: bounded(rb"(?:[^\\" + quote + rb"]|\\.)*", limit=MAX_ESCAPED) for quote in (b'"', b"'")}


# Keys of a message: of loggers, Docker, systemd.
_MESSAGE: Final = bounded(rb'[{,] ?"(?i:message|msg|log|text|event)" ?: ?"', limit=4096)


# Of an object that is printed on several lines.
_INDENTED: Final = 64
_MESSAGE_ALONE: Final = bounded(
    rb'\s{0,64}"(?i:message|msg|log|text|event|error|exception|reason|detail|traceback)" ?: ?"', limit=4096
)


def unescape(line: bytes, start: int, *, quote: bytes = b"") -> bytes:
    r"""Returns the rest of a quoted string, as in JSON or Python's repr, with line ends for ``\\n``.

    The string ends at its ``quote``, by default the one before ``start``; without a quote the line ends it.
    """
    text = line[start : start + MAX_ESCAPED]
    # A double quote before a path is escaped only inside double quotes.
    quote = quote or (b'"' if b'File \\"' in text else line[start - 1 : start])
    end = _END_OF_STRING.get(quote)
    if end is not None and (match := end.match(text)) is not None:
        text = match.group()
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)


def message_of(line: bytes) -> bytes | None:
    """Returns the message of a logger's JSON object, on one line or alone on its line; None for other lines."""
    if line.startswith(b"{"):
        found = _MESSAGE.search(line)
    else:
        found = _MESSAGE_ALONE.match(line) if line[:_INDENTED].lstrip()[:1] == b'"' else None
    return None if found is None else unescape(line, found.end(), quote=b'"')


def repeats(data: bytes, start: int, width: int, *, most: int) -> int:
    """Returns how many copies of ``data[start : start + width]`` directly follow it, at most ``most``."""
    count, at, step, block = 0, start + width, 1, data[start : start + width]
    while step <= most - count and data.startswith(block, at):
        count, at = count + step, at + len(block)
        if len(block) < _BLOCK:
            block, step = block * 2, step * 2
    while step > 1:
        step //= 2
        block = block[: step * width]
        if step <= most - count and data.startswith(block, at):
            count, at = count + step, at + len(block)
    return count


def normalise(text: str) -> str:
    """Removes details that differ between equal faults: pointers, folders, ports, ranks."""
    text = text[:MAX_LINE]
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return text[:300]


# Lines that resemble an error, but are not of a launcher about its processes.
MAX_ERROR_LINE: Final = 4096
_ERROR: Final = linear(
    rb"(?im)^[^\n]*(?:error|exception|fatal|panic|failed|failure|aborted|cannot|could not|unable to|denied|no such|NCCL WARN|timed out|crashed|killed|evicted|\w*BackOff)\b[^\n]*$"
)
_NO_ERROR: Final = bounded(
    rb"(?i)\b0 errors?\b|(?<!NCCL )warn|ignored|retry|torch[./]distributed[./]elastic|ChildFailedError|Process(?:Exited|Raised)Exception|CalledProcessError|Error executing job with overrides|Reporting training FAILURE|Root Cause \(first|FAILED$|closing signal|Killing subprocess|return code"
    rb"|^(?:srun|slurmstepd|mpirun|prterun)\b|\bframe #\d|error_file|exitcode|^(?:During handling|The above exception)|^\s*(?:raise|except|File)\b|^\s{4}",
    limit=MAX_ERROR_LINE,
)
# Words that state a reason in errors of any program; they are too few for a cause.
_REASON: Final = linear(
    rb"(?i)out of (?:\w+ )?memory|cannot allocate|resource.exhausted|no space left|quota exceeded|too many requests|rate limit|unauthori[sz]ed|forbidden"
    rb"|\b40[13]\b|not permitted|\bdenied\b|in use\b|\bbusy\b|(?:not|could not|cannot|failed to|unable to) (?:resolve|connect|reach|find|open|load)|no route|unreachable"
    rb"|timed out|time-?out|\breset\b|refused|broken pipe|(?:closed|lost|dead|died|killed|missing)\b|no such|not found|does not exist|undefined symbol|corrupt|checksum"
    rb"|divisible|too old|incompatible|mismatch|\bnan\b|invalid|unrecognized|unsupported|SIG[A-Z]{3,4}\b|segmentation|core dumped|heartbeat|shared memory"
)


def states_reason(line: bytes) -> bool:
    """True if an error line states a reason, in words of any program."""
    return _REASON.search(line) is not None


def error_lines(text: bytes, *, since: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields the lines from byte ``since`` on that resemble an error, with their first byte, the last one first."""
    spans = [match.span() for match in _ERROR.finditer(text) if match.start() >= since]
    for begin, stop in reversed(spans):
        line = text[begin : min(stop, begin + MAX_ERROR_LINE)].rstrip()
        if not _NO_ERROR.search(line):
            yield begin, line
