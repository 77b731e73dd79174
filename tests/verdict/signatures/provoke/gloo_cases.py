"""Words of torch.distributed with gloo: two real ranks, forked from a parent that has torch loaded already."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
from cases import case, main
from torch.nn.parallel import DistributedDataParallel

SHORT = dt.timedelta(seconds=2)


def start() -> None:
    dist.init_process_group("gloo", timeout=SHORT)


def two(work: Callable[[int], None], *, detail: bool = False) -> None:
    """Run ``work(rank)`` in two processes and wait for both; what they print goes where ours goes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(2):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.dup2(1, 2)
            os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            if detail:
                os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
                dist.set_debug_level_from_env()  # type: ignore[attr-defined]  # there, though not listed
            try:
                work(rank)
            except BaseException:  # noqa: BLE001 - every way to fail is what this program is for
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@case("peer_lost")
def peer_killed() -> None:
    def work(rank: int) -> None:
        start()
        dist.barrier()
        if rank == 1:
            die()
        dist.all_reduce(torch.ones(1))
        dist.barrier()

    two(work)


@case("collective_timeout")
def peer_absent() -> None:
    def work(rank: int) -> None:
        start()
        if rank == 1:
            signal.alarm(6)
            signal.pause()
        dist.all_reduce(torch.ones(1))

    two(work)


@case("collective_timeout")
def monitored_barrier() -> None:
    def work(rank: int) -> None:
        start()
        if rank == 1:
            signal.alarm(6)
            signal.pause()
        dist.monitored_barrier(timeout=dt.timedelta(seconds=1))

    two(work)


@case("collective_mismatch")
def mismatch() -> None:
    def work(rank: int) -> None:
        start()
        if rank == 1:
            dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.zeros(2))
        else:
            dist.all_reduce(torch.ones(1))

    two(work, detail=True)


@case("collective_mismatch")
def models_differ() -> None:
    def work(rank: int) -> None:
        start()
        DistributedDataParallel(torch.nn.Linear(2 + rank, 2))

    two(work)


class Unused(torch.nn.Module):
    """A module with a layer that takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(2, 2)
        self.idle = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.used(x))


@case("ddp_unused_parameters")
def unused() -> None:
    def work(rank: int) -> None:
        start()
        model = DistributedDataParallel(Unused())
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()

    two(work)


@case("peer_lost")
def store_host_killed() -> None:
    def work(rank: int) -> None:
        start()
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            signal.alarm(1)
            signal.pause()
        store.wait(["never"])

    two(work)


@case("collective_timeout")
def store_wait() -> None:
    def work(rank: int) -> None:
        start()
        if rank == 0:
            signal.alarm(5)
            signal.pause()
        dist.distributed_c10d._get_default_store().wait(["never"], dt.timedelta(seconds=1))

    two(work)


@case("rdzv_closed")
def member_missing() -> None:
    def work(rank: int) -> None:
        if rank == 0:
            start()

    two(work)


@case("rdzv_unreachable")
def host_missing() -> None:
    def work(rank: int) -> None:
        if rank == 1:
            start()

    two(work)


@case("address_in_use")
def port_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(taken.getsockname()[1]))
        start()


@case("nccl_socket_interface")
def no_interface() -> None:
    def work(rank: int) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "ib7"
        start()

    two(work)


if __name__ == "__main__":
    main()
