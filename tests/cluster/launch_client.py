"""A client that does nothing but launch: a process of its own, so that it can be killed at any request.

Takes the path of a JSON file with what to launch; prints what came of it as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rankfall.backends.kubernetes.lifecycle.launch import Launched, launch
from rankfall.backends.kubernetes.lifecycle.ownership import resource_of
from rankfall.backends.kubernetes.manifests.request import Compiled
from rankfall.kube.auth.kubeconfig import load_access
from rankfall.kube.client import Kube


def order(made: Compiled, **options: Any) -> dict[str, Any]:
    """What to launch, as it goes into the file."""
    return {
        "first": list(made.objects[: made.workload]),
        "workload": made.objects[made.workload],
        "companions": list(made.objects[made.workload + 1 :]),
        "request_token": made.request_token,
        "hold": not made.release,
        **options,
    }


async def carry_out(kube: Kube, what: dict[str, Any], said: list[str]) -> Launched:
    given = dict(what)
    workload, companions = given.pop("workload"), given.pop("companions")
    return await launch(kube, workload, companions, resource=resource_of(workload), say=said.append, **given)


async def main(what: dict[str, Any]) -> None:
    async with Kube(load_access(kubeconfig=what.pop("kubeconfig"))) as kube:
        done = await carry_out(kube, what, [])
    print(json.dumps({"uid": done.uid, "outcome": done.outcome, "requests": done.requests}))


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
