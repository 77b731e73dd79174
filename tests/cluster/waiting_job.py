"""A job of one small slot that lives until a test lets it end: for what happens to a run while it runs."""

from __future__ import annotations

from typing import Any

from cluster.run_world import World, job
from support.helpers import wait_until

WAITS = "echo begun; while [ ! -e /tmp/go ]; do sleep 0.2; done; echo done"


def waiting(world: World, *, backend: str = "job", **fields: Any) -> dict[str, Any]:
    """The job file."""
    spec = job(backend=backend, namespace=world.namespace, **fields)
    return spec | {"command": ["sh", "-c", WAITS], "launcher": "exec", "nnodes": 1, "nproc_per_node": 1}


def runs(world: World, *, attempt: int = 1) -> str:
    """Wait until the slot of this attempt runs; the run's id."""
    run = world.only_run().name

    def running() -> bool:
        status = world.document("status", run)
        return status["attempts"] == attempt and [slot["state"] for slot in status["slots"]] == ["running"]

    wait_until(running, timeout=120, what="the slot")
    return run


def pod(world: World, *, attempt: int) -> str:
    """Name of the attempt's pod."""
    selector = f"rankfall.dev/attempt={attempt}"
    found = world.kubectl.get("pods", "--namespace", world.namespace, "--selector", selector)["items"]
    (name,) = [one["metadata"]["name"] for one in found]
    return str(name)


def go(world: World, *, attempt: int = 1) -> None:
    """Let the job end."""
    world.kubectl("exec", "--namespace", world.namespace, pod(world, attempt=attempt), "--", "touch", "/tmp/go")
