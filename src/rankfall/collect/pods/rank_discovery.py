"""Finds the ranks in a foreign job's container, by exec every 10 s.

Needs the right to exec and a shell. A proof is valid for one round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, KubeError
from rankfall.kube.exec.session import execute
from rankfall.model import numbers
from rankfall.model.patterns import anchored
from rankfall.rundir.cluster.log_routes import USUAL_ROLES
from rankfall.rundir.cluster.marks import ROUND, RankMap, RankMapEntry, read_rank_map, write_rank_map
from rankfall.rundir.streams.files import IndexReader

# POSIX with tr and grep, as in busybox. First the clock: seconds since epoch and boot.
_SCRIPT: Final = r"""
echo "@clock $(date +%s) $(cut -d' ' -f1 /proc/uptime)"
for d in /proc/[0-9]*; do
  e=$(tr '\0' '\n' < $d/environ 2>/dev/null | grep -E '^((RANK|LOCAL_RANK|WORLD_SIZE)=[0-9]+|ROLE_NAME=.+)$') || continue
  s=$(sed 's/.*) //' $d/stat 2>/dev/null)
  echo "@process ${d#/proc/} $s"
  echo "$e"
  echo "@out $(readlink $d/fd/1)"
  echo "@err $(readlink $d/fd/2)"
  p=${s#* }
  p=${p%% *}
  case " $seen " in *" $p "*) continue ;; esac
  seen="$seen $p"
  ls -l /proc/$p/fd 2>/dev/null | sed -n 's,.* \([0-9][0-9]*\) -> \(/.*/std[oe][ur][tr]\.log\)$,\1 \2,p' | while read -r n f; do
    grep -q '^flags:.*0$' /proc/$p/fdinfo/$n 2>/dev/null && echo "@reads $p $f"
  done
done
echo "@end"
"""
COMMAND: Final = ("sh", "-c", _SCRIPT)
# The API server reports exit code 0 when it loses the kubelet: only this line proves completeness.
END: Final = "@end\n"
MAX_OUTPUT: Final = 1 << 20
_TICKS: Final = 100
# Fields of ``/proc/PID/stat`` after the name; start in ticks since the boot.
_PARENT, _START = 1, 19
_HIGHEST: Final = 999
_VARIABLE: Final = anchored(r"(RANK|LOCAL_RANK|WORLD_SIZE)=(\d{1,7})", limit=64)
_ROLE: Final = anchored(r"ROLE_NAME=(.{1,60})", limit=80)
# Seconds until torchrun has opened its ranks' outputs.
_OPENED_S: Final = 3.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The process of one rank.

    Attributes:
        pid, ticks: Identify the process in its container.
        started: Start by the node's clock in nanoseconds, exact to a second.
        role: Name of its role, or None.
        marked: True if torchrun prefixes the rank's lines; None while the rank starts.
    """

    rank: int
    local_rank: int
    pid: int
    ticks: int
    started: int
    role: str | None = None
    marked: bool | None = False


class _Process(msgspec.Struct, kw_only=True):
    """One process with any of the variables, as the probe reports it."""

    parent: int = 0
    ticks: int = 0
    variables: dict[str, int] = {}
    role: str | None = None
    outputs: dict[str, str] = {}


def read_ranks(text: str) -> dict[int, Seen]:
    """Ranks by local rank; empty if the answer is incomplete."""
    if not text.endswith(f"\n{END}"):
        return {}
    now = uptime = None
    found: dict[int, _Process] = {}
    reads: set[tuple[int | None, str]] = set()
    own = _Process()
    for line in text.split("\n"):
        words = line.split()
        if words[:1] == ["@clock"] and len(words) == 3:  # noqa: PLR2004 - word, clock, uptime
            now, uptime = numbers.whole(words[1]), numbers.real(words[2])
        elif words[:1] == ["@process"]:
            own = _Process()
            rest = words[2:]
            if len(rest) > _START:
                pid, parent, ticks = map(numbers.whole, (words[1], rest[_PARENT], rest[_START]))
                if pid is not None and parent is not None and ticks is not None:
                    own.parent, own.ticks, found[pid] = parent, ticks, own
        elif words[:1] in (["@out"], ["@err"]):
            own.outputs[words[0]] = line[len("@out ") :]
        elif words[:1] == ["@reads"] and len(words) > 2:  # noqa: PLR2004 - word, process, path
            reads.add((numbers.whole(words[1]), line.split(" ", 2)[2]))
        elif match := _VARIABLE.fullmatch(line.strip()):
            own.variables[match[1]] = numbers.matched(match[2])
        elif match := _ROLE.fullmatch(line):
            own.role = match[1]
    if now is None or uptime is None:
        return {}
    ranks: dict[int, Seen] = {}
    for pid, one in found.items():
        if not _is_rank(one.variables) or _is_rank(found.get(one.parent, _Process()).variables):
            continue
        local = one.variables["LOCAL_RANK"]
        if local in ranks or local > _HIGHEST:
            return {}
        age = uptime - one.ticks / _TICKS
        marked = all(
            one.outputs.get(which, "").endswith(f"/{local}/{name}") and (one.parent, one.outputs[which]) in reads
            for which, name in (("@out", "stdout.log"), ("@err", "stderr.log"))
        )
        ranks[local] = Seen(
            rank=one.variables["RANK"],
            local_rank=local,
            pid=pid,
            ticks=one.ticks,
            started=round((now - age) * 1e9),
            role=one.role,
            marked=marked or (None if age < _OPENED_S else False),
        )
    return ranks


