"""Converts any set of log files to one case.

Names count only in two layouts: torchrun's ``attempt_N/<local rank>/`` and ``rank-N``. Error files and small
files are read first; skipped data is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from rankfall.evidence.files.bounded_read import (
    CHUNK,
    HEAD,
    Allowance,
    Input,
    Limits,
    Part,
    Room,
    Share,
    chunks_of_input,
    no_text,
    parts_of,
    parts_of_stream,
    unpacked_stream,
)
from rankfall.evidence.files.file_source import MAX_RANKS, Source, TextReader, source_of
from rankfall.evidence.files.folder_listing import (
    LeftOut,
    Listed,
    amount,
    host_in_name,
    list_files,
    no_log,
    numbered_siblings,
    opened,
    printable,
)
from rankfall.evidence.readers import flyte_errors, torchrun
from rankfall.evidence.readers.flight_recorder import Dumps, dump_rank
from rankfall.evidence.readers.flyte_errors import container_error_evidence, is_container_error
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.stacks import MAX_JSON, Standing, compare_stacks, stand, text_of_json
from rankfall.evidence.readers.text import decode
from rankfall.model import Case, Evidence, RankFacts, RankfallError, UsageError, numbers
from rankfall.model.evidence import digest, on_other_nodes
from rankfall.model.patterns import bounded
from rankfall.rundir.reader_guard import ReaderGuard
from rankfall.verdict.diagnose.cause_tables import KERNEL_SIGNATURE_IDS, waited
from rankfall.verdict.signatures.catalogue import Catalogue, default_catalogue
from rankfall.verdict.signatures.matcher import SLURM

# Shorter text hardly shows why a job ended.
_LEAST_TEXT: Final = 64
# A message that begins with the rank that raised it, or has a tag or key of the speaker's rank.
_SAYS_ITS_RANK: Final = bounded(
    r"\b\w*(?:Error|Exception): \[?[Rr]ank[ :=]?(\d{1,6})(?:\]|:|,|\b)|\[(?:[^\[\]]{1,80} )?(?i:rank)[ :=]?(\d{1,6})\]|[\[(,] ?(?i:rank|rank_?id)[:=] ?(\d{1,6})[\]),]"
    r"|\bERROR\b[^\n]{1,1500}(?<! to)(?<! from)(?<! with)(?<! for)(?<! on)(?<! of)(?<! peer)(?<! root)(?<! remote)(?<! src)(?<! dst) rank=(\d{1,6})$",
    limit=2_000,
)
# A failure of a rank in the words of another process.
_ABOUT_A_RANK: Final = bounded(
    r"(?<!to )(?<!from )(?<!with )(?<!for )"
    r"\b(?i:rank)[ :=]?(\d{1,6})\]?:? (?:\w{1,16} )?(?:(?:crash|fail|di|exit|abort|kill|rais|terminat|segfault)ed|threw|ran out)\b(?! [io]n )"
    r"|(?i:\b(?:fail|err|exception|crash|kill)\w* (?:on|in) (?:global )?rank)[ :=]?(\d{1,6})\b",
    limit=2_000,
)
# GPUs of the largest common machine.
_MOST_ON_A_NODE: Final = 16
_LEAST_RANKS: Final = 3  # of two ranks it is unknown which one waited


def case_of_files(
    paths: Iterable[Path],
    *,
    catalogue: Catalogue | None = None,
    limits: Limits | None = None,
    within: Path = Path(),
) -> Case:
    """Returns the case of files and folders; its ``missing`` lists what limits excluded.

    ``within``: folder of relative paths.

    Raises:
        NotFound: A path does not exist.
        UsageError: Nothing can be read.
    """
    pile = _Pile(catalogue or default_catalogue(), Allowance(limits or Limits()))
    pile.read(paths, within)
    return pile.case()


def case_of_stream(file: Input, *, name: str, catalogue: Catalogue | None = None, limits: Limits | None = None) -> Case:
    """Returns the case of one stream of text, read to its end or up to the limits.

    Raises:
        UsageError: The stream cannot be read.
    """
    pile = _Pile(catalogue or default_catalogue(), Allowance(limits or Limits(), clock=time.thread_time))
    pile.read_stream(file, name)
    return pile.case()


class _Pile:
    """Reads files in the order of usefulness, and stores their findings in the order of listing."""

    def __init__(self, catalogue: Catalogue, allowance: Allowance) -> None:
        self._catalogue = catalogue
        self._allowance = allowance
        self._left = LeftOut()
        self._guard = ReaderGuard()
        self._room = Room()
        self._sources: dict[int, Source] = {}
        self._silent: list[tuple[int, Source]] = []
        self._dumps = Dumps()

    def case(self) -> Case:
        """Findings as a case."""
        sources = [self._sources[number] for number in sorted(self._sources)]
        for text in (*self._dumps.left_out, *self._guard.problems):
            self._left.note(text)
        case = _case(sources, self._left.texts())
        return msgspec.structs.replace(case, evidence=(*case.evidence, *self._dumps.evidence()))

    def read(self, paths: Iterable[Path], within: Path) -> None:
        """Reads the files at ``paths``; what exceeds the limits of time, number and size becomes a problem of the case.

        Raises:
            UsageError: No file is readable.
        """
        chosen = self._chosen(paths, within)
        for done, (number, file) in enumerate(chosen):
            if spent := self._allowance.spent:
                self._left.unread(file.size, limit=spent)
                continue
            share = self._allowance.share(len(chosen) - done)
            try:
                self._file(number, file, share)
            except RankfallError:
                raise
            except OSError as error:
                self._left.add(_unreadable(printable(file.path), error), unreadable=True)
            except Exception as error:  # noqa: BLE001 - one file costs no other one
                self._guard.failed(error, what="file", where=printable(file.path))
            self._allowance.settle(share)
        if chosen and not any(file.size or file.pipe for _, file in chosen):
            self._left.add("any text: the files are empty")
        if self._sources or self._dumps.read:
            self._sources.update((number, source) for number, source in self._silent if number not in self._sources)
            return
        if self._left.unreadable is not None:
            raise UsageError(
                self._left.unreadable, hint="name readable files of text, or pipe it: ... | rankfall why -"
            )
        self._left.add("any log file: the folder contains none")

    def read_stream(self, file: Input, name: str) -> None:
        """Reads one stream; exceptions as in :func:`case_of_stream`."""
        share = self._allowance.share(1)
        source = self._sources[0] = Source(name=name, group=name)
        try:
            chunks = unpacked_stream(chunks_of_input(file), Path(name))
            self._text(source, parts_of_stream(chunks, share, head=share.size // 4 * 3), share)
            if not share.taken:
                self._left.add(f"any text: {name} is empty")
        except OSError as error:
            problem = _unreadable(name, error)
            if not share.taken:
                raise UsageError(problem, hint="name a file, or pipe text: ... | rankfall why -") from None
            # What was read before the damage counts.
            self._left.add(problem, unreadable=True)

    def _chosen(self, paths: Iterable[Path], within: Path) -> list[tuple[int, Listed]]:
        """Files with their list numbers: each once, small ones first."""
        listed = enumerate(file for path in paths for file in list_files(path, self._left, skip=no_log, within=within))
        useful = []
        for number, file in listed:
            if file.size or not file.parts or _says_by_its_name(file):
                useful.append((number, file))
            elif (source := source_of(file.path)).rank is not None:
                # The name of an empty log shows that there is such a rank.
                self._silent.append((number, source))
        useful.sort(key=lambda row: (_rank_of_use(row[1]), row[1].size, row[0]))
        unique = list({file.inode: (number, file) for number, file in reversed(useful)}.values())[::-1]
        most = self._allowance.limits.files
        for _, file in unique[most:]:
            self._left.unread(file.size, limit=f"{most:,} files")
        return sorted(unique[:most], key=lambda row: (not _is_error_file(row[1]), row[1].size, row[0]))

    def _file(self, number: int, file: Listed, share: Share) -> None:
        with opened(file) as fd:
            if (rank := dump_rank(file.path.name)) is not None:
                problem = self._dumps.add(rank, printable(file.path), file.size, lambda limit: _head(fd, limit, share))
                if problem is not None:
                    self._left.add(problem, unreadable=True)
                return
            first = b"" if file.pipe else os.pread(fd, HEAD, 0)
            if (kind := no_text(first)) is not None:
                if not file.parts:
                    self._left.add(f"{printable(file.path)} is {kind}, not a log", unreadable=True)
                return
            source = source_of(file.path)
            try:
                if _is_error_file(file):
                    self._error_file(source, file.path.name, fd, share)
                elif source.rank is not None and _may_be_stacks(file) and (text := _stacks(fd, share)):
                    source.stacks = text
                else:
                    self._text(source, parts_of(file.path, fd, first, share, pipe=file.pipe), share)
            except OSError:
                # What was read before the damage counts.
                if share.taken:
                    self._sources[number] = source
                raise
            self._sources[number] = source

    def _text(self, source: Source, parts: Iterator[Part], share: Share) -> None:
        reader = TextReader(source, self._catalogue, self._guard, self._room)
        try:
            reader.read(parts)
        finally:
            if reader.flooded:
                self._left.add(f"{source.name}: {reader.flooded}")
            if share.unread or share.endless:
                more = "more than " if share.endless else ""
                self._left.add(
                    f"{source.name}: {more}{amount(share.unread)} between its beginning and its end were not read:"
                    f" {share.why}"
                )

    def _error_file(self, source: Source, name: str, fd: int, share: Share) -> None:
        foreign = is_container_error(name)
        data = _head(fd, (flyte_errors.MAX_FILE if foreign else torchrun.MAX_FILE) + 1, share)
        if foreign:
            piece = container_error_evidence(data, name=source.name, catalogue=self._catalogue)
        else:
            piece = torchrun.error_file_evidence(data, name=source.name, stream=source.group, catalogue=self._catalogue)
        if isinstance(piece, str):
            self._left.add(piece)
        elif self._room.take(piece.line):
            source.found.append(msgspec.structs.replace(piece, attempt=source.attempt, local_rank=source.local_rank))


def _unreadable(name: str, error: OSError) -> str:
    """Problem of a case: a damage, or why there is nothing to read."""
    why = error.strerror or str(error)
    return f"{name} {why}" if why.startswith("is ") else f"{name} cannot be read: {why}"


def _is_error_file(file: Listed) -> bool:
    return file.path.name == "error.json" or is_container_error(file.path.name)


def _says_by_its_name(file: Listed) -> bool:
    return _is_error_file(file) or dump_rank(file.path.name) is not None


def _may_be_stacks(file: Listed) -> bool:
    return file.path.suffix == ".json" and not file.pipe


def _rank_of_use(file: Listed) -> int:
    """Order: error files, files of one rank, other text."""
    if _is_error_file(file):
        return 0
    source = source_of(file.path)
    known = source.rank is not None or source.local_rank is not None or _says_by_its_name(file)
    return 1 if known else 2 if file.size >= _LEAST_TEXT else 3


def _head(fd: int, limit: int, share: Share) -> bytes:
    parts: list[bytes] = []
    # A network read may return less than available.
    while share.taken < limit and (data := os.pread(fd, min(CHUNK, limit - share.taken), share.taken)):
        parts.append(data)
        share.taken += len(data)
    return b"".join(parts)


def _stacks(fd: int, share: Share) -> str | None:
    """Stacks of a py-spy JSON file; None for any other file."""
    data = _head(fd, MAX_JSON + 1, share)
    return text_of_json(data) if len(data) <= MAX_JSON else None


def _case(sources: list[Source], problems: list[str]) -> Case:
    _rank_siblings(sources)
    attempt = max((s.attempt for s in sources if s.attempt is not None), default=None)
    groups: dict[str, set[int]] = {}
    for source in sources:
        groups.setdefault(source.group, set()).update(source.prefixed)
    found: list[Evidence] = []
    facts: dict[int, RankFacts] = {}
    standings: dict[int, tuple[Standing, str]] = {}
    firsts = torchrun.first_ranks(r for source in sources for r, _ in source.reported.values())
    processes = _processes(sources)
    hosts = {row[1] for row in processes.values() if row is not None and row[1]}
    for source in sources:
        if attempt is not None and source.attempt not in {None, attempt}:
            continue
        speaks = groups[source.group]
        # With one speaker, lines without a prefix are its own.
        owner = (
            next(iter(speaks))
            if len(speaks) == 1 and source.local_rank is not None
            else source.rank
            if speaks <= {source.rank}
            else None
        )
        of_kernel, its_host = host_in_name(source.name, ()) is not None, host_in_name(source.name, hosts)
        for each in source.weighed(alone=owner is not None or source.local_rank is not None):
            host = each.node or source.places.get(each.id, (None, None))[0] or its_host
            kernel = of_kernel or each.signature in KERNEL_SIGNATURE_IDS
            piece = _of_process(each, host, processes) if kernel else each
            local = piece.local_rank if piece.local_rank is not None else source.local_rank
            # slurmstepd prints into the output of its node's first task.
            batch = SLURM.search(piece.line) is not None
            rank = piece.rank if piece.rank is not None or batch else owner
            if rank is None and local is None and not batch:
                named = _rank_in(piece)
                rank = source.rank_of_worker(piece) if named is None else named
            found.append(msgspec.structs.replace(piece, rank=rank, local_rank=local, attempt=None))
        # What a launcher reports before its success is of an earlier attempt.
        reported = () if source.survival.succeeded_at else source.reported.values()
        facts |= {s.rank: s for s in torchrun.facts_of_reports(reported, firsts=firsts, stream=source.group)}
        if source.stacks and owner is not None and (where := stand(owner, source.stacks)) is not None:
            standings[owner] = where, source.name
    if len(sources) == 1 and not facts:
        found = _on_one_node(sources[0], found)
    places = {id_: place for source in sources for id_, place in source.places.items()}
    # After the local ranks: a name of one node does not show that there are others.
    found = [_placed(e, places[e.id]) if e.id in places else e for e in found]
    found += _stack_evidence(standings)
    ranks = _ranks_of_files(sources) or _ranks_by_lines(sources, found)
    return Case(
        ended=True,
        world_size=len(ranks) or None,
        ranks=tuple((ranks | facts).values()),
        evidence=tuple(found),
        missing=tuple(dict.fromkeys(problems)),
    )


def _processes(sources: Iterable[Source]) -> dict[int, tuple[int, str | None] | None]:
    """Rank and host of each process that a text names; None if they differ, as those of several nodes may."""
    found: dict[int, tuple[int, str | None] | None] = {}
    for source in sources:
        hosts = {r.pid: r.host for r, _ in source.reported.values()}
        for pid, rank in source.pid_ranks.items():
            known = None if rank is None else (rank, hosts.get(pid))
            found[pid] = known if found.get(pid, known) == known else None
    return found


def _of_process(piece: Evidence, host: str | None, processes: dict[int, tuple[int, str | None] | None]) -> Evidence:
    """A kernel's line with its host, and with the rank of its process there."""
    rank, its = processes.get(-1 if piece.pid is None else piece.pid) or (None, None)
    if rank is None or piece.rank is not None or on_other_nodes(host, its):
        return msgspec.structs.replace(piece, node=host)
    return msgspec.structs.replace(piece, rank=rank, node=its or host, trust="launcher")  # the job did not print it


