"""Verdicts of runs on a node (annotation ``rankfall.dev/run-verdicts``), and the controller's answer.

Only a proven verdict that blames the node is in it, as far as no job can forge it. It takes a right on Nodes
that owners of jobs do not have. It holds causes, numbers and times, and one bounded line of a job's text that
decides nothing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec

from rankfall.model.node_health.records import MAX_MESSAGE, MAX_TEXT, NodeHealth, decode_annotation, printable
from rankfall.model.timestamps import nanoseconds
from rankfall.model.verdict import Verdict

VERDICTS_SCHEMA: Final = "rankfall.runverdicts/1"
VERDICTS_ANNOTATION: Final = "rankfall.dev/run-verdicts"
#: Verdicts that one Node holds; the newest are kept.
MAX_VERDICTS: Final = 8
#: Characters of the annotation.
MAX_VERDICTS_TEXT: Final = 16 << 10

_Run = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$(?!\n)")]
# A run's name, an attempt and both of these fit into an id of 128 characters.
_Number = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
_Slug = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}$(?!\n)")]
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A proven verdict of one attempt that blames this node.

    Attributes:
        cause: slug of ``causes.csv``.
        action: the most that it asks for: ``taint`` only where kernel or platform prove it, which no job can forge.
        at: when the first rank fell, nanoseconds since the epoch, with ``uncertainty`` seconds on each side.
        slot, instance: of a slot that fell alone and is started again inside its attempt, and which of its starts fell; None = the attempt fell.
        gpu: that failed, as the verdict names it; None = not known.
        text: the line that decided, bounded and without control characters.
    """

    run: _Run
    attempt: Annotated[int, msgspec.Meta(ge=1, le=99_999)]
    cause: _Slug
    action: Literal["suspect", "taint"]
    at: _Nanoseconds
    uncertainty: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    slot: _Number | None = None
    instance: _Number | None = None
    gpu: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    text: Annotated[str, msgspec.Meta(max_length=MAX_TEXT)] = ""

    @property
    def id(self) -> str:
        """Of this fall: told again it is the same one."""
        start = "" if self.slot is None else f":{self.slot}.{self.instance or 0}"
        return f"verdict:{self.run}:{self.attempt}{start}"

    @classmethod
    def of(cls, verdict: Verdict, *, at: int, start: tuple[int, int] | None = None) -> Self | None:
        """What a verdict says of its node; None = it blames none, or is not proven.

        Args:
            verdict: of an attempt of a run.
            at: now, nanoseconds since the epoch; stands for the time of a fall that is not known.
            start: slot and its start, where that fell alone; None = the attempt fell.
        """
        if verdict.node is None or verdict.run is None or verdict.attempt is None:
            return None
        if verdict.cause.confidence != "proven" or verdict.node_action == "none":
            return None
        fell = None if verdict.time.at is None else nanoseconds(verdict.time.at)
        line = None if verdict.decisive is None else verdict.decisive.line
        return cls(
            run=verdict.run,
            attempt=verdict.attempt,
            slot=None if start is None else start[0],
            instance=None if start is None else start[1],
            cause=verdict.cause.slug,
            action=verdict.node_action,
            at=at if fell is None else fell,
            uncertainty=verdict.time.uncertainty_s or 0.0,
            # Drivers print the address with a prefix that agents leave out.
            gpu=None if verdict.gpu is None else printable(verdict.gpu.removeprefix("PCI:"), 64),
            text=printable(line or verdict.cause.title),
        )


class RunVerdicts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The annotation: the newest verdicts on one node, oldest first."""

    schema: Literal["rankfall.runverdicts/1"] = VERDICTS_SCHEMA
    verdicts: Annotated[tuple[RunVerdict, ...], msgspec.Meta(max_length=MAX_VERDICTS)] = ()

    def with_one(self, verdict: RunVerdict) -> RunVerdicts:
        """With this verdict in it, once; the oldest goes where there is no room."""
        others = [each for each in self.verdicts if each.id != verdict.id]
        return RunVerdicts(verdicts=(*others, verdict)[-MAX_VERDICTS:])


def encode_verdicts(verdicts: RunVerdicts) -> str:
    """The text of the annotation."""
    return msgspec.json.encode(verdicts).decode()


def decode_verdicts(text: str) -> RunVerdicts:
    """Read the annotation.

    Raises:
        EvidenceLost: too large, no JSON, another schema, an unknown field or a value out of bounds.
    """
    hint = f"remove the annotation {VERDICTS_ANNOTATION} from the node; runs write it anew"
    return decode_annotation(text, RunVerdicts, name=VERDICTS_ANNOTATION, most=MAX_VERDICTS_TEXT, hint=hint)


#: Lease by which controllers of node health say who of them acts, and the namespace in which it is by default.
LEASE: Final = "rankfall-controller"
NAMESPACE: Final = "rankfall"
#: Environment of a supervisor: another namespace of the controller.
CONTROLLER_NAMESPACE: Final = "RANKFALL_CONTROLLER_NAMESPACE"

#: ``waiting``: not taken up yet; ``none``: nobody is there who could.
State = Literal["tainted", "held", "noted", "waiting", "none"]


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a verdict on its node.

    Attributes:
        state: ``tainted``: the scheduler keeps away; ``held``: it should, and a limit forbids; ``noted``: written down, or of no weight.
        text: why, as the node's condition says it; bounded, without control characters.
    """

    state: State
    text: str = ""


def answer_of(health: NodeHealth | None, verdict: RunVerdict, *, condition: str = "") -> NodeAnswer:
    """Read the answer out of a node's record.

    Args:
        health: the record; None = there is none.
        verdict: that was told.
        condition: message of the node's condition.
    """
    outcome = next((each.outcome for each in health.answered if each.id == verdict.id), None) if health else None
    if health is None or outcome is None:
        return NodeAnswer(state="waiting")
    text = printable(condition, MAX_MESSAGE)
    # Record and taint are one request, so a record that says so is the API server's word for the taint.
    if health.tainted:
        return NodeAnswer(state="tainted", text=text)
    if health.held is not None:
        return NodeAnswer(state="held", text=text)
    return NodeAnswer(state="noted", text=text if outcome == "counted" else f"{outcome}: {text}")
