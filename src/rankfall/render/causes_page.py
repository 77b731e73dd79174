"""Generates ``docs/causes.md`` from the catalogue of causes and the advice for each.

Printed by ``rankfall config causes``; a test compares it with the page in ``docs``.
"""

from __future__ import annotations

from typing import Final, get_args

from rankfall.model.causes import CauseInfo, Family, catalogue
from rankfall.render.verdict import advice

_HEAD: Final = """# Causes

Made by `rankfall config causes`; do not edit. Every cause that a verdict may name, as `cause.slug` in `why -o json`. A slug is a public contract, like an
error code: it is never renamed and never used for something else; new ones may come.

- **Role.** `primary` can be the cause of a fall. `secondary` is usually the echo of another rank's fall, and is named only where nothing else speaks, `suspected` at most. `context` supports or weakens a verdict and is never one.
- **Again.** What is done without a rule of the job: `no`; `yes`, after a pause; `once`, and the same fault again ends the run; `elsewhere`, not on that node. Budgets and rules: [exit-codes.md](exit-codes.md).
- **Node.** The most that is done to the node: `suspect` is counted and watched, `taint` keeps new pods away. Words that a job printed never taint, one fault on all ranks touches no node, and neither does a cause that is only suspected.
- **Evidence.** What usually shows it. How lines of text are recognised: [signatures.md](signatures.md).
"""
_TITLES: Final[dict[Family, str]] = {
    "user": "The job's own code",
    "data": "Data",
    "memory": "Memory",
    "gpu": "GPUs",
    "network": "Network",
    "storage": "Storage",
    "platform": "The platform: nodes, pods, the scheduler",
    "control": "Stopped or ended by somebody, or as a consequence",
    "unknown": "Not known",
}


def page() -> str:
    """The whole page as Markdown."""
    return _HEAD + "".join(map(_family, get_args(Family)))


def _family(family: Family) -> str:
    rows = [_row(cause) for cause in catalogue().values() if cause.family == family]
    head = (
        "| cause | meaning | role | again | node | evidence | advice |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    return f"\n## {_TITLES[family]}\n\n{head}{''.join(rows)}"


def _row(cause: CauseInfo) -> str:
    texts = (cause.title, cause.role, cause.retry, cause.node_action, cause.evidence, advice()[cause.slug])
    return f"| `{cause.slug}` | {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |\n"
