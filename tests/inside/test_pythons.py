"""The same under every Python that a user's image may have: real interpreters, wrapper and rank."""

from __future__ import annotations

import json
import sys

import pytest

from rankfall.backends.payload import build_zip

from .conftest import channel

TEXT = """
import threading
from rankfall_inside import Retryable, progress
progress(7)
print("hello")
t = threading.Thread(target=lambda: None); t.start(); t.join()
try:
    raise OSError("disk")
except OSError as error:
    raise Retryable("again") from error
"""


@pytest.mark.parametrize("version", ["3.9", "3.11", "3.13"])
def test_wrapper_and_hook_work(slot, find_python, version: str) -> None:
    python = find_python(version)
    script = slot.script(TEXT)
    assert slot.run(python, script, python=python, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1").returncode == 1
    assert slot.one("start").python.startswith(version + ".")
    error = slot.one("error")
    assert (error.error.types, error.error.mark, error.step) == (
        ("rankfall_inside.api.Retryable", "OSError"),
        "retryable",
        7,
    )
    assert slot.stream("0.out") == b"hello\n"
    assert slot.one("end").exit.code == 1


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_plain_ranks_work_and_multiprocessing_errors_are_seen(slot, find_python, version: str) -> None:
    python = find_python(version)
    text = """
import multiprocessing as mp, os
def work():
    os.environ["RANK"] = "1"
    import colorsys
    raise KeyError("inner")
if __name__ == "__main__":
    p = mp.get_context("spawn").Process(target=work); p.start(); p.join()
"""
    assert slot.run(python, slot.script(text), python=sys.executable).returncode == 0
    assert slot.one("error").error.types == ("KeyError",)


@pytest.mark.parametrize("version", ["3.9", "3.11", "3.13"])
def test_a_pod_works(pod, find_python, version: str) -> None:
    python = find_python(version)
    log = pod.base / "termination-log"
    log.touch()
    pod.home = pod.base / "inside.pyz"
    pod.home.write_bytes(build_zip())
    done = pod.run(
        python,
        pod.script(TEXT),
        python=python,
        options=("--launcher", "auto", "--wait-for", "localhost", "--exit-code", "cause"),
        RANKFALL_TORCHRUN='["/absent/python3", "-m", "torch.distributed.run"]',
        RANKFALL_TERMINATION_LOG=str(log),
        RANKFALL_SLOT="0",
    )
    assert (done.returncode, done.stderr) == (202, b"")
    kinds = [record.kind for record in channel(done.stdout)]
    assert kinds == ["slot_start", "start", "error", "end", "slot_end"]
    assert b"[rank 0] hello" in done.stdout
    assert [json.loads(line)["kind"] for line in log.read_text().splitlines()] == ["error", "slot_end"]
