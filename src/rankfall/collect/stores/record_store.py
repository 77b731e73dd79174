"""Fetches a run's records from a directory or object store, each once.

A record is stored before it is read. Foreign names and oversized objects are refused and reported.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

import msgspec

from rankfall.model import JobSpec, Record, SpecError, decoding, numbers
from rankfall.model.patterns import anchored, bounded
from rankfall.rundir import RunDir
from rankfall.rundir.lease import make_folder, write_file
from rankfall.rundir.records import MAX_RECORD, read_untrusted_file
from rankfall_inside.delivery.bucket import Bucket

if TYPE_CHECKING:
    from obstore.store import S3Store

PAGE: Final = 1000
# A name has at most 1,024 bytes, three times that encoded.
_MAX_ANSWER: Final = PAGE * 4096
_MAX_DIGITS: Final = 18
_TIMEOUT_S: Final = 5.0
# Seconds before retries.
_PAUSES: Final = (0.3, 1.0)
# Characters that XML 1.0 cannot express.
_NO_XML: Final = bounded(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|&#(?:x0*1?[0-9a-f]|0*[12]?[0-9]|0*3[01]);", limit=1 << 24, flags=re.IGNORECASE
)


def names_in(url: str, folder: str, *, until: float) -> Iterator[list[tuple[str, int]]]:
    """Yields names and sizes in a bucket folder, page by page; retries until ``until`` (monotonic).

    Raises:
        RefusedError: No keys, or the store refused.
        OSError: The store is unreachable or answers invalidly.
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
            raise OSError("its list of names is cut, and the answer has no token for the rest")
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
    try:
        # Bounded in size; the parser bounds entity expansion.
        root = ET.fromstring(_NO_XML.sub(b"?", answer))  # noqa: S314
    except ET.ParseError as error:
        raise OSError(f"its list of names is not XML: {error}") from error
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


FOLDER: Final = "errors"
MAX_OBJECTS: Final = 100_000
# Seconds for one read, and between reads: no verdict waits for the store.
LIMIT_S: Final = 10.0
_BETWEEN_S: Final = 2.0
_NAME: Final = anchored(r"[a-z_]{3,16}-a\d{1,6}-[\w.-]{1,140}\.json", limit=256, flags=re.ASCII)
_MAX_PROBLEMS: Final = 8
_MAX_LISTED: Final = 60
_AT_ONCE: Final = 16
# The most important records first.
_FIRST: Final = ("error-", "end-", "slot_end-", "start-")


