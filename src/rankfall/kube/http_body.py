"""The head and the body of one HTTP/1.1 answer, out of bytes that come cut anywhere. Pure; for bodies that are read as they come.

It refuses what it does not know (a folded header, another encoding than ``chunked``, a size that is no number): with ``OSError(EPROTO)``, which
the client words as it does every broken answer.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple

from multidict import CIMultiDict

from rankfall.model import numbers
from rankfall.model.patterns import anchored

# Of a head, and of what stands between two chunks: more than any server sends.
MAX_HEAD: Final = 64 * 1024
_MAX_SIZE_LINE: Final = 4096
_STATUS: Final = anchored(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?", limit=8_192)
_HEADER: Final = anchored(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\x00]*)", limit=1 << 16)
_SIZE: Final = anchored(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n", limit=8_192)
_CONTINUES: Final = 200
_LF: Final = ord("\n")


class Head(NamedTuple):
    """Status and headers of an answer."""

    status: int
    headers: CIMultiDict[str]


def split_head(data: bytes) -> tuple[Head, bytes] | None:
    """The head, and what follows it; None while it is not whole. Answers that only say "wait" (1xx) are passed over.

    Raises:
        OSError: this is no head of HTTP/1.1, or it is too long.
    """
    while True:
        text, ended, rest = data.partition(b"\r\n\r\n")
        if not ended:
            if len(data) > MAX_HEAD or (data and not b"HTTP/1.".startswith(data[:7])):
                raise _garbled("its head")
            return None
        first, *lines = text.split(b"\r\n")
        found = _STATUS.fullmatch(first)
        headers: CIMultiDict[str] = CIMultiDict()
        for line in lines:
            field = _HEADER.fullmatch(line)
            if field is None:
                raise _garbled("a header")
            headers.add(field[1].decode("ascii"), field[2].rstrip().decode("utf-8", "replace"))
        if found is None:
            raise _garbled("its first line")
        status = numbers.matched(found[1])
        if status >= _CONTINUES:
            return Head(status, headers), rest
        data = rest


class Body:
    """Takes the framing off a body.

    Args:
        head: of its answer.

    Attributes:
        ended: nothing follows.

    Raises:
        OSError: the head says that it comes in a form that nobody asked for.
    """

    def __init__(self, head: Head) -> None:
        coding = head.headers.get("Transfer-Encoding", "").strip().lower()
        length = head.headers.get("Content-Length")
        if coding not in {"", "chunked"} or head.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _garbled("the form of its body")
        self._chunked = coding == "chunked"
        # Of the chunk, its CR and LF included; of the body, where it has a length; None = to the end of the connection.
        self._left: int | None = 0 if self._chunked else None
        self._rest = b""
        self.ended = False
        if not self._chunked and length is not None:
            self._left = numbers.whole(length) if length.isdigit() else None
            if self._left is None:
                raise _garbled("the length of its body")
            self.ended = self._left == 0

    def feed(self, data: bytes) -> bytes:
        """What these bytes hold of the body; may be nothing.

        Raises:
            OSError: they are not what the head says.
        """
        if self.ended:
            return b""
        if not self._chunked:
            return self._plain(data)
        if not self._left and not self._rest and data[-2:] == b"\r\n" and (text := _whole_chunks(data)) is not None:
            return text
        data, self._rest = self._rest + data if self._rest else data, b""
        # Views: of a large chunk nothing is copied before all are joined.
        view = memoryview(data)
        pieces: list[memoryview] = []
        at, size, left = 0, len(data), self._left or 0
        while at < size:
            if not left:
                found = _SIZE.match(data, at)
                if found is None:
                    if b"\n" in data[at : at + _MAX_SIZE_LINE] or size - at > _MAX_SIZE_LINE:
                        raise _garbled("the size of a chunk")
                    self._rest = data[at:]
                    break
                at, left = found.end(), (numbers.hexadecimal(found[1]) or 0) + 2
                if left == 2:  # noqa: PLR2004 - the chunk that ends a body; what may follow it are headers
                    self.ended = True
                    break
            end = at + left
            if end <= size:
                if data[end - 2 : end] != b"\r\n":
                    raise _garbled("the end of a chunk")
                pieces.append(view[at : end - 2])
                at, left = end, 0
                continue
            # The last two bytes stay here until both have come, so that they are looked at together.
            take = max(0, min(size - at, left - 2))
            pieces.append(view[at : at + take])
            self._rest = data[at + take :]
            left -= take
            break
        self._left = left
        return b"".join(pieces)

    def closed(self) -> bool:
        """The connection was ended in order; whether that is the body's end."""
        self.ended = self.ended or (self._left is None)
        return self.ended

    def _plain(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.ended = not self._left
        return data


def _whole_chunks(data: bytes) -> bytes | None:
    """What a row of whole chunks holds, where none of their texts holds a CR: most often, and told with few operations on all together.

    None for any other data, also where a size is written in another way than Go does, or is that of the chunk that ends a body.
    """
    # Size, LF and text, LF and size, LF and text, ..., LF: one byte is searched for in half of the time of two.
    parts = (b"\n" + data).split(b"\r")
    texts = parts[1::2]
    if parts[:-1:2] != [b"\n%x" % (len(text) - 1) for text in texts]:
        return None
    found = [text[1:] for text in texts]
    # All texts began with the line feed that was taken off, and held something else.
    return b"".join(found) if all(found) and {text[0] for text in texts} == {_LF} else None


def _garbled(what: str) -> OSError:
    return OSError(errno.EPROTO, f"{what} is not HTTP/1.1")
