"""A driver of Ray Train with its workers."""

import os

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from steps import train


def loop() -> None:
    """One worker."""
    torch.set_num_threads(1)
    train(ray.train.get_context().get_world_rank(), lambda: dist.all_reduce(torch.ones(4)))


if __name__ == "__main__":
    kept = {name: value for name, value in os.environ.items() if name.startswith("ZOO_") or name == "PYTHONPATH"}
    ray.init(num_cpus=8, include_dashboard=False, runtime_env={"env_vars": kept})
    world = int(os.environ["ZOO_WORLD"])
    TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=world),
        torch_config=TorchConfig(backend="gloo"),
        run_config=ray.train.RunConfig(storage_path=os.environ["ZOO_FOLDER"]),
    ).fit()
