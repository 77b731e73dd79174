"""Decodes, bounds and normalizes text of jobs.

Cost: linear in the given bytes; a decoded line has at most ``MAX_LINE``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice, takewhile
from typing import Final, Literal

from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.model.patterns import Linear, anchored, bounded, linear
from rankfall.verdict.diagnose.survived_lines import is_low, levels

MAX_LINE: Final = 2000
# Bytes compared in one step.
_BLOCK: Final = 64 << 10

_NORMAL: Final = (
    (bounded(r"0x[0-9a-fA-F]+", limit=2_000), "PTR"),
    (bounded(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27,}\b", limit=2_000), "UUID"),
    # Only from a word's beginning: otherwise quadratic time.
    (bounded(r"(?<![\w./-])(?:[\w.-]*/)+([\w.-]+)", limit=2_000), r"\1"),
    (bounded(r"\b(?:\d{1,3}\.){3}\d{1,3}\b", limit=2_000), "ADDR"),
    (bounded(r"(?i)\b(rank|worker|node|host|pid|port|gpu|slot|cuda:)([ :=_\[(-]*)\d+", limit=2_000), r"\1\2#"),
    (bounded(r"\d{4,}", limit=2_000), "#"),
)


# Bytes of a beginning whose times are compared.
MAX_FOLDED: Final = 256
# Digits of times, which differ from line to line of one speaker.
_CLOCK: Final = bounded(
    rb"\d{4}[-/]\d\d[-/]\d\d|\b\d\d[-/]\d\d\b|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?|\b[IWEFD]\d{4}\b|\b\d{10}(?:\.\d{1,9})?\b",
    limit=MAX_FOLDED,
)
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0000000000")


def decode(data: bytes, *, limit: int = MAX_LINE) -> str:
    """Decodes a line for display: at most ``limit`` bytes, without text before a carriage return."""
    line = data.rstrip(b"\r\n")
    line = line[line.rfind(b"\r") + 1 :]
    if len(line) > limit:
        line = line[:limit] + b" ..."
    return line.decode("utf-8", "replace")


# Bytes of a line with escaped line ends that are read.
MAX_ESCAPED: Final = 64 << 10
_ESCAPE: Final = bounded(rb"\\(.)", limit=MAX_ESCAPED)
_ESCAPES: Final = {b"n": b"\n", b"t": b"\t", b"r": b""}
_END_OF_STRING: Final = {quote: bounded(rb"(?:[^\\" + quote + rb"]|\\.)*", limit=MAX_ESCAPED) for quote in (b'"', b"'")}


# Keys of a message: of loggers, Docker, systemd.
_MESSAGE: Final = bounded(rb'[{,] ?"(?i:message|msg|log|text|event)" ?: ?"', limit=4096)


# Of an object that is printed on several lines.
_INDENTED: Final = 64
_MESSAGE_ALONE: Final = bounded(
    rb'\s{0,64}"(?i:message|msg|log|text|event|error|exception|reason|detail|traceback)" ?: ?"', limit=4096
)


def unescape(line: bytes, start: int, *, quote: bytes = b"") -> bytes:
    r"""Returns the rest of a quoted string, as in JSON or Python's repr, with line ends for ``\\n``.

    The string ends at its ``quote``, by default the one before ``start``; without a quote the line ends it.
    """
    text = line[start : start + MAX_ESCAPED]
    # A double quote before a path is escaped only inside double quotes.
    quote = quote or (b'"' if b'File \\"' in text else line[start - 1 : start])
    end = _END_OF_STRING.get(quote)
    if end is not None and (match := end.match(text)) is not None:
        text = match.group()
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)


# Parts of a traceback that a page put on one line: frames, links of a chain, and the exception behind the last frame.
_FLAT_FRAME: Final = bounded(rb' (File "[^"\n]{1,1024}", line \d{1,9}, in \S{1,256}) ?', limit=MAX_ESCAPED)
_FLAT_LINK: Final = bounded(
    rb" ((?:During handling of the above exception, another exception occurred|The above exception was the direct cause of the following exception):) ?",
    limit=MAX_ESCAPED,
)
_FLAT_END: Final = bounded(
    rb"(?m)^((?!File )[^\n]*?)(?:^|[ )\]^])((?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit|Timeout|Warning|Disconnected)(?:: [^\n]*)?)$",
    limit=MAX_ESCAPED,
)


def traceback_within(line: bytes, head: int) -> bytes:
    """Returns the lines of a traceback that one line contains from byte ``head`` on, quoted or without line ends."""
    if line.startswith(b"\\", line.find(b":", head) + 1):
        return unescape(line, head)
    text = _FLAT_LINK.sub(rb"\n\1\n", line[head : head + MAX_ESCAPED])
    text = _FLAT_FRAME.sub(rb"\n\1\n", text.replace(b" Traceback (most", b"\nTraceback (most"))
    return _FLAT_END.sub(rb"    \1\n\2", text)


def message_of(line: bytes) -> bytes | None:
    """Returns the message of a logger's JSON object, on one line or alone on its line; None for other lines."""
    if line.startswith(b"{"):
        found = _MESSAGE.search(line)
    else:
        found = _MESSAGE_ALONE.match(line) if line[:_INDENTED].lstrip()[:1] == b'"' else None
    return None if found is None else unescape(line, found.end(), quote=b'"')


