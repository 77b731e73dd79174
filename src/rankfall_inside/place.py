"""Where this slot stands in a job of several roles. Kubernetes numbers the pods of each role from 0 and cannot add, so the sums are made here.

``RANKFALL_INDEX`` is the place within the role; ``RANKFALL_SLOT_BASE`` and ``RANKFALL_FIRST_NODE`` are the role's first slot, and the place
of that slot among all that have ranks. A role outside the world of ranks has no first node.
"""

from __future__ import annotations

from rankfall_inside import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import MutableMapping

    from rankfall_inside.options import Options

# Kubernetes leaves a reference to a variable alone that it does not know.
NODE_REFERENCE = "$(RANKFALL_PLAIN_NODE_RANK)"


def settle(options: Options, environ: MutableMapping[str, str]) -> None:
    """Set ``RANKFALL_SLOT`` and ``RANKFALL_PLAIN_NODE_RANK``, and put the latter into the words of the command. Once is enough.

    Args:
        options: of the wrapper; its command is changed.
        environ: of the wrapper; without ``RANKFALL_INDEX`` nothing is changed.
    """
    index = environ.get("RANKFALL_INDEX", "")
    number = foreign.whole(index)
    if number is None:
        return
    environ["RANKFALL_SLOT"] = str((foreign.whole(environ.get("RANKFALL_SLOT_BASE")) or 0) + number)
    first = foreign.whole(environ.get("RANKFALL_FIRST_NODE"))
    if first is None:
        return
    node = environ["RANKFALL_PLAIN_NODE_RANK"] = str(first + number)
    options.command = [node if word == NODE_REFERENCE else word for word in options.command]
    if "RANKFALL_TORCHRUN" in environ:
        # A word of its own in a JSON list.
        environ["RANKFALL_TORCHRUN"] = environ["RANKFALL_TORCHRUN"].replace(
            '"' + NODE_REFERENCE + '"', '"' + node + '"'
        )