def _rank_siblings(sources: Iterable[Source]) -> None:
    """Sets the ranks of files that differ only in a number; files with lines of several ranks or of a launcher have none."""
    by_name: dict[str, list[Source]] = {}
    for source in sources:
        by_name.setdefault(source.name, []).append(source)
    for group in numbered_siblings(by_name):
        ranks = [(number, source) for number, names in group.items() for name in names for source in by_name[name]]
        if any(s.rank is not None or s.local_rank is not None or s.prefixed or s.reported for _, s in ranks):
            continue
        for number, source in ranks:
            source.rank = number


def _placed(piece: Evidence, place: tuple[str | None, str | None]) -> Evidence:
    return msgspec.structs.replace(piece, node=piece.node or place[0], pod=piece.pod or place[1])


def _rank_in(piece: Evidence) -> int | None:
    """Rank that a line without a rank's prefix names as its speaker, or as the one that failed; None if there is none."""
    # A number in a prefix without a rank counts something else.
    lines = piece.line.encode("utf-8", "surrogateescape").split(b"\n")
    text = decode(b"\n".join(line[parse_prefix(line).length :] for line in lines))
    if piece.role == "secondary":
        # Of a rank that waited, which names its peers too.
        named = _SAYS_ITS_RANK.search(text)
        return None if named is None or named[1] is None else numbers.matched(named[1])
    patterns = (_SAYS_ITS_RANK, _ABOUT_A_RANK)
    found = {numbers.matched(next(filter(None, m.groups()))) for each in patterns for m in each.finditer(text)}
    return found.pop() if len(found) == 1 else None