def repeats(data: bytes, start: int, width: int, *, most: int) -> int:
    """Returns how many copies of ``data[start : start + width]`` directly follow it, at most ``most``."""
    count, at, step, block = 0, start + width, 1, data[start : start + width]
    while step <= most - count and data.startswith(block, at):
        count, at = count + step, at + len(block)
        if len(block) < _BLOCK:
            block, step = block * 2, step * 2
    while step > 1:
        step //= 2
        block = block[: step * width]
        if step <= most - count and data.startswith(block, at):
            count, at = count + step, at + len(block)
    return count


def fold(text: bytes) -> bytes:
    """Text with zeros for the digits of times, of equal length."""
    return _CLOCK.sub(lambda match: match.group().translate(_DIGITS), text)


def normalise(text: str) -> str:
    """Removes details that differ between equal faults: pointers, folders, ports, ranks."""
    text = text[:MAX_LINE]
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return text[:300]


# Lines that resemble an error, but are not of a launcher about its processes.
MAX_ERROR_LINE: Final = 4096
# Lines among which an error is searched.
_MAX_ERRORS: Final = 32
_ERROR: Final = linear(
    rb"(?im)^[^\n]*(?:error|exception|fatal|panic|failed|failure|aborted|cannot|can't|could not|couldn't|unable to|denied|no such|not found|NCCL WARN|timed out|crashed|killed|evicted|\w*BackOff)\b[^\n]*$"
)
# Prefix of a glog line: level, time, thread and place in a source file.
_PLACE: Final = bounded(rb"\A(?:[EWIF]\d{4}|[A-Z]{4,8}) [\d:. -]{8,32}(?:\d+ )?\S{1,256}:\d+\] ?", limit=MAX_ERROR_LINE)
_NO_ERROR: Final = bounded(
    rb"(?i)\b0 errors?\b|\berror:? *[-=*#]{5,}\s*\Z|(?<!NCCL )warn|ignored|retry|torch[./]distributed[./]elastic|ChildFailedError|Process(?:Exited|Raised)Exception|CalledProcessError|Error executing job with overrides|Reporting training FAILURE|Root Cause \(first|FAILED$|\bContainer failed !|aborting (?:MPI|job|run)\b|closing signal|Killing subprocess|return code"
    rb"|NCCL INFO|^(?:mpirun|prterun)\b|^(?: {0,5}\d{1,6}: )?(?:srun|slurmstepd)[\w.-]*: (?:error: )?(?:\S{1,512}: tasks? \d|\*\*\*|Job|Step|Force|Terminating|launch/)|\bframe #\d|error_file|exitcode|^(?:cat|chmod|cp|grep|kill|ln|ls|mkdir|mv|pkill|rm|rmdir|sed|tar|touch): |^(?:During handling|The above exception)|^\s*(?:raise|except|File|Traceback)\b|^\s{4}|^-+ Logging error|^Error in atexit\._run_exitfuncs|\bError raised in:\s*\Z|\*\*\* End of error message|Exception raised from|^(?:\[[^\[\]]{0,200}\]|[\s:,-]){1,20}$",
    limit=MAX_ERROR_LINE,
)
# Advice and explanations of a message, and headers that announce one: never the error itself.
_ADVICE: Final = bounded(
    rb"(?i)\A(?:[\s|>#*=-]|\[[^\]\n]{1,64}\]:?|\d{1,2}[.)] )*(?:(?:This|It|That|There|Which) (?:may|might|could|can|usually|often|is likely|probably)\b|You (?:may|might|can|should|must|need)\b"
    rb"|(?:Please|Try|Check|Make sure|Make sure that|Consider|See also|Refer to|Rectify|Hint|Note|Tip)\b|Possible (?:reasons?|causes?)\b|There are \w+ reasons|If (?:you|this|the|it)\b"
    rb"|terminated by signals sent by|(?:a )?non-zero exit code\.|Primary job +terminated normally|Per user-direction|error message you will receive is this one|orte_create_session_dirs is set|detect that the abort call|exiting or it will be considered|Exception in thread\b|Where: +This error was|Terminating remaining workers\b|Reason: +(?:Error|Completed)\s*\Z)"
    rb"|: ignored\.?\s*\Z|^Error caught was: No module named 'triton'|Host engine connection invalid|potential root causes|\bhas no info as to the process\b|YOU CAN IGNORE THE BELOW|\bSet MCA parameter \"|\bmore process(?:es)? ha(?:s|ve) sent help message|\bwrite_line (?:error|failure)\b"
    rb"|\bHYDRA_FULL_ERROR=1\b|\bno trace information about the error\b|\bLocal abort before MPI_INIT\b|\bMPI_ERRORS_ARE_FATAL \(|\bIt looks like MPI_INIT failed\b|\bWithout writing an error file\b|\bThe preceding is the original exception\b|\bPETSC ERROR: (?:or |[Tt]ry |[Tt]o get |[Ss]ee |[Cc]onfigure |Run with )|\bEpoll (?:ADD|MOD|DEL)\(\d\) on fd \d",
    limit=MAX_ERROR_LINE,
)
# Words that state a reason in errors of any program; they are too few for a cause.
_WORDS: Final = (
    rb"out of (?:\w+ )?memory|cannot allocate|resource.exhausted|no space left|quota exceeded|too many requests|rate limit|unauthori[sz]ed|forbidden"
    rb"|(?:http\S*|status|code|error|response|returned|got|received)\W{0,3}(?:\w+ )?(?:40[134]|429|50[0234])\b|\b(?:40[134]|429|50[0234])\b\W{1,3}(?:client|server|bad|service|too|internal|gateway|not|unauthor|forbid|error)|not permitted|\bdenied\b|in use\b|\bbusy\b|(?:not|could not|cannot|failed to|unable to) (?:resolve|connect|reach|find|open|load)|no route|unreachable"
    rb"|timed out|time-?out|\breset\b|refused|broken pipe|(?:closed|lost|dead|died|killed|missing)\b|no such|not found|does not exist|undefined symbol|corrupt|checksum|exceed(?:s|ed)\b|insufficient|not enough"
    rb"|divisible|too old|incompatible|not compatible|mismatch|\bnan\b|invalid|unrecognized|unsupported|(?-i:\bSIG[A-Z]{3,4}\b)|segmentation|core dumped|heartbeat|shared memory"
)
# A line of a rank behind the prefix of a launcher that gives one to each line.
_OF_A_RANK: Final = anchored(rb" {0,5}\d{1,6}: +\S|\[(?:\d{1,9},\d{1,6}|default\d{1,3})\][^\n\w]{0,2}\S", limit=64)
# Statements of a launcher or batch system that its job succeeded; then also other ends with success, and a model's errors.
STATES_SUCCESS: Final = r"\bWorkerState\.SUCCEEDED\b|\bworker group successfully finished\b|\bJobState=COMPLETED\b|\bNormal termination \(return value 0\)|^Job '[\w.-]{1,80}' succeeded$"
_SUCCESS: Final = bounded(
    rb"(?i)\b(?:errors?|fail(?:ed|ures?)(?: \w{1,20})?): ?0\b|\bexit(?:ed)?[ _-]?(?:with )?(?:code|status)?[ :=]{0,3}0(?::0)?(?:[\s.,);]|\Z)|\breturn (?:value|code):? 0\b|\bNormal termination\b"
    rb"|\b(?:word|character|phone(?:me)?|mean|median|average|absolute|relative|squared?|percentage|validation|test|train(?:ing)?|top.?\d|l[12]|rms) (?:\w{1,20} ){0,2}error(?: rate)?\b[^\n]{0,16}\d|\berror rate\b\W{0,4}\d|"
    + STATES_SUCCESS.encode(),
    limit=MAX_ERROR_LINE,
)
_REASON: Final = linear(rb"(?i)" + _WORDS)
# Lines to show where no line resembles an error.
_HINT: Final = linear(
    rb"(?im)^[^\n]*(?:"
    + _WORDS
    + rb"|error|exception|fatal|fail(?:ed|ure)|abort(?:ed|ing)?\b|terminat(?:e|ed|ing)\b|unable to|times out|unschedulable|preempted|evicted"
    rb"|shut(?:ting)? ?down|stuck|stalled|still waiting|waiting for|killing|exit ?code|\bsignal\b|BackOff)[^\n]*$"
)
_FILLED: Final = linear(rb"(?m)^[^\n]*\w[^\n]*$")
_QUIET: Final = levels(b"I", b"INFO|DEBUG", b"info|debug", digits=b"4")
# Levels of lines about an error, which need not contain the word.
_SEVERE: Final = levels(b"EF", b"ERROR|FATAL|CRITICAL|SEVERE|PANIC", b"error|fatal|panic", digits=b"4")
# The end of a job that succeeded.
_DONE: Final = linear(
    rb"(?i)\b(?:finished|completed|done|success\w*|succeeded|normal termination)\b[^\n]*\n?(?:[^\n]*\n?){0,3}\z"
)
_CODE: Final = bounded(
    rb"\A\s*(?:\^|File \"|Traceback|During handling|The above exception)|\bframe #\d|File \"[^\"]+(?:\", line \d|\Z)",
    limit=MAX_ERROR_LINE,
)
_FRAME_ABOVE: Final = bounded(rb"\bline \d{1,9}, in [^\n]*\Z", limit=1024)
_NOT_DONE: Final = bounded(rb"(?i)\b(?:but|not|un\w+|fail\w*|error\w*)\b", limit=MAX_ERROR_LINE)
#: Ends of the types of exceptions; a line with another word before a colon may be anything.
RAISED: Final = (b"Error", b"Exception", b"Timeout", b"Exit", b"Refused", b"Interrupt", b"Option", b"Disconnected")
# A type of an exception, before its message.
_TYPE: Final = linear(rb"\b[A-Za-z_][\w.]*(?:%b)(?::|\z)" % b"|".join(RAISED))
# A traceback that is cut off at its statement, or between its frames: its last line with text.
_RAISING: Final = linear(
    rb'(?m)^[^"\n]*(?:"[^"\n]+)?", line \d+, in [^\n]*\n([^\n]*?\b(?:raise [A-Za-z_]|assert )[^\n]*)(?:\s|\[[^\]\n]{1,20}\]:?)*\z'
)
_CUT_OFF: Final = linear(
    rb'(?m)^[^\n]*File "[^"\n]+", line \d+, in [^\n]*\n(?:[^\n]*\n)?((?:\d{1,6}: )?(?:[\[(][^\])\n]{1,80}[\])](?:<stderr>)?:?)?[ \t]{2,}[^\s^~][^\n]*)(?:[\s^~]|\[[^\]\n]{1,20}\]:?)*\z'
)
# Frames of launchers, whose tracebacks contain nothing about a rank.
_LAUNCHER: Final = anchored(
    rb'[^"]{0,1024}(?:torch/distributed/(?:run|launch|launcher/\w+|elastic/[\w/]+)|torch/multiprocessing/spawn|runpy|accelerate/commands/\w+|deepspeed/launcher/\w+)\.py"',
    limit=MAX_ERROR_LINE,
)
_NUMBERS: Final = bounded(rb"0x[0-9a-fA-F]+|\d+", limit=MAX_ERROR_LINE)


