"""Copies a slot's records to a shared directory or S3-compatible store, in a thread.

Each copy is ``PREFIX/RUN/errors/`` plus the record's name.
"""

from __future__ import annotations

import os
import threading
import time

from rankfall_inside import procfs
from rankfall_inside.delivery.bucket import Bucket, RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping

VARIABLE = "RANKFALL_RECORD_STORE"
FOLDER = "errors"
_PAUSE_S = 1.0
_MAX_BYTES = 1 << 20


class Delivery:
    """Copies of one slot's records; ``place`` has the slot's identity, which selects its records by name."""

    def __init__(self, environ: Mapping[str, str], folder: str, place: Mapping[str, Any]) -> None:
        self._url = environ.get(VARIABLE, "")
        self._folder = folder
        self._environ = {name: value for name, value in environ.items() if name.startswith("AWS_")}
        self._run = str(place.get("run") or "run")
        self._mark = f"-a{place.get('attempt')}-{place.get('role')}-{place.get('slot')}-"
        self._sent: set[str] = set()
        self._trouble = ""
        self._refused = self._last = False
        self._left = 0
        self._changed = threading.Condition()
        self._wanted = self._served = 0

    def start(self) -> None:
        """Starts the thread; call after the last fork."""
        if self._url:
            threading.Thread(target=self._work, name="rankfall-records", daemon=True).start()

    def settle(self, limit: float, *, last: bool = False) -> list[str]:
        """Copies all records within ``limit`` seconds; returns notes about missing copies. ``last`` ends the thread."""
        if not self._url:
            return []
        with self._changed:
            self._wanted += 1
            self._last = last
            wanted = self._wanted
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._served >= wanted, timeout=limit)
            if self._served >= wanted and not self._left:
                return []
            trouble = self._trouble or f"no answer within {limit:.0f} s"
        return [f"records of this slot are missing in {self._url}: {trouble}"]

    def _work(self) -> None:
        try:
            put = _target(self._url, self._run, self._environ)
        except Exception as error:
            self._refused, self._trouble = True, str(error)[:300]
            put = _nowhere
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._served, timeout=_PAUSE_S)
                wanted, last = self._wanted, self._last
            left = self._pass(put)
            with self._changed:
                self._left, self._served = left, wanted
                self._changed.notify_all()
            if last:
                return

    def _pass(self, put: Callable[[str, bytes], None]) -> int:
        """Copies new records; returns the number of missing ones."""
        try:
            names = [n for n in os.listdir(self._folder) if n.endswith(".json") and self._mark in n and n[0] != "."]
        except OSError:
            return 0
        new = sorted(name for name in names if name not in self._sent)
        if self._refused:
            return len(new)
        for index, name in enumerate(new):
            try:
                with open(os.path.join(self._folder, name), "rb", opener=procfs.at_once) as file:
                    data = file.read(_MAX_BYTES)
                _patiently(lambda name=name, data=data: put(name, data))  # type: ignore[misc]
            except RefusedError as error:
                self._refused, self._trouble = True, str(error)[:300]
                return len(new) - index
            except Exception as error:
                self._trouble = (str(error) or type(error).__name__)[:300]
                return len(new) - index
            self._sent.add(name)
        return 0


def _patiently(action: Callable[[], None]) -> None:
    """Tries ``action`` three times, because a server may be restarting."""
    for pause in (0.2, 1.0):
        try:
            action()
        except RefusedError:
            raise
        except Exception:
            time.sleep(pause)
        else:
            return
    action()


def _nowhere(_name: str, _data: bytes) -> None:
    raise RefusedError("there is no store")


def _target(url: str, run: str, environ: Mapping[str, str]) -> Callable[[str, bytes], None]:
    """Returns ``put(name, data)``, which writes one copy."""
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        folder = os.path.join(rest, run, FOLDER)
        os.makedirs(folder, exist_ok=True)
        return lambda name, data: _put_file(folder, name, data)
    if scheme == "s3":
        bucket, _, prefix = rest.strip("/").partition("/")
        parts = [part for part in (*prefix.split("/"), run, FOLDER) if part]
        store = Bucket(bucket, environ)
        return lambda name, data: store.put("/".join([*parts, name]), data)
    raise RefusedError(f"{scheme}:// is not supported: only the standard library is available")


def _put_file(folder: str, name: str, data: bytes) -> None:
    path, temporary = os.path.join(folder, name), os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    if os.path.exists(path):
        return
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
