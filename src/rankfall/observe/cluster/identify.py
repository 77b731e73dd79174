"""Looks which ranks run in a container of a job that Rankfall did not start, again and again: ranks may change places with every round.

It needs the right to exec and a shell in the image; where either is missing the ranks stay unknown, which is told once. A look is one exec
every 10 s a container, eight at once. What it proves holds for the processes that were seen, and so for one round. Where the processes show that
torchrun does not mark the lines of its ranks, nothing can be proved, and no look follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, KubeError
from rankfall.kube.exec import execute
from rankfall.observe.cluster.environ import COMMAND, MAX_OUTPUT, Seen, read_ranks
from rankfall.observe.cluster.instance import InstanceLog
from rankfall.observe.cluster.routes import USUAL_ROLES
from rankfall.observe.cluster.told import ROUND, Told, ToldRank, read_told, write_told
from rankfall.store.stream import IndexReader

_FIRST_S: Final = 1.0
_EVERY_S: Final = 10.0
_LIMIT_S: Final = 15.0
# The clock of a container is read in whole seconds.
_SLACK_NS: Final = 1_000_000_000
_AT_ONCE: Final = 8


class Identifier:
    """Looks into the containers of one session.

    Args:
        kube: an open client.
        namespace: of the pods.
        trouble: told why ranks stay unknown: name of the kind, words.
    """

    def __init__(self, kube: Kube, *, namespace: str, trouble: Callable[[str, str], None]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._trouble = trouble
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._denied = False

    async def watch(
        self, pod: str, *, container: str, log: InstanceLog, folder: Path, running: Callable[[], bool]
    ) -> None:
        """Look until the container has ended, or nothing can be seen."""
        pause = _FIRST_S
        while running():
            if self._denied:
                _settle(read_told(folder), log=log, folder=folder)
                return
            if not log.routes.tagged:
                # There is no line that a rank could be told of.
                await asyncio.sleep(_FIRST_S)
                continue
            if await self.look(pod, container=container, log=log, folder=folder):
                return
            await asyncio.sleep(pause)
            pause = min(_EVERY_S, 2 * pause)

    async def look(self, pod: str, *, container: str, log: InstanceLog, folder: Path) -> bool:
        """Look once, and write down what that proves; whether another look could prove nothing more.

        Raises:
            OSError: it could not be written.
        """
        # What is stored by now was written before the processes are looked at.
        sizes = dict(log.cursor.sizes)
        try:
            async with self._gate:
                done = await execute(
                    self._kube,
                    pod,
                    COMMAND,
                    container=container,
                    namespace=self._namespace,
                    timeout=_LIMIT_S,
                    max_output=MAX_OUTPUT,
                )
        except Forbidden as error:
            self._denied = True
            self._trouble(
                "ranks denied", f"ranks that only a look into their pods would tell stay unknown: {error.message}"
            )
            return False
        except KubeError as error:
            # Not running any more, not yet, or without a shell.
            self._trouble("ranks", f"which ranks run in {pod} cannot be seen: {error.message}")
            return False
        seen = read_ranks(done.stdout.decode("utf-8", "replace"))
        if not seen or any(one.marked is None for one in seen.values()):
            return False
        told = read_told(folder)
        if not all(one.marked for one in seen.values()):
            _settle(told, log=log, folder=folder)
            return True
        told = after_look(told, seen, sizes=sizes, folder=folder)
        write_told(folder, told)
        told.route(log.routes)
        return False


def _settle(told: Told, *, log: InstanceLog, folder: Path) -> None:
    told = msgspec.structs.replace(told, settled=True)
    write_told(folder, told)
    told.route(log.routes)


def after_look(told: Told, seen: Mapping[int, Seen], *, sizes: Mapping[str, int], folder: Path) -> Told:
    """What is proved after one more look.

    Args:
        told: what was proved before.
        seen: the ranks' processes by local rank.
        sizes: bytes of each stream, by its file, that were stored before the look.
        folder: of the streams.
    """
    now = {local: (one.pid, one.ticks) for local, one in seen.items()}
    base = told.base
    # Where some have ended and no other has come, the round goes on.
    if not told.processes or not now.items() <= told.processes.items():
        ranks = dict(told.ranks)
        if told.processes:
            # Another round: of the old one only what was stored before it was seen last is proved.
            for number, one in told.ranks.items():
                if one.until is None:
                    ranks[number] = msgspec.structs.replace(one, until=told.confirmed.get(number, one.since))
            base += ROUND
        for local, process in seen.items():
            ranks[base + local] = _of_process(process, folder / f"{base + local}.out.log")
        roles = tuple(sorted({one.role for one in seen.values() if one.role is not None}))
        told = Told(base=base, processes=now, ranks=ranks, roles=roles or told.roles or USUAL_ROLES)
    confirmed = told.confirmed | {base + local: sizes.get(f"{base + local}.out.log", 0) for local in now}
    return msgspec.structs.replace(told, confirmed=confirmed)


def _of_process(process: Seen, stream: Path) -> ToldRank:
    """The rank of a stream, from the first piece on that came after its process had started; a round before it may have written the rest."""
    since = 0
    if stream.exists():
        found = IndexReader(stream).offset_since(process.started - _SLACK_NS)
        since = stream.stat().st_size if found is None else found
    return ToldRank(rank=process.rank, proof=f"RANK of pid {process.pid} in its container", since=since)
