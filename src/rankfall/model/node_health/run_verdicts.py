"""Runs' verdicts on a node (annotation ``rankfall.dev/run-verdicts``), and the controller's answer.

Only proven, unforgeable verdicts against the node enter; writing needs rights on Nodes. The one bounded line of job
text decides nothing.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec

from rankfall.model.node_health.records import MAX_MESSAGE, MAX_TEXT, NodeHealth, decode_annotation, printable
from rankfall.model.timestamps import nanoseconds
from rankfall.model.verdict import Verdict

VERDICTS_SCHEMA: Final = "rankfall.runverdicts/1"
VERDICTS_ANNOTATION: Final = "rankfall.dev/run-verdicts"
#: Verdicts per Node; the newest remain.
MAX_VERDICTS: Final = 8
#: Limit of the annotation, in characters.
MAX_VERDICTS_TEXT: Final = 16 << 10

_Run = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$(?!\n)")]
# Run, attempt and both numbers fit an id of 128 characters.
_Number = Annotated[int, msgspec.Meta(ge=0, le=99_999)]
_Slug = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}$(?!\n)")]
_Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A proven verdict of one attempt against this node.

    Attributes:
        cause: Slug of ``causes.csv``.
        action: Strongest action; ``taint`` needs proof by kernel or platform.
        at: First rank failure, nanoseconds since the epoch, ± ``uncertainty`` seconds.
        slot, instance: Slot that failed alone, and its start; None = the attempt failed.
        gpu: Failed GPU, as in the verdict; None = unknown.
        text: Deciding line, bounded, without control characters.
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
        """Identity of this failure; a repeated report has the same."""
        start = "" if self.slot is None else f":{self.slot}.{self.instance or 0}"
        return f"verdict:{self.run}:{self.attempt}{start}"

    @classmethod
    def of(cls, verdict: Verdict, *, at: int, start: tuple[int, int] | None = None) -> Self | None:
        """Returns a verdict against its node; None if unproven or without node.

        Args:
            verdict: Verdict of an attempt.
            at: Now, nanoseconds since the epoch, for a failure of unknown time.
            start: Slot and start that failed alone; None = the attempt.
        """
        if verdict.node is None or verdict.run is None or verdict.attempt is None:
            return None
        if verdict.cause.confidence != "proven" or verdict.node_action == "none":
            return None
        failed_at = None if verdict.time.at is None else nanoseconds(verdict.time.at)
        line = None if verdict.decisive is None else verdict.decisive.line
        return cls(
            run=verdict.run,
            attempt=verdict.attempt,
            slot=None if start is None else start[0],
            instance=None if start is None else start[1],
            cause=verdict.cause.slug,
            action=verdict.node_action,
            at=at if failed_at is None else failed_at,
            uncertainty=verdict.time.uncertainty_s or 0.0,
            # Drivers print a prefix that agents omit.
            gpu=None if verdict.gpu is None else printable(verdict.gpu.removeprefix("PCI:"), 64),
            text=printable(line or verdict.cause.title),
        )


class RunVerdicts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The annotation: newest verdicts on one node, oldest first."""

    schema: Literal["rankfall.runverdicts/1"] = VERDICTS_SCHEMA
    verdicts: Annotated[tuple[RunVerdict, ...], msgspec.Meta(max_length=MAX_VERDICTS)] = ()

    def with_one(self, verdict: RunVerdict) -> RunVerdicts:
        """Adds the verdict once, dropping the oldest if full."""
        others = [each for each in self.verdicts if each.id != verdict.id]
        return RunVerdicts(verdicts=(*others, verdict)[-MAX_VERDICTS:])


def encode_verdicts(verdicts: RunVerdicts) -> str:
    """Encodes the annotation."""
    return msgspec.json.encode(verdicts).decode()


def decode_verdicts(text: str) -> RunVerdicts:
    """Decodes the annotation.

    Raises:
        EvidenceLost: Too large, not JSON, another schema, unknown field, value out of bounds.
    """
    hint = f"remove the annotation {VERDICTS_ANNOTATION} from the node; runs write it again"
    return decode_annotation(text, RunVerdicts, name=VERDICTS_ANNOTATION, most=MAX_VERDICTS_TEXT, hint=hint)


#: Lease of the active controller, and default namespace.
LEASE: Final = "rankfall-controller"
NAMESPACE: Final = "rankfall"
#: Environment variable: controller's namespace.
CONTROLLER_NAMESPACE: Final = "RANKFALL_CONTROLLER_NAMESPACE"

#: ``waiting``: not processed; ``none``: no controller.
State = Literal["tainted", "held", "noted", "waiting", "none"]


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verdict on its node.

    Attributes:
        state: ``tainted``: unschedulable; ``held``: due, but limited; ``noted``: recorded or irrelevant.
        text: Reason in the node's condition; bounded, without control characters.
    """

    state: State
    text: str = ""


def answer_of(health: NodeHealth | None, verdict: RunVerdict, *, condition: str = "") -> NodeAnswer:
    """Returns the answer to ``verdict`` from a node's record (None = no record) and condition message."""
    outcome = next((each.outcome for each in health.answered if each.id == verdict.id), None) if health else None
    if health is None or outcome is None:
        return NodeAnswer(state="waiting")
    text = printable(condition, MAX_MESSAGE)
    # One request writes record and taint, so the record proves the taint.
    if health.tainted:
        return NodeAnswer(state="tainted", text=text)
    if health.held is not None:
        return NodeAnswer(state="held", text=text)
    return NodeAnswer(state="noted", text=text if outcome == "counted" else f"{outcome}: {text}")
