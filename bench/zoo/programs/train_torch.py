"""A rank of a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

import datetime as dt
import os

import torch
import torch.distributed as dist
from steps import train


def main() -> None:
    """Join the group and train."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=30))
    train(int(os.environ["RANK"]), lambda: dist.all_reduce(torch.ones(4)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
