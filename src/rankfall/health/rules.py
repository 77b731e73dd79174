"""What is done about each code: one rule a code, read from the tables in ``data/``.

A code is ``xid/79``, ``sxid/20034``, ``kernel/<signature>``, ``condition/<Type>``, ``metric/<name>`` or ``verdict/<cause>``; where the line itself says how grave
it is, a word follows: ``sxid/20034/fatal``, ``xid/154/gpu_reset``. A code that has no rule is shown and never acted on.

Kernel lines other than NVIDIA's numbers are recognised by the signatures that verdicts use as well (``signatures/data``); the table here only says
what their ids mean for a node. Causes of verdicts get the rule that ``causes.csv`` gives them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec

from rankfall.model import decoding, numbers
from rankfall.model.causes import catalogue as causes
from rankfall.model.health import BY_HAND, MAX_SEEN

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


_BY_HAND: Final = Rule(
    code=BY_HAND, action="quarantine", remedy="inspect", note="a person said so; only a person takes it back"
)


@cache
def packaged() -> Rules:
    """The packaged rules, read once."""
    return Rules([*_xid(), *_sxid(), *_kernel(), *_conditions(), *_metrics(), *_verdicts(), _BY_HAND])


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
    text = resources.files(__package__).joinpath("data", f"{name}.csv").read_text("utf-8")
    return tuple(csv.DictReader(text.splitlines()))
