"""The names of what lies in a folder of an S3-compatible bucket, whatever somebody put there, page by page.

Why not by obstore, which reads the objects: it refuses a whole listing for one name with a control byte in it, and a server's answer that has
such a byte as it is, is no XML. So a job, or whoever else may write to the bucket, could hide every record of a run by one object. Here the
server is asked to write names as in an address (``encoding-type=url``), and of one that does not, the bytes that no XML may have are taken
for question marks: such a name is a wrong name, and all others are right.

Names are text of others: nothing here follows one. What lies in deeper folders is not listed.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from rankfall.model import numbers
from rankfall.model.patterns import bounded
from rankfall_inside.bucket import Bucket

PAGE: Final = 1000
# A name has at most 1,024 bytes, three times that encoded; what else is said of an object is some hundred bytes.
_MAX_ANSWER: Final = PAGE * 4096
_MAX_DIGITS: Final = 18
_TIMEOUT_S: Final = 5.0
# Before a question that got no answer is asked again, seconds.
_PAUSES: Final = (0.3, 1.0)
# What XML 1.0 has no way to say, as it is and as a reference.
_NO_XML: Final = bounded(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|&#(?:x0*1?[0-9a-f]|0*[12]?[0-9]|0*3[01]);", limit=1 << 24, flags=re.IGNORECASE
)


def names_in(url: str, folder: str, *, until: float) -> Iterator[list[tuple[str, int]]]:
    """Names below a folder of a bucket with their sizes in bytes, a page after the other.

    Args:
        url: ``s3://bucket/prefix``; keys, region and endpoint are those of this process's environment.
        folder: below the prefix, without a slash at its end.
        until: by ``time.monotonic``: a question that got no answer is asked again before this only.

    Raises:
        RefusedError: there are no keys, or the store said no.
        OSError: it cannot be reached, or its answer is none.
    """
    name, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
    bucket = Bucket(name, os.environ, timeout_s=_TIMEOUT_S)
    below = f"{prefix}/{folder}/" if prefix else f"{folder}/"
    query = {"list-type": "2", "encoding-type": "url", "delimiter": "/", "prefix": below, "max-keys": str(PAGE)}
    while True:
        page, more, token = _page(_asked(bucket, query, until))
        yield [(key.removeprefix(below), size) for key, size in page if key.startswith(below) and key != below]
        if not more:
            return
        if not token or token == query.get("continuation-token"):
            raise OSError("its list of names goes on, and it does not say where")
        query["continuation-token"] = token


def _asked(bucket: Bucket, query: Mapping[str, str], until: float) -> bytes:
    for pause in _PAUSES:
        try:
            return bucket.ask(query, _MAX_ANSWER)
        except OSError:
            if time.monotonic() + pause > until:
                raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that many readers do not come back at once
    return bucket.ask(query, _MAX_ANSWER)


def _page(answer: bytes) -> tuple[list[tuple[str, int]], bool, str]:
    """Keys and sizes of one answer, whether there are more, and where the next page begins."""
    try:
        # The server's own answer, bounded in size; the parser itself bounds what entities may grow to.
        root = ET.fromstring(_NO_XML.sub(b"?", answer))  # noqa: S314
    except ET.ParseError as error:
        raise OSError(f"its list of names is no XML: {error}") from error
    encoded = _said(root, "EncodingType") == "url"
    found = [
        (unquote_plus(key, errors="replace") if encoded else key, _number(_said(entry, "Size")))
        for entry in root.iterfind("{*}Contents")
        if (key := _said(entry, "Key"))
    ]
    return found, _said(root, "IsTruncated") == "true", _said(root, "NextContinuationToken")


def _said(element: ET.Element, name: str) -> str:
    return element.findtext(f"{{*}}{name}") or ""


def _number(text: str) -> int:
    return numbers.whole(text, digits=_MAX_DIGITS) or 0
