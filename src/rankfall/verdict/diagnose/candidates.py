"""Candidates for the root: for each subject its best explanation of the failure.

Tiers (errors.md section 5, step 10); a higher one wins before clocks:

- 5: platform, kernel or hardware fact that a job cannot forge.
- 4: silent death with a confirmation (a counter, a kernel line).
- 3: explicit failure: exception, message, crash signal.
- 2: silent death: foreign signal, bare exit code, lost slot.
- 1: a hang: different stacks, or missing in a collective.
- 0: exited early with success while others waited.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import Confidence, Evidence, SlotFacts, cause_info
from rankfall.model.evidence import StampedBy, surely_after
from rankfall.model.timestamps import Moment, order
from rankfall.verdict.diagnose.cause_tables import (
    ABORT_REPORTS,
    AT_SHUTDOWN,
    BARE_ABORTS,
    CAUSES_OF_CODES,
    CHILD_DEATHS,
    CRASH_SIGNALS,
    DEATHS,
    DELETED_POD,
    ENDS_OF_THE_REST,
    ENDS_OF_WAITS,
    ENDS_OTHERS,
    EXACT_WORDS,
    KERNEL_SIGNATURE_IDS,
    LOST_PEER_SLUGS,
    MPI_ABORT,
    NAMES_A_RANK,
    NEVER_CAUSE,
    NEVER_STARTED,
    NODE_CAUSES,
    NODE_FAMILIES,
    NODE_SOURCES,
    OWN_FAULT_SIGNALS,
    STEP_ENDS,
    SUSPECT_ONLY,
    TERMINAL_WINDOW_S,
    TRUSTED,
    UNRECOGNIZED,
    WATCHDOG_ABORTS,
    WORDING,
    WRAPPER,
    YIELDS_TO,
    called_abort,
    exit_slug,
    is_weak,
    signal_slug,
    without_hydra_code,
)
from rankfall.verdict.diagnose.subjects import Subject, of_own_code
from rankfall.verdict.diagnose.survived_lines import without_aftermath, without_outlived, without_passed

PLATFORM: Final = 5
CONFIRMED: Final = 4
EXPLICIT: Final = 3
SILENT: Final = 2
HANG: Final = 1

HANGS: Final = frozenset({"rank_stuck", "slow_rank_timeout", "collective_mismatch"})

_NS = 1_000_000_000
# Maximum seconds of work after the exception of a thread on which the rest of its process waits.
_SILENT_SINCE_S = 5.0
_MESSAGE = 4096  # maximum bytes from an exception to an abort directly after it, with its message
_BARE = frozenset({"killed_unknown", "user_exit", "unknown"})  # causes of a launcher's line about an end
_SIGKILL = 9
_SIGBUS = 7


class Candidate(msgspec.Struct, kw_only=True):
    """One subject's explanation of the failure.

    Attributes:
        best: Decisive evidence; None if only facts explain it.
        at: Begin of the failure in nanoseconds by the clock ``stamped``, with ``uncertainty`` seconds.
        support: Number of pieces with the same cause.
        same: Subjects with the same fingerprint, merged here.
        unordered: True if a strategy chose it without regard to time, or nothing shows that other ends followed it.
    """

    subject: Subject
    slug: str
    tier: int
    confidence: Confidence
    best: Evidence | None = None
    at: int | None = None
    uncertainty: float = 0.0
    stamped: StampedBy = "node"
    fingerprint: str
    support: int = 1
    weak: bool = False
    because: str = ""
    gpu: str | None = None
    same: list[Subject] = msgspec.field(default_factory=list)
    unordered: bool = False

    @property
    def bare(self) -> bool:
        """True if the only evidence is a line of the job, not a traceback."""
        best = self.best
        return best is not None and best.source == "log" and not best.whole and best.trust not in TRUSTED

    @property
    def after_work(self) -> bool:
        """True if the failure occurred after the rank had completed its work."""
        return (self.best is not None and self.best.teardown) or self.subject.work_done

    @property
    def order(self) -> tuple[str, int, str]:
        """Sort key: node, rank, subject's key."""
        rank = self.subject.rank_number
        return (self.subject.node or "~", rank if rank is not None else 1 << 62, str(self.subject.key))

    @property
    def moment(self) -> Moment:
        """Time of the failure, with its clock."""
        return self.subject.moment(self.at, self.uncertainty, self.stamped)

    @property
    def reported_first(self) -> bool:
        """True if a launcher observed this rank's end before all others."""
        return self.subject.rank is not None and self.subject.rank.reported_first

    @property
    def only_reported(self) -> bool:
        """True if only a launcher knows of this end, and it observed it before its others."""
        return self.reported_first and not (self.best and self.best.whole)

    @property
    def stopped_after_exception(self) -> bool:
        """True if the rank was stopped after it recorded its exception: its signal is not its own end."""
        facts, best = self.subject.rank, self.best
        raised = best is not None and best.source == "record" and best.exit_code is None
        return raised and facts is not None and facts.killed_by in {"wrapper", "agent"}

    @property
    def specificity(self) -> int:
        """Specificity of the decisive piece, or 0."""
        return self.best.specificity if self.best else 0

    def before(self, other: Candidate) -> bool:
        """True if it failed certainly before the other, despite the clocks' error."""
        return order(self.moment, other.moment) == "before"


