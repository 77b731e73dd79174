"""A message means the same wherever it stands: bare, behind prefixes, in a logger's or runtime's JSON, before a launcher's report of the end."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rankfall.explain import explain_files
from rankfall.model import Verdict

TEXTS: Final = tuple(
    (frozenset(one["causes"]), one["lines"])
    for one in tomllib.loads((Path(__file__).parent / "library_texts.toml").read_text("utf-8"))["text"]
)
TORCHRUN_END: Final = """\
E0101 10:00:00.000000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 2 (pid: 4300) of binary: /usr/bin/python
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-01-01_10:00:00
  host      : n1
  rank      : 2 (local_rank: 2)
  exitcode  : 1 (pid: 4300)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
SRUN_END: Final = """\
srun: error: n1: task 2: Exited with exit code 1
srun: Terminating StepId=42.0
slurmstepd: error: *** STEP 42.0 ON n0 CANCELLED AT 2025-01-01T10:00:01 ***
"""
STEPS: Final = "".join(f"step {number}/1000 loss 2.{number} lr 1e-4\n" for number in range(50))


def each(form: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(f"{form(line)}\n" for line in text.splitlines())


def docker(line: str) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2025-01-01T10:00:00.000000000Z"})


def logged(line: str) -> str:
    return json.dumps({"time": "2025-01-01T10:00:00Z", "level": "error", "message": line})


FORMS: Final[dict[str, Callable[[str], str]]] = {
    "bare": str,
    "torchrun": each("[default2]:{}".format),
    "srun": each("2: {}".format),
    "mpirun": each("[1,2]<stderr>:{}".format),
    "ray": each("(RayTrainWorker pid=4242, ip=10.0.0.3) {}".format),
    "kubectl": each("[pod/job-worker-2/main] {}".format),
    "runtime": each("2025-01-01T10:00:00.000000000Z stderr F {}".format),
    "docker": each(docker),
    "logger": each(logged),
    "colored": each("\x1b[31m{}\x1b[0m".format),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "after steps": lambda text: STEPS + text,
    "before torchrun's end": lambda text: text + TORCHRUN_END,
    "before srun's end": lambda text: text + SRUN_END,
}
# What a form takes from a text, with the reason.
EXCEPT: Final = {
    # The launcher's rank 2 and the text's own rank 3 are two failures.
    # Nor does a rank that SIGKILL ended exit with 1.
    "before torchrun's end": ("[rank3]", "VllmWorker-2", "Killed\n"),
    "before srun's end": ("[rank3]", "VllmWorker-2"),
    # A typed exception without traceback behind a runtime's words is shown, not believed; nobody types ^C there.
    "runtime": ("RecursionError", "^CTraceback"),
    "colored": ("^CTraceback",),
}


def told(text: str, folder: Path) -> Verdict:
    (folder / "job.log").write_text(text, newline="")
    return explain_files([folder / "job.log"]).verdict


@pytest.mark.parametrize("form", FORMS)
def test_i23_a_message_means_the_same_in_any_form(form: str, tmp_path: Path) -> None:
    wrong = []
    for causes, text in TEXTS:
        if any(word in text for word in EXCEPT.get(form, ())):
            continue
        verdict = told(FORMS[form](text), tmp_path)
        # What nobody can read leaves the code that the launcher reports.
        exits = "user_exit" if "end" in form and "unknown" in causes else ""
        if verdict.cause.slug not in {*causes, exits}:
            wrong.append((sorted(causes), verdict.cause.slug, text[:200]))
    assert not wrong


def test_i23_no_form_makes_a_message_of_rank_2_one_of_another(tmp_path: Path) -> None:
    for form in ("srun", "mpirun", "before torchrun's end", "before srun's end"):
        for _, text in TEXTS:
            # Texts that name ranks themselves.
            if "rank" not in text.lower() and "task" not in text and not re.search(r"\[\d\]|PID", text):
                assert told(FORMS[form](text), tmp_path).rank in {None, 2}, (form, text)


def test_i23_two_ends_and_one_message_name_no_rank(tmp_path: Path) -> None:
    message = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x10 and 20x5)\n"
    one = told(message + SRUN_END, tmp_path)
    assert (one.cause.slug, one.rank) == ("user_code_exception", 2)
    both = told(message + "srun: error: n1: task 1: Exited with exit code 1\n" + SRUN_END, tmp_path)
    assert (both.cause.slug, both.rank) == ("user_code_exception", None)


def test_i23_the_pid_of_a_worker_and_a_local_rank_in_its_arguments_are_no_table(tmp_path: Path) -> None:
    text = "(W pid=4242, ip=10.0.0.3) usage: train.py [-h]\n(W pid=4242, ip=10.0.0.3) train.py: error: unrecognized arguments: --local-rank=3\n"
    verdict = told(text, tmp_path)
    assert (verdict.cause.slug, verdict.rank) == ("bad_arguments", None)


def test_i23_a_traceback_of_json_lines_keeps_its_rank_and_ends_where_it_ends(tmp_path: Path) -> None:
    lines = ["[rank2]: Traceback (most recent call last):", '[rank2]:   File "/w/train.py", line 7, in main']
    lines += ['[rank2]:     x = batch["labels"]', "[rank2]: KeyError: 'labels'"]
    for form in ("docker", "logger"):
        verdict = told(FORMS[form]("\n".join(lines) + "\n" + "[rank0]: step 2\n"), tmp_path)
        assert (verdict.cause.slug, verdict.rank) == ("user_code_exception", 2), form
