"""Parts of one traceback: frames with place, collective and origin, and the last line with type and message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from rankfall.evidence.readers.prefixes import Prefix, parse_prefix
from rankfall.evidence.readers.text import decode, is_severe
from rankfall.model import Frame
from rankfall.model.numbers import whole
from rankfall.model.patterns import bounded

HEAD: Final = b"Traceback (most recent call last):"
# In the message of an exception that torch raises for a worker.
QUOTED_HEAD: Final = b"Original " + HEAD
# Places that are stored, and bytes of an assertion.
MAX_PLACES: Final = 3
_MAX_ASSERTION: Final = 512
_MAX_MEMBERS: Final = 8  # exceptions of a group that are stored

LONGEST: Final = 5120  # bytes of a line that are read
FILE: Final = bounded(rb'\A\s*(?:[|>]\s*)*File "([^"\n]{0,1024})", line (\d+)(?:, in (.{1,256}))?', limit=LONGEST)
# First lines of a stream in which a frame without head begins a traceback: the text was cut above it.
_CUT_LINES: Final = 3
_FINAL = bounded(rb"\A(?:\+ )?([A-Za-z_][\w]*(?:\.[A-Za-z_<][\w>]*)*)(?:: (.*))?$", limit=LONGEST)
# Levels of loggers, and words of shells about a process, are no exceptions.
_NO_TYPE: Final = frozenset(
    b"DEBUG INFO WARN WARNING ERROR CRITICAL FATAL SEVERE NOTE NOTICE Killed Terminated Aborted Hangup Interrupt".split()
)
# Exceptions of the standard library and common packages in lower case; only below a module.
_LOWER_TYPES: Final = frozenset(b"error timeout gaierror herror exception terminate interrupt abort exit".split())
# Collectives, and files of their libraries.
COLLECTIVES: Final = bounded(
    r"^(?:all_reduce|_?all_gather\w*|_?reduce_scatter\w*|broadcast\w*|barrier|monitored_barrier|all_to_all\w*|reduce|gather\w*"
    r"|scatter\w*|send|recv|isend|irecv|batch_isend_irecv|wait|_store_based_barrier|init_process_group|_rendezvous_helper)$",
    limit=256,
)
COMM_FILE: Final = bounded(
    r"distributed_c10d\.py$|torch/distributed/|torch/nn/parallel/|c10d_logger\.py$|(?:^|[/\\])horovod[/\\](?:_?keras|common|mxnet|ray|runner|spark|tensorflow|torch)[/\\]|deepspeed/comm/",
    limit=4096,
)
# Data-parallel ranks reduce their gradients in it.
_GRADIENTS: Final = bounded(r"torch/autograd/__init__\.py$", limit=4096)
# A name at whose end the text was cut.
_CUT_TYPE: Final = bounded(rb"[a-z](?:Er|Err|Erro|Ex|Exc|Exce|Excep|Except|Excepti|Exceptio)\Z", limit=LONGEST)
# Files of packages; else of the standard library, whose exceptions are about the call.
_PACKAGE: Final = bounded(rb"(?:site|dist)-packages[/\\]", limit=1024)
# Files of packages that compute with their arguments: their unknown exceptions are about these.
_COMPUTES: Final = bounded(
    rb"(?:site|dist)-packages[/\\](?:numpy|pandas|scipy|sklearn|einops|timm|torchvision|xformers|flash_attn|torch[/\\](?:nn|linalg|fft|optim|_refs|_prims)"
    rb"|peft[/\\]tuners|diffusers[/\\](?:models|pipelines)|transformers[/\\](?:models|generation|loss))[/\\]"
    rb"|(?:site|dist)-packages[/\\](?:torch[/\\](?:functional|_tensor\w*|_meta_registrations)|transformers[/\\](?:model|pytorch_)\w*)\.py$",
    limit=1024,
)
_STANDARD: Final = bounded(rb"[/\\]lib[/\\]python\d|<frozen ", limit=1024)
# Files of libraries whose threads report, or move data: the program does not wait for them.
_HELPER: Final = bounded(
    rb"(?:site|dist)-packages/(?:aim|clearml|codecarbon|comet_ml|mlflow|neptune|prometheus_client|sentry_sdk|swanlab|tensorboardX?|wandb)/|torch/utils/data/_utils/pin_memory\.py$",
    limit=1024,
)
# Statements that need a file of which another process may be the faster one.
_REMOVAL: Final = bounded(
    rb"\b(?:os\.(?:remove|unlink|rename|replace|rmdir|scandir)|shutil\.(?:rmtree|move))\(|\.unlink\(|\.rmdir\(|\borig_st = os\.lstat\(",
    limit=512,
)
# Statements that create a file or enter a folder: without it, the folder is missing.
_OUTPUT: Final = bounded(
    rb"\bopen\([^\n]{1,300}, *(?:mode *= *)?[\"'][wax][bt+]{0,2}[\"']|\bFileHandler\(|\bos\.(?:mkdir|chdir)\(|\bsavefig\(",
    limit=512,
)
# Functions that release what a failed block used, and those that store or report its failure.
_CLEAN_UP: Final = {
    "finalizer": bounded(
        rb"\A(?:__a?exit__|a?close|finish|finali[sz]e|stop|terminate|release|_?(?:clean_?up|tear_?down|shut_?down|destroy)\w{0,64}|\w{1,64}_(?:clean_?up|tear_?down)|on_exception|end_training)\Z",
        limit=256,
    ),
    "stores": bounded(
        rb"(?i)\A_{0,2}(?:save\w{0,64}|dump|(?:log|report|notify|alert|send)_(?:crash|error|exception|failure|metrics?|slack|mail)\w{0,64}|upload\w{0,64})\Z",
        limit=256,
    ),
}
# Types that a program which continues handles: first of those that end a wait or a loop.
_ENDS_A_WAIT: Final = r"Timeout|TimeoutError|Empty|Full|EOFError|Connection\w*Error|BrokenPipeError|CancelledError|socket\.error|Exit|StopIteration|GeneratorExit"
_CONTROL: Final = bounded(rf"(?:{_ENDS_A_WAIT})\Z", limit=512)
EXPECTED: Final = bounded(
    rf"(?:{_ENDS_A_WAIT}|Interrupt|KeyError|AttributeError|ImportError|NotFoundError|NotImplementedError)\Z", limit=512
)
# Statements that read the job's configuration.
_SETTINGS: Final = bounded(
    rb"(?i)\b(?:json|yaml|toml\w*)\.(?:\w{1,16}_)?loads?\([^\n]{0,300}(?:config|cfg|settings|hparams|\bargs\b|params\b)|\b(?:load|read|parse)_(?:config|cfg|settings|hparams)\w*\(",
    limit=512,
)
# Origins that the last statement shows, and that the last one outside the standard library shows.
_STATEMENTS: Final = {"removal": _REMOVAL, "output": _OUTPUT}
_CALLS: Final = {"settings": _SETTINGS}
_OF_STATEMENTS: Final = (*_STATEMENTS.items(), *_CALLS.items())
# Outermost functions of a program, a thread or a process: of an exception that nothing caught.
_ENTRIES: Final = frozenset(
    {b"<module>", b"_run_module_as_main", b"_bootstrap", b"_bootstrap_inner", b"run", b"spawn_main", b"_wrap", b"main"}
)
# Functions of Python's logging that print an exception in a handler and continue.
_HANDLERS: Final = frozenset({b"emit", b"handle"})
_LOADER: Final = frozenset({b"_get_data", b"_get_batch", b"_try_get_data", b"_try_get_batch"})
# Frames that show an exception's origin: path end, functions (empty: any), name.
_ORIGINS: Final[tuple[tuple[bytes, frozenset[bytes], str], ...]] = (
    (b"elastic/multiprocessing/errors/__init__.py", frozenset({b"__post_init__", b"_get_error_data"}), "damaged_report"),
    (b"torch/utils/data/dataloader.py", _LOADER, "data_loader"),
    (b"dataloader/dataloader_iter.py", _LOADER, "data_loader"),
    (b"torch/serialization.py", frozenset({b"load", b"_load", b"_legacy_load"}), "checkpoint"),
    (b"/subprocess.py", frozenset({b"_execute_child"}), "command"),
    (b"/os.py", frozenset({b"_execvpe"}), "command"),
    (b"/http/client.py", frozenset(), "server"),
    (b"/urllib3/util/connection.py", frozenset(), "server"),
    (b"/aiohttp/connector.py", frozenset(), "server"),
    (b"/multiprocessing/connection.py", frozenset(), "queue"),
    (b"/redis/connection.py", frozenset(), "server"),
    (b"torch/multiprocessing/spawn.py", frozenset({b"join"}), "launcher"),
    (b"torch/distributed/launch.py", frozenset({b"main"}), "launcher"),
    (b"accelerate/commands/launch.py", frozenset({b"simple_launcher", b"multi_gpu_launcher", b"deepspeed_launcher", b"launch_command"}), "launcher"),
    (b"multiprocessing/util.py", frozenset({b"_exit_function", b"_run_finalizers", b"__call__"}), "clean_up"),
    (b"multiprocessing/resource_tracker.py", frozenset({b"main", b"_stop", b"_stop_locked", b"unregister"}), "clean_up"),
    (b"multiprocessing/spawn.py", frozenset({b"_main"}), "spawned"),
    (b"multiprocessing/synchronize.py", frozenset({b"__setstate__"}), "semaphore"),
    (b"weakref.py", frozenset({b"_exitfunc", b"__call__", b"remove"}), "clean_up"),
    (b"threading.py", frozenset({b"_shutdown"}), "clean_up"),
    (b"concurrent/futures/thread.py", frozenset({b"_python_exit"}), "clean_up"),
    (b"concurrent/futures/process.py", frozenset({b"_python_exit"}), "clean_up"),
    (b"tempfile.py", frozenset({b"_cleanup"}), "clean_up"),
    (b"logging/__init__.py", frozenset({b"shutdown"}), "clean_up"),
    (b"logging/__init__.py", frozenset({b"_open"}), "output"),
    (b"", frozenset({b"__del__"}), "clean_up"),
    (b"", frozenset({b"main_process_first", b"local_main_process_first", b"_goes_first", b"torch_distributed_zero_first"}), "main_first"),
)  # fmt: skip

_IGNORED: Final = (b"Exception ignored ", b"Error in atexit._run_exitfuncs", b"--- Logging error ---")
_IN_THREAD: Final = b"Exception in thread "
# Printed before a process's traceback by torch.multiprocessing, torch's tests, torch_xla, Ray Train and loggers, these in a line of an error's level.
_ANNOUNCED: Final = bounded(
    rb"-- Process (?P<local_rank>\d{1,6}) terminated with the following error:|\bProcess (?P<process>\d{1,6}) exited with error code \d{1,3} and exception:|\bException in device=TPU:(?P<core>\d{1,6}):|(?i:[\[(]rank[ =:]{0,2})(?P<rank>\d{1,6})(?:[\])]| Error Snippet\]:)",
    limit=256,
)


class Announcement(NamedTuple):
    """Content of the line before a traceback: Python ignored its exception, a thread raised it, and the process's ranks."""

    ignored: bool = False
    threaded: bool = False
    ranks: Mapping[str, int] = MappingProxyType({})


