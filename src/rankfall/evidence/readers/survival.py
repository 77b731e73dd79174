"""Detects which speakers of a stream continued after an apparent error, and what one did while others waited.

A prefix identifies a speaker. Work is progress: steps, bars, losses, rates, retries. Cost is linear: after a
finding ``CREDIT`` bytes, then a ``SHARE``, are read, and ``BEHIND`` after each traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rankfall.evidence.readers.findings import bars_of, last_time
from rankfall.evidence.readers.prefixes import Prefix, parse_prefix
from rankfall.evidence.readers.text import STATES_SUCCESS
from rankfall.model import Evidence, cause_info, numbers
from rankfall.model.patterns import bounded, linear
from rankfall.verdict.diagnose.survived_lines import is_try_to_join, may_be_notice

#: Bytes read line by line after a finding.
CREDIT: Final = 128 << 10
#: The limit for many speakers.
MAX_CREDIT: Final = 512 << 10
SHARE: Final = 256
#: Bytes kept of a file's text.
KEPT: Final = 64 << 10
#: Bytes behind each whole traceback, and the limit for all of a stream.
BEHIND: Final = 32 << 10
MAX_BEHIND: Final = 1 << 20
#: Bytes at each chunk's end that are read regardless.
TAIL: Final = 8 << 10
#: Of large chunks only one per so many bytes.
LARGE: Final = 256 << 10
EVERY: Final = 4 << 20
#: Newest advances, and ordinary lines, stored per speaker.
ADVANCES: Final = 8
ORDINARY: Final = 40
#: Buffered bytes that an ending program may flush.
FLUSHED: Final = 16 << 10
# Bytes before a finding in which work is searched: fewer than a program that holds back its output prints at once.
_BEFORE: Final = 4 << 10
_FEW: Final = 16
_EACH: Final = 512
_MAX_LINE: Final = 512
# Beginnings of lines inside a traceback or table.
_INSIDE: Final = (b" ", b"\t", b"|", b"+")
_MAX_SPEAKERS: Final = 2048
_MAX_KEYS: Final = 16
# Exceptions whose times are stored, and longer than any time-out of a job's ranks.
_MAX_ENDED: Final = 256
_OTHER_RUN_S: Final = 3600
# Minutes after which a cloud has surely taken an instance whose end it announced.
_NOTICE_MIN: Final = 5
_SAMPLE: Final = 64

_NUMBER: Final = r"(\d{1,12}(?:\.\d{1,12})?)"
_WORK: Final = (
    r"\b(?:global[_ ]?)?(?:steps?|iter(?:ation)?s?|epochs?|(?:mini)?batch(?:es)?|updates?|episodes?|rounds?|samples?|examples?|tokens?)\b"
    r"""["']?[ \t]*(?:no\.?|number|#)?[ \t]*[:=\[(]{0,3}[ \t]*"""
    + _NUMBER
    + r"|"
    + _NUMBER
    + r"[ \t]*/[ \t]*\d{1,12}[ \t]*[\[\])(]"
    + r"|[\[(][ \t]*"
    + _NUMBER
    + r"[ \t]*/[ \t]*\d{1,12}\b"
    + r"|\b"
    + _NUMBER
    + r"[ \t]+(?:steps|iterations|epochs|batches|samples|examples|tokens|images)\b"
    + r"|\b"
    + _NUMBER
    + r"(?:\.\d+)?%[ \t]*[|\[(]"
)
_LOSS: Final = r"""(?:\b|_)(?:loss|ppl|perplexity|accuracy|acc|reward|grad[_ ]?norm|lr|learning_rate)["']?[ \t]*[:=]?[ \t]*([-+]?\d+(?:\.\d{1,12})?)"""
_RATE: Final = (
    r"\d[ \t]*(?:it/s|s/it|samples?/s|tokens?/s|imgs?/s|images/s|seqs?/s|examples?/s|tflops?|ms/step|s/step|steps?/s)"
)
_AGAIN: Final = (
    r"\b(?:retry|retries|retried|attempt|reconnect\w*|recover\w*|upload|request|call|write|read|load)\b[^\n]{0,60}"
    r"\b(?:succeeded|successful|successfully|ok|worked|established)\b"
    r"|\b(?:succeeded|successful|recovered|reconnected|worked|ok)\b[^\n]{0,40}\b(?:retry|retries|attempts?|tr(?:y|ies)|reconnect)\b"
    r"|\b(?:resum(?:ed|ing)|continu(?:ed|ing|es))\b[^\n]{0,40}\b(?:training|work|from|at step|at epoch)\b"
    r"|\b(?:re-?established|reconnected|recovered)\b"
)
# Work lines that report an end, or come from helpers.
_NO_WORK: Final = (
    r"error|exception|fail|abort|traceback|fatal|kill|terminat|crash|\bdied\b|\bdead\b|cancel|shut|stopp|exit|signal|tim(?:ed?|ing) ?out|\bnan\b|\binf\b"
    r"|^wandb|loader|prefetch|worker[ _#-]?\d+\D{0,24}(?:batch|load|fetch|sample|shard)|queue|heart ?beat|watch ?dog|monitor|\blast\b|\bfinal|summary|\bbest\b"
    r"|emergency|profil|\bwas (?:at|in)\b"
)
_NO_TALK: Final = (
    r"warn|nccl|c10|gloo|\[[WEIF]\d{4}|retry|clean|destroy|finali|closing|frame #|thread|core dump|\bdump|stack|0x[0-9a-f]{4}|memory|allocat|reserved"
    r"|keep-?alive|still |waiting|uploading|syncing"
)
_DONE: Final = (
    r"\b(?:training|fine-?tuning|job|run|all (?:epochs|steps|batches|work))\b[^\n]{0,30}\b(?:finished|completed?|done|ended|over)\b"
    r"|\b(?:finished|completed|done with)\b[^\n]{0,20}\b(?:training|fine-?tuning|job|run|all (?:epochs|steps))\b"
)
# Completed parts of the work, and plans.
_NOT_DONE: Final = (
    # The code of a command that did not succeed, as a script prints it at its end.
    r"(?:with|code|status|rc|result)\b[ \t:=(]{0,4}-?[1-9]\d{0,2}[ \t)\].;]*$|"
    r"error|exception|fail|abort|epoch[ =:#]*\d|step[ =:#]*\d|iter|batch[ =:#]*\d|stage|phase|warm|valid|eval|\bnot\b|\bun|incomplete|will|until|when|\bif\b|early"
)
_COUNTER: Final = linear(f"(?i){_WORK}|{_LOSS}".encode())
_SHOWS_WORK: Final = linear(f"(?i){_WORK}|{_LOSS}|{_RATE}".encode())
_WORKED_AGAIN: Final = linear(f"(?i){_AGAIN}".encode())
# Most lines show none of these: one search instead of three.
_SHOWS_ANY: Final = linear(f"(?i){_WORK}|{_LOSS}|{_RATE}|{_AGAIN}|{_DONE}|{STATES_SUCCESS}".encode())
_SHOWS_NONE: Final = linear(f"(?i){_NO_WORK}".encode())
_WORK_DONE: Final = linear(f"(?i){_DONE}".encode())
_SUCCEEDED: Final = linear(STATES_SUCCESS.encode())
_PART_DONE: Final = linear(f"(?i){_NOT_DONE}".encode())
_DIGITS: Final = bounded(rb"[-+]?\d+(?:\.\d+)?", limit=_MAX_LINE)
# Families of faults of a node or network.
_OF_PLACES: Final = frozenset({"gpu", "network", "platform", "storage"})
_NCCL: Final = bounded(rb"(?<=[\]:> ]) ?[\w.-]+:\d+:\d+ \[\d+\]\Z", limit=_MAX_LINE)
_SAYS_NOTHING: Final = linear(f"(?i){_NO_TALK}".encode())


