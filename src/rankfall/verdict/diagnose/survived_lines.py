"""Lines of a text that end nothing: a program or pod continued after them, or they follow from an earlier end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import msgspec

from rankfall.model import Evidence, RankFacts, cause_info
from rankfall.model.evidence import surely_after
from rankfall.model.patterns import Bounded, bounded
from rankfall.verdict.diagnose.cause_tables import (
    BARE_ENDS,
    ENDS_OF_THE_REST,
    ENDS_OF_WAITS,
    EXACT_WORDS,
    LOST_PEER_SLUGS,
    NEVER_CAUSE,
    OF_LIBRARY,
    OWN_CODE,
    SAME_FAULT,
    SEEN_FROM_OUTSIDE,
    SIGNAL_OF_AGENT,
    STEP_ENDS,
    STEP_TAKEN,
    STOP_OF_AGENT,
    TIMED_OUT,
    TRUSTED,
    YIELDS_TO,
    reports_code,
)

# Lines after which a program continues, beside warnings and lines that state another try.
_NOTICES: Final = frozenset({"command_not_found.shell", "driver_too_old.smi", "nan_loss.metric"})
# Causes in such lines, each with its consequences: a later failure of another cause is the reason of the end.
_CONSEQUENCES: Final = MappingProxyType(
    {
        "address_in_use": frozenset({"rdzv_closed", "rdzv_unreachable"}),
        "command_not_found": frozenset({"bad_arguments", "dataset_missing", "entrypoint_missing", "permission_denied"}),
        "driver_too_old": frozenset({"gpu_busy", "nccl_system_error", "no_gpu_visible"}),
        "gpu_oom": frozenset({"killed_unknown", "native_abort"}),
        "hostname_resolution": frozenset({"dataset_missing", "hub_unreachable", "rdzv_closed", "rdzv_unreachable"}),
        "hub_rate_limit": frozenset({"dataset_missing", "hub_unreachable"}),
        "hub_unreachable": frozenset({"dataset_missing", "hostname_resolution"}),
        "import_error": frozenset({"no_gpu_visible"}),
        "nan_loss": frozenset({"cuda_device_assert"}),
        "rdzv_unreachable": frozenset({"external_signal", "killed_unknown", "rdzv_closed"}),
        "shared_fs_error": frozenset({"bad_sample", "checkpoint_corrupt", "dataset_missing", "disk_fault"}),
    }
)
# Causes that commands of a script report, as those that clean up or notify.
_OF_SCRIPTS: Final = frozenset(
    {
        "command_not_found",
        "dataset_missing",
        "hostname_resolution",
        "hub_unreachable",
        "permission_denied",
        "ssh_unreachable",
    }
)
# Of commands of scripts: downloads, notices, and arguments that a missing backslash parts from the job's command.
_AFTER_ANY: Final = frozenset({"bad_arguments.continuation", "hostname_resolution.curl"})
#: Ends of a process whose line has no further details.
KILLS: Final = frozenset(
    {"cancelled", "gpu_oom", "host_oom", "killed_unknown", "node_lost", "preempted", "segfault", "walltime_or_requeue"}
)
_FOREIGN: Final = "gpu_oom_foreign"
_OF_RENDEZVOUS: Final = frozenset({"address_in_use", "rdzv_unreachable"})
# Ends without a reason, before which any line may be the reason.
_NO_REASON: Final = frozenset({"unknown", "user_exit"})
_AGAIN: Final = bounded(
    rb"(?i)\bre-?trying\b|\bwill (?:be )?re-?tr(?:y|ied)\b|\bretry in\b|\btr(?:y|ying) again\b|\[Retry \d|\bentering retry loop\b|\bthrown while requesting\b|\b(?:attempt|try|retry) ?#?\d{1,4} ?(?:/|of) ?\d",
    limit=4096,
)
_WARNING: Final = rb"(?:[A-Z]\w+)?WARN(?:ING)?|\w*Warning"


def levels(letters: bytes, names: bytes, fields: bytes, *, digits: bytes = b"3,4") -> Bounded[bytes]:
    """Pattern of levels as loggers write them: by a letter, by a name, and in a field ``level=``.

    ``digits``: numbers of digits of the date behind the letter; torch omits the month's zero.
    """
    letter = rb"[%b]\d{%b} |[%b] " % (letters, digits, letters)
    return bounded(rb"(?:\A|[\[ (:|])(?:%b|(?:%b)(?:\]|:| |\t))|level=(?:%b)" % (letter, names, fields), limit=4096)


# Levels of a line that no error has, and of warnings alone.
_LOW_LEVEL: Final = levels(b"WI", b"INFO|DEBUG|" + _WARNING, b"info|warn|debug")
_WARNS: Final = levels(b"W", _WARNING, b"warn")
# Events of a pod that passed what earlier ones reported, with the causes of these.
_PASSED: Final = MappingProxyType(
    {
        "teardown_noise.pod_assigned": frozenset({"unschedulable"}),
        "teardown_noise.image_pulled": frozenset({"image_pull", "unschedulable"}),
        "teardown_noise.container_started": frozenset({"image_pull", "unschedulable", "volume_mount"}),
    }
)
# Messages of ranks of a group that had joined.
_WAITED: Final = LOST_PEER_SLUGS - {"rdzv_closed"}
_ENDS_OF_THE_REST: Final = ENDS_OF_THE_REST | {"killed_unknown"}


def sorted_out(pieces: Sequence[Evidence]) -> tuple[list[Evidence], list[Evidence], bool]:
    """Returns a text's reports of ends that explain nothing, its other findings, and True if one of these is a cause."""
    # A launcher's bare end, or its lines about other processes.
    ends = [e for e in pieces if e.signature in BARE_ENDS or reports_code(e)]
    plain = {id(e) for e in ends}
    findings = [e for e in pieces if e.role != "context" and e.slug not in NEVER_CAUSE and id(e) not in plain]
    findings = without_passed(findings, pieces)
    # A launcher that reports a code stops the others after it.
    first_ends = _earliest(ends)
    rest = {id(e) for e in findings if e.slug in _ENDS_OF_THE_REST and any(surely_after(e, end) for end in first_ends)}
    lost = _earliest(e for e in findings if e.slug in LOST_PEER_SLUGS)
    rest |= {id(e) for e in findings if e.signature in ENDS_OF_WAITS and any(surely_after(e, one) for one in lost)}
    weak = {id(e) for e in findings if e.teardown or e.signature in SEEN_FROM_OUTSIDE or is_notice(e)}
    return ends, findings, any(e.role == "primary" and id(e) not in rest and id(e) not in weak for e in findings)


