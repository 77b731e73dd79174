"""A gang of 1,024 ranks on 128 nodes that fell: what its wrappers, hooks and pods leave, written as they write it.

One rank in the middle meets a bad shard; all others lose their peer a little later and say so at length: each error record has 20 KB.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rankfall.kube.object_fields import COMPLETION_INDEX
from rankfall.model import JobSpec

NODES, PER_NODE = 128, 8
RANKS: Final = NODES * PER_NODE
EACH_BYTES: Final = 20_000
CULPRIT: Final = 700
CAUSE: Final = "user_code_exception"
_SECOND: Final = 1_000_000_000
_FRAME: Final = '  File "/opt/train/lib/python3.11/site-packages/torch/nn/modules/module.py", line {n}, in _call_impl\n    return forward_call(*args)\n'


def spec() -> JobSpec:
    """The job."""
    return JobSpec(name="large", command=("train.py",), nnodes=NODES, nproc_per_node=PER_NODE, backend="job")


def pid(rank: int) -> int:
    """Of a rank's process."""
    return 100 + rank % PER_NODE


def pod(slot: int) -> str:
    """Name of a slot's pod."""
    return f"large-{slot}"


def node(slot: int) -> str:
    """Name of a slot's node."""
    return f"fake-{slot}"


def begin(run: str, slot: int, *, at: int) -> Iterator[dict[str, Any]]:
    """Records of a slot that starts."""
    yield _record(run, "slot_start", slot, at=at, writer="wrapper", launcher="torchrun")
    for rank in _ranks(slot):
        yield _record(
            run, "start", slot, at=at, rank=rank, pid=pid(rank), local_rank=rank % PER_NODE, ordinal=rank % PER_NODE,
            group_rank=slot, world_size=RANKS, local_world_size=PER_NODE, argv=["python", "train.py"], rank_source="env:RANK",
        )  # fmt: skip


def fall(run: str, slot: int, *, at: int) -> Iterator[dict[str, Any]]:
    """Records of its fall: an error of 20 KB and an end of each rank, the slot's end."""
    for rank in _ranks(slot):
        raised = at if rank == CULPRIT else at + 2 * _SECOND
        kind, text = (
            ("builtins.ValueError", "shard 0007 holds no samples")
            if rank == CULPRIT
            else ("builtins.RuntimeError", f"Connection closed by peer [10.64.{slot}.{rank % 200}]:51234")
        )
        error = {"types": [kind], "chain": [text], "message": text, "raised_ns": raised}
        error["frames"] = [{"file": "/work/train.py", "line": 41, "func": "step", "user": True}]
        said = _record(run, "error", slot, at=raised, rank=rank, pid=pid(rank), error=error, phase="step", step=1000)
        error["traceback"] = _traceback(EACH_BYTES - len(json.dumps(said)))
        yield said
        end = {"code": 1, "how": "pidfd"}
        yield _record(run, "end", slot, at=raised + _SECOND, rank=rank, pid=pid(rank), exit=end, writer="wrapper")
    yield _record(run, "slot_end", slot, at=at + 4 * _SECOND, exit={"code": 1, "how": "wait"}, writer="wrapper")


def write(folder: Path, record: dict[str, Any]) -> None:
    """One record as a file, under a temporary name first."""
    name = f"{record['kind']}-a1-worker-{record['slot']}-{record['id']}.json"
    temporary = folder / f".{name}.tmp"
    temporary.write_text(json.dumps(record))
    os.utime(temporary, ns=(record["at_ns"], record["at_ns"]))
    temporary.rename(folder / name)


def pod_object(slot: int, *, ended: bool, at: str) -> dict[str, Any]:
    """What the API says of a slot's pod.

    Args:
        slot: whose.
        ended: the container has ended with 1, as torchrun's does whatever happened.
        at: a stamp of the API.
    """
    running = {"state": {"running": {"startedAt": at}}, "ready": True}
    over = {
        "state": {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": at, "finishedAt": at}},
        "ready": False,
    }
    container = {"name": "main", "restartCount": 0, "containerID": f"containerd://{slot:064x}", "image": "train:1"}
    kinds = ("PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    conditions: list[dict[str, object]] = [{"type": one, "status": "True", "lastTransitionTime": at} for one in kinds]
    status = {"phase": "Failed" if ended else "Running", "conditions": conditions, "startTime": at}
    status["containerStatuses"] = [container | (over if ended else running)]
    labels = {COMPLETION_INDEX: str(slot), "rankfall.dev/role": "worker", "rankfall.dev/attempt": "1"}
    meta = {"name": pod(slot), "uid": f"00000000-0000-4000-8000-{slot:012d}", "labels": labels, "creationTimestamp": at}
    return {"metadata": meta, "spec": {"nodeName": node(slot), "containers": [{"name": "main"}]}, "status": status}


def _ranks(slot: int) -> range:
    return range(slot * PER_NODE, (slot + 1) * PER_NODE)


def _record(run: str, kind: str, slot: int, *, at: int, **fields: Any) -> dict[str, Any]:
    said = {
        "schema": "rankfall.record/1",
        "id": f"rec-{kind.replace('_', '-')}-{slot}-{fields.get('rank', 'slot')}",
        "kind": kind,
        "run": run,
    }
    place = {"attempt": 1, "role": "worker", "slot": slot, "node": node(slot), "pod": pod(slot), "writer": "hook"}
    return said | place | {"at_ns": at, "mono_ns": at} | fields


def _traceback(size: int) -> str:
    """So many bytes of a trace; in JSON each line end takes one byte more."""
    text, number = "Traceback (most recent call last):\n", 0
    while len(text) < size:
        number += 1
        text += _FRAME.format(n=number)
    return text[: size - text.count("\n")]
