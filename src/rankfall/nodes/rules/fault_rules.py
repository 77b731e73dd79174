"""One rule for each fault code, from ``data/`` and an operator's overrides.

Codes: ``xid/79``, ``sxid/20034/fatal``, ``kernel/<signature>``, ``condition/<Type>``, ``metric/<name>``,
``verdict/<cause>``. A code without a rule causes no action.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec

from rankfall.model import decoding, numbers
from rankfall.model.causes import catalogue as causes
from rankfall.model.errors import SpecError
from rankfall.model.node_health.records import MANUAL_CODE, MAX_SEEN, printable
from rankfall.model.patterns import anchored

#: ``watch`` records; ``suspect`` marks; ``quarantine`` isolates the node.
Action = Literal["none", "watch", "suspect", "quarantine"]
#: A link has a second end, which may have failed.
FaultScope = Literal["gpu", "node", "link"]
#: The usual repair.
Remedy = Literal["none", "restart_app", "check_app", "reset_gpu", "reboot", "inspect"]
#: Required difference between counted observations.
Distinct = Literal["event", "job"]

#: ``last``: newest value; ``state``: 1 while active; ``counter``: occurrences.
MetricKind = Literal["last", "state", "counter"]

ORDER: Final[Mapping[Action, int]] = MappingProxyType({"none": 0, "watch": 1, "suspect": 2, "quarantine": 3})
#: Last word of a verdict code without enough proof.
SUSPECT: Final = "/suspect"
#: Longest window of a threshold in seconds.
MAX_WINDOW_S: Final = 7 * 86_400


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Meaning of one code.

    Attributes:
        action: Maximum action, after ``count`` observations in ``window_s`` seconds.
        distinct: ``job`` counts different jobs; all unknown jobs are one.
        recovers: Code that this one revokes.
        after_job: True to isolate the node after its job.
        release: True if a revoked code needs no check.
        fatal_for_job: ``yes``, ``no`` or ``maybe``: the fault ends programs on the device.
        note: Reason, with statements of vendors.
    """

    code: str
    action: Action
    name: str = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEEN)] = 1
    window_s: Annotated[int, msgspec.Meta(ge=0, le=MAX_WINDOW_S)] = 0
    distinct: Distinct = "event"
    scope: FaultScope = "node"
    remedy: Remedy = "none"
    recovers: str | None = None
    release: bool = False
    after_job: bool = False
    fatal_for_job: Literal["yes", "no", "maybe"] = "maybe"
    note: str = ""


