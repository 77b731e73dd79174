"""Makes a Python process a rank: claims an ordinal, moves its output onto the wrapper's pipes, records it.

``install`` runs in every Python of a job, so it must be cheap where there is no rank; all else is imported
when a rank is claimed. RANK may be set later by the launcher's function, which an audit event reveals. Also
here: the state of the process (it is at most one rank), its records and its progress file. Everything may
fail; then the job goes on without it.
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
    """All of it; ``state`` is the only one."""

    def __init__(self) -> None:
        self.installed = False
        self.pid = os.getpid()
        self.slot_dir = ""
        self.claimed = False
        # A child of a rank, or a process whose claim was refused: it stays silent.
        self.silent = False
        # RANK was set in this process after it started; it is claimed at the next sign of life.
        self.pending = False
        # What is to be done once this process is a rank.
        self.then: Callable[[], None] = _nothing
        self.fields: dict[str, Any] = {}
        self.ordinal: int | None = None
        self.notes: list[str] = []
        self.step: int | None = None
        self.step_ns: int | None = None
        self.phase: str | None = None
        self.progress_due = 0.0
        # An error of the main thread is recorded.
        self.reported = False


def _nothing() -> None:
    pass


state = State()


def orig_argv() -> list[str]:
    """The words with which this Python was started."""
    found = getattr(sys, "orig_argv", None)  # from 3.10
    if found is not None:
        return list(found)
    from rankfall_inside import procfs

    return list(procfs.cmdline(os.getpid()))


def is_spawn_child() -> bool:
    """Whether this Python was started by multiprocessing (spawn, forkserver)."""
    return any("multiprocessing" in word for word in orig_argv())


# How long an ending rank waits for a busy wrapper to take its record, when no disk did.
_SEND_S = 2.0


def write(kind: str, fields: dict[str, Any], *, sync: bool) -> bool:
    """Write one record of this rank; what no disk takes goes to the wrapper, which has the log channel."""
    from rankfall_inside import records

    environ = os.environ
    record = records.new(kind, writer="hook", fields=fields)
    if records.write(record, environ.get("RANKFALL_RECORD_DIR") or os.path.join(state.slot_dir, "records"), sync=sync):
        if "RANKFALL_CHANNEL" in environ:
            notify_wrapper([b"record\n"], patience_s=0.0)
        return True
    return notify_wrapper(records.pieces(record), patience_s=_SEND_S)


def notify_wrapper(lines: list[bytes], *, patience_s: float) -> bool:
    """Write lines of at most 4,096 bytes into the wrapper's pipe; False when it did not take them within ``patience_s``."""
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
    """Claim when this process has a rank and has not claimed yet; whether it is a rank. Never raises."""
    if not state.claimed and not state.silent and state.slot_dir and identity.has_rank(os.environ):
        try:
            claim(late=True)
        except Exception:
            state.silent = True
    return state.claimed and not state.silent


def claim(*, late: bool = False) -> None:
    """Become a rank, or find that an ancestor is the rank already.

    Args:
        late: RANK came after the start of this process, which may have set it for a child.
    """
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
        # The rank has replaced itself with exec: same process, same streams, its start is recorded already.
        ordinal = untrusted.whole(before)
    else:
        folder = os.path.join(state.slot_dir, "claims")
        if late and not may_claim_late() and claims.has_rank(folder, found["rank"]):
            # This process set RANK for a child, which has claimed it.
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
            # No room or no folder: without streams and stacks, but errors still have the log channel.
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
    """Only a multiprocessing child becomes a rank as soon as it has RANK; another process may set it for children that it starts."""
    process = sys.modules.get("multiprocessing.process")
    parent = getattr(process, "parent_process", None)
    return parent is not None and parent() is not None


def _notify(ordinal: int) -> None:
    """Wake the wrapper: it opens a pidfd of this process and new pipes for the next ones."""
    if not notify_wrapper([b"claim %d\n" % ordinal], patience_s=0.0):
        state.notes.append("the wrapper was not reached")


def _move_streams(ordinal: int) -> bool:
    """Put fd 1 and 2 onto the wrapper's pipes, where they still are the slot's own; a redirect of the user stays."""
    slot = os.environ.get("RANKFALL_PIPES", "").split(":")
    out, err = _inode(1), _inode(2)
    moved = 0
    for fd, inode, kind in ((1, out, "out"), (2, err, "out" if err == out else "err")):
        if inode not in slot:
            state.notes.append(f"fd {fd} was redirected before and stays")
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
            # Many ranks began at once; the wrapper makes more pipes as soon as it is told.
            time.sleep(0.005)
        except OSError:
            return None
    return None


# Between two writes of the progress file.
_EVERY_S = 1.0


def flush() -> None:
    """Store the last progress now, when there is some that is not stored."""
    if state.step is not None:
        store()


def store() -> None:
    """Write how far this rank is, if it is one."""
    state.progress_due = time.monotonic() + _EVERY_S
    if not try_claim() or os.getpid() != state.pid:
        return
    from rankfall_inside import records

    path = os.path.join(state.slot_dir, "progress", f"{state.ordinal}.json")
    try:
        # foreign-text: the job's own number, in the job's own process
        data = {"step": int(state.step or 0), "phase": state.phase, "at_ns": state.step_ns, "pid": state.pid}
        fd = private_files.open_file(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(fd, records.dumps(data).encode("ascii"))
        finally:
            os.close(fd)
        os.rename(path + ".tmp", path)
    except (OSError, TypeError, ValueError):
        return


_NAMES = frozenset(source[0] for source in identity.SOURCES) | {"TF_CONFIG"}


def install() -> None:
    """Start the hook in this process. Called by sitecustomize, at most once."""
    environ = os.environ
    state.installed = True
    state.then = _stay
    state.slot_dir = environ["RANKFALL_SLOT_DIR"]
    holder = environ.get("RANKFALL_CLAIMED", "").partition(":")[0]
    if holder and holder != str(os.getpid()):
        # A child of a rank, started by exec.
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
    """Notice that RANK is set later (function launch): os.environ raises an audit event for each putenv."""

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.putenv":
            if not state.claimed and not state.silent and os.fsdecode(args[0]) in _NAMES:
                state.pending = True
        elif state.pending and not state.claimed and not state.silent and may_claim_late():
            # The first thing that happens after the launcher has set its variables, all of them by now.
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
