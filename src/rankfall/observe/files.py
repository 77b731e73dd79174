"""Any pile of log files as one case: one file a rank, one a node, one mixed; torchrun's log folder; text from a pipe.

Nothing is guessed from the order or the names of files. A name is used in two cases only, where it is a documented layout: torchrun's
``attempt_N/<local rank>/`` folders, and ``rank-N`` files such as our own; a rank that the lines themselves carry beats it.
Files are read in chunks, so their size does not matter, compressed ones (``.zst``) too; binary ones are read like any other and say nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from rankfall.model import Case, Evidence, NotFound, RankFacts, UsageError
from rankfall.observe import container_error, elastic
from rankfall.observe import evidence as make
from rankfall.observe.container_error import container_error_evidence, is_container_error
from rankfall.observe.flight import MAX_DUMP, Dump, dump_rank, flight_evidence, read_dump
from rankfall.observe.scan import ChunkScanner, Finding
from rankfall.observe.stack_text import MAX_JSON, NewestDump, text_of_json
from rankfall.observe.stacks import Standing, stand, told_apart
from rankfall.observe.streams import KEEP_FIRST
from rankfall.observe.text import digest
from rankfall.observe.torchrun import Reported
from rankfall.signatures.catalogue import Catalogue, default_catalogue
from rankfall.store.packed import ENDING, read_zstd

CHUNK: Final = 4 << 20
MAX_FILES: Final = 20_000
_NO_LOGS: Final = frozenset(
    {".idx", ".db", ".db-wal", ".db-shm", ".pt", ".pth", ".bin", ".safetensors", ".npy", ".npz", ".zip", ".pyc"}
)
_ELASTIC: Final = re.compile(r"attempt_(\d{1,4})/(\d{1,4})/[^/]+$")
_RANK_FILE: Final = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?:[^0-9]|$)", re.IGNORECASE)


class _Source(msgspec.Struct, kw_only=True):
    """One file as a speaker: what its place says of it, and what its lines say."""

    name: str
    group: str
    attempt: int | None = None
    local_rank: int | None = None
    rank: int | None = None
    found: list[Evidence] = msgspec.field(default_factory=list)
    reported: list[tuple[Reported, int]] = msgspec.field(default_factory=list)
    kept: dict[tuple[str, int | None], int] = msgspec.field(default_factory=dict)
    prefixed: set[int] = msgspec.field(default_factory=set)
    stacks: str | None = None


def case_of_files(paths: Iterable[Path], *, catalogue: Catalogue | None = None) -> Case:
    """The case that these files and folders tell.

    Raises:
        NotFound: a path does not exist.
        UsageError: a path cannot be read at all, or there are too many files.
    """
    catalogue = catalogue or default_catalogue()
    sources: list[_Source] = []
    problems: list[str] = []
    dumps: list[Dump] = []
    for path in paths:
        if not path.exists():
            raise NotFound(
                f"{path} does not exist", hint="name a log file, a folder of logs, a run id, or - for text from a pipe"
            )
        for file in _files(path, problems):
            source = _place(file)
            try:
                if (rank := dump_rank(file.name)) is not None:
                    _dump(file, rank, dumps, problems)
                    continue
                if file.name == "error.json" or is_container_error(file.name):
                    _error_file(file, source, catalogue, problems)
                elif source.rank is not None and file.suffix == ".json" and (text := _stacks_of_json(file)):
                    source.stacks = text
                else:
                    _read(_chunks(file), source, catalogue)
            except OSError as error:
                problems.append(f"{file} cannot be read: {error.strerror}")
                continue
            sources.append(source)
    if not sources and not dumps and problems:
        raise UsageError(problems[0], hint="check the permissions, or pipe the text: ... | rankfall why -")
    if not sources and not dumps:
        problems.append("any log file: the folder holds none")
    case = _case(sources, problems)
    return msgspec.structs.replace(case, evidence=(*case.evidence, *flight_evidence(dumps)))


def case_of_stream(file: BinaryIO, *, name: str, catalogue: Catalogue | None = None) -> Case:
    """The case that one stream of text tells; it is read to its end."""
    source = _Source(name=name, group=name)
    _read(iter(lambda: file.read(CHUNK), b""), source, catalogue or default_catalogue())
    return _case([source], [])


def _files(path: Path, problems: list[str]) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    count = 0

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename} cannot be read: {error.strerror}")

    for folder, folders, names in os.walk(path, onerror=unreadable):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix in _NO_LOGS or not file.is_file():
                continue
            if file.suffix == ENDING and file.stem in names:
                # Both forms of one file: the raw one is read.
                continue
            count += 1
            if count > MAX_FILES:
                raise UsageError(f"{path} holds more than {MAX_FILES} files", hint="name the folder of one job's logs")
            yield file


def _place(file: Path) -> _Source:
    name = str(file)
    elastic = _ELASTIC.search(name)
    if elastic:
        return _Source(
            name=name, group=str(file.parent), attempt=int(elastic.group(1)), local_rank=int(elastic.group(2))
        )
    rank = _RANK_FILE.search(file.name)
    return _Source(name=name, group=name, rank=int(rank.group(1)) if rank else None)


def _chunks(file: Path) -> Iterator[bytes]:
    if file.suffix == ENDING:
        yield from read_zstd(file)
        return
    with file.open("rb", buffering=0) as opened:
        while data := opened.read(CHUNK):
            yield data


def _read(chunks: Iterable[bytes], source: _Source, catalogue: Catalogue) -> None:
    scanner = ChunkScanner(catalogue)
    dump = NewestDump()
    for data in chain(chunks, [b""]):
        dump.feed(data)
        findings, statements = scanner.feed(data, final=not data)
        for finding, byte, line in findings:
            _keep(source, finding, byte=byte, line=line)
        source.reported += [(reported, line) for reported, _, line in statements]
    source.stacks = dump.text()


def _keep(source: _Source, finding: Finding, *, byte: int, line: int) -> None:
    prefix = finding.prefix
    if prefix.rank is not None:
        source.prefixed.add(prefix.rank)
    kind = (finding.meaning.signature or finding.meaning.fingerprint, prefix.rank)
    count = source.kept[kind] = source.kept.get(kind, 0) + 1
    piece = make.of_finding(
        finding,
        stream=source.group,
        byte=byte,
        where=f"{source.name}:{line}",
        at=None,
        rank=None,
        slot=prefix.slot,
        node=None,
        attempt=source.attempt,
    )
    if count > KEEP_FIRST:
        piece = msgspec.structs.replace(piece, id=digest("last", source.name, *kind))
        source.found = [e for e in source.found if e.id != piece.id]
    source.found.append(piece)


def _error_file(file: Path, source: _Source, catalogue: Catalogue, problems: list[str]) -> None:
    foreign = is_container_error(file.name)
    with file.open("rb") as opened:
        data = opened.read((container_error.MAX_FILE if foreign else elastic.MAX_FILE) + 1)
    if foreign:
        piece = container_error_evidence(data, name=str(file), catalogue=catalogue)
    else:
        piece = elastic.error_file_evidence(data, name=str(file), stream=source.group, catalogue=catalogue)
    if isinstance(piece, str):
        problems.append(piece)
    else:
        source.found.append(msgspec.structs.replace(piece, attempt=source.attempt, local_rank=source.local_rank))


def _stacks_of_json(file: Path) -> str | None:
    with file.open("rb") as opened:
        data = opened.read(MAX_JSON + 1)
    return text_of_json(data) if len(data) <= MAX_JSON else None


def _dump(file: Path, rank: int, dumps: list[Dump], problems: list[str]) -> None:
    with file.open("rb") as opened:
        dump = read_dump(opened.read(MAX_DUMP + 1), rank=rank, name=str(file))
    if isinstance(dump, str):
        problems.append(dump)
    else:
        dumps.append(dump)


def _case(sources: list[_Source], problems: list[str]) -> Case:
    attempt = max((s.attempt for s in sources if s.attempt is not None), default=None)
    groups: dict[str, set[int]] = {}
    for source in sources:
        groups.setdefault(source.group, set()).update(source.prefixed)
    found: list[Evidence] = []
    facts: dict[int, RankFacts] = {}
    standings: dict[int, tuple[Standing, str]] = {}
    for source in sources:
        if attempt is not None and source.attempt not in {None, attempt}:
            continue
        speaks = groups[source.group]
        # One speaker: its prefixed lines all carry the same rank, so its bare lines are that rank's too.
        owner = (
            next(iter(speaks))
            if len(speaks) == 1 and source.local_rank is not None
            else source.rank
            if not speaks
            else None
        )
        for piece in source.found:
            local = piece.local_rank if piece.local_rank is not None else source.local_rank
            rank = piece.rank if piece.rank is not None else owner
            found.append(msgspec.structs.replace(piece, rank=rank, local_rank=local, attempt=None))
        for sheet in _reported_facts(source):
            facts[sheet.rank] = sheet
        if source.stacks and owner is not None and (where := stand(owner, source.stacks)) is not None:
            standings[owner] = where, source.name
    found += _stack_evidence(standings)
    return Case(ended=True, ranks=tuple(facts.values()), evidence=tuple(found), missing=tuple(dict.fromkeys(problems)))


def _stack_evidence(standings: dict[int, tuple[Standing, str]]) -> Iterator[Evidence]:
    for where, slug, role, line in told_apart({rank: row[0] for rank, row in standings.items()}):
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


def _reported_facts(source: _Source) -> Iterator[RankFacts]:
    """Fact sheets from torchrun's report block: who ended how on this node, and whom it stopped itself."""
    stopped = {r.pid for r, _ in source.reported if r.kind == "stopped"}
    rows: dict[int, tuple[Reported, int]] = {
        r.rank: (r, line) for r, line in source.reported if r.kind == "exit" and r.rank is not None
    }
    own_fault = any(r.code not in {None, 0, -15} and r.pid not in stopped for r, _ in rows.values())
    for rank, (row, line) in rows.items():
        code = row.code or 0
        by_agent = code < 0 and (row.pid in stopped or (code == -15 and own_fault))  # noqa: PLR2004 - SIGTERM
        yield RankFacts(
            rank=rank,
            local_rank=row.local_rank,
            pid=row.pid,
            state="ended",
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            killed_by="agent" if by_agent else "foreign" if code < 0 else None,
            stream=source.group,
            where=f"{source.name}:{line}",
        )
