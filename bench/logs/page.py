"""The tables as text, and where they stand in documents. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.logs.numbers import Seen

# Of tools that this machine does not have: what their own texts and code say. Sources: their issues, named in the row.
PUBLISHED: Final = """\
| tool | what it publishes about a follow |
| --- | --- |
| stern | a stream that ends in order ends the follow of that container without a word (stern issue 361, open; the change of pull request 362 was not merged); at most 50 containers, above that it exits; after an error it opens again from a second and skips as many lines as it had printed of it, which is wrong when the file was rotated between |
| NeMo-Run 0.11 | follows by a `kubectl logs` process, started again from one stamp for all pods; nothing removes what comes twice. On an earlier test bed, 160,000 lines under resets with a mean life of 5 s: 89,456 lost, 190 repeated; calm: 0 lost, 900 repeated; 2.5 s of CPU for 100,000 lines of a replay and 6.7 s live, beside kubectl's 0.51 s and 1.6 s |
"""


@dataclass(frozen=True)
class Loss:
    """One row of the table of losses.

    Attributes:
        condition: what was done to the connections.
        tool: whose row.
        seen: what it made of the lines.
        ended: how it ended, in words.
    """

    condition: str
    tool: str
    seen: Seen
    ended: str


def loss_table(rows: Sequence[Loss]) -> str:
    """What is lost when the connection is cut, as a Markdown table."""
    lines = [
        "| the connections | tool | lines written | seen | lost | repeated | how it ended |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        one = row.seen
        torn = f", {one.strange:,} torn" if one.strange else ""
        lines.append(
            f"| {row.condition} | {row.tool} | {one.written:,} | {one.seen:,} | {one.lost:,} | {one.repeated:,}{torn} | {row.ended} |"
        )
    return "\n".join(lines) + "\n"


def section(text: str, told: str) -> str:
    """Returns a part of the page: its table, and when it was measured."""
    return f"{text}\n{told}\n"


def replaced(page: str, part: str, text: str) -> str:
    """The page with this text in the place of a part.

    Raises:
        ValueError: the page has no such part.
    """
    begin, end = f"<!-- part {part} -->\n", f"<!-- /part {part} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part {part}")
    return head + begin + text + end + tail
