"""Faults that strike one rank of a job, and what the text of each supports. Runs inside jobs: the standard library alone; torch where a fault names it."""

import argparse
import ctypes
import http.server
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        strike: called in the rank; raises, or ends the process.
        causes: slugs that the text of the failed job supports, best first.
        retry: "no" where the same would happen again, "maybe" where a second attempt may help, "elsewhere" where another node may.
        torch: needs torch.
        silent: the process prints nothing.
    """

    strike: Callable[[], object]
    causes: tuple[str, ...]
    retry: str
    torch: bool = False
    silent: bool = False


def _key() -> object:
    return {"text": 1}["images"]


def _chained() -> None:
    try:
        int("12a")
    except ValueError as error:
        raise RuntimeError("cannot read sample 12a of shard 7") from error


def _assertion() -> None:
    batch, devices = 10, 3
    assert batch % devices == 0, f"batch size {batch} is not divisible by {devices} devices"


def _module() -> None:
    import flash_attention_nowhere  # type: ignore[import-not-found]  # noqa: F401


def _syntax() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "my_model_config.py"), "w") as file:
            file.write("layers = (12\nheads = 8\n")
        sys.path.insert(0, folder)
        import my_model_config  # type: ignore[import-not-found]  # noqa: F401


def _missing_file() -> None:
    open("/data/train/shard-0007.tar", "rb").close()


def _forbidden_file() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)
    open("/etc/shadow").close()


def _full_disk() -> None:
    with open("/dev/full", "wb") as file:
        file.write(b"x" * 100)


def _refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    urllib.request.urlopen(f"http://127.0.0.1:{port}/datasets/c4/train.json", timeout=5)


def _answering(status: int) -> Callable[[], None]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            pass

    def ask() -> None:
        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/models/base/config.json", timeout=5)

    return ask


def _silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/shard-1", timeout=0.5)


def _host_name() -> None:
    socket.create_connection(("head-0.training.invalid", 29500), timeout=5)


def _open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [open("/dev/null") for _ in range(100)]
    del kept


def _memory() -> int:
    # Without a limit the kernel may promise more than it has.
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    return len(bytearray(1 << 40))


def _recursion() -> None:
    def walk(node: dict[str, object]) -> None:
        walk({"parent": node})

    walk({})


def _arguments() -> None:
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--lr", type=float)
    parser.parse_args(["--lr", "fast"])


def _nan() -> None:
    loss = float("nan")
    raise FloatingPointError(f"loss is {loss} at step 3, stopping training")


def _command() -> None:
    subprocess.run(["tar", "-xf", "/nonexistent/shard.tar"], check=True)


def _no_command() -> None:
    subprocess.run(["azcopy-nowhere", "sync"], check=True)


def _bad_json() -> None:
    json.loads('{"text": "a cat sits on')


def _segfault() -> None:
    ctypes.string_at(0)


def _bus_error() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(8192)
        view = mmap.mmap(file.fileno(), 8192)
        file.truncate(0)
        view[4096] = 1


class _Signal:
    """Sends a signal to its own process; a class, because data workers of spawned processes unpickle it."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __call__(self) -> None:
        if self.number == signal.SIGINT:
            # A shell starts its background jobs without it.
            signal.signal(self.number, signal.default_int_handler)
        os.kill(os.getpid(), self.number)
        time.sleep(60)


def _state_dict() -> None:
    import torch

    torch.nn.Linear(4, 4).load_state_dict(torch.nn.Linear(8, 4).state_dict())


def _checkpoint() -> None:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step_300.pt")
        torch.save({"weights": torch.zeros(1000)}, path)
        os.truncate(path, 900)
        torch.load(path)


class _Samples:
    def __init__(self, strike: Callable[[], object]) -> None:
        self.strike = strike

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.strike()
        return index


def _loader(strike: Callable[[], object]) -> Callable[[], None]:
    def read() -> None:
        from torch.utils.data import DataLoader

        list(DataLoader(_Samples(strike), num_workers=1, batch_size=2))  # type: ignore[arg-type]

    return read


