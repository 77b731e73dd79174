"""A thousand pods followed at once: how soon all are open, what a stream costs in memory, and what silence costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench.common import Row
from bench.logs.clients import Client, start
from bench.logs.scene import scene, until
from bench.logs.speed import FLEET_SPEC, Where
from testbed.ondemand import kwok
from testbed.ondemand.fake import Fleet

PODS: Final = 1000
OPEN_S, STREAM_KIB, SILENT_SHARE = 30.0, 150.0, 0.05
_QUIET_S: Final = 20.0
_LIMIT_S: Final = 300.0


def rows(where: Where, fleet: Fleet) -> list[Row]:
    """The rows of the page."""
    folder = where.folder / "thousand"
    folder.mkdir()
    fleet.log().write_bytes(b"")
    fleet.say(None, "first")
    section = {"node_selector": dict(kwok.SELECTOR), "tolerations": [kwok.TOLERATION]}
    with scene(
        where.kubectl,
        config=where.config,
        namespace=where.namespace,
        folder=folder,
        pods=PODS,
        section=section,
        spec=FLEET_SPEC,
    ) as pods:
        client = start("ours", pods, folder / "ours")
        try:
            run = folder / "ours" / "home" / "runs" / pods.run
            until(lambda: _heard(run) > 0, "a first line", pause_s=0.05)
            # Everything that one stream needs is loaded by now.
            began, before = time.monotonic(), client.memory_kib()
            until(lambda: _heard(run) == PODS, "a line of each pod", limit_s=_LIMIT_S)
            took, heard = time.monotonic() - began, client.memory_kib()
            share = _silent(client)
            refused = (run / "events.jsonl").read_text().count("log 429")
        finally:
            client.end()
        shown = start("typed", pods, folder / "typed")
        try:
            until(lambda: shown.text().count(b"first") == PODS, "a shown line of each pod", limit_s=_LIMIT_S)
            typed = _silent(shown)
        finally:
            shown.end()
    stream = (heard - before) / PODS
    return [
        Row(
            f"{PODS} pods: all followed (KWOK)",
            f"{took:.0f} s, {refused} refused with 429",
            f"{OPEN_S:.0f} s, none",
            took <= OPEN_S and not refused,
            "from the first line of any pod to a line of each",
        ),
        Row(
            f"{PODS} pods: memory a stream",
            f"{stream:.0f} KiB",
            f"{STREAM_KIB:.0f} KiB",
            stream <= STREAM_KIB,
            f"resident memory of the whole client, {before / 1024:.0f} MiB with the first and {heard / 1024:.0f} MiB with all",
        ),
        Row(
            f"{PODS} pods: all of the client's memory, divided by {PODS}",
            f"{heard / PODS:.0f} KiB",
            f"{STREAM_KIB:.0f} KiB",
            heard / PODS <= STREAM_KIB,
            f"the same {heard / 1024:.0f} MiB, Python and all its modules in it",
        ),
        Row(
            f"{PODS} pods: CPU while all are silent",
            f"{share:.1%} of a core",
            f"{SILENT_SHARE:.0%}",
            share <= SILENT_SHARE,
            f"over {_QUIET_S:.0f} s, state and verdict of the run kept meanwhile",
        ),
        Row(
            f"{PODS} pods: CPU of `rankfall logs -f` while all are silent",
            f"{typed:.1%} of a core",
            f"{SILENT_SHARE:.0%}",
            typed <= SILENT_SHARE,
            f"over {_QUIET_S:.0f} s, recorder and console in one process",
        ),
    ]


def _silent(client: Client) -> float:
    """The share of a core that a client uses while no pod prints."""
    time.sleep(_QUIET_S / 4)
    clock, cpu = time.monotonic(), client.cpu
    time.sleep(_QUIET_S)
    return (client.cpu - cpu) / (time.monotonic() - clock)


def _heard(run: Path) -> int:
    return sum(1 for path in run.glob("logs/attempt-1/*/*/slot.out.log") if path.stat().st_size)