class Speaker(msgspec.Struct):
    """Activity of one speaker since its first finding; bytes count from the beginning of the stream.

    Attributes:
        newest, last_word: End of its newest finding, and of its newest whole traceback.
        advances, ordinary: Ends of its newest lines that show work, and of others.
        counters: Newest counters of work lines, by the text before them.
        minutes: Ends of its newest work lines with a time, one of each minute, with that minute. A logger writes each line at once.
        early: The text has few bytes before the first finding.
        prompt: It prints each line at once: those before an early finding are too few for a buffer, or those behind it
            do not begin with the first step.
    """

    newest: int = 0
    last_word: int = 0
    # Not deques: an empty one has 600 bytes, and most streams have no finding.
    advances: tuple[int, ...] = ()
    ordinary: tuple[int, ...] = ()
    counters: dict[str, tuple[bytes, ...]] = msgspec.field(default_factory=dict)
    minutes: tuple[tuple[int, str], ...] = ()
    early: bool = False
    prompt: bool = False

    @property
    def settled(self) -> bool:
        """True if further lines cannot change the result for the findings so far."""
        return len(self.advances) == ADVANCES and self.advances[0] > self.newest + FLUSHED

    def advanced(self, line: bytes, end: int, *, stamp: str | None = None) -> None:
        """Adds a line of work, with its time as printed."""
        minute = None if stamp is None else ":".join(stamp.split(":", 2)[:2])
        if minute is not None and (not self.minutes or self.minutes[-1][1] != minute):
            self.minutes = (*self.minutes, (end, minute))[-ADVANCES:]
        found = _counters(line)
        key, counters = found or ("", (line,))
        if self.early and not self.counters:
            self.prompt = found is not None and (numbers.real(counters[0].decode()) or 0) > 1
        held = self.counters.get(key)
        if held is None and len(self.counters) >= _MAX_KEYS:
            return
        self.counters[key] = counters
        # Another epoch's counters restart; a reprinted bar has the same.
        if held is not None and held != counters:
            self.advances = (*self.advances, end)[-ADVANCES:]

    def gang_recovered(self, end: int) -> bool:
        """True if later lines show work, or are too many to be buffered output."""
        after = sum(at > end for at in self.advances)
        return after >= 2 or (len(self.ordinary) == ORDINARY and self.ordinary[0] > end)  # noqa: PLR2004 - a bar is printed once more at exit

    def outlived(
        self, end: int, *, sure: bool, whole: bool, caught: bool = False, ordered: bool = False, stopped: bool = False
    ) -> bool:
        """True if the speaker continued its work after the finding that ends at byte ``end``.

        ``sure``: one process; otherwise more lines are needed, because a gang stops with one rank. ``whole``: the
        finding is a whole traceback; ``caught``: of an exception that the program caught. ``ordered``: no other output
        of the process is in this stream. ``stopped``: something else ended the job later.
        """
        after = [at for at in self.advances if at > end]
        if whole:
            explained = bool(after) and (self.last_word > after[0] or after[-1] > end + FLUSHED)
            explained = explained or (ordered and len(after) >= ADVANCES // 2)
            timed = sum(at > end for at, _ in self.minutes)
            explained = explained or timed >= ADVANCES // 2 or (stopped and self.prompt and len(after) == ADVANCES)
            if caught and (timed >= 2 or len(after) == ADVANCES):  # noqa: PLR2004 - at least a minute apart
                return True
            # Many lines, and then another traceback.
            talked = len(self.ordinary) == ORDINARY and end < self.ordinary[0] < self.last_word
            return (sure and talked) or (len(after) >= (2 if sure else ADVANCES) and explained)
        # A bar is printed again at exit.
        return len(after) >= (2 if sure else 3) or (sure and len(self.ordinary) == ORDINARY and self.ordinary[0] > end)


class Survival:
    """The speakers of one stream; receives its bytes in order.

    ``watched``: read chunk ends even without a finding, for the process's other stream. ``kept``: bytes of text
    to keep for tracebacks that end late, as those between other ranks' lines.

    Attributes:
        worked: End of the newest work line; 0 = none.
        succeeded_at: End of the newest line in which a launcher or batch system states success; 0 = none.
        ranks_begin: First byte of the ranks' lines, before which a script prints; 0 = unknown.
    """

    def __init__(self, *, watched: bool = False, kept: int = 0) -> None:
        self._watched = watched
        # The end of the previous text, and the bytes of the stream that were read last.
        self._kept, self._most_kept, self._read = b"", kept, (0, 0)
        self._speakers: dict[bytes, Speaker] = {}
        # All speakers combined: a continuing gang lost none.
        self._job = Speaker()
        self._credit, self._behind = CREDIT, MAX_BEHIND
        # Bytes behind the last traceback that the next text holds.
        self._owed = 0
        self._offset = 0
        self._tail_at = -EVERY
        self.worked, self._prepares = 0, False
        # End of the newest line that states complete work, and its speaker.
        self._finished_at, self._finished_by = 0, b""
        self.succeeded_at = self.ranks_begin = 0
        # Every ``_stride``-th work line since the last ``take_work``.
        self._sample: list[int] = []
        self._stride, self._skipped = 1, 0
        # Ends of exceptions that nothing caught, with the time of the last line before each that has one, in seconds.
        self._ended: dict[int, float] = {}
        # End of the previous text.
        self._last = b""

    @property
    def finished(self) -> bool:
        """True if a line states complete work, and none shows work after it."""
        return self._finished_at > self.worked

    def finisher(self, end: int) -> bytes | None:
        """Speaker whose statement of complete work after byte ``end`` is the last word about work; None without one."""
        return self._finished_by if self.completed(end) else None

    def completed(self, end: int) -> bool:
        """True if the last word about the work, after byte ``end``, is that it is complete."""
        return self.finished and self._finished_at > end

    def begin(self, at: int) -> None:
        """Sets the stream offset of the following text."""
        self._offset = at

    def push(self, data: bytes, *, at: int, found: Iterable[tuple[Prefix, int, bool, bool]]) -> None:
        """Processes whole lines; ``found``: each finding's prefix, line end, whole-traceback flag, and True if nothing caught it."""
        base = self._offset + at
        waiting = any(not speaker.settled for speaker in self._speakers.values())
        first, behind, late = len(data), [(0, self._owed)], base
        for prefix, end, whole, uncaught in found:
            first = min(first, max(0, end - at))
            if whole and end > at:
                behind.append((end - at, BEHIND))
            late = min(late, self._offset + end)
            if uncaught and len(self._ended) < _MAX_ENDED:
                text = self._last[: len(self._last) + end - at] if end <= at else data[: end - at]
                seconds = last_time(text[-_BEFORE:])
                if seconds is not None:
                    self._ended[self._offset + end] = seconds
            self._found(prefix, data[: max(0, end - at)], self._offset + end, whole=whole)
        self._last = data[-_BEFORE:] or self._last
        self._look_back(late, base)
        if self._most_kept and data:
            self._kept = (self._kept + data)[-self._most_kept :]
        self._owed = max(0, *(end + size - len(data) for end, size in behind))
        if waiting or first < len(data):
            begin = 0 if waiting else first
            most = min(MAX_CREDIT, CREDIT + _EACH * len(self._speakers))
            self._credit = min(most, self._credit + (len(data) - begin) // SHARE)
            stop = min(len(data), begin + self._credit)
            self._credit -= stop - begin
            self._look(data, begin, stop, base=base)
            for end, size in sorted(behind):
                low, high = max(stop, end), min(len(data), end + size)
                if low > end:
                    low += len(data[low - 1 : high].partition(b"\n")[0])
                if low < high <= low + self._behind:
                    self._behind -= high - low
                    self._look(data, low, high, base=base)
                    stop = high
            if len(data) - stop <= TAIL:
                return
        if self._watched and (len(data) < LARGE or base - self._tail_at >= EVERY):
            self._tail_at = base
            tail = max(0, len(data) - TAIL)
            self._look(data, data.find(b"\n", tail) + 1 if tail else 0, len(data), base=base)

    def _look_back(self, late: int, base: int) -> None:
        """Reads the kept text behind byte ``late``, as far as it is unread."""
        start = base - len(self._kept)
        first, last = self._read
        low, high = max(late, start), base
        low, high = (max(low, last), high) if low >= first else (low, min(first, high))
        if low < high:
            self._look(self._kept, low - start, high - start, base=start)
            for one in (self._job, *self._speakers.values()):
                one.advances, one.ordinary = tuple(sorted(one.advances)), tuple(sorted(one.ordinary))

    def steady_work(self, text: bytes) -> int:
        """Byte of a whole text before which no error ended its job; 0 = none.

        Many lines behind it show work, or it ends the last line about the work, which states that it is complete.
        """
        self._look(text, 0, len(text), base=0)
        if self.finished or self.succeeded_at:
            return max(self._finished_at, self.succeeded_at)
        return self._job.advances[0] if len(self._job.advances) == ADVANCES else 0

    def take_work(self) -> list[int]:
        """Ends of work lines since the last call: a sample, with the newest one."""
        ends = self._sample if self._sample[-1:] == [self.worked] else [*self._sample, self.worked]
        self._sample, self._stride, self._skipped = [], 1, 0
        return ends if self.worked else []

    def outlived(
        self, piece: Evidence, prefix: Prefix, end: int, *, alone: bool, ordered: bool = False, stop: int | None = None
    ) -> bool:
        """True if a finding's speaker continued its work.

        ``alone``: one process. ``ordered``: no other output of the process is here. ``stop``: last byte at which a
        text states that its job was stopped or killed; None for the streams of a run.
        """
        of_file = stop is not None
        if piece.slug == "collective_timeout" and self._prepares:
            return False  # one rank prepares data while the others wait
        if of_file and piece.slug == "preempted" and sum(at > end for at, _ in self._job.minutes) < _NOTICE_MIN:
            return self.completed(end)
        whole, caught = piece.whole, of_file and piece.caught
        if (is_try_to_join(piece) and self.worked > end) or (whole and self._of_earlier_run(end)):
            return True
        if whole and end <= self.ranks_begin and prefix.rank is None and prefix.local_rank is None:
            return True
        of_place = not whole and cause_info(piece.slug).family in _OF_PLACES
        survives = caught or (of_file and (may_be_notice(piece) or of_place))
        survives = survives or (whole and any(at > end for at in self._job.advances))
        if survives and self.completed(end):
            return True
        return any(
            one.outlived(end, sure=sure, whole=whole, caught=caught, ordered=ordered, stopped=end < (stop or 0))
            for one, sure in self._of(prefix, alone=alone)
        )

    def _of_earlier_run(self, end: int) -> bool:
        """True if a process ended by another exception so much later that the text holds several runs."""
        ended = self._ended.get(end)
        return ended is not None and any(
            at > end and seconds - ended > _OTHER_RUN_S for at, seconds in self._ended.items()
        )

    def passed(self, prefix: Prefix, end: int, *, alone: bool) -> bool:
        """True if the whole job continued for long after a finding, or if its speaker did."""
        if any(sure and one.gang_recovered(end) for one, sure in self._of(prefix, alone=alone)):
            return True
        return sum(at > end for at in self._job.advances) >= ADVANCES

    def _of(self, prefix: Prefix, *, alone: bool) -> Iterator[tuple[Speaker, bool]]:
        """Yields possible speakers of a line, and True if these are certainly lines of one process."""
        sure = alone or prefix.rank is not None or prefix.local_rank is not None
        for name in {speaker_of(prefix), b""} if alone else {speaker_of(prefix)}:
            if (speaker := self._speakers.get(name)) is not None:
                yield speaker, sure

    def _found(self, prefix: Prefix, before: bytes, end: int, *, whole: bool) -> None:
        # torch's traceback prefix is on no other line of its process.
        for name in {speaker_of(prefix), *([b""] if prefix.raw.startswith(b"[rank") else [])}:
            self._found_by(name, before, end, whole=whole)

    def _found_by(self, name: bytes, before: bytes, end: int, *, whole: bool) -> None:
        speaker = self._speakers.get(name)
        if speaker is None:
            if len(self._speakers) >= _MAX_SPEAKERS:
                return
            speaker = self._speakers[name] = Speaker()
            if len(self._speakers) <= _FEW:
                # Among many speakers, counters rarely are so near.
                speaker.early = end <= _BEFORE
                self._counted_before(speaker, name, before[-_BEFORE:])
                speaker.prompt = speaker.early and bool(speaker.counters)
            self._credit += _EACH
        speaker.newest = max(speaker.newest, end)
        if whole:
            speaker.last_word = max(speaker.last_word, end)

    def _counted_before(self, speaker: Speaker, name: bytes, text: bytes) -> None:
        for line in text.splitlines()[0 if speaker.early else 1 : -1]:
            works = _SHOWS_WORK.search(line[:_MAX_LINE]) and not _SHOWS_NONE.search(line[:_MAX_LINE])
            if works and speaker_of(prefix := parse_prefix(line)) == name:
                speaker.advanced(line[prefix.length :][:_MAX_LINE], 0)
        speaker.advances = ()

    def _look(self, data: bytes, begin: int, stop: int, *, base: int) -> None:
        at, self._read = base + begin, (base + begin, base + stop)
        for line in data[begin:stop].splitlines(keepends=True):
            at += len(line)
            body = line[:_MAX_LINE].strip()
            if not body:
                continue
            prefix = parse_prefix(body)
            text = body[prefix.length :]
            speaker = self._speakers.get(speaker_of(prefix))
            shows = _SHOWS_ANY.search(text) is not None
            if shows and _SUCCEEDED.search(text):
                self.succeeded_at = at
            elif shows and _WORK_DONE.search(text) and not _PART_DONE.search(text):
                self._finished_at, self._finished_by = at, speaker_of(prefix)
            elif (speaker is None and not shows) or _SHOWS_NONE.search(text):
                continue
            elif shows and _WORKED_AGAIN.search(text):
                self._works(speaker, None, at)
            elif shows and _SHOWS_WORK.search(text):
                self._prepares = next(bars_of(text, at=0), None) is not None
                self._works(speaker, text, at, stamp=prefix.stamp)
            elif (
                speaker is not None
                and not text.startswith(_INSIDE)
                and line[:1] not in b" \t"
                and not _SAYS_NOTHING.search(text)
            ):
                speaker.ordinary = (*speaker.ordinary, at)[-ORDINARY:]

    def _works(self, speaker: Speaker | None, text: bytes | None, at: int, *, stamp: str | None = None) -> None:
        before = len(self._job.advances), self._job.advances[-1] if self._job.advances else 0
        for one in (self._job, speaker) if speaker is not None else (self._job,):
            if text is None:
                one.advances = (*one.advances, at, at)[-ADVANCES:]
            else:
                one.advanced(text, at, stamp=stamp)
        if (len(self._job.advances), self._job.advances[-1] if self._job.advances else 0) != before:
            self.worked = at
            self._skipped += 1
            if self._skipped >= self._stride:
                self._sample.append(at)
                self._skipped = 0
            if len(self._sample) > _SAMPLE:
                self._sample, self._stride = self._sample[1::2], 2 * self._stride


def speaker_of(prefix: Prefix) -> bytes:
    """Speaker's name, without a second prefix of torch or NCCL."""
    raw = prefix.raw
    cut = raw.rfind(b"[rank")
    if cut > 0 and raw[cut:].rstrip().endswith(b"]:"):
        return raw[:cut]
    nccl = _NCCL.search(raw)
    return raw if nccl is None else raw[: nccl.start()]


def _counters(line: bytes) -> tuple[str, tuple[bytes, ...]] | None:
    """Returns a work line's counters and the text before each, or None."""
    words: list[bytes] = []
    counters: list[bytes] = []
    for match in _COUNTER.finditer(line):
        number = next(group for group in match.groups() if group is not None)
        counters.append(number)
        words.append(_DIGITS.sub(b"", match.group())[:32].strip().lower())
    return (b" ".join(words).decode("latin-1"), tuple(counters)) if counters else None
