"""Programs that run inside pods, and small pods."""

from __future__ import annotations

from typing import Any

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


def pod(
    name: str, namespace: str, *command: str, image: str = "rankfall.test/python:3.11", **spec: Any
) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
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