def _on_one_node(source: Source, found: list[Evidence]) -> list[Evidence]:
    """Takes local ranks as ranks if the text shows one launcher on one node."""
    # A prefix counts the processes of its node, which may be one of many.
    local = [
        e
        for e in found
        if e.rank is None and e.local_rank is not None and parse_prefix(e.line.encode()).local_rank is None
    ]
    ids = {e.id for e in local}
    pids: dict[int | None, set[int]] = {}
    for piece in local:
        pids.setdefault(piece.local_rank, set()).update(() if piece.pid is None else (piece.pid,))
    known = source.prefixed or source.tasks or any(e.rank is not None for e in found)
    hosts = {host or pod for host, pod in source.places.values()}
    several = source.nodes or source.world > _MOST_ON_A_NODE or len(hosts) > 1 or any(e.node for e in found)
    if known or several or source.local_rank is not None or any(len(each) > 1 for each in pids.values()):
        return found
    return [msgspec.structs.replace(e, rank=e.local_rank) if e.id in ids else e for e in found]


def _ranks_of_files(sources: list[Source]) -> dict[int, RankFacts]:
    """Returns all ranks if each has a log file, or the text states their number; which shows a rank without a complaint."""
    named = {source.rank for source in sources if source.rank is not None}
    count = len(named)
    if not named or named != set(range(count)):
        count = max((source.ranks for source in sources), default=0)
    spoke = named.union(*(source.prefixed | source.tasks for source in sources))
    return (
        {rank: RankFacts(rank=rank) for rank in range(count)}
        if max(_LEAST_RANKS, max(spoke, default=0) + 1) <= count <= MAX_RANKS
        else {}
    )