def candidate_of(subject: Subject) -> Candidate | None:
    """Subject's best explanation; None for a bystander, a consequence, or success."""
    own = [e for e in subject.evidence if e.role == "primary" and e.source != "exit" and e.slug not in NEVER_CAUSE]
    own = without_passed(own, subject.evidence)
    lost = [e for e in subject.complaints if e.slug in LOST_PEER_SLUGS]
    own = [e for e in own if not e.teardown] or ([] if lost else own)  # what follows the work counts only alone
    pieces = without_outlived(subject.rank, _terminal(subject, without_aftermath(own, lost)))
    unforged = [e for e in pieces if not _repeats_the_kernel(subject, e)]
    pieces = unforged if any(e.slug not in _BARE for e in unforged) else pieces
    pieces = _without_ends_after_exception(without_hydra_code(_without_later_faults(subject, pieces)))
    if any(e.signature == MPI_ABORT for e in subject.complaints):
        pieces = [e for e in pieces if e.slug != "user_exit"]  # the code is MPI's
    pieces = _without_caught_before_crash(subject, _without_abort_at_shutdown(subject, pieces))
    stood, pieces = pieces, _without_hang_after_exception(subject, pieces)
    if lost:
        pieces = [e for e in pieces if e.signature not in WATCHDOG_ABORTS]
        pieces = [e for e in pieces if e.signature != WRAPPER or not any(surely_after(x, e) for x in lost)]
        pieces = [e for e in pieces if e.signature not in ENDS_OF_WAITS or not any(surely_after(e, x) for x in lost)]
    best = _best(_without_bare_ends(subject, pieces))
    silent = _silent_end(subject, explained=best is not None)
    if best is None or (silent is not None and silent.tier >= CONFIRMED and not _trusted(best)):
        return silent
    if best.teardown and silent is not None and silent.best is not None and silent.best.signal is not None:
        return silent
    if _killed_by_ours(subject) and best.source == "log" and is_weak(best):
        return None
    found = from_piece(subject, best, pieces)
    if len(pieces) < len(stood) and found.confidence == "proven" and best.source == "record":
        # That the rank waits for the ended thread is an inference.
        found.confidence = "likely"
    return found


def _repeats_the_kernel(subject: Subject, piece: Evidence) -> bool:
    """True if a job printed a fact that only the kernel can know."""
    printed = piece.rank is not None or subject.rank is not None or subject.slot is not None
    return printed and piece.trust == "job" and piece.signature in KERNEL_SIGNATURE_IDS


def of_node(piece: Evidence | None) -> bool:
    """True if the platform or kernel reports a node fault; False for None."""
    if piece is None or piece.source not in NODE_SOURCES or not _trusted(piece) or piece.slug in NEVER_STARTED:
        return False
    return piece.slug in NODE_CAUSES or cause_info(piece.slug).family in NODE_FAMILIES


