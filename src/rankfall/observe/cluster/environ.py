"""The ranks among the processes of a container: what is run there to see them, and what its answer says. Parsing is pure.

Of each process only the variables that name a rank leave the container, never its whole environment, and the paths of the files that torchrun makes for
the output of its ranks. A rank is a process that has RANK and LOCAL_RANK while its parent has not both; where a container has two of one local rank,
nothing is proved. Its lines bear torchrun's prefix where both of its outputs are such files and its parent, which is torchrun, has them open for reading.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rankfall.model import numbers
from rankfall.model.patterns import anchored

# Plain POSIX with tr and grep, as busybox has them. First the clock: seconds since the epoch, and since the boot.
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
# The exit code proves nothing: the API server reports 0 when it loses the kubelet. Without this last line the answer is incomplete.
END: Final = "@end\n"
MAX_OUTPUT: Final = 1 << 20
_TICKS: Final = 100
# After the name in ``/proc/PID/stat`` come state, parent, ..., and as the 20th the start in ticks since the boot.
_PARENT, _START = 1, 19
_HIGHEST: Final = 999
_VARIABLE: Final = anchored(r"(RANK|LOCAL_RANK|WORLD_SIZE)=(\d{1,7})", limit=64)
_ROLE: Final = anchored(r"ROLE_NAME=(.{1,60})", limit=80)
# Seconds after which torchrun has opened what its ranks write.
_OPENED_S: Final = 3.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's process.

    Attributes:
        pid, ticks: of its container's own counting; name the process.
        started: when it started, nanoseconds since the epoch by the node's clock, a second more or less.
        role: name of its role; None = its torchrun does not say.
        marked: whether torchrun puts its prefix before each of its lines; None = it starts just now.
    """

    rank: int
    local_rank: int
    pid: int
    ticks: int
    started: int
    role: str | None = None
    marked: bool | None = False


class _Process(msgspec.Struct, kw_only=True):
    """What the answer says of one process that has any of the variables."""

    parent: int = 0
    ticks: int = 0
    variables: dict[str, int] = {}
    role: str | None = None
    outputs: dict[str, str] = {}


def read_ranks(text: str) -> dict[int, Seen]:
    """The ranks by local rank; empty if the answer is incomplete or proves none."""
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
    """Whether a launcher made it a rank: RANK alone may be of the whole container, as the training operator sets it."""
    return variables.keys() >= {"RANK", "LOCAL_RANK"}
