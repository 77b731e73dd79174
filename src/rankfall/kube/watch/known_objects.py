"""Objects that a watch has reported, and the differences to a new list. Pure.

No change is lost where the server's history has a gap. Only version, UID and what the caller keeps are
stored. A name that returns with another UID is another object: the old one is reported as deleted first.
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
    """One object as it was last seen.

    Attributes:
        uid: of the object.
        version: its resourceVersion; compared for being equal, nothing else.
        kept: what ``keep`` made of it.
    """

    uid: str
    version: str
    kept: Any


class Head(NamedTuple):
    """What tells one state of an object from another, and how to have all of it."""

    key: Key
    uid: str
    version: str
    whole: Callable[[], Object]


class Book:
    """The objects that a watch has told of and that are not deleted.

    Args:
        keep: what is remembered of an object for the day it vanishes unseen.
    """

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._known: dict[Key, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def compare(self, heads: Iterable[Head]) -> Iterator[tuple[Change, Any, bool]]:
        """What has changed since, when these are all objects that there are now; only of those that have is the whole wanted.

        Objects that vanished come first, so that whoever counts never counts too many.

        Yields:
            The change, the object (of a vanished one what was kept), and whether it vanished.
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
        """An object is there in this state: nothing when this is known, else what has changed."""
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
        """An object was deleted, or no longer fits the selector; nothing when nobody knew of it, or it is another one by now."""
        key = _key_of(item)
        old = self._known.get(key)
        if old is not None and old.uid == _uid(item):
            del self._known[key]
            yield "deleted", item


def head_of(item: Object) -> Head:
    """Of an object that is one (:func:`is_object`)."""
    return Head(_key_of(item), _uid(item), version_of(item), lambda: item)


def is_object(item: Any) -> TypeGuard[Object]:
    """Whether this has what every object has; checked before anything below is asked."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("name"), str)


def _key_of(item: Object) -> Key:
    """Namespace and name."""
    meta = item["metadata"]
    return meta.get("namespace", ""), meta["name"]


def version_of(item: Any) -> str:
    """The resourceVersion; empty when there is none."""
    meta = item.get("metadata") if isinstance(item, dict) else None
    return str(meta.get("resourceVersion", "")) if isinstance(meta, dict) else ""


def _uid(item: Object) -> str:
    return str(item["metadata"].get("uid", ""))
