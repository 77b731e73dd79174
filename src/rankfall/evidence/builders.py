"""Builds evidence from observations, with identity, time and pointer."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from rankfall.evidence.readers.classify import (
    OF_THE_REST,
    SURE_WORDS,
    Meaning,
    best_words,
    exception_meaning,
    hit_of_words,
    meaning_of_hit,
    needs_frames,
    of_frames,
)
from rankfall.evidence.readers.findings import Finding, raising
from rankfall.evidence.readers.frames import exception_of, origins_of
from rankfall.evidence.readers.kernel_log import KernelLine
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.stream_reader import When, time_of
from rankfall.evidence.readers.text import RAISED, ErrorKind, decode, is_severe, normalise
from rankfall.evidence.readers.tracebacks import DURING, find_tracebacks
from rankfall.model import Evidence, RankFacts, Record, SlotFacts, numbers
from rankfall.model.evidence import digest
from rankfall.model.patterns import anchored, bounded
from rankfall.model.record import ErrorInfo
from rankfall.verdict.diagnose.cause_tables import (
    CUT_OFF,
    EXACT_WORDS,
    HINT,
    LAST_ERROR,
    LAST_LINE,
    OF_LIBRARY,
    OWN_CODE,
    WORKING_BAR,
)
from rankfall.verdict.diagnose.survived_lines import is_notice
from rankfall.verdict.signatures.catalogue import Catalogue
from rankfall.verdict.signatures.matcher import Hit

# A later exception counts only without other evidence.
WORK_DONE: Final = frozenset({"teardown", "done"})


def of_error(record: Record, *, name: str, catalogue: Catalogue, rank: int | None) -> Evidence:
    """Evidence of an exception that a rank recorded."""
    error = record.error or ErrorInfo()
    frames, text = error.frames, error.traceback.encode("utf-8", "replace")
    pairs = [(kind, error.chain[i] if i < len(error.chain) else "") for i, kind in enumerate(error.types)]
    if pairs and not pairs[0][1]:
        pairs[0] = (pairs[0][0], error.message)
    top = next((f for f in reversed(frames) if f.user), frames[-1] if frames else None)
    frame = f"{top.file.rpartition('/')[2]}:{top.func}" if top else ""
    # A traceback takes milliseconds, and a thousand ranks may have one.
    read = [*find_tracebacks(text)][-1:] if DURING in text and len(pairs) > 1 else []
    if read and read[0].later and error.mark is None:
        pairs, frame, frames = pairs[read[0].later :], read[0].frame, ()
    meaning = exception_meaning(catalogue, pairs, frame=frame, mark=error.mark, exit_code=error.exit_code)
    if needs_frames(meaning):
        read = read or [*find_tracebacks(text)][-1:]
        meaning = of_frames(meaning, origins_of(frames[-1:]).union(*(one.origins for one in read)))
    meaning = meaning.raised_by(rank)
    return Evidence(
        id=digest("record", record.id),
        source="record",
        slug=meaning.slug,
        role=meaning.role,
        trust="inside",
        rank=rank,
        slot=record.slot,
        node=record.node,
        local_rank=record.local_rank,
        pid=record.pid,
        at=record.at_ns if error.raised_ns is None else error.raised_ns,
        uncertainty=0.001,
        where=name,
        line=meaning.text[:2000],
        signature=meaning.signature,
        retry=meaning.retry,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
        peer_hosts=meaning.hosts,
        mark=error.mark,
        exit_code=error.exit_code,
        gpu=meaning.gpu,
        phase=record.phase,
        step=record.step,
        attempt=record.attempt,
        round=record.round,
        teardown=record.phase in WORK_DONE,
        lost_peer=meaning.lost_peer,
        thread=error.thread is not None,
    )


def of_finding(
    finding: Finding,
    *,
    stream: str,
    byte: int,
    where: str,
    when: When | None,
    rank: int | None,
    slot: int | None,
    node: str | None,
    attempt: int | None,
    round_number: int | None = None,
) -> Evidence:
    """Returns the evidence of a line or traceback in a stream.

    The stream's rank precedes one in the line.
    """
    meaning, prefix = finding.meaning.raised_by(rank), finding.prefix
    claimed = prefix.rank if prefix.rank is not None else numbers.whole(finding.groups.get("rank"))
    # The command in an end by DeepSpeed or torch.distributed.launch is always that of the last local rank: 0 is the only one.
    local = finding.groups.get("local_rank") or finding.groups.get("process")
    if local is None and {"exit", "signal"} & finding.groups.keys() and _ONLY_RANK.search(finding.line) is not None:
        local = "0"
    at, uncertainty = time_of(when)
    return Evidence(
        id=digest("log", stream, byte, meaning.slug),
        source="log",
        slug=meaning.slug,
        role=meaning.role,
        trust="job",
        rank=rank if rank is not None else claimed,
        slot=slot,
        node=node,
        local_rank=prefix.local_rank if prefix.local_rank is not None else numbers.whole(local),
        pid=meaning.pid,
        at=at,
        uncertainty=uncertainty,
        stream=stream,
        order=byte,
        where=where,
        line=finding.line,
        signature=meaning.signature,
        retry=meaning.retry,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
        peer_hosts=meaning.hosts,
        exit_code=numbers.whole(finding.groups.get("exit")),
        gpu=meaning.gpu,
        attempt=attempt,
        round=round_number,
        whole=finding.explicit,
        teardown=finding.clean_up,
        place=finding.place,
        collective=finding.collective,
        caught=finding.caught,
        lost_peer=meaning.lost_peer,
    )


# The one process of a launcher's node, in the command that ended.
_ONLY_RANK: Final = bounded(r"Command '?\[.{1,1500}--local[_-]rank=0'|\['[^\n]{1,1500}--local[_-]rank=0'", limit=2_048)
# Bytes of a message, behind its first byte.
_MESSAGE: Final = 512
# Specificity of words that name a cause anywhere in a text.
_SUREST: Final = 38
_RANK_OF_BAR: Final = bounded(rb"(?i)\brank[ :=_]?(\d{1,6})\b", limit=256)
_OF_JAVA: Final = bounded(rb"\A(?:org|com|net|io|javax?|scala|akka)\.[a-z]", limit=64)
# An exception behind the words of a logger or collector, which end with a bracket, bar or dash.
_BEHIND_LOGGER: Final = anchored(
    rb"[^\n]{0,200}?[\]|-] +((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)(?:: .*)?)\Z", limit=4096
)


class TextPlace(NamedTuple):
    """Stream of a text, the stream's byte at which it begins, and the place of a line by its first byte in the text."""

    stream: str
    first: int
    where: Callable[[int], str]