def announcement(data: bytes, start: int) -> Announcement | None:
    """Returns what the line before byte ``start`` announces about the next traceback; None at the first byte."""
    if not start:
        return None
    begin = data.rfind(b"\n", 0, start - 1) + 1
    match = _ANNOUNCED.search(data[begin : min(start, begin + _ANNOUNCED.limit)])
    sure = match and (match["rank"] is None or is_severe(match.string) or b" Error Snippet]" in match.string)
    named = match.groupdict() if match and sure else {}
    return Announcement(
        ignored=any(data.find(each, begin, start) >= 0 for each in _IGNORED),
        threaded=data.find(_IN_THREAD, begin, start) >= 0,
        ranks={k if k == "local_rank" else "rank": whole(number) or 0 for k, number in named.items() if number},
    )


def _origins_at(path: bytes, function: bytes) -> Iterator[str]:
    """Yields the origins that the file and function of one frame show."""
    for suffix, functions, origin in _ORIGINS:
        if path.endswith(suffix) and (function in functions or not functions):
            yield origin


def origins_of(frames: Iterable[Frame]) -> set[str]:
    """Origins that recorded frames show; the name of a function may have that of its class."""
    parts = ((f.file.encode("utf-8", "replace"), f.func.encode("utf-8", "replace")) for f in frames)
    return {origin for file, name in parts for origin in _origins_at(file, name.rpartition(b".")[2])}


