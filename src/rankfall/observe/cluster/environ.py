"""The ranks among the processes of a container: what is run there to see them, and what its answer says. Parsing is pure.

Of each process only the variables that name a rank leave the container, never its whole environment. A rank is a process that has RANK
and LOCAL_RANK while its parent has not both; where a container has two of one local rank, nothing is proved.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

# Plain POSIX with tr and grep, as busybox has them. First the clock: seconds since the epoch, and since the boot.
_SCRIPT: Final = r"""
echo "@clock $(date +%s) $(cut -d' ' -f1 /proc/uptime)"
for d in /proc/[0-9]*; do
  e=$(tr '\0' '\n' < $d/environ 2>/dev/null | grep -E '^(RANK|LOCAL_RANK|WORLD_SIZE)=[0-9]+$') || continue
  echo "@process ${d#/proc/} $(sed 's/.*) //' $d/stat 2>/dev/null)"
  echo "$e"
done
"""
COMMAND: Final = ("sh", "-c", _SCRIPT)
MAX_OUTPUT: Final = 1 << 20
_TICKS: Final = 100
# After the name in ``/proc/PID/stat`` come state, parent, ..., and as the 20th the start in ticks since the boot.
_PARENT, _START = 1, 19
_HIGHEST: Final = 999
_VARIABLE: Final = re.compile(r"(RANK|LOCAL_RANK|WORLD_SIZE)=(\d{1,7})")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's process.

    Attributes:
        pid, ticks: of its container's own counting; name the process.
        started: when it started, nanoseconds since the epoch by the node's clock, a second more or less.
    """

    rank: int
    local_rank: int
    pid: int
    ticks: int
    started: int


def read_ranks(text: str) -> dict[int, Seen]:
    """The ranks by local rank; empty where the answer proves none."""
    now = uptime = None
    found: dict[int, tuple[int, int, dict[str, int]]] = {}
    own: dict[str, int] = {}
    for line in text.split("\n"):
        words = line.split()
        if words[:1] == ["@clock"] and len(words) == 3 and words[1].isdecimal() and _decimal(words[2]):  # noqa: PLR2004 - word, clock, uptime
            now, uptime = int(words[1]), float(words[2])
        elif words[:1] == ["@process"]:
            own = {}
            rest = words[2:]
            if len(rest) > _START and words[1].isdecimal() and rest[_PARENT].isdecimal() and rest[_START].isdecimal():
                found[int(words[1])] = (int(rest[_PARENT]), int(rest[_START]), own)
        elif match := _VARIABLE.fullmatch(line.strip()):
            own[match[1]] = int(match[2])
    if now is None or uptime is None:
        return {}
    ranks: dict[int, Seen] = {}
    for pid, (parent, ticks, variables) in found.items():
        if not _is_rank(variables) or _is_rank(found.get(parent, (0, 0, {}))[2]):
            continue
        local = variables["LOCAL_RANK"]
        if local in ranks or local > _HIGHEST:
            return {}
        started = round((now - (uptime - ticks / _TICKS)) * 1e9)
        ranks[local] = Seen(rank=variables["RANK"], local_rank=local, pid=pid, ticks=ticks, started=started)
    return ranks


def _is_rank(variables: dict[str, int]) -> bool:
    """Whether a launcher made it a rank: RANK alone may be of the whole container, as the training operator sets it."""
    return variables.keys() >= {"RANK", "LOCAL_RANK"}


def _decimal(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