def _is_rank(variables: dict[str, int]) -> bool:
    """True if a launcher made it a rank; RANK alone may belong to the container (training operator)."""
    return variables.keys() >= {"RANK", "LOCAL_RANK"}


_FIRST_S: Final = 1.0
_EVERY_S: Final = 10.0
_LIMIT_S: Final = 15.0
# A container's clock has whole seconds.
_SLACK_NS: Final = 1_000_000_000
_AT_ONCE: Final = 8


class RankProber:
    """Probes the containers of one session."""

    def __init__(self, kube: Kube, *, namespace: str, trouble: Callable[[str, str], None]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._trouble = trouble
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._denied = False
        # Logs without a line of a rank.
        self._untagged: dict[asyncio.Future[None], tuple[InstanceLog, Callable[[], bool]]] = {}
        self._waking: asyncio.Task[None] | None = None

    async def watch(
        self, pod: str, *, container: str, log: InstanceLog, folder: Path, running: Callable[[], bool]
    ) -> None:
        """Probes until the container has ended or no probe can succeed."""
        pause = _FIRST_S
        while running():
            if self._denied:
                _settle(read_rank_map(folder), log=log, folder=folder)
                return
            if not log.routes.tagged:
                await self._tagged_line(log, running)
                continue
            if await self.look(pod, container=container, log=log, folder=folder):
                return
            await asyncio.sleep(pause)
            pause = min(_EVERY_S, 2 * pause)

    async def _tagged_line(self, log: InstanceLog, running: Callable[[], bool]) -> None:
        """Waits for a line to assign, or for a reason to stop; one task checks all logs: there may be thousands."""
        waiter = asyncio.get_running_loop().create_future()
        self._untagged[waiter] = log, running
        if self._waking is None:
            self._waking = asyncio.create_task(self._wake())
        try:
            await waiter
        finally:
            del self._untagged[waiter]

    async def _wake(self) -> None:
        while self._untagged:
            await asyncio.sleep(_FIRST_S)
            for waiter, (log, running) in self._untagged.items():
                if (self._denied or log.routes.tagged or not running()) and not waiter.done():
                    waiter.set_result(None)
        self._waking = None

    async def look(self, pod: str, *, container: str, log: InstanceLog, folder: Path) -> bool:
        """Probes once and stores the result. Returns True if another probe could prove no more.

        Raises:
            OSError: The rank map could not be written.
        """
        # Bytes stored by now precede the probe.
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
                "ranks denied", f"ranks that can be found only inside their pods remain unknown: {error.message}"
            )
            return False
        except KubeError as error:
            # The container does not run, or has no shell.
            self._trouble("ranks", f"cannot find the ranks in {pod}: {error.message}")
            return False
        seen = read_ranks(done.stdout.decode("utf-8", "replace"))
        if not seen or any(one.marked is None for one in seen.values()):
            return False
        rank_map = read_rank_map(folder)
        if not all(one.marked for one in seen.values()):
            _settle(rank_map, log=log, folder=folder)
            return True
        rank_map = update_rank_map(rank_map, seen, sizes=sizes, folder=folder)
        write_rank_map(folder, rank_map)
        rank_map.route(log.routes)
        return False


def _settle(rank_map: RankMap, *, log: InstanceLog, folder: Path) -> None:
    rank_map = msgspec.structs.replace(rank_map, settled=True)
    write_rank_map(folder, rank_map)
    rank_map.route(log.routes)


def update_rank_map(rank_map: RankMap, seen: Mapping[int, Seen], *, sizes: Mapping[str, int], folder: Path) -> RankMap:
    """Proofs after one more probe; ``sizes``: bytes by stream file, stored before the probe."""
    now = {local: (one.pid, one.ticks) for local, one in seen.items()}
    base = rank_map.base
    # The round continues if ranks only ended.
    if not rank_map.processes or not now.items() <= rank_map.processes.items():
        ranks = dict(rank_map.ranks)
        if rank_map.processes:
            # Of the old round, only bytes stored before its last probe are proved.
            for number, one in rank_map.ranks.items():
                if one.until is None:
                    ranks[number] = msgspec.structs.replace(one, until=rank_map.confirmed.get(number, one.since))
            base += ROUND
        for local, process in seen.items():
            ranks[base + local] = _of_process(process, folder / f"{base + local}.out.log")
        roles = tuple(sorted({one.role for one in seen.values() if one.role is not None}))
        rank_map = RankMap(base=base, processes=now, ranks=ranks, roles=roles or rank_map.roles or USUAL_ROLES)
    confirmed = rank_map.confirmed | {base + local: sizes.get(f"{base + local}.out.log", 0) for local in now}
    return msgspec.structs.replace(rank_map, confirmed=confirmed)


def _of_process(process: Seen, stream: Path) -> RankMapEntry:
    """Rank of a stream, from the first piece after its process started."""
    since = 0
    if stream.exists():
        found = IndexReader(stream).offset_since(process.started - _SLACK_NS)
        since = stream.stat().st_size if found is None else found
    return RankMapEntry(rank=process.rank, proof=f"RANK of pid {process.pid} in its container", since=since)