def _without_later_faults(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Removes node faults that certainly followed this rank's fatal exception."""
    own = [subject.when(e) for e in pieces if of_own_code(e)]
    return [e for e in pieces if not (of_node(e) and any(order(at, subject.when(e)) == "before" for at in own))]


def _without_ends_after_exception(pieces: list[Evidence]) -> list[Evidence]:
    """Removes an end by a user, batch system or launcher after a failure in the same stream."""

    def follows(end: Evidence) -> bool:
        last = end.slug in ENDS_OF_THE_REST
        if end.slug == "killed_unknown":
            return any(ENDS_OTHERS in e.line and surely_after(end, e) for e in pieces)
        return (last or end.signature in STEP_ENDS) and any(
            surely_after(end, e) for e in pieces if of_own_code(e) or (last and e.slug not in ENDS_OF_THE_REST)
        )

    return [e for e in pieces if e.source != "log" or not follows(e)]


def _without_abort_at_shutdown(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Removes an abort during the exit of a process that had reported its reason."""
    aborts = [e for e in pieces if e.slug == "native_abort"]
    left = any(e.signature in AT_SHUTDOWN for e in aborts)
    raised = [e for e in pieces if e.whole and e.slug not in _BARE]
    # A library that aborts prints a reason; one that its process's exit destroys need not.
    unsaid = all(e.signature in ABORT_REPORTS for e in aborts) and any(map(of_own_code, pieces))
    near = [any(surely_after(e, r) and (e.order or 0) - (r.order or 0) < _MESSAGE for r in raised) for e in aborts]
    exited = aborts and all(near) and all(e.signature in ENDS_OF_WAITS for e in aborts)
    if not (left or unsaid or exited):
        return pieces
    kept = [e for e in pieces if e.slug != "native_abort"]
    explained = any(e.slug not in _BARE for e in kept)
    return kept if explained or subject.complaints else pieces


def _without_caught_before_crash(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Removes printed tracebacks of a rank that crashed: a hook records each exception that ends its process."""
    facts = subject.rank
    if facts is None or facts.hook != "loaded" or facts.signal not in CRASH_SIGNALS or _killed_by_ours(subject):
        return pieces
    if any(e.source == "record" for e in subject.evidence):
        return pieces
    return [e for e in pieces if e.source != "log" or not e.whole]


def _without_hang_after_exception(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Removes a hang of a rank that did nothing after a recorded exception, as that of a thread for which it waits."""
    facts = subject.rank
    raised = [e.at for e in pieces if e.source == "record" and e.slug not in _BARE and e.at is not None]
    last = (facts.worked_at or facts.last_line_at) if facts is not None else None
    if not raised or last is None or last - max(raised) > _SILENT_SINCE_S * _NS:
        return pieces
    return [e for e in pieces if e.source != "recorder" or e.slug not in HANGS]


def _without_bare_ends(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Removes a launcher's lines about an end, if better facts exist; an end before every complaint remains."""
    facts = subject.rank or subject.slot
    known = facts is not None and facts.state == "ended"
    if not known and all(e.slug in NEVER_CAUSE or e.slug == "unknown" for e in subject.complaints):
        # A launcher's report of what it stopped is no complaint of a rank.
        return pieces
    fell_itself = known and not _killed_by_ours(subject)
    reported = facts.exit_code if facts is not None and subject.slot_number is None else None
    return [
        e
        for e in pieces
        if e.source != "log"
        # The meaning of the same code, where a report alone gives the facts.
        or (reported is not None and e.exit_code == reported and e.slug not in _BARE)
        or e.slug not in CAUSES_OF_CODES
        or (e.exit_code is None and (e.slug not in _BARE or (fell_itself and e.signature in CHILD_DEATHS)))
        or (not known and (e.signature in DEATHS or all(surely_after(c, e) for c in subject.complaints)))
    ]


def from_piece(subject: Subject, best: Evidence, pieces: list[Evidence]) -> Candidate:
    """Candidate with ``best`` as its line; ``pieces`` support it."""
    trusted = _trusted(best)
    if trusted and cause_info(best.slug).family in {"gpu", "platform", "storage", "network", "memory"}:
        tier = PLATFORM
    elif best.slug in HANGS and best.source == "recorder":
        tier = HANG
    elif best.slug in _BARE and best.signature not in CHILD_DEATHS:
        tier = SILENT
    else:
        tier = EXPLICIT
    guessed = best.id in subject.by_elimination
    sure = (trusted or best.trust == "inside") and not (guessed or best.lost_peer)
    confidence: Confidence = "proven" if sure else "likely"
    repeated = _repeats_the_kernel(subject, best)
    # What a hook records ended its process, recognized or not.
    doubtful = SUSPECT_ONLY - UNRECOGNIZED if best.source == "record" else SUSPECT_ONLY
    if repeated or best.signature in doubtful or (best.signature or "").endswith(WORDING):
        confidence = "suspected"
    elif is_weak(best) or tier == HANG:
        confidence = "suspected" if best.source == "recorder" else "likely"
    return Candidate(
        subject=subject,
        slug=best.slug,
        tier=tier,
        confidence=confidence,
        best=best,
        at=best.at,
        uncertainty=best.uncertainty or 0.0,
        stamped=best.stamped,
        fingerprint=best.fingerprint or f"{best.slug}:{best.signature or best.source}",
        support=sum(1 for e in pieces if e.slug == best.slug),
        weak=repeated or is_weak(best),
        gpu=best.gpu,
        because="its rank was found by elimination" if guessed else "",
    )


def _silent_end(subject: Subject, *, explained: bool) -> Candidate | None:
    facts = subject.rank or subject.slot
    if facts is None or facts.killed_by in {"wrapper", "agent"}:
        return None
    if isinstance(facts, SlotFacts) and facts.state == "lost":
        if any(e.fingerprint == DELETED_POD for e in subject.evidence):
            return None
        return of_fact(subject, "killed_unknown", SILENT, "likely", facts.loss)
    if facts.state != "ended":
        return None
    plain = subject.rank is None and subject.slot is not None and subject.slot.launcher == "plain"
    if plain and (facts.signal is None or not subject.ranks_alive):
        return None  # the slot's code is its first failing rank's
    victim = any(e.signature not in NAMES_A_RANK for e in subject.complaints)
    if facts.signal is not None:
        return _killed(subject, facts.signal, victim=victim)
    if subject.rank is None:
        alone = not subject.ranks_seen and facts.exit_code != 1  # torchrun exits with 1 for any failure
    else:
        # Without the hook, a complaint in the slot's stream may be this rank's.
        alone = not (subject.neighbours_complain and subject.rank.hook != "loaded" and facts.exit_code == 1)
    if facts.exit_code and not explained and not victim and alone:
        slug = exit_slug(facts.exit_code)
        confidence: Confidence = "suspected" if called_abort(subject.evidence) else "likely"
        return of_fact(subject, slug, SILENT, confidence, f"exit code {facts.exit_code} without an error message")
    if subject.rank is not None and subject.rank.reported_first and facts.exit_code is None and not explained:
        return of_fact(subject, "user_exit", SILENT, "suspected", "its launcher reported its failure as the first")
    return None


def _killed(subject: Subject, signal: int, *, victim: bool) -> Candidate | None:
    if signal == _SIGKILL:
        oom = [e for e in subject.evidence if e.slug in {"host_oom", "node_oom"} and e.trust in TRUSTED]
        if oom:
            return of_fact(subject, oom[0].slug, CONFIRMED, "proven", "killed while the OOM counter rose", piece=oom[0])
    slug = signal_slug(signal)
    own = signal in OWN_FAULT_SIGNALS
    if victim and own:
        return None  # a watchdog's abort or a crash: its messages give the reason
    confidence: Confidence = "suspected" if victim or signal == _SIGBUS else "likely"
    return of_fact(subject, slug, EXPLICIT if own else SILENT, confidence, f"ended by signal {signal}")


def of_fact(
    subject: Subject, slug: str, tier: int, confidence: Confidence, because: str, *, piece: Evidence | None = None
) -> Candidate:
    """Candidate that only the facts of a rank's or slot's end explain; ``piece`` default: the evidence of that end."""
    facts = subject.rank or subject.slot
    piece = piece or next((e for e in subject.evidence if e.source == "exit"), None)
    return Candidate(
        subject=subject,
        slug=slug,
        tier=tier,
        confidence=confidence,
        best=piece,
        at=facts.ended_at if facts else None,
        uncertainty=(facts.ended_uncertainty or 0.0) if facts else 0.0,
        fingerprint=f"{slug}:{facts.signal if facts else None}:{facts.exit_code if facts else None}",
        because=because,
    )


def _best(pieces: list[Evidence]) -> Evidence | None:
    """Best piece: unforgeable, more specific, more trusted, earlier; None without pieces."""
    slugs = {e.slug for e in pieces if e.signature not in BARE_ABORTS}
    strong = [e for e in pieces if e.specificity >= EXACT_WORDS and not is_weak(e) and not of_own_code(e)]

    def yields(piece: Evidence) -> bool:
        to, rivals = YIELDS_TO.get(piece.slug, frozenset()), slugs - {piece.slug}
        late = is_weak(piece) and any(surely_after(piece, e) for e in strong)
        return late or bool(rivals if "*" in to else rivals & to)

    left = [e for e in pieces if not yields(e)] or [e for e in pieces if e.slug != "user_exit"] or pieces
    return min(left, key=_preference, default=None)


def text_place(piece: Evidence) -> tuple[str, int]:
    """Sort key of a piece's place in its text; pieces without one are last."""
    return piece.stream or "~", piece.order if piece.order is not None else 1 << 62


def ended_without_message(candidate: Candidate) -> bool:
    """True if a file's text holds nothing about a rank but its end with Python's exit code."""
    facts, best = candidate.subject.rank, candidate.best
    if candidate.slug != "user_exit" or (best is not None and best.source not in {"log", "exit"}):
        return False
    if called_abort(candidate.subject.evidence):
        return False
    if facts is not None and (facts.exit_code is not None or facts.reported_first):
        return facts.stream is not None and facts.exit_code in {None, 1}
    return best is not None and best.slot is None and best.exit_code == 1


def _preference(piece: Evidence) -> tuple[bool, int, int, int, str, int, str, str]:
    trust = {"kernel": 0, "platform": 0, "wrapper": 1, "supervisor": 1, "inside": 2, "launcher": 3, "job": 4}[
        piece.trust
    ]
    at = piece.at if piece.at is not None else 1 << 62
    # Without times the order in a file decides, before the alphabet.
    return (not _trusted(piece), -piece.specificity, trust, at, *text_place(piece), piece.fingerprint or "", piece.line)


def _terminal(subject: Subject, pieces: list[Evidence]) -> list[Evidence]:
    """Removes lines from long before the subject's end; records remain, or else whole tracebacks."""
    facts = subject.rank or subject.slot
    last = max((e.at for e in pieces if e.source == "record" and e.at is not None), default=None)
    if last is None and facts is not None and not _killed_by_ours(subject):
        last = facts.ended_at
    if last is None:
        return pieces
    floor = last - round(TERMINAL_WINDOW_S * _NS)
    near = [e for e in pieces if e.source != "log" or e.at is None or e.at >= floor]
    # A process may take long to end after its last traceback.
    return near or [e for e in pieces if e.whole]


def _trusted(piece: Evidence) -> bool:
    return piece.trust in TRUSTED and piece.source != "exit"


def _killed_by_ours(subject: Subject) -> bool:
    facts = subject.rank or subject.slot
    return facts is not None and facts.killed_by in {"wrapper", "agent"}


class Root(msgspec.Struct, kw_only=True):
    """The chosen candidate, and the rejected ones with reasons.

    If all failures are consequences, ``chosen`` is None, ``nearest`` is the consequence nearest the origin, and
    ``suspects`` are its peers. ``repeated``: a message only reports a stop after another failure. ``unnamed``: several
    ranks explain the failure equally well. ``tied``: those that failed within the clocks' error of the chosen one.
    """

    chosen: Candidate | None = None
    everywhere: bool = False
    unnamed: bool = False
    tied: list[Candidate] = msgspec.field(default_factory=list)
    rejected: list[tuple[Candidate, str]] = msgspec.field(default_factory=list)
    independent: list[tuple[Candidate, str]] = msgspec.field(default_factory=list)
    nearest: tuple[Subject, Evidence] | None = None
    suspects: tuple[int, ...] = ()
    suspect_slots: tuple[int, ...] = ()
    alone: bool = False
    repeated: bool = False