def states_reason(line: bytes) -> bool:
    """True if an error line states a reason, in words of any program."""
    return _REASON.search(line) is not None


def error_lines(text: bytes, *, since: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields the lines from byte ``since`` on that resemble an error, with their first byte, the last one first."""
    yield from (one for one in _lines(_ERROR, text, since) if _is_message(one[1]))


def ranks_with_errors(text: bytes, *, since: int = 0) -> set[int]:
    """Ranks whose prefix is before one of the last lines from byte ``since`` on that resemble an error."""
    lines = islice(error_lines(text, since=since), _MAX_ERRORS)
    return {rank for _, line in lines if (rank := parse_prefix(line).rank) is not None}


def ranks_that_print(text: bytes, line: bytes) -> set[int]:
    """Ranks whose prefix is before copies of a line, without its own prefix."""
    body, ranks, at = line[parse_prefix(line).length :].strip(), set[int](), -1
    while body and len(ranks) < _MAX_ERRORS and (at := text.find(body, at + 1)) >= 0:
        before = text[text.rfind(b"\n", 0, at) + 1 : at + len(body)]
        if (rank := parse_prefix(before).rank) is not None:
            ranks.add(rank)
    return ranks


def first_lines_of_ranks(text: bytes) -> dict[int, int]:
    """First byte of the first line with each rank's prefix in the first 64 KiB of a text."""
    found: dict[int, int] = {}
    at = 0
    for line in text[:_BLOCK].splitlines(keepends=True):
        if (rank := parse_prefix(line).rank) is not None:
            found.setdefault(rank, at)
        at += len(line)
    return found


def ranks_begin(text: bytes, first_lines: Mapping[int, int]) -> int:
    """First byte of lines with their ranks; 0 without several ranks, and where only reports have them."""
    found = [at for at in first_lines.values() if _OF_A_RANK.match(text[at : at + _OF_A_RANK.limit])]
    return min(found) if len(found) > 1 else 0


def _is_message(line: bytes) -> bool:
    """False for advice, and for lines of launchers about their processes."""
    if _ADVICE.search(line) or _SUCCESS.search(line):
        return False
    return not any(_NO_ERROR.search(text) for text in _bodies(line))


def _is_code(line: bytes) -> bool:
    """True for a frame, or a line around a traceback."""
    return any(_CODE.search(text) for text in _bodies(line))


def _is_statement(text: bytes, begin: int) -> bool:
    """True for the statement of a frame, below the frame's own line."""
    above = text[max(0, begin - _MAX_ROW) : begin].rstrip(b"\n")
    return _FRAME_ABOVE.search(above[above.rfind(b"\n") + 1 :]) is not None


def _bodies(line: bytes) -> tuple[bytes, bytes]:
    """A line behind its logger's head, and behind a speaker's prefix as well."""
    return _PLACE.sub(b"", line, count=1), _PLACE.sub(b"", line[parse_prefix(line).length :], count=1)


ErrorKind = Literal["error", "cut_off", "hint"]


def best_error_line(
    text: bytes, *, since: int = 0, known: Collection[int] = (), ended: bool = False
) -> tuple[int, bytes, ErrorKind] | None:
    """Returns the most informative line of a text without a cause, with its first byte and its kind.

    Kinds: one that resembles an error, the last one of a traceback that is cut off, any with a word about an end.
    A traceback that is cut off at its statement names the type; one between its frames is the last choice but hints.
    The last exception or reason counts, else the first reason: what follows it may be consequences. Of lines that
    differ only in numbers the first counts. ``known``: first bytes of lines that are evidence already. ``ended``: a
    launcher reports the end, so no hint is needed.
    """
    text = _without_empty_end(text)
    for begin, line in _lines(_RAISING, text, since, group=1):
        return begin, line, "cut_off"
    likely = (
        one
        for one in error_lines(text, since=since)
        if one[0] not in known and not is_low(one[1]) and not _is_code(one[1])
    )
    errors = list(islice(likely, _MAX_ERRORS))
    if errors and (ended or states_reason(errors[0][1]) or _TYPE.search(errors[0][1]) is not None):
        return (*_first_alike(errors[0], errors), "error")
    hints = [*islice(_lines(_HINT, text, since), _MAX_ERRORS)]
    hints = [one for one in hints if one[0] not in known and not _SUCCESS.search(one[1])]
    frames = [one for one in hints if _is_code(one[1]) or _is_statement(text, one[0])]
    hints = [one for one in hints if one not in frames]
    hints = [one for one in hints if not _ADVICE.search(one[1])] or hints
    reasons = [one for one in (*errors, *hints) if states_reason(one[1])]
    if reason := min((one for one in reasons if not is_low(one[1])), default=None):
        return (*reason, "error" if reason in errors else "hint")
    if errors:
        return (*_first_alike(errors[0], errors), "error")
    cut = next(_lines(_CUT_OFF, text, since, group=1), None)
    loud = [one for one in hints if not is_low(one[1])]
    if cut is not None and (
        not loud or _LAUNCHER.match(text[max(0, cut[0] - MAX_ERROR_LINE) : cut[0]].rpartition(b'File "')[2]) is None
    ):
        return (*cut, "cut_off")
    done = _is_done(text)
    if not known and cut is None:
        # Nothing else shows that the job failed.
        hints = [] if done else [one for one in hints if not _QUIET.search(one[1])]
    reasons = [one for one in hints if states_reason(one[1])]
    if not hints and not done and not known:
        hints = loud = frames
    return (*(reasons or loud or hints)[-1], "hint") if hints else None


def _without_empty_end(text: bytes) -> bytes:
    """The text without its last lines that have nothing but a prefix."""
    for _ in range(_MAX_ERRORS):
        line = text[text.rfind(b"\n", 0, len(text) - 1) + 1 :]
        if not line or len(line) > _MAX_ROW or line[parse_prefix(line.strip()).length :].strip():
            break
        text = text[: len(text) - len(line)]
    return text


def candidate_lines(text: bytes, *, since: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields the lines from byte ``since`` on that may state a cause, with their first byte, the last one first.

    No warnings, advice, frames or lines of launchers about their processes; none of a job that reports its success.
    """
    if _is_done(text):
        return
    lines = _lines(_FILLED, text, since)
    yield from (one for one in lines if not is_low(one[1]) and _is_message(one[1]) and not _is_code(one[1]))


def _is_done(text: bytes) -> bool:
    """True if one of the last lines reports success."""
    found = _DONE.search(text[-MAX_ERROR_LINE:])
    return found is not None and _NOT_DONE.search(found[0].partition(b"\n")[0]) is None


def is_severe(line: bytes) -> bool:
    """True for a line of an error's level or a higher one."""
    return _SEVERE.search(line) is not None


# Lines behind a message in which its detail is searched, and how such a line begins.
_BEHIND: Final = 5
MAX_BEHIND: Final = 8 << 10
_DETAIL: Final = anchored(
    rb"(?i)\s*(?:what\(\): |(?:last error|caused by|(?:root )?cause|reason|details?|(?:error )?message) ?:|-{1,2}> )",
    limit=64,
)
_ANNOUNCES: Final = bounded(
    rb":\s*\Z|--> FOAM FATAL (?:IO )?ERROR|\A\W{0,80}(?i:(?:fatal|input|internal|runtime) )?(?i:errors?|exception)\W{0,80}\Z",
    limit=MAX_ERROR_LINE,
)
_NO_DETAIL: Final = bounded(
    rb"\s*(?:Traceback \(|File \"|frame #|\^|During handling|The above exception)|\W*\Z", limit=MAX_ERROR_LINE
)


# Head of another message.
_OTHER_HEAD: Final = b"terminate called after throwing"
# Rows of a report: an exit code, and the row before it that names the process.
_CODE_ROW: Final = bounded(rb"(?:\A|\s)(?:exitcode|Exit [Cc]ode) ?(?:  )?: *-?\d", limit=MAX_ERROR_LINE)
_NAME_ROW: Final = bounded(rb"(?:\A|\s)(?:rank +: \d|Process name: |Reason: +\w)[^\n]{0,400}\Z", limit=512)
_MAX_ROW: Final = 512
# A message of Open MPI between two rules: from its first line to the rows that name nodes, files and devices.
_BOX: Final = linear(rb"(?:\A|\n)-{40,}\n[^\n]{1,400}\z")
_END_OF_BOX: Final = linear(rb"(?m)^-{40,}$")
_ROW: Final = linear(rb"(?m)^ *[A-Za-z][\w ()]{0,29}[a-z)]: +[^\s:][^\n]{0,300}$")
_MAX_ROWS: Final = 6
# Rows below the head of MPICH's error stack, of which the last one is the cause.
_STACK_HEAD: Final = b"error stack:"
_STACK_ROW: Final = anchored(rb"\s*\w{3,80}\(\d{1,6}\)\.*:", limit=512)


def detail_behind(line: bytes, behind: bytes, *, above: bytes = b"") -> bytes | None:
    """Returns the line that a message's line announces, as a header or wrapper does; None if there is none.

    A colon at its end, OpenFOAM's head or ``*** ERROR ***`` announces the next line. ``behind``: text after the line, of which a few lines are read.
    ``above``: text that ends with the line; the row before an exit code names the process. Of a message between two
    rules the rows count.
    """
    if (row := _rows_of_box(behind, above) or _name_of_process(line, above) or _deepest_row(line, behind)) is not None:
        return row
    speaker = parse_prefix(line)
    announced = _ANNOUNCES.search(line[-MAX_ERROR_LINE:]) is not None
    for each in behind[:MAX_BEHIND].split(b"\n", _BEHIND)[:_BEHIND]:
        prefix = parse_prefix(each)
        text = each[prefix.length :].strip()
        if prefix.raw not in {speaker.raw, b""} or (text and _NO_DETAIL.match(text) is not None):
            return None
        if text.startswith(_OTHER_HEAD):
            return None
        found = _DETAIL.match(text)
        if text and (announced or (found is not None and found.end() < len(text))):
            return each.strip()[:MAX_ERROR_LINE]
        announced = announced or found is not None
    return None


def _rows_of_box(behind: bytes, above: bytes) -> bytes | None:
    end = _END_OF_BOX.search(behind[:MAX_BEHIND]) if _BOX.search(above[-_MAX_ROW:]) is not None else None
    rows = () if end is None else islice(_ROW.finditer(behind[: end.start()]), _MAX_ROWS)
    return b"\n".join(match[0].strip() for match in rows) or None


def _name_of_process(line: bytes, above: bytes) -> bytes | None:
    """Returns the row before that of an exit code."""
    if _CODE_ROW.search(line) is None:
        return None
    row = b"".join(above[-MAX_BEHIND:].rsplit(b"\n", 2)[-2:-1])[-_MAX_ROW:]
    return row.strip() if _NAME_ROW.search(row) is not None else None


def _deepest_row(line: bytes, behind: bytes) -> bytes | None:
    def belongs(row: bytes) -> bool:
        return _STACK_ROW.match(row[parse_prefix(row).length :]) is not None

    if not line.rstrip().endswith(_STACK_HEAD):
        return None
    rows = [*takewhile(belongs, behind[:MAX_BEHIND].split(b"\n"))]
    return rows[-1].strip()[:MAX_ERROR_LINE] if rows else None


def _lines(pattern: Linear[bytes], text: bytes, since: int, *, group: int = 0) -> Iterator[tuple[int, bytes]]:
    spans = [match.span(group) for match in pattern.finditer(text) if match.start() >= since]
    for begin, stop in reversed(spans):
        yield begin, text[begin : min(stop, begin + MAX_ERROR_LINE)].rstrip()


def _first_alike(chosen: tuple[int, bytes], lines: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    """First of the lines that differ from the chosen one in numbers only."""
    alike = _NUMBERS.sub(b"0", chosen[1])
    return next(one for one in reversed(lines) if _NUMBERS.sub(b"0", one[1]) == alike)
