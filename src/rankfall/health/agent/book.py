"""Folds what an agent saw into the report of its node: bounded, gravest last, every new kind of fault at once.

A storm of one Xid (800,000 lines were seen) is one entry with a count. What does not fit is counted, and what the rules call least is left out first.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.health.rules import ORDER, Rule, Rules
from rankfall.model.health import MAX_SEEN, NodeFault
from rankfall.model.health_report import MAX_ENTRIES, KernelEntry, KernelReport, Place, RecordTrust

_MIN_SEEN: Final = 4
replace = msgspec.structs.replace

_Key = tuple[str, str | None, str | None, str | None, RecordTrust]


class Book:
    """What is to be told of one boot.

    Args:
        boot: boot id of the ring.
        rules: say what is grave, and how many records a threshold needs.
        injected: records that processes wrote are told too.
        report: what was told before; that of another boot is forgotten.
    """

    def __init__(self, boot: str, *, rules: Rules, injected: bool, report: KernelReport | None = None) -> None:
        self._boot, self._rules, self._injected = boot, rules, injected
        before = report if report is not None and report.boot == boot else KernelReport(boot=boot)
        self._entries: dict[_Key, KernelEntry] = {_key(each): each for each in before.entries}
        self.lost = before.lost
        self._more = before.more

    def add(self, fault: NodeFault) -> KernelEntry | None:
        """Count a fault of this boot.

        Returns:
            Its entry; a count of 1 is a kind that was not there. None = it is not to be told: a process wrote it.
        """
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
            # Last in the book is what was seen last.
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
        """As it stands when everything up to ``seq`` was read."""
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
    """How much would be missed: 0 (nothing is ever done about it) to 3. What takes another one back counts as much as what isolates."""
    if rule is None:
        return ORDER["watch"]
    return ORDER["quarantine"] if rule.recovers is not None else ORDER[rule.action]


def _key(entry: KernelEntry) -> _Key:
    return (entry.code, entry.device, entry.instance, entry.job, entry.trust)
