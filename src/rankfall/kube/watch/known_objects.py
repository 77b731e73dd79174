"""Reported objects of a watch, compared with a new list. Pure.

A new UID under the same name is another object; the old one is reported as deleted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeGuard

import msgspec

Object = dict[str, Any]
Keep = Callable[[Object], Any]
Change = Literal["added", "modified", "deleted"]
Key = tuple[str, str]


class Known(msgspec.Struct, frozen=True):
    """Last known state of one object; ``kept`` is the result of ``keep``."""

    uid: str
    version: str
    kept: Any


class Head(NamedTuple):
    """Identity of an object's state, with a decoder of the whole object."""

    key: Key
    uid: str
    version: str
    whole: Callable[[], Object]


class Book:
    """Reported objects that are not deleted; ``keep`` extracts the part that a deletion will report."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._known: dict[Key, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def compare(self, heads: Iterable[Head]) -> Iterator[tuple[Change, Any, bool]]:
        """Yields changes from a complete new list; decodes only changed objects.

        Vanished objects come first, so that consumers never count too many.
        """
        new = {head.key: head for head in heads}
        for key, known in list(self._known.items()):
            now = new.get(key)
            if now is None or now.uid != known.uid:
                del self._known[key]
                yield "deleted", known.kept, True
        for head in new.values():
            for change in self.seen(head):
                yield *change, False

    def seen(self, head: Head) -> Iterator[tuple[Change, Any]]:
        """Handles an object's current state: yields the change, or nothing if it was already reported."""
        key, uid, version, whole = head
        old = self._known.get(key)
        if old is not None and old.uid == uid and old.version == version:
            return
        if old is not None and old.uid != uid:
            yield "deleted", old.kept
        item = whole()
        self._known[key] = Known(uid=uid, version=version, kept=self._keep(item))
        yield ("modified" if old is not None and old.uid == uid else "added"), item

    def gone(self, item: Object) -> Iterator[tuple[Change, Any]]:
        """Handles a deleted or unmatched object; yields nothing if unknown or replaced."""
        key = _key_of(item)
        old = self._known.get(key)
        if old is not None and old.uid == _uid(item):
            del self._known[key]
            yield "deleted", item


def head_of(item: Object) -> Head:
    """Returns the head of a valid object (:func:`is_object`)."""
    return Head(_key_of(item), _uid(item), version_of(item), lambda: item)


def is_object(item: Any) -> TypeGuard[Object]:
    """True if this has every object's fields; check before the functions below."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("name"), str)


def _key_of(item: Object) -> Key:
    meta = item["metadata"]
    return meta.get("namespace", ""), meta["name"]


def version_of(item: Any) -> str:
    """Returns the resource version; empty if absent."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    return str(meta.get("resourceVersion", "")) if isinstance(meta, dict) else ""


def _uid(item: Object) -> str:
    return str(item["metadata"].get("uid", ""))
