"""Resolves the run of a command: an id, a prefix, the newest, or ``KIND/NAME``.

``KIND/NAME`` is a cluster job not started by Rankfall, with a run directory, never changed. Runs without supervisor or
recorder are refreshed first; on failure the last state appears with a message.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import click
import msgspec

from rankfall.cli import console
from rankfall.model import FINAL_STATES, LockHeld, NotFound, RankfallError, Refused, UsageError
from rankfall.model.foreign import FOREIGN_KINDS, Target
from rankfall.model.patterns import anchored
from rankfall.render.escape import one_line
from rankfall.render.formatting import count
from rankfall.rundir import RunDir, default_home, home, list_runs
from rankfall.rundir.layout import RUN_FILES
from rankfall.rundir.lease import append_to

if TYPE_CHECKING:
    from rankfall.supervisor.run_events import Event

# As in kubectl: "job", "jobs", "jobs.batch", "trainjob.trainer.kubeflow.org", "po".
_TARGET: Final = anchored(r"([A-Za-z]+)(?:\.[A-Za-z0-9.-]+)?/([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)", limit=1_024)
# Nodes in a message.
_MAX_NODES: Final = 16
_SHORT: Final = {"po": "pod"}
# Runs in a message, and bounds of the search for run directories in a folder of logs.
_MAX_LISTED: Final = 10
_MAX_DEPTH: Final = 3
_MAX_FOLDERS: Final = 2_000


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Namespace, context and kubeconfig of a cluster job; None = kubectl's choice.

    ``no_exec``: run no command in its pods.
    """

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    no_exec: bool = False

    @property
    def given(self) -> bool:
        """True if any flag is present."""
        return any((self.namespace, self.context, self.kubeconfig, self.no_exec))


NOWHERE: Final = Where()


def parse_target(text: str) -> Target | None:
    """Parses ``KIND/NAME``; None for other text."""
    found = _TARGET.fullmatch(text)
    if found is None:
        return None
    kind = found[1].lower()
    for name in (kind, kind.removesuffix("s"), _SHORT.get(kind, "")):
        if name in FOREIGN_KINDS:
            return Target(name, found[2])
    return None


def read_home() -> Path:
    """Returns Rankfall's home, checked if it holds something, never created.

    Raises:
        StoreError: Its layout has another version.
    """
    path = default_home()
    with contextlib.suppress(OSError):
        if not any(path.iterdir()):
            return path
    return home() if path.exists() else path


def resolve_target(name: str | None, *, where: Where = NOWHERE) -> RunDir:
    """Returns the run ``name``, possibly a foreign job.

    Args:
        name: None for the newest.
        where: Place of ``KIND/NAME``.

    Raises:
        NotFound: No such run or job.
        UsageError: Ambiguous prefix, or ``where`` for a run.
        KubeError: No cluster access and no record.
    """
    target = parse_target(name) if name is not None else None
    if target is None:
        if where.given:
            raise UsageError(
                "-n, --context, --kubeconfig and --no-exec are for a job that Rankfall did not start",
                hint=f"leave them out: a run knows its cluster; name another job as KIND/NAME: {', '.join(FOREIGN_KINDS)}",
            )
        if name is not None and _TARGET.fullmatch(name) and not is_there(name):
            raise _unknown_kind(name)
        return _run_or_copy(name)
    from rankfall.backends.foreign.targets import open_target  # noqa: PLC0415

    with console.notice_if_slow(f"rankfall: still reading {target.label} from the API server"):
        opened = open_target(
            target,
            home=home(),
            namespace=where.namespace,
            context=where.context,
            kubeconfig=where.kubeconfig,
            look_inside=not where.no_exec,
        )
    if opened.note:
        console.say(f"rankfall: {opened.note}")
    return opened.run


def _run_or_copy(name: str | None) -> RunDir:
    try:
        return one_run(name)
    except (NotFound, UsageError) as error:
        if name is None or not is_there(name):
            raise
        copy = opened_copy(Path(name))
        if copy is None:
            hint = f"log files that Rankfall did not write: rankfall why {shlex.quote(name)}"
            raise NotFound(error.message, hint=hint) from None
        return copy