class Frames(msgspec.Struct):
    """Frames that were read so far, the outermost first.

    Attributes:
        count: Number of frames.
        origins: Of frames: ``damaged_report``, ``data_loader``, ``command``, ``launcher``, ``server`` (a client of a
            service), ``queue`` (to another process), ``checkpoint`` (torch loads one), ``main_first`` (ranks wait for the
            first one's work). ``helper``: a library that reports or moves data. ``library``: a package's frame is the
            innermost outside the standard library.
            Of ends: ``clean_up`` (finalizers, interpreter exit), ``spawned`` (a worker begins), ``semaphore`` (it opens its
            parent's). Of the outermost frame: ``entry`` (it begins a program, a thread or a process), ``logger`` (it is
            Python's logging, which continues).
            Of the last statement: ``removal`` (it removes or renames a file), ``output`` (it creates one). Of the last one
            outside the standard library: ``settings`` (it reads the job's configuration). Of any frame: ``finalizer`` (it
            releases what a block used), ``stores`` (it stores or reports a state).
        collective: Outermost collective that the user's code called, also its backward pass, or None.
        assertion: Statement of the last frame if it is an assertion: its exception often has no message.
        outermost, handler: File and function of the outermost frame, and of that which handled an earlier exception.
    """

    count: int = 0
    origins: set[str] = msgspec.field(default_factory=set)
    collective: str | None = None
    assertion: bytes = b""
    outermost: tuple[bytes, bytes] | None = None
    handler: tuple[bytes, bytes] | None = None
    _innermost: tuple[bytes, bytes, bytes] | None = None
    _flat: bool = False
    _user: list[tuple[bytes, bytes, bytes]] = msgspec.field(default_factory=list)

    @property
    def function(self) -> str:
        """``file:function`` of the innermost frame outside libraries, else of the innermost; empty without frames."""
        frame = self._user[-1] if self._user else self._innermost
        return decode(frame[0].rpartition(b"/")[2] + b":" + frame[2]) if frame is not None else ""

    @property
    def places(self) -> tuple[str, ...]:
        """``FILE:LINE in FUNCTION`` of the last frames outside libraries, the innermost first."""
        return tuple(decode(b"%s:%s in %s" % (file, line, name or b"?")) for file, line, name in reversed(self._user))

    def add(self, path: bytes, line: bytes, function: bytes, *, flat: bool = False) -> None:
        """Adds the next inner frame; ``flat``: its line has no indent, as in a page that drops them."""
        path = path.replace(b"\\", b"/")
        if self._innermost is None:
            self.outermost = (path, function)
            self.origins -= {"entry", "logger"}
            if function in _ENTRIES:
                self.origins.add("entry")
            elif function in _HANDLERS and path.endswith(b"/logging/__init__.py"):
                self.origins.add("logger")
        self._innermost, self._flat, self.assertion = (path, line, function), flat, b""
        name, file = decode(function), decode(path)
        communicates = COMM_FILE.search(file) is not None
        if self.collective is None and ((communicates and COLLECTIVES.match(name)) or _GRADIENTS.search(file)):
            self.collective = name
        self.origins -= _STATEMENTS.keys()
        packaged = _PACKAGE.search(path) is not None
        if communicates or (packaged and _COMPUTES.search(path) is None):
            self.origins.add("library")
        elif packaged:
            self.origins.discard("library")
        elif _STANDARD.search(path) is None:
            self.origins -= {"library", *_CALLS}
            self._user = [*self._user[1 - MAX_PLACES :], self._innermost]
        self.count += 1
        if _HELPER.search(path) is not None:
            self.origins.add("helper")
        self.origins.update(_origins_at(path, function))
        if self.handler == (path, function):
            self.origins -= _CLEAN_UP.keys()
        elif not path.endswith(b"/contextlib.py"):  # a context manager's frame is part of the block that failed
            self.origins.update(name for name, pattern in _CLEAN_UP.items() if pattern.match(function) is not None)

    def cleans_up(self, kind: str, *, handled: Frames) -> bool:
        """True for frames of a clean-up after an exception of type ``kind``, which no program expects, with frames ``handled``."""
        if "finalizer" in self.origins:
            return _CONTROL.search(kind) is None
        stores = {"removal", "output", "stores"}
        return not self.origins.isdisjoint(stores) and handled.origins.isdisjoint(stores) and not EXPECTED.search(kind)

    def belongs(self, body: bytes, text: bytes) -> bool:
        """True for a statement of the last frame, marks below it, a bar of a group, or another thread's line; ``text``: without an indent."""
        if body[:1] in {b" ", b"\t"} or not text.strip(b"^~") or text.startswith((b"|", b"+-", _IN_THREAD)):
            return True
        return self._flat and exception_of(text) is None

    def statement(self, text: bytes) -> None:
        """Adds the statement of the last frame."""
        self._flat = False
        if not self.assertion and text.startswith((b"assert ", b"assert(")):
            self.assertion = text[:_MAX_ASSERTION]
        self.origins.update(origin for origin, pattern in _OF_STATEMENTS if pattern.search(text) is not None)

    def chain(self) -> None:
        """Begins the next exception of a chain: places are those of the last one."""
        self._innermost, self._user, self.collective, self.assertion = None, [], None, b""
        self.origins -= {*_STATEMENTS, *_CALLS, *_CLEAN_UP, "library"}

    def clear(self) -> None:
        """Removes everything."""
        self.chain()
        self.count = 0
        self.origins.clear()