def is_low(line: bytes) -> bool:
    """True for a line of a warning or a lower level, or that states another try."""
    return _has_level(_LOW_LEVEL, line) or _AGAIN.search(line) is not None


def _has_level(levels: Bounded[bytes], line: bytes) -> bool:
    """True for a line of these levels; NCCL calls its errors warnings."""
    return b"NCCL WARN" not in line and levels.search(line) is not None


def may_be_notice(piece: Evidence) -> bool:
    """True for a line about a fault that programs survive."""
    return piece.source == "log" and not piece.whole and piece.slug in _CONSEQUENCES


def is_notice(piece: Evidence) -> bool:
    """True for a line after which its program continues: a warning, a try that is repeated, a command of a script."""
    if not may_be_notice(piece):
        return False
    line = piece.line.encode("utf-8", "surrogateescape")
    # Collectors give each line the lowest level.
    return piece.signature in _NOTICES or _has_level(_WARNS, line) or _AGAIN.search(line) is not None


def is_try_to_join(piece: Evidence) -> bool:
    """True for a notice about a rendezvous, without which no rank of the job works."""
    return piece.slug in _OF_RENDEZVOUS and is_notice(piece)


def without_aftermath(pieces: Sequence[Evidence], complaints: Sequence[Evidence]) -> list[Evidence]:
    """Removes lines after a failure that ended its process: of scripts, and about the process as seen by others."""
    every = [*pieces, *complaints]
    own = _earliest(e for e in every if e.signature not in _AFTER_ANY)
    ended = [e for e in every if e.whole and not e.teardown]
    ended = _earliest(ended + [e for e in pieces if e.slug in KILLS and e.signature not in SEEN_FROM_OUTSIDE])

    def follows(piece: Evidence) -> bool:
        if piece.source != "log" or piece.whole:
            return False
        late = piece.slug in _OF_SCRIPTS or piece.signature in SEEN_FROM_OUTSIDE
        failed = own if piece.signature in _AFTER_ANY else ended if late else ()
        return any(piece.rank in {None, e.rank} and surely_after(piece, e) for e in failed)

    return [e for e in pieces if not follows(e)]