def of_last_error(
    found: tuple[int, bytes, ErrorKind] | None,
    others: Iterable[tuple[int, bytes]] = (),
    *,
    place: TextPlace,
    catalogue: Catalogue,
) -> Evidence | None:
    """Returns the evidence of the best error line of a text without other evidence.

    A line in the form of an exception without its traceback is classified as one; any other is context. Where it has no
    words of a cause, the line among ``others`` that has them is better. Without an error line (``found`` None) only one
    with sure words counts, else None.
    """
    piece = None if found is None else _of_error_line(_in_text(*found[:2], place), *found[1:], catalogue)
    worded = best_words(others, catalogue=catalogue) if piece is None or piece.slug == "unknown" else None
    if worded is None:
        return piece
    # A program continued after an error before the last one.
    last = found is not None and worded[0] > found[0]
    sure = worded[2].signature.specificity >= (SURE_WORDS if last else _SUREST)
    return None if piece is None and not sure else _of_words(worded, place, sure=sure)


def of_reason(
    lines: Iterable[tuple[int, bytes]], findings: Iterable[Evidence], *, place: TextPlace, catalogue: Catalogue
) -> Evidence | None:
    """Returns the evidence of the line with the surest words of a cause outside the messages of ``findings``; None without one."""
    places = [(e.rank, e.order - place.first) for e in findings if e.order is not None and not is_notice(e)]
    own = (
        (begin, line)
        for begin, line in lines
        if not any(rank == parse_prefix(line).rank and 0 < begin - at < _MESSAGE for rank, at in places)
    )
    worded = best_words(own, catalogue=catalogue, ignored=OF_THE_REST)
    return None if worded is None else _of_words(worded, place, sure=True)


def _in_text(begin: int, line: bytes, place: TextPlace) -> Evidence:
    return _like_an_error(line, stream=place.stream, byte=place.first + begin, where=place.where(begin))


def _of_words(worded: tuple[int, bytes, Hit], place: TextPlace, *, sure: bool) -> Evidence:
    begin, line, hit = worded
    prefix = parse_prefix(line)
    tail = msgspec.structs.replace(_in_text(begin, line, place), rank=prefix.rank, local_rank=prefix.local_rank)
    return _suggested(tail, hit, line[prefix.length :].strip()) if sure else tail


