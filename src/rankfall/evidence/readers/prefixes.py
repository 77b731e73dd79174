"""Parses the prefixes that launchers, log collectors and loggers put before a line.

A task's number is the global rank unless an inner tag contradicts it. Tags follow one another in any order, up to
``_MAX_TAGS``; times, levels and modules of a logger between them are skipped.

:func:`learn` takes all bytes before a traceback's head as its speaker's prefix.

Cost: at most the first ``_LOOK`` bytes of a line are read.
"""

from __future__ import annotations

import string
from functools import lru_cache
from re import Match
from typing import Final

import msgspec

from rankfall.model.numbers import whole
from rankfall.model.patterns import Bounded, anchored, bounded

# Bytes of a line that may contain prefixes.
_LOOK: Final = 1024
_MAX_TAGS: Final = 6
_MAX_TASKS: Final = 256
# Words of a logger between two tags.
_MAX_SKIPPED: Final = 6
# Bytes before a traceback's head that may be a prefix.
MAX_LEARNED: Final = 256

_STAMP: Final = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
# Day as C prints it, before the time and the year.
_DAY: Final = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d "
_LEVEL: Final = r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|SEVERE)"
_SUFFIX: Final = r"(?:py[xi]?|cc?|cpp|cuh?|h|hpp|rs|go|java|sh)"
_RANK: Final = r"(?:global[ _-]?|mpi|world[ _-]?)?rank"
# Words before "rank" for another number than the global rank; those of DDP and FSDP are global.
_OTHER: Final = (
    r"(?:node|machine|host|group|role|replica|shard|stage|expert|pipeline|tensor|data|model|context|sequence|lora"
    r"|(?!ddp|fsdp)[a-z]{1,3}p|[a-z]{1,16}[ _-]parallel)"
)
# Between the word and the number; a minus before a number is no dash.
_TO: Final = r"""(?:[ _#-]|["']?\s?[:=]{1,2}\s?["']?)?"""
# Of the kernel, and of dmesg -T.
_KERNEL_TIME: Final = r"\[(?: {0,6}\d{1,10}\.\d{3,6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\] "
# Beginning of an exception's or a driver's lines, after a host's name.
_EXCEPTION: Final = rf"(?=(?:{_KERNEL_TIME})?NVRM: |\[?rank ?\d|Traceback|  File|[\w.]+(?:Error|Exception)\b)"
# A node's name or address before a colon; one digit after "gpu" may be a device's.
_HOST: Final = r"((?:\d{1,3}\.){3}\d{1,3}|(?:node|worker|host|compute|cn|nd|nid|n|gpu(?=[a-z-]{0,16}\d\d))(?:[\w-]{0,40}\d)(?:\.[\w.-]{1,100})?)"
# Of syslog and the journal: a line about its own machine, whose name has a number if no time of the kernel follows.
_SYSLOG: Final = r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})? "
_KERNEL: Final = rf"([A-Za-z\d][A-Za-z\d.-]{{0,252}}) kernel: (?={_KERNEL_TIME}|NVRM: )"
_MACHINE: Final = r"((?=[A-Za-z.-]{0,252}\d|localhost)[A-Za-z\d.-]{1,253}) (?:kernel|systemd(?:-oomd)?\[\d{1,8}\]): "
# First characters of tags.
_OPEN: Final = "[(<"
_RANKS: Final = "GgMmRrWw"
_TASK: Final = " " + string.digits
_WORD: Final = string.ascii_letters + string.digits + "_.-"

