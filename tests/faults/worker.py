"""The training program that the fault matrix lets fall: steps of gloo all_reduce, like DDP, and primitive actions from a plan.

The plan is a JSON file under a random name (``PLAN``); it says what a rank does at which step and never what that is called, so
neither the output nor the code under test can know the fault. Actions stand in ``ACTIONS``; most end the rank in their own way.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import datetime as dt
import importlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

PLAN = Path(os.environ["PLAN"])
RANK = int(os.environ.get("RANK", "0"))


class StoreUnavailable(Exception):
    """An error of the user's own library."""


class Unprintable(Exception):
    """An exception that fails once more when it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def mark(step: int) -> None:
    """Tell whoever acts from outside that this rank is here, and which processes stand above it."""
    note = {"pid": os.getpid(), "ppid": os.getppid(), "wrapper": os.environ.get("RANKFALL_WRAPPER"), "step": step}
    scratch = PLAN.with_suffix(f".{RANK}.tmp")
    scratch.write_text(json.dumps(note))
    scratch.replace(PLAN.with_suffix(f".{RANK}.here"))


def until(path: Path) -> None:
    """Wait until the outside has answered."""
    while not path.exists():
        time.sleep(0.01)


_NUMBERS = itertools.count(1)


def count_aloud() -> None:
    """Print a numbered line, and keep the number where no reader of logs has a part in it."""
    number = next(_NUMBERS)
    print("line", number, flush=True)
    attempt = os.environ.get("RANKFALL_ATTEMPT", "1")
    with PLAN.with_suffix(f".{RANK}.a{attempt}.printed").open("a") as file:
        file.write(f"{number}\n")


def do_ask(what: dict[str, Any]) -> None:
    """Say that this rank is here, and go on when the outside has answered."""
    mark(0)
    until(PLAN.with_suffix(".go"))


def do_burst(what: dict[str, Any]) -> None:
    """Many numbered lines at once, when the outside says that it is time."""
    until(PLAN.with_suffix(".second"))
    for _ in range(what["lines"]):
        count_aloud()


def do_raise(what: dict[str, Any]) -> NoReturn:
    name, text = what["type"], what.get("text", "")
    if name in {"Retryable", "Final"}:
        raise getattr(importlib.import_module("rankfall_inside"), name)(text)
    if name in globals():
        raise globals()[name](text)
    kind = getattr(__import__("builtins"), name)
    cause = what.get("cause")
    if cause:
        try:
            do_raise({"type": cause, "text": what.get("cause_text", "")})
        except Exception as error:
            raise kind(text) from error
    if name == "ExceptionGroup":
        raise kind(text, [KeyError("token_type"), ValueError("bad length 0")])
    raise kind(*what["args"]) if "args" in what else kind(text)


def do_thread(what: dict[str, Any]) -> None:
    thread = threading.Thread(target=do_raise, args=(what,), name="prefetch")
    thread.start()
    thread.join()
    sys.exit(1)


def do_import(what: dict[str, Any]) -> None:
    if "source" in what:
        folder = PLAN.parent / f"lib{RANK}"
        folder.mkdir(exist_ok=True)
        (folder / f"{what['module']}.py").write_text(what["source"])
        sys.path.insert(0, str(folder))
    importlib.import_module(what["module"])


def do_recurse(what: dict[str, Any]) -> None:
    def descend(depth: int) -> int:
        return descend(depth + 1) + 1

    descend(0)


def do_allocate(what: dict[str, Any]) -> None:
    if what.get("ask"):
        do_ask(what)
    # Kept and touched, so that it is memory and not only addresses.
    blocks = [bytearray(os.urandom(1 << 10) * (1 << 10)) for _ in range(what["mib"])]
    print(len(blocks), "MiB cached", flush=True)


def do_command(what: dict[str, Any]) -> None:
    subprocess.run(what["argv"], check=True)


def do_child(what: dict[str, Any]) -> None:
    """A child of this rank that takes all the memory there is."""
    grow = f"held = [bytearray(b'x' * (1 << 20)) for _ in range({what['mib']})]"
    subprocess.run((sys.executable, "-c", grow), check=True)


def do_arguments(what: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.parse_args(["--precision", "int3"])


def do_fill(what: dict[str, Any]) -> None:
    folder = Path(os.environ["SCRATCH"])
    with (folder / "checkpoint.pt").open("wb", buffering=0) as file:
        for _ in range(64):
            file.write(bytes(1 << 16))


def do_bind(what: dict[str, Any]) -> None:
    port = int(os.environ["BUSY_PORT"])
    if what.get("store"):
        import torch.distributed as dist  # noqa: PLC0415 - torch loads only where it is needed

        store: Any = vars(dist)["TCPStore"]
        store("127.0.0.1", port, is_master=True)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


def do_loader(what: dict[str, Any]) -> None:
    """A data loader whose child meets its end, as ``what['child']`` says."""
    import torch  # noqa: PLC0415 - as above
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415 - as above

    class Samples(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            if index == 9 and what["child"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if index == 9 and what["child"] == "raises":
                raise ValueError("cannot decode sample 9: bad JPEG header")
            return torch.zeros(1 << 20 if what["child"] == "large" else 8)

    for _ in DataLoader(Samples(), batch_size=4, num_workers=1):
        pass


def do_error_file(what: dict[str, Any]) -> None:
    path = Path(os.environ.get("TORCHELASTIC_ERROR_FILE") or PLAN.with_suffix(".error"))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = what["text"]
    path.write_text(text * what.get("times", 1))


def do_mismatch(what: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415 - as above
    import torch.distributed as dist  # noqa: PLC0415 - as above

    if what["how"] == "size":
        dist.all_reduce(torch.zeros(500))
    else:
        dist.broadcast(torch.zeros(1000), src=RANK)


def do_at_exit(what: dict[str, Any]) -> None:
    atexit.register(do_raise, what)


def do_null(what: dict[str, Any]) -> None:
    ctypes.string_at(0)


def do_hang(what: dict[str, Any]) -> None:
    while True:
        time.sleep(3600)


def do_spin(what: dict[str, Any]) -> None:
    while True:
        pass


ACTIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "ask": do_ask,
    "command": do_command,
    "burst": do_burst,
    "raise": do_raise,
    "thread": do_thread,
    "atexit": do_at_exit,
    "exit": lambda what: sys.exit(what["code"]),
    "os_exit": lambda what: os._exit(what["code"]),
    "leave": lambda _: sys.exit(0),
    "signal": lambda what: os.kill(os.getpid(), what["number"]),
    "abort": lambda _: os.abort(),
    "null": do_null,
    "import": do_import,
    "recurse": do_recurse,
    "allocate": do_allocate,
    "child": do_child,
    "arguments": do_arguments,
    "fill": do_fill,
    "bind": do_bind,
    "loader": do_loader,
    "error_file": do_error_file,
    "mismatch": do_mismatch,
    "hang": do_hang,
    "spin": do_spin,
    "sleep": lambda what: time.sleep(what["seconds"]),
    "print": lambda what: print(what["text"], flush=True),
    "mark": lambda _: mark(0),
}


def act(plan: dict[str, Any], when: int | str) -> None:
    """Carry out what the plan holds for this rank, here and in this attempt."""
    attempt = int(os.environ.get("RANKFALL_ATTEMPT", "1"))
    for what in plan["actions"]:
        ranks = what.get("ranks")
        if (ranks is None or RANK in ranks) and what["when"] == when and attempt in what.get("attempts", [1]):
            ACTIONS[what["do"]](what)


def gloo(plan: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    """A process group of torch: one step, and the end."""
    import torch  # noqa: PLC0415 - as above
    import torch.distributed as dist  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=plan.get("timeout", 60)))
    gradient = torch.ones(1000)

    def step() -> None:
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())

    def end() -> None:
        dist.barrier()
        dist.destroy_process_group()

    return step, end


def star(plan: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    """The same over plain sockets."""
    group = importlib.import_module("star").Star()
    return lambda: group.all_reduce(1.0), group.close


def main() -> None:
    """Import, rendezvous, steps, teardown: the places where a rank can fall."""
    plan = json.loads(PLAN.read_text())
    act(plan, "import")
    torch = plan.get("torch", True)
    progress: Callable[[int], None] | None = None
    if plan["progress"]:
        progress = importlib.import_module("rankfall_inside").progress

    def train() -> None:
        act(plan, "init")
        one_step, end = (gloo if torch else star)(plan)
        for step in range(1, plan.get("steps", 30) + 1):
            act(plan, step)
            one_step()
            if progress:
                progress(step)
            if plan.get("count"):
                count_aloud()
            if step % 10 == 0:
                print(f"step {step} loss {1 / step:.3f}", flush=True)
            time.sleep(plan.get("pace", 0.02))
        act(plan, "teardown")
        end()

    if torch:
        # As torch's documentation asks: the error goes to the launcher's file, too. Some faults strike before torch is there.
        train = importlib.import_module("torch.distributed.elastic.multiprocessing.errors").record(train)
    train()


if __name__ == "__main__":
    main()
