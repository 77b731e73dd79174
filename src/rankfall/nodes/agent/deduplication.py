"""Folds equal faults into the node's report, and limits equal printed lines.

A burst of one Xid (800,000 lines in one case) is one entry with a count. Memory is bounded.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

import msgspec

from rankfall.model.node_health.kernel_reports import (
    MAX_ENTRIES,
    KernelEntry,
    KernelLine,
    KernelReport,
    Place,
    RecordTrust,
)
from rankfall.model.node_health.records import MAX_SEEN, NodeFault
from rankfall.nodes.rules.fault_rules import ORDER, Rule, Rules

_MIN_SEEN: Final = 4
replace = msgspec.structs.replace

_Key = tuple[str, str | None, str | None, str | None, RecordTrust]


class Book:
    """The report of one boot; an earlier report of another boot is dropped."""

    def __init__(self, boot: str, *, rules: Rules, injected: bool, report: KernelReport | None = None) -> None:
        self._boot, self._rules, self._injected = boot, rules, injected
        before = report if report is not None and report.boot == boot else KernelReport(boot=boot)
        self._entries: dict[_Key, KernelEntry] = {_key(each): each for each in before.entries}
        self.lost = before.lost
        self._more = before.more

    def add(self, fault: NodeFault) -> KernelEntry | None:
        """Counts a fault of this boot; returns its entry, or None if a process wrote the record."""
        if fault.seq is None or fault.at is None or fault.trust not in {"kernel", "injected"}:
            return None
        if fault.trust == "injected" and not self._injected:
            return None
        place = Place(fault.seq, fault.at)
        trust: RecordTrust = "injected" if fault.trust == "injected" else "kernel"
        entry = KernelEntry(
            code=fault.code,
            trust=trust,
            seen=(place,),
            first=place,
            uncertainty=fault.uncertainty,
            device=fault.device,
            instance=fault.instance,
            slug=fault.slug,
            job=fault.job,
            pid=fault.pid,
            process=fault.process,
            detail=fault.detail,
            text=fault.text,
        )
        key = _key(entry)
        before = self._entries.get(key)
        if before is not None:
            # The newest entry is the last.
            del self._entries[key]
            entry = replace(
                entry,
                seen=(*before.seen, place)[-self._kept(fault.code) :],
                first=before.first,
                count=before.count + 1,
                uncertainty=max(before.uncertainty, entry.uncertainty),
            )
        self._entries[key] = entry
        if len(self._entries) > MAX_ENTRIES:
            least = min(self._entries, key=lambda each: self._grave(each[0]))
            del self._entries[least]
            self._more += 1
        return entry

    def report(self, seq: int | None) -> KernelReport:
        """Returns the report after all records up to ``seq``."""
        entries = sorted(self._entries.values(), key=lambda each: self._grave(each.code))
        return KernelReport(
            boot=self._boot,
            seq=seq,
            lost=self.lost,
            more=self._more,
            injected=self._injected,
            entries=tuple(entries),
        )

    def _kept(self, code: str) -> int:
        rule = self._rules.find(code)
        return min(MAX_SEEN, max(_MIN_SEEN, 0 if rule is None else rule.count))

    def _grave(self, code: str) -> int:
        return gravity(self._rules.find(code))


def gravity(rule: Rule | None) -> int:
    """Returns the gravity of a rule: 0 (no action ever) to 3.

    A rule that revokes another counts like one that isolates.
    """
    if rule is None:
        return ORDER["watch"]
    return ORDER["quarantine"] if rule.recovers is not None else ORDER[rule.action]


def _key(entry: KernelEntry) -> _Key:
    return (entry.code, entry.device, entry.instance, entry.job, entry.trust)


WINDOW_S: Final = 60.0
BURST: Final = 10
KINDS: Final = 512


class _Count:
    __slots__ = ("first", "folded", "last", "printed", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.printed = 0
        self.folded = 0
        self.first: KernelLine | None = None
        self.last: KernelLine | None = None


class BurstLimiter:
    """Counts equal lines of one minute each."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Count] = {}

    def admit(self, line: KernelLine, *, now: float) -> bool:
        """True if this line is to be printed; ``now`` in monotonic seconds."""
        key: Hashable = (line.kind, line.code, line.device, line.instance, line.job, line.trust)
        if key not in self._kinds and len(self._kinds) >= KINDS:
            key = None
        count = self._kinds.get(key)
        if count is None:
            count = self._kinds[key] = _Count(now + WINDOW_S)
        if count.printed < BURST:
            count.printed += 1
            return True
        count.folded += 1
        count.first = count.first or line
        count.last = line
        return False

    def due(self, *, now: float, all_: bool = False) -> list[KernelLine]:
        """Returns lines with the counts of repetitions in completed minutes; ``all_``: in running minutes too."""
        over = [key for key, each in self._kinds.items() if all_ or each.until <= now]
        return [_line_of(count) for key in over if (count := self._kinds.pop(key)).folded]

    def next(self) -> float | None:
        """Returns the end of the next minute, monotonic seconds; None if nothing is counted."""
        return min((each.until for each in self._kinds.values() if each.folded), default=None)


def _line_of(count: _Count) -> KernelLine:
    first, last = count.first, count.last
    if first is None or last is None:
        raise AssertionError("a count without a line")
    return msgspec.structs.replace(
        last,
        kind="fold",
        seq=first.seq,
        last_seq=last.seq,
        count=count.folded,
        note=f"{count.folded} more like this one within {WINDOW_S:.0f} s",
    )
