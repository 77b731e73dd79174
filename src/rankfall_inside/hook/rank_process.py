"""Makes a Python process a rank: claims an ordinal, redirects output, writes records.

``install`` runs in every Python of a job, so it is cheap without a rank.
"""

from __future__ import annotations

import os
import sys
import time

from rankfall_inside import identity, private_files, untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class State:
    """State of the hook; ``state`` is the only instance."""

    def __init__(self) -> None:
        self.installed = False
        self.pid = os.getpid()
        self.slot_dir = ""
        self.claimed = False
        # Child of a rank, or refused claim.
        self.silent = False
        # RANK was set after the start.
        self.pending = False
        # Called once this process is a rank.
        self.then: Callable[[], None] = _nothing
        self.fields: dict[str, Any] = {}
        self.ordinal: int | None = None
        self.notes: list[str] = []
        self.step: int | None = None
        self.step_ns: int | None = None
        self.phase: str | None = None
        self.progress_due = 0.0
        self.reported = False


def _nothing() -> None:
    pass


state = State()


def orig_argv() -> list[str]:
    """Returns the command line of this Python."""
    found = getattr(sys, "orig_argv", None)  # since 3.10
    if found is not None:
        return list(found)
    from rankfall_inside import procfs

    return list(procfs.cmdline(os.getpid()))


def is_spawn_child() -> bool:
    """Returns True if multiprocessing (spawn, forkserver) started this Python."""
    return any("multiprocessing" in word for word in orig_argv())


# Seconds that an ending rank waits for a busy wrapper.
_SEND_S = 2.0


def write(kind: str, fields: dict[str, Any], *, sync: bool) -> bool:
    """Writes one record to disk, or passes it to the wrapper for the log channel; False if both fail."""
    from rankfall_inside import records

    environ = os.environ
    record = records.new(kind, writer="hook", fields=fields)
    if records.write(record, environ.get("RANKFALL_RECORD_DIR") or os.path.join(state.slot_dir, "records"), sync=sync):
        if "RANKFALL_CHANNEL" in environ:
            notify_wrapper([b"record\n"], patience_s=0.0)
        return True
    return notify_wrapper(records.pieces(record), patience_s=_SEND_S)


