"""What each reader of foreign bytes costs: CPU time and memory a byte, in a child process with limits, at sizes N, 2N and 4N.

``READERS`` names every reader and how it is driven with bytes; ``measure`` runs one of them on one input. Used by ``make fuzz-readers``
(scripts/fuzz_readers.py), and a small part of it by tests/evidence/test_reader_costs.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rankfall.collect.pods.instance_folders import RecordIntake
from rankfall.evidence.attempt.activity import read_steps
from rankfall.evidence.files.log_files import case_of_files
from rankfall.evidence.files.unwrap import Unwrapper
from rankfall.evidence.readers import plain_pickle, torchrun
from rankfall.evidence.readers.flight_recorder import Dumps
from rankfall.evidence.readers.flyte_errors import container_error_evidence
from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.evidence.readers.scan import ChunkScanner
from rankfall.evidence.readers.stacks import NewestDump, kernel_state, main_frames, text_of_json
from rankfall.evidence.readers.stream_reader import StreamTail
from rankfall.evidence.readers.torchrun import error_file_evidence
from rankfall.evidence.readers.tracebacks import find_tracebacks
from rankfall.kernellog.record import parse_record
from rankfall.loki import LokiError, client
from rankfall.model import NotFound, Record, StoreError, UsageError
from rankfall.nodes.rules.kernel_lines import Recogniser
from rankfall.rundir.cluster.log_routes import RECORD_MARK, Routes
from rankfall.rundir.lines.query import ErrorLines
from rankfall.rundir.records import RecordFolder, read_end
from rankfall.rundir.streams.content import read_zstd
from rankfall.rundir.streams.files import IndexReader
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.hostile_inputs import Hostile, Kind, of_kind
from support.memory_limit import limit_child

MIB = 1 << 20
# Bounds of issue 18: a MiB of input takes at most so many seconds of CPU, and a reader at most so much memory.
MAX_SECONDS_A_MIB = 2.0
MAX_MEMORY = 300 * MIB
# Four times the bytes may take so many times the seconds; what takes less than the floor is noise.
MAX_GROWTH = 9.0
FLOOR_S = 0.08
# A child that needs more CPU is ended.
_LIMIT_S = 60
# How much a reader may unpack of compressed input: the sum that offline reading allows is far less.
_MAX_UNPACKED = 64 * MIB

_TEXTS = (Kind.TEXT,)
_FILES = (Kind.ERROR_FILE,)
_DUMPS = (Kind.DUMP,)
_ALL = (*_TEXTS, *_FILES, *_DUMPS)


@dataclass(frozen=True)
class Reader:
    """One reader: how it is driven with bytes in an empty folder, which kinds of inputs it meets, and errors that are its answer."""

    drive: Callable[[bytes, Path], object]
    kinds: tuple[Kind, ...] = _TEXTS
    answers: tuple[type[Exception], ...] = ()


def _scan(data: bytes, _: Path, *, chunk: int) -> None:
    scanner = ChunkScanner(default_catalogue())
    for begin in range(0, len(data), chunk):
        scanner.push(data[begin : begin + chunk], final=False)
    scanner.push(b"", final=True)


def _tail(data: bytes, folder: Path) -> None:
    path = folder / "0.out.log"
    path.write_bytes(data)
    tail = StreamTail(path, default_catalogue())
    while tail.poll(final=True)[2]:
        pass


def _index(data: bytes, folder: Path) -> None:
    path = folder / "0.out.log"
    path.write_bytes(b"RuntimeError: x\n" * 1000)
    (folder / "0.out.idx").write_bytes((b"RFIDX1\0\0" + data)[: len(data)])
    reader = IndexReader(path)
    reader.at(500)
    reader.last_stamp()
    tail = StreamTail(path, default_catalogue())
    tail.poll(final=True)


def _dumps(data: bytes, _: Path) -> None:
    dumps = Dumps()
    for rank in range(2):
        dumps.add(rank, f"d{rank}", len(data), lambda limit: data[:limit])
    dumps.evidence()


def _wrapped_dump(data: bytes, folder: Path) -> None:
    """The bytes as text inside of a document that is whole."""
    text = data.decode("latin-1")
    entry = {"profiling_name": text, "process_group": [text], "input_sizes": [text], "collective_seq_id": text[:30]}
    _dumps(json.dumps({"entries": [entry], "pg_config": {"0": {"ranks": text}}}).encode(), folder)


def _container_error(data: bytes, _: Path) -> None:
    container_error_evidence(data, name="error.pb", catalogue=default_catalogue())
    container_error_evidence(_field(1, _field(1, b"USER") + _field(2, data)), name="e", catalogue=default_catalogue())


def _field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message that holds bytes."""
    size, length = len(value), b""
    while size >= 1 << 7:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def _error_json(data: bytes, _: Path) -> None:
    read = partial(error_file_evidence, name="error.json", stream="s", catalogue=default_catalogue())
    read(data)
    text = data.decode("latin-1")
    read(json.dumps({"message": {"message": text[:100_000], "extraInfo": {"py_callstack": text}}}).encode())


