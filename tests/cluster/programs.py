"""Programs that run inside pods, and small pods."""

from __future__ import annotations

import os
from typing import Any

# A cluster that is not ours (KUBECONFIG_FOR_TESTS) has no image of the bed's.
GIVEN = os.environ.get("IMAGE_FOR_TESTS")
IMAGE = GIVEN or "rankfall.test/python:3.11"

TORCH = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {os.environ['NODE_NAME']}: sum {total.item():.0f}", flush=True)
dist.destroy_process_group()
"""


def pod(name: str, namespace: str, *command: str, image: str = IMAGE, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent" if image == GIVEN else "Never",
        "command": list(command),
        "resources": spec.pop("resources", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **spec,
        },
    }