def _of_error_line(tail: Evidence, line: bytes, kind: ErrorKind, catalogue: Catalogue) -> Evidence:
    prefix = parse_prefix(line)
    text = line[prefix.length :].strip()
    behind = _BEHIND_LOGGER.match(text)
    raised = exception_of(text if behind is None else behind[1]) or raising(text)
    tail = msgspec.structs.replace(
        tail,
        rank=prefix.rank if kind != "hint" else None,
        local_rank=prefix.local_rank,
        fingerprint=HINT if kind == "hint" else LAST_ERROR,
        signature=CUT_OFF if kind == "cut_off" else None,
    )
    # "Error: " before a message names no type.
    if kind == "hint" or raised is None or not raised[0].endswith(RAISED) or raised[0] in {b"Error", b"Exception"}:
        if kind == "cut_off":
            return tail
        sure = kind == "error" or is_severe(line)
        return _by_its_words(tail, text, catalogue, least=0 if sure else SURE_WORDS)
    meaning = exception_meaning(catalogue, [(decode(raised[0]), decode(raised[1]))])
    if meaning.slug == OWN_CODE:
        if _OF_JAVA.search(raised[0]) is not None:
            # Not of the training code.
            return _by_its_words(tail, text, catalogue)
        if kind != "cut_off":
            # Without its traceback nothing shows whose code raised it.
            return _with_cause(tail, meaning, signature=OF_LIBRARY)
    # A library's exact words in the statement that raised leave no doubt.
    exact = kind == "cut_off" and meaning.specificity >= EXACT_WORDS
    return _with_cause(tail, meaning, signature=meaning.signature if exact else LAST_LINE)


def _by_its_words(tail: Evidence, text: bytes, catalogue: Catalogue, *, least: int = 0) -> Evidence:
    """Evidence of a line that no signature recognizes, with the cause that its words suggest.

    ``least``: specificity of the words.
    """
    hit = hit_of_words(text, catalogue)
    return tail if hit is None or hit.signature.specificity < least else _suggested(tail, hit, text)


def _suggested(tail: Evidence, hit: Hit, text: bytes) -> Evidence:
    made = meaning_of_hit(hit, text=tail.line, fingerprint=f"{hit.signature.id}:{normalise(decode(text))}")
    return _with_cause(tail, made, signature=made.signature)


def _with_cause(tail: Evidence, meaning: Meaning, *, signature: str | None) -> Evidence:
    return msgspec.structs.replace(
        tail,
        slug=meaning.slug,
        role=meaning.role,
        signature=signature,
        retry=meaning.retry,
        specificity=meaning.specificity,
        fingerprint=meaning.fingerprint,
        peers=meaning.peers,
        peer_hosts=meaning.hosts,
    )


# Signals that the kernel sends at a limit of the process.
_LIMITS: Final[dict[int, str]] = {signal.SIGXCPU: "CPU time", signal.SIGXFSZ: "file size"}


def of_last_words(
    facts: RankFacts, line: bytes, *, stream: str, byte: int, where: str, when: When | None, attempt: int
) -> Evidence:
    """Context for the end of a rank without other evidence: the last line that resembles an error."""
    at, uncertainty = time_of(when)
    return msgspec.structs.replace(
        _like_an_error(line, stream=stream, byte=byte, where=where),
        rank=facts.rank,
        slot=facts.slot,
        node=facts.node,
        local_rank=facts.local_rank,
        at=at,
        uncertainty=uncertainty,
        attempt=attempt,
        round=facts.round,
    )


def of_bar(line: bytes, *, stream: str, byte: int, where: str) -> Evidence:
    """Evidence of a progress bar that ran while other ranks waited for its rank until their time was over."""
    return msgspec.structs.replace(
        _like_an_error(line, stream=stream, byte=byte, where=where),
        id=digest("bar", stream, byte),
        rank=None if (named := _RANK_OF_BAR.search(line)) is None else numbers.matched(named[1]),
        slug="slow_rank_timeout",
        role="primary",
        signature=WORKING_BAR,
        specificity=50,
        fingerprint=WORKING_BAR,
    )


def _like_an_error(line: bytes, *, stream: str, byte: int, where: str) -> Evidence:
    return Evidence(
        id=digest("last error", stream, byte),
        source="log",
        slug="unknown",
        role="context",
        trust="job",
        stream=stream,
        order=byte,
        where=where,
        line=decode(line),
        fingerprint=LAST_ERROR,
    )