def is_copy(directory: RunDir) -> bool:
    """Returns True if the run is outside the home: in an archive or a copied folder."""
    return not directory.path.resolve().is_relative_to(default_home().resolve())


def resolve_refreshed(name: str | None, *, where: Where = NOWHERE) -> RunDir:
    """Returns the run ``name``, refreshed as by :func:`as_it_is`.

    Raises:
        NotFound, UsageError, KubeError: As :func:`resolve_target`.
    """
    return as_it_is(resolve_target(name, where=where))


def as_it_is(directory: RunDir) -> RunDir:
    """Queries the cluster once about an unattended run that no process records; prints a failed query.

    Also completes a run's final files after a killed supervisor. A copy of a run is only read.
    """
    if is_copy(directory):
        return directory
    if directory.end_lock_path.exists():
        from rankfall.supervisor.outcome import finish_files  # noqa: PLC0415

        finish_files(directory)
    try:
        if not directory.spec.unattended or directory.lease_holder() is not None:
            return directory
        with directory.reader() as reader:
            if reader.run().state in FINAL_STATES:
                return directory
        from rankfall.supervisor.unattended.driver import refresh_unattended  # noqa: PLC0415

        # A foreign job may have no later recorder, so store its lines now.
        foreign = directory.foreign is not None
        with console.notice_if_slow(
            "rankfall: still reading the pods and their logs; a node that is lost answers late"
        ):
            refresh_unattended(directory, lines=foreign, on_event=_tell if foreign else None)
    except LockHeld:
        pass
    except RankfallError as error:
        console.say(f"rankfall: cannot query the job now; this is its last recorded state: {error.message}")
    return directory


def opened_copy(path: Path) -> RunDir | None:
    """Returns the run in a run directory, a copy of one, or an archive of ``report --bundle``; None for other files.

    An archive is unpacked until the command ends. The run is only read.

    Raises:
        UsageError: Damaged archive.
    """
    from rankfall.rundir.bundle import is_bundle, unpack  # noqa: PLC0415

    try:
        if path.is_file() and is_bundle(path):
            path = unpack(path, _temporary_folder())
        if not all((path / name).exists() for name in (*RUN_FILES, "run.db")):
            return None
    except OSError:
        return None
    run = RunDir(path.resolve())
    with run.reader() as reader:
        stored = reader.diagnosis(None)
    # Records belong to the run's id, and a copy may have any name.
    run.id = (stored.verdict.run if stored is not None else None) or run.id
    return run


def opened_archives(paths: Sequence[Path]) -> tuple[list[Path], Path]:
    """Unpacks archives of logs until the command ends, also those in folders without other logs.

    Returns the paths, and the folder of relative ones: there an archive is a folder of its name.

    Raises:
        UsageError: Damaged or too large archive, or several runs.
    """
    from rankfall.evidence.files.folder_listing import archives_of  # noqa: PLC0415
    from rankfall.rundir.bundle import is_archive, unpack_archives, unpack_logs  # noqa: PLC0415

    archives = {path for path in paths if path.is_file() and is_archive(path)}
    folders = {path: inner for path in paths if path.is_dir() and (inner := archives_of(path))}
    if not archives and not folders:
        _refuse_several_runs(paths, Path())
        return list(paths), Path()
    folder = _temporary_folder()
    found: list[Path] = []
    for number, path in enumerate(paths):
        name = Path(path.name if path.name.strip(".") else path.resolve().name or "logs")
        name = name if name not in found else Path(str(number), name)
        if path in archives:
            unpack_logs(path, folder / name)
        elif path in folders:
            unpack_archives(folders[path], path, folder / name)
        else:
            name = path.absolute()
        found.append(name)
    _refuse_several_runs(found, folder)
    return found, folder


