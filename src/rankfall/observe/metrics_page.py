"""One page of metrics over HTTP: bounded in size and time, from no other address than the given one. It refuses what is too large instead of reading a part."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import aiohttp

from rankfall.model.errors import EvidenceLost

#: Largest page, bytes: an exporter of eight GPUs with all its fields has some 100 KiB.
MAX_PAGE: Final = 4 << 20
LIMIT_S: Final = 5.0


def pages() -> aiohttp.ClientSession:
    """A session for :func:`page`; to be closed by who opens it."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=LIMIT_S), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    )


async def page(session: aiohttp.ClientSession, url: str) -> str:
    """The text at an address.

    Raises:
        EvidenceLost: nobody answers in time, the answer is none of 200, or it is too large.
    """
    try:
        async with session.get(url, allow_redirects=False, headers={"Accept": "text/plain"}) as answer:
            if answer.status != HTTPStatus.OK:
                raise EvidenceLost(f"it answered {answer.status}", hint="does the address lead to its metrics?")
            data = bytearray()
            async for chunk in answer.content.iter_chunked(64 << 10):
                data += chunk
                if len(data) > MAX_PAGE:
                    raise EvidenceLost(
                        f"its page is larger than {MAX_PAGE >> 20} MiB", hint="is it an exporter of one node?"
                    )
    except TimeoutError:
        raise EvidenceLost(f"it did not answer within {LIMIT_S:g} s", hint="is it reached from here?") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise EvidenceLost(f"it cannot be reached: {str(error)[:200]}", hint="is it reached from here?") from None
    return data.decode("utf-8", "replace")