def of_rank_end(facts: RankFacts, *, attempt: int | None, unattended: bool = False) -> Evidence | None:
    """Returns the evidence of a rank's end; None for a plain success.

    In an ``unattended`` run no outside process sends signals.
    """
    if facts.state != "ended" or (facts.exit_code == 0 and facts.signal is None):
        return None
    if facts.exit_code is None and facts.signal is None:
        return None
    ours = facts.killed_by in {"wrapper", "agent"}
    words = f"signal {facts.signal}" if facts.signal is not None else f"exit code {facts.exit_code}"
    sender = "the wrapper in its pod" if unattended else "Rankfall"
    by = {"wrapper": f", sent by {sender}", "agent": ", sent by its own agent", "foreign": ", sender not known"}
    limit = _LIMITS.get(facts.signal or 0)
    reason = by.get(facts.killed_by or "", "") if limit is None else f", sent by the kernel at its limit of {limit}"
    text = f"rank {facts.rank} (pid {facts.pid}) ended: {words}{reason}"
    return Evidence(
        id=digest("exit", attempt, facts.rank, facts.slot, facts.pid, facts.round),
        source="exit",
        slug="peer_teardown" if ours else "user_exit" if facts.signal is None else "killed_unknown",
        role="secondary" if ours else "context",
        trust="wrapper",
        rank=facts.rank,
        slot=facts.slot,
        node=facts.node,
        local_rank=facts.local_rank,
        pid=facts.pid,
        at=facts.ended_at,
        uncertainty=facts.ended_uncertainty,
        where=facts.where,
        line=text,
        exit_code=facts.exit_code,
        signal=facts.signal,
        attempt=attempt,
        round=facts.round,
    )


def of_slot_signal(record: Record, *, name: str, sender: RankFacts | None = None) -> Evidence | None:
    """Evidence of a signal that another sender, perhaps the rank ``sender``, sent to the slot's wrapper; else None."""
    info = record.exit
    if record.kind != "kill" or info is None or info.how != "received" or info.ours:
        return None
    by = f" by {info.sender}" if info.sender else f" by pid {info.sender_pid}" if info.sender_pid else ""
    piece = Evidence(
        id=digest("slot_signal", record.id),
        source="recorder",
        slug="external_signal",
        role="secondary",
        trust="wrapper",
        slot=record.slot,
        node=record.node,
        at=record.at_ns,
        uncertainty=0.01,
        where=name,
        line=f"slot {record.slot} got signal {info.signal} from outside{by}"[:500],
        specificity=70,
        fingerprint="external_signal:slot",
        attempt=record.attempt,
    )
    if sender is None:
        return piece
    line = f"rank {sender.rank} (pid {sender.pid}) sent signal {info.signal} to its own launcher in slot {record.slot}"
    piece = msgspec.structs.replace(
        piece, slug="user_exit", fingerprint="user_exit:launcher", role="primary", retry="once"
    )
    return msgspec.structs.replace(
        piece, line=line, rank=sender.rank, local_rank=sender.local_rank, pid=sender.pid, slot=None
    )


def of_oom(facts: RankFacts | None, slot: SlotFacts | None, *, kills: int, where: str, attempt: int | None) -> Evidence:
    """Evidence of a risen cgroup OOM counter while this rank (or a process of the slot) was killed."""
    place = facts or slot
    number = slot.slot if slot else facts.slot if facts else None
    return Evidence(
        id=digest("oom", attempt, number, facts.rank if facts else None),
        source="kernel",
        slug="host_oom",
        role="primary",
        trust="wrapper",
        rank=facts.rank if facts else None,
        slot=number,
        node=place.node if place else None,
        pid=facts.pid if facts else None,
        at=place.ended_at if place else None,
        uncertainty=max(0.5, place.ended_uncertainty or 0.0) if place else 0.5,
        where=where,
        line=f"the cgroup's oom_kill counter rose by {kills} during the attempt",
        specificity=85,
        fingerprint="host_oom:cgroup",
        attempt=attempt,
    )


def of_kernel(line: KernelLine, facts: RankFacts, *, attempt: int | None) -> Evidence:
    """Evidence of a kernel line that names a rank's process."""
    signature = line.hit.signature
    return Evidence(
        id=digest("kernel", line.at // 1000, line.text),
        source="kernel",
        slug=signature.slug,
        role=signature.role,
        trust="kernel",
        rank=facts.rank,
        slot=facts.slot,
        node=facts.node,
        pid=facts.pid,
        at=line.at,
        uncertainty=1.0,
        where="/dev/kmsg",
        line=line.text,
        signature=signature.id,
        specificity=max(signature.specificity, 80),
        fingerprint=f"{signature.slug}:{signature.id}",
        gpu=line.hit.groups.get("gpu"),
        attempt=attempt,
    )
