"""Nodes that share a kernel: containers that pass for nodes, or a cloned machine. Whose fault a kernel line is cannot be told then. Pure.

Every such Node shows the same boot id. Records of that kernel are refused for all of them, unless an operator names the one whose ring it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankfall.model.health import NodeFault


def sharing(boots: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    """Boot ids that more than one Node shows, with the names of these Nodes.

    Args:
        boots: the boot id that each Node shows; None = none.
    """
    found: dict[str, list[str]] = {}
    for name, boot in boots.items():
        if boot:
            found.setdefault(boot, []).append(name)
    return {boot: tuple(sorted(names)) for boot, names in found.items() if len(names) > 1}


def refused(
    fault: NodeFault, *, shared: Mapping[str, tuple[str, ...]], boots: Mapping[str, str | None], owner: str | None
) -> tuple[str, ...]:
    """The Nodes that share the kernel of which this fault is a record; empty = it counts.

    Args:
        fault: any.
        shared: of :func:`sharing`.
        boots: as there.
        owner: the Node whose ring it is, as the operator says.
    """
    if not shared or fault.source not in {"kmsg", "loki"} or fault.node == owner:
        return ()
    return shared.get(fault.boot or "") or shared.get(boots.get(fault.node) or "") or ()