class RecordStore:
    """One attempt's records in the store of its job."""

    def __init__(self, url: str, *, run: str, attempt: int, into: Path) -> None:
        self._named: list[str] = []
        # Reason of an incomplete read.
        self._stopped = ""
        self._url = url
        self._run = run
        self._attempt = attempt
        self._into = into
        self._seen: set[str] = set()
        # Foreign names: number, and the first.
        self._strange = (0, "")
        self._next = self._until = 0.0

    @property
    def problems(self) -> tuple[str, ...]:
        """Messages about records in the store that could not be read."""
        count, first = self._strange
        strange = f"{count} objects in {self._url} without the name of a record were not read; the first is {first}"
        return (*self._named, *([strange] if count else ()), *([self._stopped] if self._stopped else ()))

    def fetch(self) -> None:
        """Fetches new records; never raises. Continues after a time-out."""
        now = time.monotonic()
        if now < self._next:
            return
        self._until = now + LIMIT_S
        self._stopped = ""
        self._strange = (0, "")
        try:
            for name, data in self._new():
                self._seen.add(name)
                self._keep(name, data)
                if self._late():
                    break
        except Exception as error:  # noqa: BLE001 - a store may fail in any way, and the other channels are there
            words = str(error).split("\n", 1)[0][:200]
            self._stopped = f"the records in {self._url}: {type(error).__name__}: {words}"
        self._next = time.monotonic() + _BETWEEN_S

    def _late(self) -> bool:
        """Returns True, with a message, if this read has timed out."""
        late = time.monotonic() > self._until
        if late:
            self._stopped = f"the rest of the records in {self._url}: reading them took more than {LIMIT_S:.0f} s"
        return late

    def _new(self) -> Iterator[tuple[str, bytes]]:
        if self._url.startswith("file://"):
            yield from self._from_folder(Path(self._url.removeprefix("file://"), self._run, FOLDER))
        else:
            yield from self._from_bucket()

    def _wanted(self, name: str, size: int) -> bool:
        if not _NAME.fullmatch(name):
            # A writer's unfinished file.
            if not name.startswith("."):
                count, first = self._strange
                self._strange = (count + 1, first or ascii(name[:_MAX_LISTED]))
            return False
        if name in self._seen or len(self._seen) >= MAX_OBJECTS:
            return False
        if size > MAX_RECORD:
            self._seen.add(name)
            self._problem(_too_large(name, self._url))
            return False
        return not (self._into / name).exists()

    def _from_folder(self, folder: Path) -> Iterator[tuple[str, bytes]]:
        if not folder.is_dir():
            return
        with os.scandir(folder) as entries:
            found = [e.name for e in entries if e.is_file(follow_symlinks=False) and self._wanted(e.name, 0)]
        for name in sorted(found, key=_order):
            yield name, read_untrusted_file(folder / name, limit=MAX_RECORD + 1)[0]

    def _from_bucket(self) -> Iterator[tuple[str, bytes]]:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

        store = open_bucket(self._url)
        folder = f"{self._run}/{FOLDER}"
        found: list[str] = []
        for page in names_in(self._url, folder, until=self._until):
            found.extend(name for name, size in page if self._wanted(name, size))
            if self._late():
                # Does not wait for a million foreign names.
                break
        found.sort(key=_order)

        def one(name: str) -> tuple[str, bytes | None]:
            return name, self._read(store, folder, name)

        # A thousand round trips in sequence would take long.
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rankfall-store") as pool:
            for start in range(0, len(found), 4 * _AT_ONCE):
                for name, data in pool.map(one, found[start : start + 4 * _AT_ONCE]):
                    if data is not None:
                        yield name, data

    def _read(self, store: S3Store, folder: str, name: str) -> bytes | None:
        """Returns one object; None if it was removed or replaced."""
        import obstore  # noqa: PLC0415

        try:
            found = obstore.get(store, f"{folder}/{name}")
        except FileNotFoundError:
            self._problem(f"record {name} in {self._url} is listed but does not exist")
            return None
        if found.meta["size"] > MAX_RECORD:
            # Replaced since the list; nothing is read yet.
            self._problem(_too_large(name, self._url))
            return None
        return bytes(found.bytes())

    def _keep(self, name: str, data: bytes) -> None:
        if len(data) > MAX_RECORD:
            self._problem(_too_large(name, self._url))
            return
        try:
            record = decoding.decode(data, kind=Record)
        except msgspec.DecodeError as error:
            self._problem(f"record {name} in {self._url} is damaged: {str(error)[:100]}")
            return
        if record.run != self._run or record.attempt != self._attempt:
            return
        make_folder(self._into)
        temporary = self._into / f".{name}.{os.getpid()}.tmp"
        write_file(temporary, data)
        if record.at_ns is not None and record.at_ns > 0:
            # The arrival time is unrelated to the writer's clock.
            os.utime(temporary, ns=(record.at_ns, record.at_ns))
        temporary.rename(self._into / name)

    def _problem(self, text: str) -> None:
        if text not in self._named and len(self._named) < _MAX_PROBLEMS:
            self._named.append(text)


def _too_large(name: str, url: str) -> str:
    return f"record {name} in {url} is larger than {MAX_RECORD} bytes and was not used"


def _order(name: str) -> tuple[int, str]:
    kinds = [kind for kind, prefix in enumerate(_FIRST) if name.startswith(prefix)]
    return (kinds[0] if kinds else len(_FIRST), name)


def open_bucket(url: str) -> S3Store:
    """Returns the bucket and prefix of an ``s3://`` address.

    Raises:
        ImportError: The extra ``obstore`` is missing.
    """
    from obstore.store import S3Store  # noqa: PLC0415

    bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    return S3Store(
        bucket,
        prefix=prefix or None,
        client_options={"timeout": "5s", "connect_timeout": "3s", "allow_http": (endpoint or "").startswith("http://")},
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=5)},
        **settings,
    )


def require_reader(url: str | None, *, field: str = "$.record_store") -> None:
    """Refuses a store that cannot be read from this machine.

    Raises:
        SpecError: The extra ``obstore`` is missing.
    """
    if url is not None and url.startswith("s3://") and not has_reader():
        raise SpecError(
            field,
            "an object store is read with obstore, which is not installed",
            hint="install rankfall[obstore], or name a shared directory: file:///path",
        )


def has_reader() -> bool:
    """True if the extra ``obstore`` is installed."""
    try:
        import obstore  # noqa: F401, PLC0415 - only whether it is there
    except ImportError:
        return False
    return True


def record_store_of(run_dir: RunDir, spec: JobSpec, *, attempt: int) -> RecordStore | None:
    """Store for records of an attempt's ranks; None if the job names none."""
    if spec.record_store is None:
        return None
    return RecordStore(spec.record_store, run=run_dir.id, attempt=attempt, into=run_dir.records_dir)
