"""One rule for each fault code, read from the tables in ``data/``, and an operator's overrides of them.

A code is ``xid/79``, ``sxid/20034``, ``kernel/<signature>``, ``condition/<Type>``, ``metric/<name>`` or
``verdict/<cause>``, with a word where the line tells its severity: ``sxid/20034/fatal``,
``xid/154/gpu_reset``. A code without a rule is shown and never acted on. Causes of verdicts get the node
action of ``causes.csv``. Any fault in an operator's tables refuses all of them.
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

#: ``none`` is counted only; ``watch`` is written down; ``suspect`` marks the node; ``quarantine`` keeps the scheduler away from it.
Action = Literal["none", "watch", "suspect", "quarantine"]
#: What is at fault; a link has a second end, which may be the one that failed.
FaultScope = Literal["gpu", "node", "link"]
#: What usually mends it.
Remedy = Literal["none", "restart_app", "check_app", "reset_gpu", "reboot", "inspect"]
#: What has to be different for two observations to count as two: nothing, or the job that was struck.
Distinct = Literal["event", "job"]

#: ``last``: the newest of something, or 0; ``state``: 1 while it holds; ``counter``: how often.
MetricKind = Literal["last", "state", "counter"]

ORDER: Final[Mapping[Action, int]] = MappingProxyType({"none": 0, "watch": 1, "suspect": 2, "quarantine": 3})
#: Last word of the code of a verdict that does not prove enough for a taint.
SUSPECT: Final = "/suspect"
#: Longest window of a threshold: seven days, in seconds.
MAX_WINDOW_S: Final = 7 * 86_400


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one code means.

    Attributes:
        action: the most that it leads to, once ``count`` observations lie within ``window_s`` seconds on the same device.
        distinct: ``job`` = only observations that struck different jobs count; one whose job is not known counts as one and the same job.
        recovers: the code that this one takes back, on the same device.
        after_job: it takes the node out of service once no job runs there any more, where the policy says so.
        release: what it takes back needs no check before the node is given back.
        fatal_for_job: ``yes``, ``no`` or ``maybe``: whether a program on that device can go on.
        note: the reason, with what vendors and other tools say.
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
    """All rules in force.

    Args:
        rules: later ones replace earlier ones of the same code.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = {rule.code: rule for rule in rules}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules.values())

    def find(self, code: str) -> Rule | None:
        """The rule of a code; without one for its last word, that of the number alone. None = unknown: show it, never act."""
        found = self._rules.get(code)
        if found is None and code.count("/") > 1:
            found = self._rules.get(code.rpartition("/")[0])
        return found

    def action(self, code: str) -> Action:
        """What a code asks for at most; ``none`` for an unknown one."""
        rule = self.find(code)
        return "none" if rule is None else rule.action


_MANUAL_RULE: Final = Rule(
    code=MANUAL_CODE, action="quarantine", remedy="inspect", note="a person said so; only a person takes it back"
)


@cache
def packaged() -> Rules:
    """The packaged rules, read once."""
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
            note="it is good again; the node is validated before it is given back",
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
            yield Rule(code=code + SUSPECT, action="suspect", note="a job's own words are a part of the proof")


_NUMBERS: Final = ("count", "window_s")


def _rule(code: str, row: Mapping[str, str]) -> Rule:
    known: dict[str, object] = {key: row[key] for key in Rule.__struct_fields__ if row.get(key)}
    known |= {key: numbers.matched(row[key]) for key in _NUMBERS if key in known}
    known |= {key: row.get(key) == "yes" for key in ("release", "after_job")}
    return decoding.convert({**known, "code": code}, Rule)


def bad_conditions() -> Mapping[str, str]:
    """Types of conditions that have a rule, and the status that is bad."""
    return MappingProxyType({row["type"]: row["bad"] for row in _table("conditions")})


@cache
def metric_fields() -> Mapping[str, tuple[MetricKind, str]]:
    """Fields of an exporter of metrics: what kind each is, and its code; ``xid`` = the value is the number of an Xid."""
    return MappingProxyType(
        {row["metric"]: (decoding.convert(row["kind"], MetricKind), row["code"]) for row in _table("metrics")}
    )


@cache
def _table(name: str) -> tuple[Mapping[str, str], ...]:
    text = resources.files("rankfall.nodes").joinpath("data", f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))


_CODE: Final = anchored(r"[a-z]{1,16}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95}){1,2}", limit=256)


def rules_from(rows: Sequence[dict[str, Any]], *, origin: str) -> tuple[Rule, ...]:
    """The packaged rules as these tables change them.

    A table gives the fields that change; the others stay as they are packaged, or have their defaults where the code is new. A rule
    for a number without a word (``sxid/20034``) stands for all its words, unless there is one for the word as well.

    Args:
        rows: with ``code`` and any other field of :class:`Rule`.
        origin: name of the file, for messages.

    Raises:
        SpecError: names file, rule and field.
    """
    known = {rule.code: rule for rule in packaged()}
    named: dict[str, Rule] = {}
    for number, row in enumerate(rows, start=1):
        code = row.get("code")
        place = f"{origin}: rule {number}"
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise SpecError(f"{place}: code", "must be as xid/79, sxid/20034, kernel/nic_down.kernel, verdict/gpu_ecc")
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