def _device() -> None:
    import torch

    torch.zeros(1, device="cuda")


def _shapes() -> object:
    import torch

    return torch.zeros(2, 3) @ torch.zeros(4, 5)


_USER = ("user_code_exception",)
# Causes were written down before the first job; some were widened after the texts of a launcher had been read (launchers.py, without_words).
FAULTS: dict[str, Fault] = {
    "key": Fault(_key, _USER, "no"),
    "chained": Fault(_chained, (*_USER, "bad_sample"), "no"),
    "assertion": Fault(_assertion, (*_USER, "bad_parallel_config"), "no"),
    "module": Fault(_module, ("import_error",), "no"),
    "syntax": Fault(_syntax, ("import_error", *_USER), "no"),
    "missing_file": Fault(_missing_file, ("dataset_missing",), "no"),
    "forbidden_file": Fault(_forbidden_file, ("permission_denied",), "no"),
    "full_disk": Fault(_full_disk, ("disk_full",), "maybe"),
    "refused": Fault(_refused, ("hub_unreachable", *_USER), "maybe"),
    "http_429": Fault(_answering(429), ("hub_rate_limit",), "maybe"),
    "http_503": Fault(_answering(503), ("hub_unreachable",), "maybe"),
    "http_401": Fault(_answering(401), ("credentials_rejected",), "no"),
    "silent_server": Fault(_silent_server, ("hub_unreachable", *_USER), "maybe"),
    "host_name": Fault(_host_name, ("hostname_resolution",), "maybe"),
    "open_files": Fault(_open_files, _USER, "no"),
    "memory": Fault(_memory, ("host_alloc_failed",), "maybe"),
    "recursion": Fault(_recursion, _USER, "no"),
    "exit_3": Fault(lambda: sys.exit(3), ("user_exit",), "no", silent=True),
    "hard_exit_7": Fault(lambda: os._exit(7), ("user_exit",), "no", silent=True),
    "exit_message": Fault(
        lambda: sys.exit("config: unknown dataset 'c5'"), ("user_exit", "bad_arguments"), "no", silent=True
    ),
    "arguments": Fault(_arguments, ("bad_arguments",), "no"),
    "nan": Fault(_nan, ("nan_loss",), "no"),
    "command": Fault(_command, (*_USER, "dataset_missing"), "no"),
    "no_command": Fault(_no_command, ("command_not_found", *_USER), "no"),
    "bad_json": Fault(_bad_json, (*_USER, "bad_sample"), "no"),
    "segfault": Fault(_segfault, ("segfault",), "no", silent=True),
    "bus_error": Fault(_bus_error, ("shm_exhausted", "native_abort", "segfault"), "maybe", silent=True),
    "abort": Fault(os.abort, ("native_abort",), "no", silent=True),
    "killed": Fault(_Signal(signal.SIGKILL), ("killed_unknown", "host_oom"), "maybe", silent=True),
    "terminated": Fault(_Signal(signal.SIGTERM), ("external_signal",), "maybe", silent=True),
    "interrupted": Fault(_Signal(signal.SIGINT), ("cancelled", "external_signal"), "maybe"),
    "state_dict": Fault(_state_dict, ("checkpoint_mismatch",), "no", torch=True),
    "checkpoint": Fault(_checkpoint, ("checkpoint_corrupt",), "maybe", torch=True),
    "loader_key": Fault(_loader(_key), _USER, "no", torch=True),
    "loader_killed": Fault(
        _loader(_Signal(signal.SIGKILL)), ("dataloader_died", "killed_unknown"), "maybe", torch=True
    ),
    "device": Fault(_device, ("no_gpu_visible",), "elsewhere", torch=True),
    "shapes": Fault(_shapes, _USER, "no", torch=True),
}


def strike(name: str) -> None:
    """Let the fault ``name`` strike this rank; returns where it does not end the process."""
    FAULTS[name].strike()