class LastLine(msgspec.Struct, frozen=True):
    """Type and message of an exception: their bytes with those that a colon announces, number from 1, and text."""

    start: int
    end: int
    number: int
    text: str


class TracebackText(msgspec.Struct, frozen=True, kw_only=True):
    """One traceback with its chain.

    Attributes:
        start, end: Bytes from the first line to the last's end.
        chain: ``(type, message)`` of each exception, the raised one first.
        frame, places, collective: Those of its ``Frames``; of a chain those of the raised exception.
        finals: Last line of each exception of ``chain``.
        origins: Those of its ``Frames``.
        ignored: Python continued ("Exception ignored in ..."): never a cause.
        threaded: Of a thread beside the main one.
        pid: Process of Ray's remote task that raised it.
        later: Number of exceptions that a clean-up raised after it: they are not in ``chain``.
    """

    start: int
    end: int
    prefix: Prefix
    chain: tuple[tuple[str, str], ...]
    frame: str
    places: tuple[str, ...]
    collective: str | None
    frames: int
    finals: tuple[LastLine, ...]
    origins: frozenset[str] = frozenset()
    ignored: bool = False
    threaded: bool = False
    pid: int | None = None
    later: int = 0


class OpenTraceback(msgspec.Struct, kw_only=True):
    """A traceback that is being read.

    Attributes:
        start, end: Offsets in the stream, in bytes.
        seen: Number of the last line read, from 0.
        expect: True if frames or the final line come next.
        size, text: Bytes of the message and of all stored text.
        real: None while open; False = no traceback.
        closed_at: Offset where ``real`` became known.
        key: Bytes that begin each line of its speaker: tags, or a learned prefix with folded times.
        learned: Number of bytes of a learned prefix; 0 = tags only.
        tags: Tags of the line of its head.
        margin: Number of spaces between tags and head; those of its other lines are no indentation.
        cut: The text begins inside it; then only an exception that is named as one proves it.
        continues: The message ends with a colon so far: the next line belongs to it, whatever it contains.
        notice: Number of lines left of a notice of mpirun that interrupts it.
        members: Number of a group's exceptions without tracebacks so far; None if it is of no group.
        quotes: Its message quotes the traceback of a worker, whose lines follow.
        threaded: Of a thread beside the main one.
        pid: Process of Ray's remote task whose frames come next.
        held: Caller's data that waits for ``real``.
        handled: Frames of the exception during whose handling the next one was raised, and the length of its chain.
    """

    prefix: Prefix
    start: int
    end: int
    seen: int
    ignored: bool
    lines: int = 1
    chain: list[tuple[str, str]] = msgspec.field(default_factory=list)
    type: bytes | None = None
    message: list[bytes] = msgspec.field(default_factory=list)
    size: int = 0
    text: int = 0
    frames: Frames = msgspec.field(default_factory=Frames)
    final: LastLine = LastLine(0, 0, 0, "")
    finals: list[LastLine] = msgspec.field(default_factory=list)
    expect: bool = True
    real: bool | None = None
    closed_at: int = 0
    key: bytes = b""
    learned: int = 0
    tags: bytes = b""
    margin: int = 0
    cut: bool = False
    continues: bool = False
    notice: int = 0
    quotes: bool = False
    members: int | None = None
    threaded: bool = False
    pid: int | None = None
    held: list[Any] = msgspec.field(default_factory=list)
    handled: tuple[Frames, int] | None = None

    def begin_next(self, *, handling: bool, head: bool) -> None:
        """Begins the next exception of the chain, at its ``head`` or before: one that was raised while ``handling`` the last."""
        if handling and self.chain and not self._comes_from_clean_up():
            self.handled = (msgspec.structs.replace(self.frames, origins=set(self.frames.origins)), len(self.chain))
        elif not handling and not head:
            self.handled = None
        self.frames.handler = self.handled[0].outermost if self.handled is not None else None
        self.frames.chain()

    def drop_clean_up(self) -> int:
        """Removes exceptions that a clean-up raised after the one that ended the program; returns their number."""
        if self.handled is None or not self._comes_from_clean_up():
            return 0
        entry, (self.frames, count) = self.frames.origins & {"entry"}, self.handled
        self.frames.origins = (self.frames.origins - {"entry"}) | entry
        later = len(self.chain) - count
        del self.chain[count:], self.finals[count:]
        return later

    def _comes_from_clean_up(self) -> bool:
        frames, count = self.handled or (None, 0)
        return frames is not None and self.frames.cleans_up(self.chain[count - 1][0], handled=frames)

    def drop_cut_type(self) -> None:
        """Forgets a type whose name the text does not finish."""
        if self.type is not None and _CUT_TYPE.search(self.type) is not None:
            self.type, self.expect = None, True

    def add_member(self, text: bytes, line: LastLine) -> int:
        """Adds an exception of a group without a traceback; returns its size, 0 for another line."""
        raised = exception_of(text)
        if raised is None or self.members is None or self.members >= _MAX_MEMBERS:
            return 0
        self.end = line.end
        place = len(self.chain) - 1 - self.members
        self.chain.insert(place, (decode(raised[0]), decode(raised[1])))
        self.finals.insert(place, line)
        self.members += 1
        return len(text)

    def extend(self, body: bytes, stop: int) -> None:
        """Adds a line that ends at ``stop`` to the displayed ones."""
        last = self.final
        self.final = LastLine(last.start, stop, last.number, last.text + "\n" + decode(body))


def exception_of(line: bytes) -> tuple[bytes, bytes] | None:
    """Returns type and message of a traceback's last line; None for another line.

    A message may begin on the next line: then an error's type ends with a colon.
    """
    if line.endswith((b"Error:", b"Exception:")):
        line = line[:-1]
    match = _FINAL.match(line)
    return (match[1], match[2] or b"") if match is not None and _names_exception(match[1]) else None


def _names_exception(name: bytes) -> bool:
    """True if a name before a colon can be the type of an exception: no host, level or program."""
    module, _, last = name.rpartition(b".")
    if not module:
        return name not in _NO_TYPE and name.lstrip(b"_")[:1].isupper()
    return last in _LOWER_TYPES or last.endswith((b"error", b"Error")) or last.lstrip(b"_")[:1].isupper()


def cut_above(data: bytes) -> tuple[int, int]:
    """Offset and number of the frame with which a text begins that was cut inside a traceback; (-1, 0) without one."""
    position = 0
    for number, line in enumerate(data[: _CUT_LINES * LONGEST].split(b"\n")[:_CUT_LINES]):
        if HEAD in line:
            break
        if FILE.match(line[parse_prefix(line).length :]) is not None:
            return position, number
        position += len(line) + 1
    return -1, 0
