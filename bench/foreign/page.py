"""What was said of a fall, as docs/results/bench-foreign.md shows it. Pure.

What is left out follows rules, and nobody's choice: of torchrun its last block, which names a root cause; of ``kubectl describe`` what comes
after the spec; of ``rankfall why`` nothing. Lines are cut at ``WIDTH``, and the folder of this checkout is left out of paths.
"""

from __future__ import annotations

import re
from typing import Final

from bench.common import ROOT
from bench.foreign.fall import MESSAGE, NAME, RANK, SLOT, SlotFailure

WIDTH: Final = 140
_RULE: Final = re.compile(r"={20,}\n[^\n]* FAILED\n.*?\n={20,}\n", re.DOTALL)


def shown(fall: SlotFailure) -> str:
    """The three answers, one below the other, as Markdown.

    Raises:
        ValueError: torchrun of node 0 named no root cause, or the object has no status: there is nothing to show beside the verdict.
    """
    parts = (
        ("torchrun on the first node", f"kubectl logs -f {NAME}-node-0-0-…", root_cause(fall.logs[0])),
        ("Kubernetes", f"kubectl describe trainjob {NAME}", status(fall.described)),
        ("Rankfall", f"rankfall why trainjob/{NAME}", fall.why),
    )
    blocks = [f"{who}:\n\n```text\n$ {command}\n{_cut(text)}\n```\n" for who, command, text in parts]
    return "\n".join(blocks)


def root_cause(log: str) -> str:
    """Torchrun's last word in the log of a node.

    Raises:
        ValueError: it said none.
    """
    found = _RULE.findall(log)
    if not found:
        raise ValueError(f"torchrun named no root cause; the log ends with: {log[-500:]}")
    return f"…\n{found[-1]}"


def status(described: str) -> str:
    """Conditions and Events of ``kubectl describe``.

    Raises:
        ValueError: it has none.
    """
    _, found, rest = described.partition("\nStatus:\n")
    if not found:
        raise ValueError(f"kubectl describe shows no status: {described[-500:]}")
    return f"…\nStatus:\n{rest}"


def wrong(fall: SlotFailure) -> list[str]:
    """What the verdict should have said and did not; empty when it is right."""
    said = fall.verdict
    decisive = (said["decisive"] or {}).get("line") or ""
    expected = {
        "rank": (said["rank"], RANK),
        "slot": (said["slot"], SLOT),
        "node": (said["node"], fall.nodes[SLOT]),
        "cause": (said["cause"]["slug"], "user_code_exception"),
        "line": (MESSAGE in decisive, True),
        "object untouched": (fall.untouched, True),
    }
    return [f"{what}: {seen!r}, not {wanted!r}" for what, (seen, wanted) in expected.items() if seen != wanted]


def _cut(text: str) -> str:
    # torchrun leaves the first slash out in its own lines.
    text = text.replace(f"{ROOT}/", "").replace(f"{ROOT}/".lstrip("/"), "")
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines)