# Kind, first characters and pattern of each tag, the first match counts. Kinds: ``global`` and ``local`` rank, ``both``,
# ``device`` (a GPU), ``task`` (a number of a process), ``srun`` (node and task), ``slot``, ``pod``, ``host``, ``name`` (of
# either), ``none`` (no number), ``stamp``.
_TAGS: Final = tuple(
    (kind, first.encode(), bounded(rb"\A" + pattern.encode(), limit=_LOOK))
    for kind, first, pattern in (
        # [rank3]: [Rank 3] [rank: 3] [GLOBAL_RANK 3] [rank=3] [rank 3/8] [rank 3 of 8] [rank 3, late] (rank 3) [DDP rank 3]
        # [rank 3 | pid 44]
        (
            "global",
            _OPEN,
            rf"[\[(<](?:(?!(?i:{_OTHER}) )[\w.-]{{1,16}} )?(?i:{_RANK}){_TO}(\d{{1,6}})(?:(?:/| of | ?[,|])[^\[\]()<>\n]{{0,48}})?[\])>]:?[ \t]?",
        ),
        ("local", _OPEN, r"[\[(<](?i:local[ _-]?rank|lr)[ :=_#-]{0,3}(\d{1,4})[\])>]:?[ \t]?"),
        # rank3: Rank 3: R3| rank 3 |
        ("global", _RANKS, rf"(?i:{_RANK}[ _-]?|r)(\d{{1,6}})(?:: |:$| ?\|)[ \t]?"),
        # rank 3 of 8: rank 3 - and, of Composer, rank3[12345][MainThread]:
        (
            "global",
            _RANKS,
            rf"(?i:{_RANK}[ _-]?)(\d{{1,6}})(?: of \d{{1,6}}: | - |\[\d{{1,8}}\](?:\[\w{{1,32}}\])?: )[ \t]?",
        ),
        # rank=3 of key=value logs
        ("global", _RANKS, rf"(?i:{_RANK})=(\d{{1,6}})[ ,:|][ \t]?"),
        # [1,3]<stderr>: and [prterun-n-44@1,3]<stderr>: of mpirun, [1,mpirank:3,algo-1]<stderr>: of SageMaker, [3]<stderr>: of Horovod
        (
            "global",
            "[",
            r"\[(?:[\w.-]{1,128}@)?\d{1,6},(?:mpirank:)?(\d{1,6})(?:,[\w.-]{1,64})?\]<std(?:out|err)>:[ \t]?",
        ),
        ("global", "[", r"\[(\d{1,6})\]<std(?:out|err)>:[ \t]?"),
        ("global", "a", r"amrex::(?:Abort|Error)::(\d{1,6})::"),
        # [3]PETSC ERROR: and [3] --> FOAM FATAL ERROR
        ("global", "[", r"\[(\d{1,6})\](?:PETSC ERROR: ?| (?=--> FOAM FATAL ))"),
        # __main__ 3/4 ERROR :: of Dedalus, behind the stamp
        ("global", _WORD, rf"[\w.]{{1,64}} (\d{{1,6}})/\d{{1,6}} {_LEVEL} :: "),
        # [olmo.util:158, rank=0] behind the stamp and the level of a logger
        ("global", "[", r"\[[\w./-]{1,64}:\d{1,6}, rank=(\d{1,6})\][ \t]?"),
        ("global", "M", r"MPICH (?:ERROR|Notice) \[Rank (\d{1,6})\] ?"),
        # Rank 32 [Thu Jun 10 21:32:13 2021] [c3-0c1s4n2] of Cray's MPICH
        ("global", "R", rf"Rank (\d{{1,6}}) \[{_DAY}\d\d:\d\d:\d\d \d{{4}}\] \[[\w.-]{{1,64}}\] "),
        # FATAL from PE     3: of FMS, whose message follows
        ("task", "F", r"FATAL from PE +(\d{1,6}): +"),
        # 8de2ca81 [rank=3] || of Determined
        ("global", string.hexdigits, r"[0-9a-f]{8} \[rank=(\d{1,6})\] \|\| ?"),
        # [trainer1|9]: torchrun's template with both ranks
        ("both", "[", r"\[[A-Za-z_]+(\d{1,6})\|(\d{1,6})\]:[ \t]?"),
        # [trainer1]: torchrun's prefix of a role; but no node's name
        (
            "local",
            "[",
            r"\[(?!(?i:gpu|node|host|nid|cn|compute|server|machine|rack|vm|pod|ip)\d)[A-Za-z_]+(0|[1-9]\d{0,3})\]: ?",
        ),
        ("slot", "[", r"\[slot (\d{1,6})\] ?"),
        # slurmstepd has the label of its node's first task
        ("none", _TASK, r" {0,5}\d{1,6}: (?=slurmstepd)"),
        # 3: of srun --label, padded; [3]: of torchrun's template [${rank}]:, and of mpirun; but not the shell's [1]   1234 killed
        ("task", _TASK, r" {0,5}(\d{1,5}): (?=\S| {2,8}(?:File |nested task error: ))"),
        ("task", "[", r"\[(\d{1,5})\]:[ \t]?"),
        ("task", "[", r"\[(\d{1,5})\] (?=[A-Za-z\[(]| {2,8}File )"),
        # [node1:mpi_rank_3] of MVAPICH, node1:rank3.python: of libfabric's providers
        ("global", "[", r"\[[\w.-]{1,253}:(?:mpi_)?rank[_ ]?(\d{1,6})\][ \t]?"),
        ("global", _WORD, r"[A-Za-z][\w.-]{0,127}:rank(\d{1,6})(?:\.[\w.-]{1,64})?: ?"),
        # [2025-01-01 10:00:00 TP3] of SGLang, behind the stamp: the only kind of parallelism
        ("global", " ", r" TP(\d{1,4})(?: EP\d{1,4})?\] ?"),
        # node1:3: or [node1:3], but not Open MPI's [host:pid] or a line of a source file
        (
            "task",
            "[",
            r"\[(?!(?i:cuda|gpu|[nxht]pu|mps|device|\w*thread|pid|line|step|epoch|iter):)[A-Za-z][\w.-]{0,127}:(\d{1,3})\](?!:?[ \t]?(?:\*\*\*|\[ ?\d|Signal|Failing)):?[ \t]?",
        ),
        ("task", _WORD, rf"(?!\S{{1,128}}\.{_SUFFIX}:)[A-Za-z][\w.-]{{0,127}}:(\d{{1,3}}): (?=\S| {{2,8}}File )"),
        # host:pid:thread [3] of NCCL: the device of the process
        ("device", _WORD, r"([\w.-]{1,253}):\d{1,8}:\d{1,8} \[(\d{1,3})\] "),
        # srun: error: gpu-17: task 6: about a task that ended
        ("srun", "s", r"srun: error: ([\w.,\[\]-]{1,512}): tasks? ([\d,-]{1,400}): "),
        ("pod", "[", r"\[pod/([\w.-]{1,253})/[\w.-]{1,63}\]:? ?"),
        # A word without a digit is a level or a part of the message.
        ("host", _WORD, rf"((?=[\w.-]{{0,252}}\d|localhost)[\w.-]{{1,253}}): {_EXCEPTION}"),
        ("name", _WORD, r"([\w.-]{1,128}) +\|{1,2} ?"),
        # n042: worker1: 10.0.0.4: of pdsh
        ("host", _WORD, _HOST + r": "),
        # worker-3: job-worker-3:
        (
            "host",
            _WORD,
            r"((?:[\w.]{1,63}-){0,8}(?:worker|node|trainer|learner|replica|launcher|master|chief|host|pod)-\d{1,5}): ",
        ),
        # (worker1, rank=1, pid=3061, ip=10.0.0.2) of SkyPilot: the rank of the node
        ("slot", "(", r"\((?:head|worker\d{1,5}), rank=(\d{1,6}), pid=\d{1,9}(?:, ip=[\d.]{7,15})?\) ?"),
        ("none", "(", r"\([^()\n]{0,200}?(?:\bpid=\d|\braylet, ip=\d)[^()\n]{0,200}?\) ?"),
        # Exception in device=TPU:3: of torch_xla, pe=00003 of MAPL
        ("global", "Ep", r"(?:Exception in device=TPU:|pe=)(\d{1,6})(?:: ?|$| (?=FAIL at line=))"),
        # Behind the stamp of a container runtime's file.
        ("none", "s", r"std(?:out|err) [FP] "),
        ("none", "\x1b", r"(?:\x1b\[[0-9;]*m)+"),
        ("stamp", "[", r"\[\d{10}\.\d{3,9}\] "),
        ("stamp", "[" + string.digits, rf"\[?{_STAMP}(?:(?= TP\d)|\]?:? ?)"),
        # Nov 30 03:12:40 gpu-07 kernel: of syslog and the journal
        ("stamp", string.ascii_uppercase, _SYSLOG + rf"(?={_KERNEL}|{_MACHINE})"),
        ("host", _WORD, _KERNEL),
        ("host", _WORD, _MACHINE),
        # Sun Oct  1 15:01:10 2017[1,30]<stdout>: of mpirun --timestamp-output
        ("stamp", _WORD, rf"{_DAY}\d\d:\d\d:\d\d \d{{4}}(?=\[)"),
    )
)
# The tags that may begin with a byte: a line tries a third of them.
_BY_FIRST: Final = [[(kind, pattern) for kind, first, pattern in _TAGS if byte in first] for byte in range(256)]
# Beginning of any prefix: most lines have none.
_BEGINS: Final = anchored(
    rb"\A(?:[\[(<\x1b]|srun: error: |std(?:out|err) [FP] | {0,5}\d{1,6}: |\d{4}[-/]|"
    + f"{_DAY}|{_SYSLOG}|{_KERNEL}".encode()
    + rb"|(?i:(?:global[ _-]?|mpi|world[ _-]?)?rank[ _=-]?|r)\d|[\w.-]{1,253}:\d{1,8}:\d{1,8} \[|[A-Za-z][\w.-]{0,127}:(?:\d{1,5}|rank\d{1,6}(?:\.[\w.-]{1,64})?): | TP\d|amrex::|MPICH |FATAL from PE |Exception in device=TPU|pe=\d"
    rb"|[\w.-]{1,253}(?:: " + _EXCEPTION.encode() + rb"| +\|| \[rank=\d|(?<=\d): ))",
    limit=_LOOK,
)
# Words of a logger before a tag: a time, a level, a module or file in brackets, separators.
LOGGER_WORD: Final = (
    rb"(?:\[?" + _STAMP.encode() + rb"\]?|\[?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\]?|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
    rb"|\[?" + _LEVEL.encode() + rb"\]?|\[[\w./:<>-]{1,128}\]|[-|:])[ \t]*"
)
_LOGGER: Final = anchored(LOGGER_WORD, limit=_LOOK)
_TAG_BEGINS: Final = anchored(rb"[\[(<](?i:global|local|mpi|world|rank)|\[[\w./-]{1,64}:\d{1,6}, rank=", limit=96)
# torch's tag behind the words of any logger or collector.
_TORCH: Final = anchored(
    rb"[^\[\n'\"]{1,160}(?:\[[^\[\]\n]{0,80}\](?!:)[^\[\n'\"]{0,40}){0,4}(?<=[ \t\]|:>])(\[rank(\d{1,6})\]:) ?",
    limit=2 * _LOOK,
)
# A bar of tqdm, which ends without a newline.
_BAR: Final = anchored(rb"[^|\n]{1,160}%\|[^|\n]{0,300}\|[^|\[\n]{0,60}\[[^\[\]\n]{0,300}\]?", limit=2 * _LOOK)
# The rank in a program's own key=value list: (VllmWorker rank=3 pid=42)
_KEYED: Final = bounded(
    rb"(?i)\b(local[ _-]?)?(?:global[ _-]?|mpi|world[ _-]?)?rank[\"']?[=:]{1,2} ?[\"']?(\d{1,6})\b", limit=256
)
_PID: Final = bounded(rb"\bpid=(\d{1,9})\b", limit=256)
_IP: Final = bounded(rb"\bip=((?:\d{1,3}\.){3}\d{1,3})\b", limit=256)
# Words of a rank anywhere in a learned prefix; the first group is another kind of rank.
_WORDED: Final = bounded(
    rf"(?i)(?<![a-z])(?:(local|{_OTHER})[ _-]?|(?:global|mpi|world|dist)[ _-]?)?rank{_TO}(\d{{1,6}})(?![\d.])"
    r"|(?<![A-Za-z0-9])(?-i:R)(\d{1,6})(?=[\]|:, )]|\Z)".encode(),
    limit=MAX_LEARNED,
)
# Both ranks in letters: gr=3 lr=1
_LETTERS: Final = bounded(rb"\bgr[=:](\d{1,6})[ ,]{1,2}lr[=:](\d{1,4})\b", limit=MAX_LEARNED)
# A worker of vLLM whose only kind of parallelism is that of tensors.
_TENSOR: Final = bounded(rb"(?:(?<![A-Za-z0-9])|(?<=Worker_))TP(\d{1,4})\b", limit=MAX_LEARNED)
_OTHER_PARTS: Final = bounded(rb"(?:PP|DP|CP|SP)\d", limit=MAX_LEARNED)
# A number at the end of a learned prefix, in brackets or before a colon or bar.
_LAST_NUMBER: Final = bounded(
    rb"(?:\A|[^\w.:,<-])(?<!\d\|)(\d{1,4})(?:(?:/| of )\d{1,6})?[\])>]?[ \t]?[:|>)\]]?[ \t]*\Z", limit=256
)
# Text before the number: a word for a process, or another word, which names what it counts.
_PROCESS: Final = bounded(
    rb"(?i)(?:\A|[^a-z])(?:proc(?:ess)?|task|worker|trainer|learner|member|pe)[ :=#_-]{0,2}\Z", limit=256
)
_COUNTED: Final = bounded(rb"[A-Za-z_%?][ \t]*[:=#]{0,2}[ \t]*\Z", limit=256)
# A process ID behind a program's name, as of syslog.
_PROGRAM: Final = bounded(
    rb"(?i)[a-z_./-](?<!rank)(?<!worker)(?<!task)(?<!proc)(?<!process)(?<!trainer)(?<!learner)\[\d{1,8}\]:?[ \t]*\Z",
    limit=64,
)
_NAMED: Final = bounded(rb"\b((?:[\w.]{1,63}-){0,8}(?:worker|trainer|learner|proc|rank)-\d{1,6})\b", limit=256)
# A line that is an object of JSON: its key of a rank may follow the message.
_OBJECT: Final = anchored(rb'\A\{\s*"', limit=64)
_OBJECT_KEY: Final = bounded(
    rb'(?i)[{,]\s*"(local[ _-]?)?(?:global[ _-]?|mpi|world[ _-]?)?rank"\s*:\s*"?(\d{1,6})\b', limit=_LOOK
)


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix of a line.

    Attributes:
        length: Bytes of all tags.
        raw: The tags without timestamps and final spaces; the same for all lines of one speaker.
        name: Pod, host, or either. ``pod``, ``host``: only if the prefix shows which of both it names.
        hosts: srun's list of nodes, as ``gpu-[01-03]``.
        pid: Process ID in a tag of Ray.
        tasks: srun's several tasks.
        stamp: Timestamp as printed.
    """

    length: int = 0
    raw: bytes = b""
    rank: int | None = None
    local_rank: int | None = None
    slot: int | None = None
    name: str | None = None
    pod: str | None = None
    host: str | None = None
    hosts: str | None = None
    pid: int | None = None
    tasks: tuple[int, ...] = ()
    stamp: str | None = None


_NOTHING: Final = Prefix()


def parse_prefix(line: bytes) -> Prefix:
    """Parses the tags at the beginning of a line, or the keys of an object of JSON; empty if none."""
    if line.startswith(b"{") and _OBJECT.match(line) is not None:
        return _of_object(line)
    bar = _BAR.match(line) if line.find(b"%|", 0, _LOOK) > 0 else None
    if bar is not None and (own := _parsed(line[bar.end() :][:_LOOK])).length:
        return msgspec.structs.replace(own, length=bar.end() + own.length)
    if _BEGINS.match(line) is None:
        behind = _torchs_tag(line, 0)
        return _made({"global": behind[2]}, length=behind.end(), raw=behind[1]) if behind is not None else _NOTHING
    return _parsed(line[:_LOOK])


@lru_cache(maxsize=2048)
def _parsed(head: bytes) -> Prefix:
    # Several readers of a chunk parse the same line.
    found: dict[str, bytes] = {}
    raw: list[bytes] = []
    at = 0
    for _ in range(_MAX_TAGS):
        rest = head[at:]
        tag = _tag(rest, found)
        if tag is None:
            at = _after_logger(head, at, found, raw)
            break
        kind, size, text = tag
        at += size
        if kind == "stamp":
            found.setdefault(kind, text.strip(b"[] "))
            continue
        # An indented line has more space behind the same tag.
        raw.append(rest[:size].rstrip(b" \t"))
        if kind != "none":
            found[kind] = text
        else:
            _keyed(text, found)
            _of_tensor_parts(text, found)
            for key, pattern in (("pid", _PID), ("host", _IP)):
                if (match := pattern.search(text)) is not None:
                    found.setdefault(key, match[1])
        if _BEGINS.match(head[at:]) is None:
            at = _after_logger(head, at, found, raw)
            break
    return _made(found, length=at, raw=b"".join(raw)) if at else _NOTHING


def _of_object(line: bytes) -> Prefix:
    """Ranks that keys of an object of JSON give; the text has no tags."""
    found: dict[str, bytes] = {}
    for part in (line[:_LOOK], line[-_LOOK:] if len(line) > _LOOK else b""):
        _keyed(part, found, pattern=_OBJECT_KEY)
    raw = b",".join(b"%s:%s" % (kind.encode(), number) for kind, number in sorted(found.items()))
    return _made(found, length=0, raw=b"{" + raw) if found else _NOTHING


def _tag(rest: bytes, found: dict[str, bytes]) -> tuple[str, int, bytes] | None:
    """Returns kind, size and content of the first tag; each kind counts once."""
    for kind, pattern in _BY_FIRST[rest[0]] if rest else ():
        # The text is no longer than the limit of the patterns.
        match = pattern.compiled.match(rest)
        if match is None or not match.end():
            continue
        if kind in {"none", "stamp"}:
            return kind, match.end(), match.group()
        if kind == "both":
            first, second = whole(match[1]) or 0, whole(match[2]) or 0
            found.setdefault("local", b"%d" % min(first, second))
            return "global", match.end(), b"%d" % max(first, second)
        if kind == "device":
            found.setdefault("host", match[1])
            return (kind, match.end(), match[2]) if kind not in found else ("none", match.end(), match.group())
        if kind == "srun":
            found["task" if match[2].isdigit() else "tasks"] = match[2]
            return "hosts", match.end(), match[1]
        if kind not in found:
            return kind, match.end(), match[1]
    return None


def _after_logger(head: bytes, at: int, found: dict[str, bytes], raw: list[bytes]) -> int:
    """End of a rank's tag behind words of a logger; ``at`` if there is none."""
    if "global" in found:
        return at
    position = at
    for _ in range(_MAX_SKIPPED):
        match = _LOGGER.match(head, position)
        if match is None or match.end() == position:
            break
        position = match.end()
        if _TAG_BEGINS.match(head, position) is None:
            continue
        tag = _tag(head[position:], found)
        if tag is not None and tag[0] in {"global", "local"}:
            kind, size, text = tag
            found[kind] = text
            raw.append(head[position : position + size].rstrip(b" \t"))
            return position + size
    torchs = _torchs_tag(head, at)
    if torchs is None:
        return at
    found["global"] = torchs[2]
    raw.append(torchs[1])
    return torchs.end()


