"""What Loki answered, taken apart with care: a page of lines, or why there is none. Pure but for the clock of a date.

Cost: time linear in the bytes of an answer; memory at most thirty times that, as JSON of small containers takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from rankfall.kube.retry import TOO_MANY, seconds
from rankfall.kube.secret import excerpt
from rankfall.model import decoding, numbers
from rankfall.model.patterns import bounded
from rankfall.observe.loki.cursor import Entry
from rankfall.observe.loki.errors import LimitRefused, LokiError

_BAD: Final = 400
_SERVER_SIDE: Final = 500
_MOST: Final = bounded(
    r"entries limit.{0,80}?\((\d{1,9}) > (\d{1,9})\)", limit=1 << 14, flags=re.IGNORECASE | re.DOTALL
)
_HINTS: Final = {
    401: "RANKFALL_LOKI_TOKEN_FILE or RANKFALL_LOKI_BASIC_FILE; a tenant: RANKFALL_LOKI_TENANT",
    403: "this tenant or login may not read here: RANKFALL_LOKI_TENANT",
    404: "the URL is that of no Loki: without /loki/api/v1, with the path of the proxy before it",
}


class _Stream(msgspec.Struct, frozen=True):
    stream: dict[str, str] = {}
    # Of each line its nanoseconds, its text, and its metadata where it has any.
    values: list[list[str | dict[str, object]]] = []


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""  # noqa: N815 - Loki's name
    result: list[msgspec.Raw] = []


class _Answer(msgspec.Struct, frozen=True):
    data: _Data
    status: str = ""


def page(body: bytes, *, keys: Sequence[str], start: int, end: int) -> list[Entry]:
    """The lines of an answer.

    Args:
        body: of the answer.
        keys: labels whose values tell sources apart.
        start: what was asked for; a line outside is no answer to it.
        end: as above.

    Raises:
        LokiError: it is no answer of a Loki to a query of lines.
    """
    try:
        answer = decoding.decode(body, kind=_Answer)
        if answer.status != "success" or answer.data.resultType != "streams":
            raise _strange("it is no list of streams")
        streams = [decoding.decode(raw, kind=_Stream) for raw in answer.data.result]
    except msgspec.DecodeError:
        raise _strange(f"it reads: {excerpt(body, limit=120) or 'nothing'}") from None
    found = []
    for one in streams:
        key = tuple(one.stream.get(name, "") for name in keys)
        for value in one.values:
            if len(value) < 2 or not isinstance(value[0], str) or not isinstance(value[1], str):  # noqa: PLR2004 - stamp and line
                raise _strange("a line has no stamp or no text")
            at = numbers.whole(value[0], digits=20)
            if at is None or not start <= at < end:
                raise _strange("a line lies outside what was asked for")
            found.append(Entry(at=at, key=key, text=value[1], labels=one.stream))
    return found


def refused(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, secrets: Iterable[str] = ()
) -> LokiError:
    """The error for an answer that is none.

    Args:
        status: of HTTP.
        headers: of the answer.
        body: its beginning.
        what: was asked, for the message.
        secrets: masked in what the server says.
    """
    said = excerpt(body, secrets=secrets) or "no reason given"
    if status == _BAD and (found := _MOST.search(body.decode("utf-8", "replace"))) is not None:
        return LimitRefused(f"cannot {what}: {said} ({status})", most=numbers.matched(found[2]))
    return LokiError(
        f"cannot {what}: {said} ({status})",
        hint=_HINTS.get(status),
        retry_after=seconds(headers.get("Retry-After")),
        passing=status == TOO_MANY or status >= _SERVER_SIDE,
    )


def _strange(why: str) -> LokiError:
    return LokiError(
        f"the answer of Loki cannot be used: {why}",
        hint="is the URL that of a Loki, and no proxy's page?",
        passing=True,
    )
