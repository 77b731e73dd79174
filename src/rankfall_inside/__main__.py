"""Entry point of the bundle: ``python INSIDE wrap ...`` and ``python INSIDE tell WORDS``.

Only unknown options (code 2), missing code and a busy slot prevent the start.
"""

from __future__ import annotations

import os
import sys

from rankfall_inside.wrapper.options import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Sequence

    from rankfall_inside.wrapper.options import Options
    from rankfall_inside.wrapper.slot_files import SlotFiles

_PACKAGE = "rankfall_inside"


def prepare(slot_dir: str) -> str:
    """Returns the PYTHONPATH entry with the compiled hook; ranks start slower if they compile.

    A zip is unpacked into the slot directory, or used as it is.
    """
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        if os.path.isfile(here):
            here = _unpack(here, os.path.join(slot_dir, "inside"))
        _compile(here)
    except Exception:
        return here
    return here


def _unpack(archive: str, target: str) -> str:
    import zipfile

    if os.path.isdir(target):
        return target
    temporary = f"{target}.{os.getpid()}"
    with zipfile.ZipFile(archive) as file:
        file.extractall(temporary)
    os.rename(temporary, target)
    return target


def _compile(here: str) -> None:
    """Compiles files without cache, despite PYTHONDONTWRITEBYTECODE, which concerns the job's files."""
    from importlib.util import cache_from_source

    names = [os.path.join(here, "sitecustomize.py")]
    package = os.path.join(here, _PACKAGE)
    for folder, _, files in os.walk(package):
        names += [os.path.join(folder, name) for name in files if name.endswith(".py")]
    missing = [name for name in names if os.path.exists(name) and not os.path.exists(cache_from_source(name))]
    if missing and sys.implementation.cache_tag:
        import py_compile

        from rankfall_inside import private_files

        for cache in {os.path.dirname(cache_from_source(name)) for name in missing}:
            private_files.make_folders(cache)
        for name in missing:
            py_compile.compile(name, doraise=False, quiet=2)


_USAGE_CODE = 2
_BUSY_CODE = 125


def main(argv: Sequence[str]) -> int:
    """Runs the wrapper; returns the command's exit code or one that states the cause."""
    _open_standard_files()
    if argv[:1] == ["tell"]:
        from rankfall_inside.wrapper import control

        return control.main(argv[1:], os.environ)
    from rankfall_inside.wrapper import options as given

    try:
        options = given.parse(argv)
    except ValueError as error:
        sys.stderr.write(f"rankfall: {error}\n{given.USAGE}")
        return _USAGE_CODE
    from rankfall_inside import private_files
    from rankfall_inside.delivery import console
    from rankfall_inside.wrapper import signals, startup

    # Process 1 never gets a signal that it neither handles nor blocks.
    signals.block()
    try:
        os.setsid()
    except OSError:
        pass  # session leader already
    startup.settle(options, os.environ)
    if not _enter_code(options):
        from rankfall_inside.exit_codes import CODES

        return CODES["startup"]
    from rankfall_inside.wrapper.slot_files import SlotBusyError

    token = console.take_token()
    notes: list[str] = []
    try:
        if options.stream_dir:
            private_files.make_folders(options.stream_dir)
        files = _open_slot(options, token, notes)
    except SlotBusyError as error:
        say(f"another wrapper uses the slot directory {error}; this one does nothing")
        return _BUSY_CODE
    except (OSError, KeyError) as error:
        say(f"the slot directory cannot be used ({error!r}); the command runs without records")
        _plainly(options)
    from rankfall_inside.wrapper.wrapper import Wrapper

    options.home = prepare(files.path)
    try:
        return Wrapper(options, files, os.environ, token=token, notes=notes).run()
    finally:
        if notes:
            import shutil

            shutil.rmtree(files.path, ignore_errors=True)


def _open_slot(options: Options, token: str, notes: list[str]) -> SlotFiles:
    """Opens the slot's files; with a log channel, a private directory replaces an unusable one."""
    from rankfall_inside.wrapper.slot_files import SlotFiles

    try:
        return SlotFiles(os.environ, instance=options.instance)
    except OSError as error:
        if not token:
            raise
        import tempfile

        notes.append(f"the slot directory cannot be used ({error.strerror}): records are on the log channel only")
    # Memory first: full disks do not affect it.
    for base in ("/dev/shm", None):  # noqa: S108 - mkdtemp makes a new folder
        try:
            folder = tempfile.mkdtemp(prefix="rankfall-", dir=base)
            return SlotFiles(dict(os.environ, RANKFALL_SLOT_DIR=folder), instance=options.instance)
        except OSError:
            continue
    raise OSError("no folder is writable, neither in memory nor for temporary files")


def _enter_code(options: Options) -> bool:
    """Unpacks the job's code and enters its folder; False if that fails."""
    try:
        if options.code:
            from rankfall_inside.transfer import pack

            bundle = os.path.abspath(sys.argv[0])
            pack.unpack(
                os.path.join(os.path.dirname(bundle), pack.NAME),
                digest=options.code,
                to=os.path.join(os.environ["RANKFALL_SLOT_DIR"], "code"),
            )
        if options.chdir:
            os.chdir(options.chdir)
    except Exception as error:
        say(f"cannot get the job's code, so nothing is started: {error}")
        return False
    return True


def _open_standard_files() -> None:
    """Opens closed standard files; otherwise pipes would take their numbers."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:  # noqa: PLR2004 - stderr
        os.set_inheritable(fd, True)
        fd = os.dup(fd)
    os.close(fd)


def _plainly(options: Options) -> NoReturn:
    from rankfall_inside.wrapper import processes, signals, startup

    os.environ.pop(startup.VARIABLE, None)
    signals.reset_in_child()
    processes.replace(options.command, os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
