"""All ranks by torch.multiprocessing.spawn."""

import datetime as dt
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from steps import train


def main(rank: int, world: int) -> None:
    """Join the group and train."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{os.environ['ZOO_PORT']}",
        rank=rank,
        world_size=world,
        timeout=dt.timedelta(seconds=30),
    )
    train(rank, lambda: dist.all_reduce(torch.ones(4)))


if __name__ == "__main__":
    count = int(os.environ["ZOO_WORLD"])
    mp.spawn(main, args=(count,), nprocs=count)