def without_passed(
    pieces: Sequence[Evidence], others: Iterable[Evidence], *, firsts: Sequence[Evidence] = ()
) -> list[Evidence]:
    """Removes notices before a failure of another cause, and a pod's events before those that show it passed.

    Also removes lines after which the job worked until it was stopped from outside: its end flushes no old output.
    ``others``: further findings of the same text, as of ranks that waited. ``firsts``: messages of ranks that their
    launcher saw fail first; a rank that continued after its own message failed later.
    """
    others = [*others]
    # A process that ended with the code for it ended there.
    codes = [e for e in others if e.signature == "command_not_found.exit"]
    ended = {id(e) for e in pieces if any(e.slug == code.slug and surely_after(code, e) for code in codes)}
    notices = {id(e) for e in pieces if is_notice(e)} - ended
    later = [e for e in pieces if id(e) not in notices] + [e for e in others if e.slug in _WAITED]
    later = _latest(later) if notices else []
    events = [e for e in others if e.signature in _PASSED]
    stops = _latest(e for e in pieces if e.slug in ENDS_OF_THE_REST)

    def passed(piece: Evidence) -> bool:
        if piece.passed and any(e is not piece and surely_after(e, piece) for e in stops):
            return True
        if piece.passed and any(e.rank != piece.rank and surely_after(e, piece) for e in firsts):
            return True
        if id(piece) in notices:
            own = _CONSEQUENCES[piece.slug] | _NO_REASON | {piece.slug}
            return any(e.slug not in own and surely_after(e, piece) for e in later)
        return piece.source == "log" and any(
            piece.slug in _PASSED[e.signature or ""] and e.pod in {None, piece.pod} and surely_after(e, piece)
            for e in events
        )

    return [e for e in pieces if not passed(e)]


def _earliest(pieces: Iterable[Evidence]) -> list[Evidence]:
    """The first of each rank in each stream: enough to show what any of them precedes."""
    return _outermost(pieces, of=attrgetter("stream", "slot", "rank"), last=False)


def _latest(pieces: Iterable[Evidence]) -> list[Evidence]:
    """The last of each cause in each stream: enough to show what any of them follows."""
    return _outermost(pieces, of=attrgetter("stream", "slot", "slug"), last=True)


def _outermost(pieces: Iterable[Evidence], *, of: Callable[[Evidence], object], last: bool) -> list[Evidence]:
    """The first or last by place and by time, of each group."""
    pieces = [*pieces]
    found: dict[object, Evidence] = {}
    for name in ("order", "at"):
        known = sorted((e for e in pieces if getattr(e, name) is not None), key=attrgetter(name), reverse=not last)
        found |= {(name, of(e)): e for e in known}
    return [*found.values()]


# Stops of torchrun by a signal, and its time of a line.
_STOPS_OF_AGENTS: Final = frozenset({SIGNAL_OF_AGENT, STOP_OF_AGENT})
_TORCH_TIME: Final = bounded(r"\A\W{0,4}(?:\[?\d{4}-|[WEI])(\d\d)-?(\d\d) (\d\d:\d\d:\d\d[.,]\d{1,6})", limit=2_000)
# srun's report of tasks, and causes after which it ends them.
_TASK: Final = bounded(r"srun: error: \S{1,512}: tasks? [\d,-]{1,400}: ", limit=2_000)
_CRASHES: Final = frozenset({"segfault", "native_abort", "host_oom"})
_STOPPED_BY: Final = frozenset({"cancelled", "peer_teardown", "preempted", "walltime_or_requeue"})


# GPU and processes that an exception about its memory lists.
_SHARED_GPU: Final = bounded(r"\bGPU (\d{1,4}) has a total capacity ", limit=2_000)
_HOLDER: Final = bounded(r"\bProcess (\d{1,10}) has ", limit=2_000)


