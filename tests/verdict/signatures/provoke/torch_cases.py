"""Words of torch in one process, on the CPU."""

from __future__ import annotations

import io
import os
import signal

import torch
from cases import case, main
from torch import nn
from torch.utils.data import DataLoader, Dataset


def checkpoint() -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(1000)}, buffer)
    return buffer.getvalue()


@case("user_code_exception")
def shapes() -> None:
    nn.Linear(3, 4)(torch.zeros(2, 5))


@case("user_code_exception")
def sizes() -> None:
    torch.zeros(3) + torch.zeros(4)


@case("user_code_exception")
def dtypes() -> None:
    torch.mm(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.float64))


@case("user_code_exception")
def no_grad() -> None:
    torch.zeros(3).sum().backward()  # type: ignore[no-untyped-call]


@case("user_code_exception")
def embedding_index() -> None:
    nn.Embedding(3, 2)(torch.tensor([5]))


@case("user_code_exception")
def group_absent() -> None:
    torch.distributed.get_rank(torch.distributed.group.WORLD)
    torch.distributed.barrier()


@case("user_code_exception")
def rank_absent() -> None:
    os.environ.pop("RANK", None)
    torch.distributed.init_process_group("gloo")


@case("no_gpu_visible")
def no_driver() -> None:
    torch.zeros(1).cuda()


@case("checkpoint_mismatch")
def state_dict() -> None:
    nn.Linear(3, 4).load_state_dict({"weight": torch.zeros(4, 5)})


@case("checkpoint_mismatch")
def optimizer() -> None:
    optimizer = torch.optim.Adam(nn.Linear(3, 4).parameters())
    state = optimizer.state_dict()
    state["param_groups"][0]["params"] = [0]
    optimizer.load_state_dict(state)


@case("checkpoint_corrupt")
def truncated() -> None:
    data = checkpoint()
    torch.load(io.BytesIO(data[: len(data) // 2]))


@case("checkpoint_corrupt")
def web_page() -> None:
    torch.load(io.BytesIO(b"<html>403</html>"))


@case("dataset_missing")
def absent() -> None:
    torch.load("/ckpt/step_100.pt")


@case("disk_full")
def full() -> None:
    torch.save({"a": torch.zeros(100_000)}, "/dev/full")


@case("host_alloc_failed")
def too_big() -> None:
    torch.zeros(1 << 46)


@case("nan_loss")
def clip() -> None:
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.tensor([float("nan")])
    torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)


@case("nan_loss")
def sampling() -> None:
    torch.multinomial(torch.tensor([float("nan"), 1.0]), 1)


@case("nan_loss")
def anomaly() -> None:
    with torch.autograd.detect_anomaly():
        x = torch.zeros(2, requires_grad=True)
        (x.sqrt() * 0).sum().backward()  # type: ignore[no-untyped-call]


class Faulty(Dataset[int]):
    """A data set whose reader meets a signal, an exit code or an exception."""

    def __init__(self, fault: int | str) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if isinstance(self.fault, str):
            raise ValueError(self.fault)  # noqa: TRY004 - the value is what is at fault here
        if self.fault < 0:
            os.kill(os.getpid(), -self.fault)
        os._exit(self.fault)


def load(fault: int | str) -> None:
    next(iter(DataLoader(Faulty(fault), num_workers=1)))


@case("dataloader_died")
def worker_exits() -> None:
    load(3)


@case("segfault")
def worker_segfault() -> None:
    load(-signal.SIGSEGV)


@case("shm_exhausted")
def worker_bus_error() -> None:
    load(-signal.SIGBUS)


@case("user_code_exception")
def worker_raises() -> None:
    load("cannot decode sample 3")


if __name__ == "__main__":
    main()