def _ranks_by_lines(sources: list[Source], found: list[Evidence]) -> dict[int, RankFacts]:
    """Returns all ranks if each printed a line before all but one complained that they waited; which shows that one."""
    printed = {rank: byte for source in sources for rank, byte in source.printed.items()}
    waits = [e for e in found if waited(e) and e.rank is not None]
    first = min((e.order for e in waits if e.order is not None), default=0)
    # One of several nodes has as many ranks as GPUs.
    part = any(source.nodes for source in sources) and len(printed) <= _MOST_ON_A_NODE
    known = len(sources) == 1 and not part and max(printed.values(), default=0) < first
    whole = known and set(printed) == set(range(max(_LEAST_RANKS, len(printed))))
    silent = set(printed) - {e.rank for e in waits}
    return {rank: RankFacts(rank=rank) for rank in printed} if whole and len(silent) == 1 else {}


def _stack_evidence(standings: dict[int, tuple[Standing, str]]) -> Iterator[Evidence]:
    for where, slug, role, line in compare_stacks({rank: row[0] for rank, row in standings.items()}):
        name = standings[where.rank][1]
        yield Evidence(
            id=digest("stacks", where.rank, name, line),
            source="log",
            slug=slug,
            role=role,
            trust="job",
            rank=where.rank,
            where=name,
            line=line[:2000],
            specificity=60,
            fingerprint=f"{slug}:{where.place or where.top}",
        )
