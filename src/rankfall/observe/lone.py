"""One slot with one rank: what its own directory tells under names that are known beforehand, so that no folder is listed while all goes well.

A job that is not distributed shall pay nothing for those that are. Start and place of the rank stand in its claim, its good end in the
slot's ``end.json``. Refuses to read anything else into them: a bad end, a second process or a rank without its slot's end, and the records
themselves are read as for everybody.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rankfall.model import JobSpec, Record, decoding, numbers
from rankfall.model.evidence import SlotLauncher
from rankfall.observe.left_file import read_left
from rankfall.observe.records import Found, read_end

# A hook that has not claimed for so long is not there, seconds.
_WAIT_S: Final = 2.0
# How long after its rank a slot that ends well may take to end, seconds: the wrapper at once, torchrun with torch to unload on a busy machine.
PATIENCE_S: Final[Mapping[SlotLauncher, float]] = MappingProxyType({"plain": 2.0, "torchrun": 5.0})
_NS: Final = 1_000_000_000
# pid, start, root's pid and start, then the identity; one number more when the wrapper made the claim for a rank without hook.
_IDENTITY: Final = ("rank", "local_rank", "group_rank", "world_size", "local_world_size", "restart_count")
_NUMBERS: Final = 4 + len(_IDENTITY)
_STATE, _START_TICKS = 0, 19


def stands_alone(spec: JobSpec, launcher: SlotLauncher | None) -> bool:
    """Whether a job is one slot with one rank, and names no strategy that may want more than that.

    What ``exec`` starts is not known beforehand, and its exit code need not be its rank's.
    """
    return (
        spec.world_size == spec.slot_count == 1
        and not spec.elastic
        and spec.strategy is None
        and launcher in PATIENCE_S
    )


class LoneSlot:
    """The slot and the rank of such a job, read from the slot directory alone.

    Args:
        slot_dir: need not exist yet.
        place: run, attempt, role, slot and node, as fields of a record.
        hook: whether a hook can come at all.
        patience: seconds that the slot may take to end after its rank.

    Attributes:
        succeeded: the slot ended well, and so did its rank.
        over: there is more than these few files can tell.
    """

    def __init__(self, slot_dir: Path, *, place: dict[str, object], hook: bool, patience: float) -> None:
        self._dir = slot_dir
        self._place = place
        self._hook = hook
        self._patience = patience
        self._slot_seen = False
        self._start: Record | None = None
        # Of the topmost process of the rank: a shell may stand around its program.
        self._top = (0, 0)
        self._gone_since: float | None = None
        self.succeeded = False
        self.over = False

    def poll(self) -> list[Found]:
        """What is new, as the records that say the same; with ``over`` set, the records themselves must be read from now on.

        What was found before it was over counts all the same: the records may be gone by now, and who the rank was stands here too.
        """
        if self.succeeded or self.over:
            return []
        found = []
        if not self._slot_seen and (at := _written(self._dir / "lock")) is not None:
            self._slot_seen = True
            found.append(self._found("slot_start", "lock", at=at))
        # Looked for before the claims are read: what was claimed before the end is then surely seen.
        try:
            end = read_end(self._dir)
            found += self._rank(final=end is not None)
        except ValueError:
            self.over = True
            return found
        if end is None:
            self.over = self._left_behind()
            return found
        if self._start is None or end.exit is None or end.exit.code != 0:
            self.over = True
            return found
        self.succeeded = True
        return [*found, *self._good_end(end, self._start)]

    def _rank(self, *, final: bool) -> list[Found]:
        """The rank's start, and once more when its hook turns out to be there.

        Raises:
            ValueError: there is more than these few files can tell.
        """
        claims = self._dir / "claims"
        own, at = _numbers(claims / "o0"), _written(claims / "o0")
        if own is None or at is None:
            return []
        root = claims / f"r{own[2]}-{own[3]}"
        hooked = _numbers(root.with_name(f"{root.name}.0"))
        late = len(own) > _NUMBERS and self._hook
        if late or (claims / "o1").exists() or root.with_name(f"{root.name}.1").exists():
            raise ValueError
        self._top = own[0], own[1]
        loaded = hooked is not None and len(hooked) == _NUMBERS
        pid, ticks = hooked[:2] if loaded and hooked is not None else own[:2]
        if self._start is not None and (self._start.writer == "hook" or not loaded):
            return []
        if not loaded and self._hook and not final and time.time_ns() - at < _WAIT_S * _NS:
            return []
        named = {name: value for name, value in zip(_IDENTITY, own[4:_NUMBERS], strict=True) if value >= 0}
        writer = "hook" if loaded else "wrapper"
        start = self._found("start", "claims/o0", at=at, pid=pid, start_ticks=ticks, ordinal=0, writer=writer, **named)
        self._start = start.record
        return [start]

    def _good_end(self, end: Record, start: Record) -> list[Found]:
        at = end.at_ns or time.time_ns()
        # plain ends with its rank's own code, torchrun with 0 only when its one worker did.
        code = {"code": 0, "how": "wait"}
        rank = self._found("end", "end.json", at=at, pid=start.pid, rank=start.rank, ordinal=0, exit=code)
        name = f"slot_end-a{end.attempt}-{end.role}-{end.slot}-{end.id}.json"
        return [rank, Found(record=end, name=name, mtime=at)]

    def _left_behind(self) -> bool:
        """Whether the rank ended and its slot goes on for longer than a launcher needs to leave."""
        if self._start is None or _lives(*self._top):
            self._gone_since = None
            return False
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        return now - self._gone_since > self._patience

    def _found(self, kind: str, file: str, *, at: int, **fields: object) -> Found:
        given = {"id": f"lone-{kind}", "kind": kind, "writer": "wrapper", "at_ns": at, **self._place, **fields}
        name = "/".join(("..", *self._dir.parts[-3:], file))
        return Found(record=decoding.convert(given, Record), name=name, mtime=at)


def _numbers(path: Path) -> tuple[int, ...] | None:
    """The numbers of a claim; None when it is missing or not whole."""
    try:
        said = [numbers.whole(word) for word in read_left(path, limit=256)[0].split()]
    except OSError:
        return None
    found = tuple(each for each in said if each is not None)
    return found if len(found) == len(said) >= _NUMBERS else None


def _written(path: Path) -> int | None:
    """When a file got its content, nanoseconds since the epoch; None while it has none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns if found.st_size else None


def _lives(pid: int, ticks: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[_STATE] not in {b"Z", b"X"} and numbers.whole(fields[_START_TICKS]) == ticks
    except (OSError, IndexError):
        return False
