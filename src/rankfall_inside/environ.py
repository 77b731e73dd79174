"""The environment of the command: ours for the hook is added, what only the wrapper may know is left out."""

from __future__ import annotations

import os

from rankfall_inside import launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

    from rankfall_inside.options import Options
    from rankfall_inside.slot import SlotFiles

# The token makes a line trustworthy; the others are of another wrapper, when this one runs inside a rank.
_REMOVED = (
    "RANKFALL_TOKEN",
    launch.VARIABLE,
    "RANKFALL_ORDINAL",
    "RANKFALL_CLAIMED",
    "RANKFALL_PIPES",
    "RANKFALL_CHANNEL",
)


def of_command(inherited: Mapping[str, str], options: Options, files: SlotFiles, *, channel: bool) -> dict[str, str]:
    """What the command starts with.

    Args:
        inherited: of the wrapper.
        options: of the wrapper.
        files: of the slot; its folders may be others than the environment named.
        channel: whether hooks should tell of each record.
    """
    environ = {name: value for name, value in inherited.items() if name not in _REMOVED}
    environ.update(
        RANKFALL_WRAPPER=str(files.pid),
        RANKFALL_INSTANCE=options.instance,
        RANKFALL_SLOT_DIR=files.path,
        RANKFALL_RECORD_DIR=files.records,
    )
    if channel:
        environ["RANKFALL_CHANNEL"] = "1"
    if environ.get("RANKFALL_INSIDE") != "off":
        theirs = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = options.home + (os.pathsep + theirs if theirs else "")
    return environ