def _records(data: bytes, folder: Path) -> None:
    (folder / "records").mkdir()
    (folder / "progress").mkdir()
    (folder / "records" / "a.json").write_bytes(data)
    text = data.decode("latin-1")
    error = {"types": ["ValueError"], "message": text[:5000], "chain": [text[:5000]]}
    whole = {"id": "x", "kind": "error", "writer": "hook", "error": error, "stacks": text}
    (folder / "records" / "b.json").write_text(json.dumps(whole))
    (folder / "progress" / "0.json").write_bytes(data)
    (folder / "end.json").write_bytes(data)
    RecordFolder(folder / "records", run="r", attempt=1).poll()
    read_steps(folder)
    with contextlib.suppress(ValueError):
        read_end(folder)


def _channel(data: bytes, folder: Path) -> None:
    taken: list[Record] = []
    intake = RecordIntake(
        folder, token="t", run="r", attempt=1, role="w", slot=0, uid="u", on_progress=taken.append  # noqa: S106 - of a test
    )  # fmt: skip
    routes = Routes(intake.take, foreign=False)
    # With its mark a record is at least so long.
    for line in data.split(b"\n")[: len(data) // 16 + 1]:
        routes.of(RECORD_MARK + b"t " + line, 0, None)
        routes.of(line, 0, None)
    intake.take_message(data.decode("latin-1")[:4096])


def _lines(data: bytes, _: Path) -> None:
    for line in data.split(b"\n"):
        parse_prefix(line)


def _kernel(data: bytes, _: Path) -> None:
    recogniser = Recogniser(prefixed=True)
    # A record has a head of its own, so that many lines of a byte would be more bytes than there are.
    for line in data.split(b"\n")[: len(data) // 16 + 1]:
        record = parse_record(b"6,1,2,-;" + line)
        parse_record(line)
        if record is not None:
            recogniser.read(record.text)


def _loki(data: bytes, _: Path) -> None:
    # Each line of an answer has a stamp and its punctuation.
    lines = data.decode("latin-1").split("\n")[: len(data) // 16 + 1]
    streams = [{"stream": {"pod": "p"}, "values": [[str(n), line] for n, line in enumerate(lines)]}]
    whole = json.dumps({"status": "success", "data": {"resultType": "streams", "result": streams}}).encode()
    for body in (whole, data):
        with contextlib.suppress(LokiError):
            client.page(body, keys=("pod",), start=0, end=1 << 62)


def _stack_text(data: bytes, _: Path) -> None:
    text = data.decode("utf-8", "replace")
    main_frames(text)
    kernel_state(1, text)
    newest = NewestDump()
    for begin in range(0, len(data), 1 << 16):
        newest.push(data[begin : begin + (1 << 16)])
    newest.text()


def _error_lines(data: bytes, _: Path) -> None:
    lines = ErrorLines(default_catalogue())
    for begin in range(0, len(data), 1 << 20):
        lines.pick(data[begin : begin + (1 << 20)])


def _zstd(data: bytes, folder: Path) -> None:
    path = folder / "x.zst"
    path.write_bytes(data)
    unpacked = 0
    with path.open("rb") as file:
        for piece in read_zstd(iter(lambda: file.read(16 << 10), b""), path):
            unpacked += len(piece)
            if unpacked > _MAX_UNPACKED:
                break


def _offline(data: bytes, folder: Path) -> None:
    for name in ("rank-0.log", "nccl_trace_rank_1", "error.json", "error-a.pb", "x.log.zst", "rank-2.json"):
        (folder / name).write_bytes(data)
    case_of_files([folder])


READERS: dict[str, Reader] = {
    "scan": Reader(partial(_scan, chunk=4 << 20), _ALL),
    "scan, small chunks": Reader(partial(_scan, chunk=4096)),
    "stream": Reader(_tail),
    "surroundings": Reader(lambda data, _: Unwrapper().push(data, final=True), (*_TEXTS, *_FILES)),
    "tracebacks": Reader(lambda data, _: [*find_tracebacks(data)], (*_TEXTS, *_FILES)),
    "torchrun": Reader(lambda data, _: [*torchrun.read_reports(data)]),
    "container error": Reader(_container_error, (*_TEXTS, *_FILES)),
    "error.json": Reader(_error_json, (*_TEXTS, *_FILES)),
    "flight": Reader(_dumps, _DUMPS),
    "flight, text": Reader(_wrapped_dump),
    "pickle": Reader(lambda data, _: plain_pickle.load(data), _DUMPS, (plain_pickle.NotPlain,)),
    "stacks": Reader(_stack_text, (*_TEXTS, *_DUMPS)),
    "stacks, JSON": Reader(lambda data, _: text_of_json(data), (*_FILES, *_DUMPS)),
    "records": Reader(_records, (*_TEXTS, *_FILES)),
    "record lines": Reader(_channel, (*_TEXTS, *_FILES)),
    "prefixes": Reader(_lines),
    "kernel lines": Reader(_kernel),
    "Loki": Reader(_loki, (*_TEXTS, *_FILES)),
    "error lines": Reader(_error_lines),
    "zstd": Reader(_zstd, _ALL, (OSError,)),
    "index": Reader(_index, _ALL, (StoreError,)),
    "files": Reader(_offline, _ALL, (NotFound, UsageError)),
}

# Where these readers are: their docstrings state what they cost.
MODULES = frozenset(
    f"rankfall.{name}"
    for name in (
        "nodes.rules.kernel_lines", "evidence.readers.classify", "collect.pods.instance_folders", "evidence.readers.flyte_errors", "evidence.readers.flight_recorder",
        "evidence.readers.kernel_log", "kernellog.record", "loki.client", "evidence.readers.plain_pickle", "evidence.readers.prefixes", "evidence.readers.text", "evidence.attempt.activity",
        "rundir.records", "evidence.readers.scan", "evidence.readers.stacks", "evidence.readers.stream_reader", "evidence.readers.torchrun",
        "evidence.files.unwrap", "evidence.readers.tracebacks", "rundir.lines.query", "rundir.streams.content", "rundir.streams.files",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What one reader took for one input at one size.

    Attributes:
        seconds: of CPU, user and system.
        memory: bytes beyond what the process had before.
        crash: what went wrong; "" = nothing.
    """

    size: int
    seconds: float = 0.0
    memory: int = 0
    crash: str = ""


@dataclass(frozen=True)
class Result:
    """One reader and one input at all sizes."""

    reader: str
    input: str
    costs: tuple[Cost, ...] = field(default=())

    @property
    def growth(self) -> float:
        """How many times the seconds of the smallest size the largest one took."""
        return self.costs[-1].seconds / max(FLOOR_S, self.costs[0].seconds)

    @property
    def problem(self) -> str:
        """Which bound is broken; "" = none."""
        for cost in self.costs:
            if cost.crash:
                return f"crash at {cost.size} bytes: {cost.crash}"
            if cost.memory > MAX_MEMORY:
                return f"{cost.memory / MIB:.0f} MiB for {cost.size} bytes"
        last = self.costs[-1]
        a_mib = last.seconds / max(last.size, MIB // 16) * MIB
        if last.seconds > FLOOR_S * MAX_GROWTH and a_mib > MAX_SECONDS_A_MIB:
            return f"{a_mib:.1f} s a MiB"
        # Sizes of dumps and files are only about what is asked for.
        times = max(1.0, last.size / max(1, self.costs[0].size) / 4)
        return f"{self.growth:.0f} times the seconds" if self.growth > MAX_GROWTH * times else ""


def prepare() -> None:
    """Make what the first line would have to wait for, so that each child has it."""
    scanner = ChunkScanner(default_catalogue())
    scanner.push(b"[rank0]: RuntimeError: CUDA error: x\n[rank0]: KeyError: x\n", final=True)
    [*find_tracebacks(b"Traceback (most recent call last):\nRuntimeError: CUDA error: x\n")]
    with tempfile.TemporaryDirectory() as name:
        for number, reader in enumerate(READERS.values()):
            folder = Path(name, str(number))
            folder.mkdir()
            with contextlib.suppress(*reader.answers):
                reader.drive(b'{"a": [1]}\nXid (PCI:0000:3b:00): 79, x\n', folder)


def measure(name: str, label: str, make: Callable[[int], bytes], sizes: Sequence[int]) -> Result:
    """Cost of one reader for one input, each size in a child of its own; sizes between are left out where the largest one costs nothing."""
    first, *between, last = (*sizes,) * 2 if len(sizes) == 1 else sizes
    costs = [_in_child(READERS[name], make, size) for size in dict.fromkeys((first, last))]
    if costs[-1].seconds > FLOOR_S:
        costs[1:1] = [_in_child(READERS[name], make, size) for size in between]
    return Result(name, label, tuple(costs))


def _in_child(reader: Reader, make: Callable[[int], bytes], size: int) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = os.pipe()
        with warnings.catch_warnings():
            # Of a process with threads: the child only reads, and ends without what they would have to do.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os.close(ours)
            _child(reader, make(size), Path(folder), theirs)
        os.close(theirs)
        with os.fdopen(ours, "rb") as file:
            said = file.read()
        _, status = os.waitpid(pid, 0)
    if status or not said:
        return Cost(size, crash=f"ended with status {status} (CPU seconds are limited to {_LIMIT_S})")
    return Cost(**json.loads(said))


def _child(reader: Reader, data: bytes, folder: Path, out: int) -> None:
    crash = ""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (_LIMIT_S, _LIMIT_S))
        limit_child()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, began = _peak(), time.process_time()
        try:
            reader.drive(data, folder)
        except reader.answers:
            pass
        except BaseException as error:  # noqa: BLE001 - what a reader lets through is what is looked for
            crash = f"{type(error).__name__}: {str(error)[:100]}"
        spent = time.process_time() - began
        said = {"size": len(data), "seconds": spent, "memory": max(0, _peak() - before), "crash": crash}
        os.write(out, json.dumps(said).encode())
    finally:
        os._exit(0)


def _peak() -> int:
    """The most memory that this process had, bytes."""
    text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def inputs_of(name: str) -> list[Hostile]:
    """Inputs of the shared table that a reader meets."""
    return of_kind(*READERS[name].kinds)


# Parts of which texts are made; each has a meaning for some reader.
WORDS = (
    "Traceback (most recent call last):\n", '  File "/a/b.py", line 7, in f\n', "    x = 1\n", "ValueError: x\n", "\n", " ", "\t",
    "During handling of the above exception, another exception occurred:\n", "[rank0]: ", "[rank1]: ", "[default3]:", "node1 | ", "7: ",
    "Sending process 7 closing signal SIGTERM", "exitcode : -9 (pid: 7)", "rank      : 2 (local_rank: 0)\n", "failed (exitcode: ",
    "CUDA out of memory", "NCCL error", "Xid (PCI:0000:3b:00): 79, ", "Thread 0x7f (most recent call first):\n", "Current thread 0x1:\n",
    'Thread 1 (idle): "MainThread"\n', "    f (a.py:1)\n", "Process 1: ", "Timeout (0:00:05)!\n", "Message:\n", "User error.\n",
    "2026-11-21T09:00:00.123Z ", "\x1b[31m", "(pid=1) ", "9" * 40, "a" * 40, "a.", "/", "0x", "-", ":", "(", "[", "{", '"', "\\", "\r", "\0",
    '{"a":', "null", "1e999", "\x1erankfall/1 t ", "eyJhIjoxfQ==", "é", "\ud800",
)  # fmt: skip


def made_texts(count: int, *, start: int) -> list[bytes]:
    """Texts that hypothesis makes of ``WORDS`` and of anything else; the same for the same start."""
    found: list[bytes] = []
    parts = st.sampled_from(WORDS).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(
        min_size=1, max_size=12
    )
    pieces = st.tuples(parts, st.integers(1, 60)).map(lambda row: row[0] * row[1])

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(pieces, min_size=1, max_size=8))
    def make(rows: list[bytes]) -> None:
        found.append(b"".join(rows))

    make()
    return list(dict.fromkeys(found))[:count]


def repeated(text: bytes, size: int) -> bytes:
    """So many bytes of a text again and again."""
    return (text * (size // len(text) + 1))[:size]