def _torchs_tag(line: bytes, at: int) -> Match[bytes] | None:
    # Most lines have none, and the pattern is slow.
    return _TORCH.match(line, at) if line.find(b"[rank", at, at + _LOOK) > 0 else None


def _keyed(text: bytes, found: dict[str, bytes], *, pattern: Bounded[bytes] = _KEYED) -> None:
    for match in pattern.finditer(text):
        found.setdefault("local" if match[1] else "global", match[2])


def _of_tensor_parts(text: bytes, found: dict[str, bytes]) -> None:
    """Adds the rank of a worker whose only kind of parallelism is that of tensors."""
    tensor = _TENSOR.search(text)
    if tensor is not None and _OTHER_PARTS.search(text) is None:
        found.setdefault("global", tensor[1])


def _worded(before: bytes, found: dict[str, bytes]) -> None:
    """Adds the ranks that words anywhere in a learned prefix give."""
    for match in _WORDED.finditer(before):
        other, number, letter = match.groups()
        if other is None or other.lower() == b"local":
            found.setdefault("global" if other is None else "local", number or letter)
    if (both := _LETTERS.search(before)) is not None:
        found.update({"global": both[1], "local": both[2]} | found)


def _made(found: dict[str, bytes], *, length: int, raw: bytes) -> Prefix:
    pod, host, hosts = (_decoded(found.get(kind)) for kind in ("pod", "host", "hosts"))
    # The inner tag of the program is the rank; that of the launcher around it counts tasks.
    rank = found.get("global", found.get("task") if "local" not in found else None)
    return Prefix(
        length=length,
        raw=raw,
        rank=whole(rank),
        local_rank=whole(found.get("local", found.get("device"))),
        slot=whole(found.get("slot")),
        name=pod or host or _decoded(found.get("name")),
        pod=pod,
        host=host,
        hosts=hosts,
        pid=whole(found.get("pid")),
        tasks=_listed(found["tasks"]) if "tasks" in found else (),
        stamp=found["stamp"].decode("ascii", "replace") if "stamp" in found else None,
    )


