"""Images that few tests need, given to the nodes of a bed that runs: other versions of Python."""

from __future__ import annotations

from collections.abc import Iterable

from testbed import images, process
from testbed.bed import Bed
from testbed.layout import MAX_NODES


def give(bed: Bed, names: Iterable[str]) -> dict[str, str]:
    """Have images on all running nodes, built where they are not in the cache; they go with the bed.

    Args:
        bed: that is up.
        names: of ``images.NAMES``.

    Returns:
        Name -> the image's name for pods.

    Raises:
        BuildError: there is no such image, or it could not be made.
        StartError: a node refuses one.
    """
    archives = images.ensure(names, say=bed.say)
    for index in range(1, MAX_NODES + 1):
        node = bed.node(index)
        if process.find(bed.layout, f"{node.name}-init"):
            for archive in archives.values():
                node.import_image(archive)
    return {name: images.NAMES[name] for name in archives}
