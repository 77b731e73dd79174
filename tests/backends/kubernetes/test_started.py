"""A compiled container, run on this machine with the real bundle: the words and variables that the kubelet would hand over do start it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from backends.kubernetes.made import compiled, spec, started
from rankfall.backends.kubernetes.manifests.container_command import BUNDLE_PATH, SLOT_DIR
from rankfall.backends.local.processes import Reservation
from rankfall.backends.payload import build_zip
from support.patience import scaled

TELL = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['RANK'], os.environ['WORLD_SIZE'],"
    " [name for name in os.environ if name in ('RANKFALL_TOKEN', 'RANKFALL_TORCHRUN')]]), flush=True)"
)
HARD = "a b'\"$(HOME)$$é$("


def run(job, tmp_path, *, slot):
    bundle = tmp_path / "inside.pyz"
    bundle.write_bytes(build_zip())
    command, variables = started(compiled(job), slot=slot)
    # The names of slots lead nowhere on this machine.
    while "--wait-for" in command:
        place = command.index("--wait-for")
        del command[place : place + 2]
    master = compiled(job).names.address(0, namespace="default")
    places = {BUNDLE_PATH: str(bundle), SLOT_DIR: str(tmp_path / "slot"), master: "127.0.0.1"}
    (tmp_path / "slot").mkdir()

    def here(text):
        for theirs, ours in places.items():
            text = text.replace(theirs, ours)
        return text

    env = {"PATH": os.environ["PATH"], **{name: here(value) for name, value in variables.items()}}
    return subprocess.run(
        [here(word) for word in command], env=env, capture_output=True, text=True, timeout=scaled(50), check=False
    )


@pytest.mark.parametrize("fields", [{}, {"unattended": True, "policies": {"max_restarts": 0}}])
def test_the_ranks_of_a_slot_start_with_their_words_and_their_place(tmp_path, fields):
    job = spec(command=["python3", "-c", TELL, HARD], nnodes=3, nproc_per_node=2, **fields)
    done = run(job, tmp_path, slot=1)
    assert done.returncode == 0, done.stderr
    told = [json.loads(found[1]) for found in re.finditer(r"^\[rank \d+\] (\[\[.*)$", done.stdout, re.MULTILINE)]
    assert sorted(told) == [[[HARD], "2", "6", []], [[HARD], "3", "6", []]]
    assert "rankfall/1 t0k3n " in done.stdout


def test_unattended_a_sure_cause_is_the_exit_code(tmp_path):
    job = spec(
        command=["python3", "-c", "import no_such_module"], unattended=True, policies={"max_restarts": 0}, nnodes=1
    )
    assert run(job, tmp_path, slot=0).returncode == 201


@pytest.mark.torch
@pytest.mark.full
def test_with_torch_in_the_image_the_same_container_goes_through_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('run', os.environ['TORCHELASTIC_RUN_ID'], os.environ['RANK'], flush=True)\n")
    reservation = Reservation(0)
    section = {"master_port": reservation.port}
    job = spec(command=[str(script)], python=sys.executable, nproc_per_node=2, kubernetes=section)
    assert compiled(job).launcher is None
    done = run(job, tmp_path, slot=0)
    reservation.close()
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"run (\S+) (\d)", done.stdout)) == [("job-0a1b2c-a1", "0"), ("job-0a1b2c-a1", "1")]