def _of_shared_gpus(evidence: Sequence[Evidence]) -> Sequence[Evidence]:
    """Classifies lacks of GPU memory: if several ranks list the same processes for one GPU, these are the job's ranks.

    One process alone may be foreign.
    """
    lists: dict[tuple[str | None, str], dict[object, frozenset[str]]] = {}
    places = {}
    for piece in evidence:
        gpu = _SHARED_GPU.search(piece.line) if piece.slug == _FOREIGN else None
        if gpu is not None:
            places[piece.id] = place = piece.node, gpu[1]
            # One process may print its exception again.
            lists.setdefault(place, {})[piece.line if piece.rank is None else piece.rank] = frozenset(
                _HOLDER.findall(piece.line)
            )
    several = {place: Counter(chain.from_iterable(each.values())) for place, each in lists.items()}
    own = {place for place, counts in several.items() if sum(count > 1 for count in counts.values()) > 1}
    return [
        msgspec.structs.replace(_renamed(e, "gpu_oom"), retry=None) if places.get(e.id) in own else e for e in evidence
    ]


def reclassified(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Evidence with the causes that only all of it shows: of shared GPUs, of ends after others."""
    return _of_agents([*_of_srun(_of_shared_gpus(evidence))])


def is_task_of_srun(piece: Evidence) -> bool:
    """True for srun's report of a task."""
    return _TASK.search(piece.line) is not None


def _of_agents(evidence: list[Evidence]) -> list[Evidence]:
    """Classifies ends of torchrun from outside or by its store: after a failure they are its consequence.

    As stops by srun on other nodes.
    """
    stops = [e for e in evidence if e.source == "log" and _stops_agent(e)]
    if not stops:
        return evidence
    texts = [e for e in evidence if e.source == "log" and e.role != "context" and not e.passed]
    failed = [e for e in texts if reports_code(e) or e.slug in TIMED_OUT]
    stamps = [(_stamp(e.line), e) for e in failed]
    first = min((stamp for stamp, _ in stamps if stamp), default="")
    # The rows of a report have no time.
    unstamped = _earliest(e for stamp, e in stamps if not stamp and not reports_code(e))
    every = _earliest(failed)

    def late(stop: Evidence) -> bool:
        stamp = _stamp(stop.line)
        known = unstamped if stamp and first else every
        return "" < first < stamp or any(surely_after(stop, e) for e in known)

    after = {id(e) for e in stops if late(e)}
    # The exception of a stopped agent has no time.
    agents = {e.stream: id(e) in after for e in stops if _stamp(e.line)}
    after |= {id(e) for e in stops if not _stamp(e.line) and agents.get(e.stream)}
    return [_renamed(e, "peer_teardown") if id(e) in after else e for e in evidence]


def _stops_agent(piece: Evidence) -> bool:
    raised = piece.slug == "external_signal" and piece.whole and "SignalException: " in piece.line
    lost = piece.slug == "rdzv_unreachable" and "RendezvousConnectionError" in piece.line
    return raised or lost or piece.signature in _STOPS_OF_AGENTS


def _stamp(line: str) -> str:
    """Time that torchrun prints, without its year; empty without one."""
    found = _TORCH_TIME.search(line)
    return f"{found[1]}{found[2]} {found[3]}" if found is not None else ""


def _of_srun(evidence: Sequence[Evidence]) -> Iterable[Evidence]:
    """Classifies ends of Slurm's tasks by earlier lines.

    SIGTERM before any other end came from outside; SIGKILL after the step's end is its consequence, and srun ends a step
    after a failed task. A step counts memory events at its end.
    """
    found = {e.id: e for e in evidence}
    text = [e for e in found.values() if e.source == "log" and e.stream is not None and e.order is not None]
    if not any(_TASK.search(e.line) or e.signature in STEP_ENDS for e in text):
        return evidence
    text.sort(key=lambda e: (e.stream or "", e.order or 0))
    for _, stream in groupby(text, key=lambda e: e.stream):
        ended = failed = stopped = late = taken = False
        for _, line in groupby(stream, key=lambda e: e.order):
            pieces = list(line)
            tasks = _TASK.search(pieces[0].line) is not None
            for e in pieces:
                if e.signature == "peer_teardown.srun_task" and not ended:
                    found[e.id] = _renamed(e, "external_signal")
                elif (tasks and ((e.slug == "killed_unknown" and stopped) or (e.slug == "user_exit" and late))) or (
                    e.signature == "cancelled.slurm" and failed and "*** STEP " in e.line
                ):
                    found[e.id] = msgspec.structs.replace(_renamed(e, "peer_teardown"), role="secondary")
                elif e.signature in {"host_oom.slurm", "host_oom.srun"} and taken:
                    found[e.id] = msgspec.structs.replace(e, role="context")
            failed = failed or (tasks and any(is_end_by_launcher(e) or e.slug in _CRASHES for e in pieces))
            ended = ended or tasks or any(e.slug in _STOPPED_BY for e in pieces)
            if not stopped and any(e.signature in STEP_ENDS for e in pieces):
                # After a failed task srun stops the others of its step.
                stopped, late = True, failed
            taken = taken or any(e.signature in STEP_TAKEN for e in pieces)
    return found.values()


def is_end_by_launcher(piece: Evidence) -> bool:
    """True for a report in a file that a task failed; it is context where the task is a launcher with its own report."""
    ended = piece.exit_code is not None or piece.signal is not None
    return ended and piece.source == "log" and piece.slot is None and piece.role != "secondary"


def _renamed(piece: Evidence, slug: str) -> Evidence:
    return msgspec.structs.replace(piece, slug=slug, fingerprint=f"{slug}:{piece.signature}")


# Characters of an exception's message that a repeating line contains; minimum length.
_MESSAGE: Final = 200
_LEAST_MESSAGE: Final = 12


def without_outlived(facts: RankFacts | None, pieces: list[Evidence]) -> list[Evidence]:
    """Removes text before the uncaught exception, except about the same fault.

    ``facts``: of the rank, None for text without one. Also removes text of a rank that succeeded.
    """
    if facts is not None and facts.state == "ended" and facts.exit_code == 0:
        pieces = [e for e in pieces if e.source != "log"]
    finals = [e for e in pieces if e.source == "record" and e.slug != "user_exit"]
    whole = [e for e in pieces if e.source == "log" and e.whole]
    if not finals and whole:
        finals = [max(whole, key=lambda e: (e.at or 0, e.stream or "", e.order or 0, e.id))]
    if not finals:
        return pieces
    kept = [e for e in pieces if _stands_beside(e, finals)]
    return kept or pieces


def _stands_beside(piece: Evidence, finals: list[Evidence]) -> bool:
    if piece.source != "log" or piece.trust in TRUSTED or piece.signature in STEP_TAKEN:
        return True
    if any(piece is one for one in finals):
        return True
    if _was_handled(piece, finals):
        return False
    if piece.whole and not any(one.source != "log" and surely_after(one, piece) for one in finals):
        # The recorded exception, or its inner one, as printed.
        return True
    return any(_same_fault(piece, one) for one in finals) or all(surely_after(piece, one) for one in finals)


def _was_handled(piece: Evidence, finals: list[Evidence]) -> bool:
    """True for a printed traceback of an exception that a process caught, if one that it did not catch followed."""
    if not (piece.whole and piece.caught) or (piece.rank is None and piece.pid is None):
        return False
    return all(
        one.source == "log"
        and one.role == "primary"
        and not one.caught
        and (one.rank, one.pid) == (piece.rank, piece.pid)
        and surely_after(one, piece)
        and not _same_fault(piece, one)
        for one in finals
    )


def _same_fault(piece: Evidence, final: Evidence) -> bool:
    """True if a line may be a library's detail before the exception."""
    if piece.slug == final.slug or piece.slug in YIELDS_TO.get(final.slug, frozenset()) or repeats(piece, final):
        return True
    if final.signature == OF_LIBRARY and piece.specificity >= EXACT_WORDS:
        return True
    family = cause_info(piece.slug).family
    return final.slug != OWN_CODE and family in SAME_FAULT and family == cause_info(final.slug).family


def repeats(piece: Evidence, final: Evidence) -> bool:
    """True if a line contains the exception's message."""
    message = final.line.partition("\n")[0].partition(": ")[2].strip()[:_MESSAGE]
    return len(message) >= _LEAST_MESSAGE and message in piece.line