class Rules:
    """All active rules; later ones replace earlier ones."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = {rule.code: rule for rule in rules}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules.values())

    def find(self, code: str) -> Rule | None:
        """Returns the rule of a code, or that of the code without its last word.

        None if there is neither: then no action.
        """
        found = self._rules.get(code)
        if found is None and code.count("/") > 1:
            found = self._rules.get(code.rpartition("/")[0])
        return found

    def action(self, code: str) -> Action:
        """Returns the maximum action; ``none`` for an unknown code."""
        rule = self.find(code)
        return "none" if rule is None else rule.action


_MANUAL_RULE: Final = Rule(
    code=MANUAL_CODE, action="quarantine", remedy="inspect", note="a person set it; only a person can clear it"
)


@cache
def packaged() -> Rules:
    """Returns the packaged rules, read once."""
    return Rules([*_xid(), *_sxid(), *_kernel(), *_conditions(), *_metrics(), *_verdicts(), _MANUAL_RULE])


def _xid() -> Iterator[Rule]:
    for row in _table("xid"):
        yield _rule(f"xid/{row['code']}", row)


def _sxid() -> Iterator[Rule]:
    classes = _table("sxid_classes")
    for row in _table("sxid"):
        for each in classes:
            if each["class"] == row["class"]:
                code = "/".join(part for part in ("sxid", row["number"], each["word"]) if part)
                yield _rule(code, {**each, "note": "; ".join(part for part in (row["note"], each["note"]) if part)})


def _kernel() -> Iterator[Rule]:
    for row in _table("kernel"):
        yield _rule(f"kernel/{row['signature']}", row)


def _conditions() -> Iterator[Rule]:
    for row in _table("conditions"):
        code = f"condition/{row['type']}"
        yield _rule(code, row)
        yield Rule(
            code=f"{code}/good",
            action="none",
            recovers=code,
            note="it is good again; the node is validated before its taint is removed",
        )


def _metrics() -> Iterator[Rule]:
    for row in _table("metrics"):
        if row["action"]:
            yield _rule(row["code"], row)


def _verdicts() -> Iterator[Rule]:
    actions: dict[str, Action] = {"none": "none", "suspect": "suspect", "taint": "quarantine"}
    for cause in causes().values():
        code = f"verdict/{cause.slug}"
        yield Rule(code=code, action=actions[cause.node_action], note=cause.title)
        if cause.node_action == "taint":
            yield Rule(code=code + SUSPECT, action="suspect", note="output of the job is a part of the proof")


_NUMBERS: Final = ("count", "window_s")


def _rule(code: str, row: Mapping[str, str]) -> Rule:
    known: dict[str, object] = {key: row[key] for key in Rule.__struct_fields__ if row.get(key)}
    known |= {key: numbers.matched(row[key]) for key in _NUMBERS if key in known}
    known |= {key: row.get(key) == "yes" for key in ("release", "after_job")}
    return decoding.convert({**known, "code": code}, Rule)


def bad_conditions() -> Mapping[str, str]:
    """Returns the condition types that have a rule, and their bad status."""
    return MappingProxyType({row["type"]: row["bad"] for row in _table("conditions")})


@cache
def metric_fields() -> Mapping[str, tuple[MetricKind, str]]:
    """Returns kind and code of metric fields; ``xid`` values are Xid numbers."""
    return MappingProxyType(
        {row["metric"]: (decoding.convert(row["kind"], MetricKind), row["code"]) for row in _table("metrics")}
    )


@cache
def _table(name: str) -> tuple[Mapping[str, str], ...]:
    text = resources.files("rankfall.nodes").joinpath("data", f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


_CODE: Final = anchored(r"[a-z]{1,16}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){1,2}", limit=256)


def _can_match(code: str) -> bool:
    """False for an Xid or SXid without a number, and a verdict without a cause of the catalogue."""
    family, name, *_ = code.split("/")
    if family == "verdict":
        return name in causes()
    return family not in {"xid", "sxid"} or name.isdecimal() or name == "unreadable"


def rules_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Rule, ...]:
    """Returns the packaged rules with an operator's changes.

    A rule for a number without a word replaces all its words, except words with a rule.

    Raises:
        SpecError: Names file, rule and field.
    """
    known = {rule.code: rule for rule in packaged()}
    named: dict[str, Rule] = {}
    for number, row in enumerate(rows, start=1):
        code = row.get("code")
        place = f"{origin}: rule {number}"
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise SpecError(f"{place}: code", "must be as xid/79, sxid/20034, kernel/nic_down.kernel, verdict/gpu_ecc")
        if not _can_match(code):
            raise SpecError(
                f"{place}: code",
                f"nothing has the code {code}",
                hint="a number follows xid/ and sxid/, a cause verdict/",
            )
        if code in named:
            raise SpecError(f"{place}: code", f"{code} has a rule in this file already")
        before = msgspec.structs.asdict(known[code]) if code in known else {}
        try:
            rule = decoding.convert({**before, **row}, Rule)
        except msgspec.ValidationError as error:
            raise SpecError(f"{place} ({code})", printable(str(error))) from None
        if rule.count > 1 and not rule.window_s:
            raise SpecError(
                f"{place} ({code}): window_s", f"count {rule.count} needs the seconds within which they count"
            )
        if rule.recovers is not None and rule.action != "none":
            raise SpecError(
                f"{place} ({code}): action", f"it takes {printable(rule.recovers)} back, so its action is none"
            )
        named[code] = rule
    kept = (rule for code, rule in known.items() if code.rpartition("/")[0] not in named)
    return (*kept, *named.values())