def _refuse_several_runs(paths: Sequence[Path], within: Path) -> None:
    """Refuses Rankfall's folder of runs, and paths with several run directories: a verdict is about one run."""
    own = default_home().resolve() / "runs"
    runs = [run for path in paths for run in _runs_below(within / path)]
    of_home = any((within / path).resolve() in {own, own.parent} for path in paths)
    if len(runs) < 2 and not (runs and of_home):  # noqa: PLR2004 - several
        return
    runs.sort(key=lambda run: (-run.created, run.id))
    names = [
        run.id
        if run.path.resolve().parent == own
        else str(run.path.relative_to(within) if run.path.is_relative_to(within) else run.path)
        for run in runs
    ]
    listed = ", ".join(one_line(name, width=200) for name in names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    what = one_line(", ".join(map(str, paths)), width=200)
    unpacked = "" if within == Path() else "unpack the archive, then "
    raise UsageError(
        f"{what} holds {count(len(names), 'run')}, and a verdict is about one run: {listed}{more}",
        hint=f"{unpacked}name one run: rankfall why {shlex.quote(names[0])}",
    )


def _runs_below(path: Path) -> Iterator[RunDir]:
    """Run directories at a path and in folders below it."""
    folders = [(path, 0)]
    for folder, depth in folders:
        with contextlib.suppress(OSError, ValueError):
            if all((folder / name).exists() for name in RUN_FILES) and any(
                (folder / name).exists() for name in ("run.db", "logs")
            ):
                yield RunDir(folder)
            elif depth < _MAX_DEPTH and len(folders) < _MAX_FOLDERS:
                with os.scandir(folder) as entries:
                    found = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
                folders += [(below, depth + 1) for below in found[: _MAX_FOLDERS - len(folders)]]


def _temporary_folder() -> Path:
    """Folder that lives until the command ends."""
    folder = tempfile.TemporaryDirectory(prefix="rankfall-")
    click.get_current_context().call_on_close(folder.cleanup)
    return Path(folder.name)


# Bytes in the copy of standard input, from which the lines around the decisive one come; a file is searched as far.
_MAX_COPY: Final = 256 << 20


class CopiedInput:
    """Standard input for one reader; copies its first ``_MAX_COPY`` bytes to ``path``, whose errors end only the copy."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = _MAX_COPY

    def read(self, size: int) -> bytes | None:
        """Reads as the file does."""
        with console.notice_if_slow("still reading standard input to its end; Ctrl-C stops without a verdict"):
            data = self._file.read(size)
        if data and self._left > 0:
            try:
                with append_to(self._path) as copy:
                    copy.write(data[: self._left])
            except OSError:
                self._left = 0
            self._left -= len(data)
        return data

    def fileno(self) -> int:
        """Descriptor of the file."""
        return self._file.fileno()


def copied_input() -> tuple[CopiedInput, Path]:
    """Standard input, and the folder of its copy ``-``, which lives until the command ends."""
    if sys.stdin.isatty():
        console.say("reading from this terminal; end with Ctrl-D")
    folder = _temporary_folder()
    return CopiedInput(sys.stdin.buffer, folder / "-"), folder


# Seconds in which a program before the pipe prints its first bytes.
_PIPE_S: Final = 0.5


def has_text(stdin: BinaryIO) -> bool:
    """True if standard input is a file, or a pipe with bytes within ``_PIPE_S``."""
    try:
        kind = os.fstat(stdin.fileno()).st_mode
        if stat.S_ISREG(kind):
            return bool(stdin.peek(1))  # type: ignore[attr-defined] # a buffered reader
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
            return False
        ready, _, _ = select.select([stdin], [], [], _PIPE_S)
        return bool(ready) and bool(stdin.peek(1))  # type: ignore[attr-defined] # as above
    except (OSError, ValueError):
        return False


def is_there(name: str) -> bool:
    """True if a word of the command line is the path of something."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def run_of_argument(targets: list[str], where: Where) -> RunDir | None:
    """Run, or None for files. A run beats a file; ``./NAME`` is always a file."""
    if not all(targets):
        raise UsageError("an argument is empty", hint="quotes around an unset variable give one; leave it out")
    if len(targets) == 1 and (where.given or parse_target(targets[0]) is not None):
        return resolve_target(targets[0], where=where)
    if len(targets) == 2 and parse_target("/".join(targets)) is not None and not any(map(is_there, targets)):  # noqa: PLR2004 - KIND NAME
        raise UsageError(
            f"there is no file {targets[0]!r}", hint=f"a job of the cluster has one name: {'/'.join(targets)}"
        )
    if len(targets) != 1 or targets == ["-"]:
        for name in targets if len(targets) > 1 else ():
            if not is_there(name) and any(run.id == name for run in list_runs(read_home())):
                raise UsageError(
                    f"{name} is a run and cannot be combined with other targets", hint="give one run, or only paths"
                )
        return None
    name = targets[0]
    try:
        return RunDir.open(read_home(), name)
    except NotFound as missing:
        if is_there(name):
            return None
        if _TARGET.fullmatch(name):
            raise _unknown_kind(name) from None
        hint = "only files are read: save the text and give its path" if "://" in name else missing.hint
        raise NotFound(f"there is no run and no file {name[:200]!r}", hint=hint) from None
    except UsageError:
        if is_there(name):
            return None
        raise


def _unknown_kind(name: str) -> UsageError:
    kinds = ", ".join(FOREIGN_KINDS)
    return UsageError(
        f"{name[:200]!r} is no file, and of an unknown kind",
        hint=f"use one of these kinds: {kinds}; of another one, name the job or pod that it made",
    )


def one_run(name: str | None, *, quiet: bool = False) -> RunDir:
    """Returns the run ``name``, an id or prefix; None = the newest, named on stderr unless ``quiet``.

    Raises:
        NotFound: No such run.
        UsageError: Ambiguous prefix.
    """
    folder = read_home()
    if name is not None:
        if (target := parse_target(name)) is not None:
            raise Refused(
                f"{target.label} is not a run of Rankfall, so Rankfall only reads it",
                hint=f"use rankfall logs, status or why {target.label}; to change it, use kubectl or the tool that created it",
            )
        return RunDir.open(folder, name)
    found = list_runs(folder)
    if not found:
        raise NotFound("there is no run yet", hint="rankfall run train.py")
    console.say(f"newest run: {found[0].id}", quiet=quiet)
    return found[0]


def several_runs(names: Sequence[str]) -> list[RunDir]:
    """Runs, each once; errors as :func:`one_run`."""
    found: dict[str, RunDir] = {}
    errors: list[RankfallError] = []
    for name in names or (None,):
        try:
            one = one_run(name)
            found.setdefault(one.id, one)
        except (NotFound, UsageError) as error:
            errors.append(error)
    if errors:
        for other in errors[1:]:
            console.say(f"rankfall: {other.message}")
        raise errors[0]
    return list(found.values())


def slots_on(directory: RunDir, nodes: tuple[str, ...], *, attempt: int | Literal["all"] | None) -> frozenset[int]:
    """Slots on these nodes, of one attempt."""
    if attempt == "all":
        raise UsageError("--node and --attempt all contradict each other", hint="give one attempt: --attempt N")
    with directory.reader() as reader:
        number = attempt or reader.newest_attempt()
        slots = reader.slots(number) if number is not None else []
    chosen = [one for one in slots if one.node in nodes]
    if missing := sorted(set(nodes) - {one.node for one in chosen}):
        known = sorted({one.node for one in slots if one.node})
        raise NotFound(
            f"attempt {number} of {directory.id} has no slot on node {missing[0]!r}",
            hint=f"its nodes: {', '.join(known[:_MAX_NODES]) or 'none known'}{' ...' if len(known) > _MAX_NODES else ''}",
        )
    for one in chosen:
        if one.instance:
            console.say(
                f"rankfall: slot {one.slot} restarted; lines of its earlier starts may be from another node: --instance {one.instance}"
            )
    return frozenset(one.slot for one in chosen)


def _tell(event: Event) -> None:
    if event.kind == "gap":
        console.say(f"rankfall: {event.text}")