def notify_wrapper(lines: list[bytes], *, patience_s: float) -> bool:
    """Writes lines of at most 4,096 bytes into the wrapper's pipe; False after ``patience_s``."""
    import time

    due = time.monotonic() + patience_s
    try:
        fd = os.open(os.path.join(state.slot_dir, "notify"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        for line in lines:
            while True:
                try:
                    os.write(fd, line)
                    break
                except BlockingIOError:
                    if time.monotonic() >= due:
                        return False
                    time.sleep(0.005)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def try_claim() -> bool:
    """Claims a rank if this process has one; True if it is a rank. Never raises."""
    if not state.claimed and not state.silent and state.slot_dir and identity.has_rank(os.environ):
        try:
            claim(late=True)
        except Exception:
            state.silent = True
    return state.claimed and not state.silent


def claim(*, late: bool = False) -> None:
    """Becomes a rank, unless an ancestor already is it; ``late`` = RANK appeared after the start."""
    from rankfall_inside import claims, procfs, records

    environ = os.environ
    found = identity.read(environ)
    if found is None:
        return
    argv = tuple(orig_argv())
    if found["local_rank"] is None and identity.is_launcher(argv):
        return
    pid = os.getpid()
    own = procfs.stat(pid)
    start = own.start if own else 0
    holder, _, before = environ.get("RANKFALL_CLAIMED", "").partition(":")
    again = holder == str(pid)
    given = records.whole(environ, "RANKFALL_ORDINAL")
    ordinal: int | None = None
    if again:
        # Replaced itself with exec: same process and streams.
        ordinal = untrusted.whole(before)
    else:
        folder = os.path.join(state.slot_dir, "claims")
        if late and not may_claim_late() and claims.has_rank(folder, found["rank"]):
            state.silent = True
            return
        root = claims.find_root(pid, environ, records.whole(environ, "RANKFALL_WRAPPER") or 0)
        text = claims.text_of(pid=pid, start=start, root=root, found=found)
        try:
            ordinal = claims.claim(folder, text=text, root=root, ordinal=given)
            if ordinal is None:
                state.silent = True
                return
        except OSError:
            # No room or folder; errors can use the log channel.
            state.notes.append("no claim: the slot directory cannot be written")
    state.claimed = True
    state.pid = pid
    state.ordinal = ordinal
    state.fields = records.place(environ)
    state.fields.update(found, ordinal=ordinal, pid=pid, ppid=os.getppid(), start_ticks=start, boot_id=procfs.boot_id())
    if not again:
        environ["RANKFALL_CLAIMED"] = f"{pid}:{'' if ordinal is None else ordinal}"
        moved = ordinal is not None and given is not None
        if ordinal is not None:
            _notify(ordinal)
            moved = moved or _move_streams(ordinal)
        started = dict(state.fields, argv=records.safe_argv(argv), python=sys.version.split()[0], streams=moved)
        write("start", dict(started, notes=state.notes), sync=False)
    state.then()


def may_claim_late() -> bool:
    """Returns True for multiprocessing children; other processes may set RANK for their children."""
    process = sys.modules.get("multiprocessing.process")
    parent = getattr(process, "parent_process", None)
    return parent is not None and parent() is not None


def _notify(ordinal: int) -> None:
    """Wakes the wrapper, which opens a pidfd and new pipes."""
    if not notify_wrapper([b"claim %d\n" % ordinal], patience_s=0.0):
        state.notes.append("the wrapper was not reached")


def _move_streams(ordinal: int) -> bool:
    """Moves fd 1 and 2 from the slot's pipes to the rank's; keeps a user's redirect. True if both were moved."""
    slot = os.environ.get("RANKFALL_PIPES", "").split(":")
    out, err = _inode(1), _inode(2)
    moved = 0
    for fd, inode, kind in ((1, out, "out"), (2, err, "out" if err == out else "err")):
        if inode not in slot:
            state.notes.append(f"fd {fd} was redirected earlier and remains so")
            continue
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                continue
        pipe = _open_pipe(os.path.join(state.slot_dir, "pipes", f"{ordinal}.{kind}"))
        if pipe is None:
            state.notes.append(f"no pipe for fd {fd}")
            continue
        os.set_blocking(pipe, True)
        os.dup2(pipe, fd)
        os.close(pipe)
        moved += 1
    return moved == 2  # noqa: PLR2004 - both


def _inode(fd: int) -> str:
    try:
        return str(os.fstat(fd).st_ino)
    except OSError:
        return "closed"


def _open_pipe(path: str) -> int | None:
    import time

    for _ in range(20):
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            # Many ranks started; the wrapper creates more pipes.
            time.sleep(0.005)
        except OSError:
            return None
    return None


# Between writes of the progress file.
_EVERY_S = 1.0


def flush() -> None:
    """Stores the last reported progress, if there is any."""
    if state.step is not None:
        store()


def store() -> None:
    """Writes the progress of this rank."""
    state.progress_due = time.monotonic() + _EVERY_S
    if not try_claim() or os.getpid() != state.pid:
        return
    from rankfall_inside import records

    path = os.path.join(state.slot_dir, "progress", f"{state.ordinal}.json")
    try:
        # foreign-text: the job's own number, in the job's own process
        data = {"step": int(state.step or 0), "phase": state.phase, "at_ns": state.step_ns, "pid": state.pid}
        private_files.replace_file(path, records.dumps(data).encode("ascii"))
    except (OSError, TypeError, ValueError):
        return


def mark_exit() -> None:
    """Marks that Python ends this rank, without an exception before: another code than 0 is that of a SystemExit.

    Python shows a raised SystemExit to no hook, and its code only to the parent.
    """
    if state.ordinal is None:
        return
    path = os.path.join(state.slot_dir, "progress", f"{state.ordinal}-{state.pid}.exit")
    try:
        os.close(private_files.open_file(path, os.O_WRONLY | os.O_CREAT))
    except OSError:
        return


_NAMES = frozenset(source[0] for source in identity.SOURCES) | {"TF_CONFIG"}


def install() -> None:
    """Starts the hook in this process; sitecustomize calls it once."""
    environ = os.environ
    state.installed = True
    state.then = _stay
    state.slot_dir = environ["RANKFALL_SLOT_DIR"]
    holder = environ.get("RANKFALL_CLAIMED", "").partition(":")[0]
    if holder and holder != str(os.getpid()):
        state.silent = True
        return
    if identity.has_rank(environ):
        claim()
    if state.claimed or state.silent:
        return
    _watch_environment()
    os.register_at_fork(after_in_child=_forked)
    if is_spawn_child():
        _watch_children()


def _stay() -> None:
    from rankfall_inside.hook import exceptions

    exceptions.install()


def _watch_children() -> None:
    from rankfall_inside.hook import children

    children.watch(_saw)


def _saw(error: BaseException) -> None:
    from rankfall_inside.hook import exceptions

    exceptions.saw(error)


def _watch_environment() -> None:
    """Detects a later RANK (function launch): os.environ raises an audit event per putenv."""

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.putenv":
            if not state.claimed and not state.silent and os.fsdecode(args[0]) in _NAMES:
                state.pending = True
        elif state.pending and not state.claimed and not state.silent and may_claim_late():
            # The launcher has set all its variables.
            state.pending = False
            try_claim()

    sys.addaudithook(audit)


def _forked() -> None:
    if state.claimed:
        state.silent = True
        state.pid = os.getpid()
        return
    state.pid = os.getpid()
    if "multiprocessing.util" in sys.modules:
        _watch_children()