def _decoded(text: bytes | None) -> str | None:
    return text.decode("utf-8", "replace") if text else None


def _listed(text: bytes) -> tuple[int, ...]:
    """Numbers of a list as ``0,2-5``; at most ``_MAX_TASKS``."""
    numbers: list[int] = []
    for part in text.split(b","):
        first, _, last = part.partition(b"-")
        begin, end = whole(first, digits=6), whole(last or first, digits=6)
        if begin is not None and end is not None:
            numbers += range(begin, min(end + 1, begin + _MAX_TASKS - len(numbers)))
    return tuple(numbers)


def learn(before: bytes) -> Prefix:
    """Prefix of a speaker from all bytes before a traceback's head: ranks wherever they are in it."""
    own = parse_prefix(before)
    if own.length >= len(before.rstrip()):
        return msgspec.structs.replace(own, length=len(before))
    numbers = {"global": own.rank, "local": own.local_rank}
    found = {kind: b"%d" % number for kind, number in numbers.items() if number is not None}
    for at in (at for at, byte in enumerate(before[:MAX_LEARNED]) if byte in b"[(<"):
        tag = _tag(before[at:], found)
        if tag is not None and tag[0] in {"global", "local"}:
            found.setdefault(tag[0], tag[2])
    _keyed(before, found)
    _of_tensor_parts(before, found)
    _worded(before, found)
    name = _NAMED.search(before)
    nothing = "global" not in found and "local" not in found and name is None
    if nothing and (number := _last_number(before[-64:])) is not None:
        found["task"] = number
    if name is not None:
        found.setdefault("name", name[1])
    known = _made(found, length=len(before), raw=before)
    return msgspec.structs.replace(
        known, slot=own.slot, name=own.name or known.name, pod=own.pod, host=own.host, stamp=own.stamp
    )


def _last_number(end: bytes) -> bytes | None:
    """Number of a process at the end of a prefix; None if the word before it is for something else."""
    number = _LAST_NUMBER.search(end)
    if number is None or _PROGRAM.search(end) is not None:
        return None
    before = end[: number.start(1)]
    return None if _COUNTED.search(before) is not None and _PROCESS.search(before) is None else number[1]
