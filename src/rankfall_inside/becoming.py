"""How a process becomes a rank: it claims an ordinal, moves fd 1 and 2 onto the wrapper's pipes and writes its start record.

Everything may fail; then the job goes on without it.
"""

from __future__ import annotations

import os
import sys

from rankfall_inside import foreign, identity
from rankfall_inside.rank_records import tell_wrapper, write
from rankfall_inside.rank_state import orig_argv, state


def claim_quietly() -> bool:
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
        ordinal = foreign.whole(before)
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
    if not tell_wrapper([b"claim %d\n" % ordinal], patience_s=0.0):
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
