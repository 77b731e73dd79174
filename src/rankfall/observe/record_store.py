"""Records of a run that lie in a shared directory or an object store: brought into the run's own folder, each once.

What comes from there is kept in the run directory before it is read, under the same name, so that the answer stays when the store is gone;
what came through another channel already is the same record by its id. Listings come page by page. Refuses names that are none of ours (which is
said, and costs no other record), records of other runs and attempts, and anything larger than a record. A store that cannot be had is a line
under what is missing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rankfall.model import Record, SpecError, decoding
from rankfall.model.patterns import anchored
from rankfall.observe.left_file import read_left
from rankfall.observe.records import MAX_RECORD
from rankfall.store.fs import make_folder, write_file

if TYPE_CHECKING:
    from obstore.store import S3Store

FOLDER: Final = "errors"
MAX_OBJECTS: Final = 100_000
# One look at the store, seconds: a verdict must not wait for one that is gone. And the least time between two looks.
LIMIT_S: Final = 10.0
_BETWEEN_S: Final = 2.0
_NAME: Final = anchored(r"[a-z_]{3,16}-a\d{1,6}-[\w.-]{1,140}\.json", limit=256, flags=re.ASCII)
_MAX_PROBLEMS: Final = 8
_MAX_SHOWN: Final = 60
_AT_ONCE: Final = 16
# What a verdict needs most comes first.
_FIRST: Final = ("error-", "end-", "slot_end-", "start-")


class RecordStore:
    """One attempt's records in the store of its job.

    Args:
        url: ``file:///path`` or ``s3://bucket/prefix``, as the job names it; keys for S3 are those of the environment.
        run, attempt: whose records.
        into: the run's folder of records.
    """

    def __init__(self, url: str, *, run: str, attempt: int, into: Path) -> None:
        self._named: list[str] = []
        # What kept the newest look from its end.
        self._stopped = ""
        self._url = url
        self._run = run
        self._attempt = attempt
        self._into = into
        self._seen: set[str] = set()
        # Names of others: how many the newest look met, and the first of them.
        self._strange = (0, "")
        self._next = self._until = 0.0

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be had, in words."""
        count, first = self._strange
        strange = f"{count} in {self._url} with no name of a record, not read; the first is {first}"
        return (*self._named, *([strange] if count else ()), *([self._stopped] if self._stopped else ()))

    def fetch(self) -> None:
        """Bring what is new; never raises. What the time does not suffice for comes with the next look."""
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
        """Whether this look has taken its time, which is then said."""
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
            # A writer's own file that is not finished begins with a dot.
            if not name.startswith("."):
                count, first = self._strange
                self._strange = (count + 1, first or ascii(name[:_MAX_SHOWN]))
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
            yield name, read_left(folder / name, limit=MAX_RECORD + 1)[0]

    def _from_bucket(self) -> Iterator[tuple[str, bytes]]:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - most jobs have no such store

        from rankfall.observe.bucket_names import names_in  # noqa: PLC0415 - as above

        store = open_bucket(self._url)
        folder = f"{self._run}/{FOLDER}"
        found: list[str] = []
        for page in names_in(self._url, folder, until=self._until):
            found.extend(name for name, size in page if self._wanted(name, size))
            if self._late():
                # A million names of somebody else's are not waited for; what was found is read.
                break
        found.sort(key=_order)

        def one(name: str) -> tuple[str, bytes | None]:
            return name, self._read(store, folder, name)

        # Each costs a round trip, and a thousand of them in a row would be a wait of its own.
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rankfall-store") as pool:
            for start in range(0, len(found), 4 * _AT_ONCE):
                for name, data in pool.map(one, found[start : start + 4 * _AT_ONCE]):
                    if data is not None:
                        yield name, data

    def _read(self, store: S3Store, folder: str, name: str) -> bytes | None:
        """One object; None = it is not there any more, or not the one that was listed."""
        import obstore  # noqa: PLC0415 - an extra, for jobs that name such a store

        try:
            found = obstore.get(store, f"{folder}/{name}")
        except FileNotFoundError:
            self._problem(f"record {name} in {self._url} is listed and not there")
            return None
        if found.meta["size"] > MAX_RECORD:
            # Somebody put another object there since it was listed; nothing of it has been read yet.
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
            # When it came says nothing of the writer's clock.
            os.utime(temporary, ns=(record.at_ns, record.at_ns))
        temporary.rename(self._into / name)

    def _problem(self, text: str) -> None:
        if text not in self._named and len(self._named) < _MAX_PROBLEMS:
            self._named.append(text)


def _too_large(name: str, url: str) -> str:
    return f"record {name} in {url} is larger than {MAX_RECORD} bytes and was not used"


def _order(name: str) -> tuple[int, str]:
    kinds = [kind for kind, beginning in enumerate(_FIRST) if name.startswith(beginning)]
    return (kinds[0] if kinds else len(_FIRST), name)


def open_bucket(url: str) -> S3Store:
    """The bucket and prefix of an ``s3://`` address; keys, region and endpoint are those of the environment.

    Raises:
        ImportError: the extra ``obstore`` is not installed.
    """
    from obstore.store import S3Store  # noqa: PLC0415 - an extra

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
    """Refuse a store that could not be read from here.

    Args:
        url: of the job; None = it has no such store.
        field: where it stands.

    Raises:
        SpecError: it is an object store, and the extra ``obstore`` is not installed.
    """
    if url is not None and url.startswith("s3://") and not has_reader():
        raise SpecError(
            field,
            "an object store is read with obstore, which is not installed",
            hint="install rankfall[obstore], or name a shared directory: file:///path",
        )


def has_reader() -> bool:
    """Whether the extra ``obstore`` is installed."""
    try:
        import obstore  # noqa: F401, PLC0415 - only whether it is there
    except ImportError:
        return False
    return True
