"""Entry point of the bundle: ``python INSIDE wrap [options] -- COMMAND ARGS...`` and ``python INSIDE tell WORDS``.

INSIDE is the unpacked bundle or its zip. Who this slot is comes from the ``RANKFALL_*`` variables. Refuses unknown options with code 2;
everything else must not keep the command from running.
"""

from __future__ import annotations

import os
import sys

from rankfall_inside.say import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Sequence

    from rankfall_inside.options import Options
    from rankfall_inside.slot import SlotFiles

_USAGE_CODE = 2
_BUSY_CODE = 125


def main(argv: Sequence[str]) -> int:
    """Run the wrapper; its exit code is the command's, or says the cause."""
    _open_standard_files()
    if argv[:1] == ["tell"]:
        from rankfall_inside import tell

        return tell.main(argv[1:], os.environ)
    from rankfall_inside import options as given

    try:
        options = given.parse(argv)
    except ValueError as error:
        sys.stderr.write(f"rankfall: {error}\n{given.USAGE}")
        return _USAGE_CODE
    from rankfall_inside import channel, place, private, signals

    # At once: process 1 of a container never gets a signal that it neither handles nor blocks.
    signals.block()
    try:
        os.setsid()
    except OSError:
        pass  # it leads a session already
    place.settle(options, os.environ)
    if not _enter_code(options):
        from rankfall_inside.causes import CODES

        return CODES["startup"]
    from rankfall_inside.slot import SlotBusyError

    token = channel.take_token()
    notes: list[str] = []
    try:
        if options.stream_dir:
            private.make_folders(options.stream_dir)
        files = _open_slot(options, token, notes)
    except SlotBusyError as error:
        say(f"another wrapper holds the slot directory {error}; this one does nothing")
        return _BUSY_CODE
    except (OSError, KeyError) as error:
        say(f"the slot directory cannot be used ({error!r}); the command runs without records")
        _plainly(options)
    from rankfall_inside import home
    from rankfall_inside.wrapper import Wrapper

    options.home = home.prepare(files.path)
    try:
        return Wrapper(options, files, os.environ, token=token, notes=notes).run()
    finally:
        if notes:
            import shutil

            shutil.rmtree(files.path, ignore_errors=True)


def _open_slot(options: Options, token: str, notes: list[str]) -> SlotFiles:
    """The slot's files; where its directory cannot be used but a log channel is there, in a directory of our own."""
    from rankfall_inside.slot import SlotFiles

    try:
        return SlotFiles(os.environ, instance=options.instance)
    except OSError as error:
        if not token:
            raise
        import tempfile

        notes.append(f"the slot directory cannot be used ({error.strerror}): records are on the log channel only")
    # In memory first: whatever fills disks is not there.
    for base in ("/dev/shm", None):  # noqa: S108 - mkdtemp makes a folder that nobody else can have made
        try:
            folder = tempfile.mkdtemp(prefix="rankfall-", dir=base)
            return SlotFiles(dict(os.environ, RANKFALL_SLOT_DIR=folder), instance=options.instance)
        except OSError:
            continue
    raise OSError("no folder can be written, neither in memory nor among temporary files")


def _enter_code(options: Options) -> bool:
    """Unpack the job's code and go into its folder, where that is asked for; False: it cannot be had, and nothing may start."""
    try:
        if options.code:
            from rankfall_inside import carry_pack

            bundle = os.path.abspath(sys.argv[0])
            carry_pack.unpack(
                os.path.join(os.path.dirname(bundle), carry_pack.NAME),
                digest=options.code,
                to=os.path.join(os.environ["RANKFALL_SLOT_DIR"], "code"),
            )
        if options.chdir:
            os.chdir(options.chdir)
    except Exception as error:
        say(f"the job's code cannot be had, so nothing is started: {error}")
        return False
    return True


def _open_standard_files() -> None:
    """Closed ones would be taken by the first pipes, and the command would write into the wrong stream."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:  # noqa: PLR2004 - stderr
        os.set_inheritable(fd, True)
        fd = os.dup(fd)
    os.close(fd)


def _plainly(options: Options) -> NoReturn:
    from rankfall_inside import launch, signals, spawn

    os.environ.pop(launch.VARIABLE, None)
    signals.reset_in_child()
    spawn.replace(options.command, os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
