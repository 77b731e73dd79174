"""How steady a verdict is when the same text comes in another form: each log of the corpus again in many forms.

The forms are what happens to a log on its way to a person: prefixes of launchers and collectors, clocks, colors, JSON lines, doubled lines, innocent
ranks between, progress before and a launcher's end after. Cause and retry must stay; the rank may become known or unknown where a form shows or hides one.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.common import Row
from bench.verdict.corpus import Label, labels_of
from rankfall.explain import explain_files
from rankfall.model import Verdict

# Least share of forms whose verdict is that of the log as it was pasted.
STEADY: Final = 0.99
# The rank that a form shows of all lines of a log.
SHOWN: Final = 2

Form = Callable[[list[str]], list[str]]


def _before(prefix: str) -> Form:
    return lambda lines: [prefix + line for line in lines]


def _each(template: str) -> Form:
    """A form whose clock goes on: ``{s}`` is the second of a line."""
    return lambda lines: [template.format(s=f"{number // 50 % 60:02d}") + line for number, line in enumerate(lines)]


def _as_json(**fields: str) -> Form:
    """Lines of a collector; a field's value holds the line where it is ``LINE``."""
    return lambda lines: [
        json.dumps({key: value.replace("LINE", line) for key, value in fields.items()}) for line in lines
    ]


def _steps(prefix: str = "") -> list[str]:
    return [f"{prefix}step {step}/1000 loss 2.{99 - step} lr 1e-4" for step in range(1, 41)]


def _with_innocents(lines: list[str]) -> list[str]:
    made: list[str] = []
    for number, line in enumerate(lines):
        made.append(f"[rank{SHOWN}]: {line}")
        if number % 3 == 0:
            made += [f"[rank{rank}]: step {number + 100} loss 1.25" for rank in (0, 1, 3)]
    return made


def _broken(lines: list[str], columns: int) -> list[str]:
    """As a person copies it from a terminal that breaks long lines at its edge."""
    return [line[at : at + columns] for line in lines for at in range(0, max(1, len(line.rstrip())), columns)]


_STEP_END: Final = [
    f"srun: error: n1: task {SHOWN}: Exited with exit code 1",
    "srun: Terminating StepId=42.0",
    "slurmstepd: error: *** STEP 42.0 ON n0 CANCELLED AT 2025-01-01T10:00:01 ***",
]
_AGENT_END: Final = [
    "W0101 10:00:00.000000 4242 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4301 closing signal SIGTERM",
    f"E0101 10:00:00.000000 4242 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: {SHOWN} (pid: 4300) of binary: /usr/bin/python",
]
_SURVIVED: Final = [
    "WARNING: HTTP 429 Too Many Requests, retrying in 2 s",
    "OSError: [Errno 116] Stale file handle (retry 1/3)",
]

FORMS: Final[dict[str, Form]] = {
    "torchrun --tee": _before(f"[default{SHOWN}]:"),
    "torchrun --tee, role": _before(f"[trainer{SHOWN}|{SHOWN}]:"),
    "torch's rank": _before(f"[rank{SHOWN}]:"),
    "rank in brackets": _before(f"[{SHOWN}] "),
    "rank as a word": _before(f"Rank {SHOWN}: "),
    "srun --label": _before(f"{SHOWN}: "),
    "mpirun --tag-output": _before(f"[1,{SHOWN}]<stderr>:"),
    "SageMaker": _before(f"[1,mpirank:{SHOWN},algo-1]<stderr>:"),
    "kubectl --prefix": _before(f"[pod/train-worker-{SHOWN}/pytorch] "),
    "kubectl and torchrun": _before(f"[pod/job-worker-0/main] [default{SHOWN}]: "),
    "compose": _before(f"worker-{SHOWN}  | "),
    "stern": _before("train-7d9f6c-x2v4k main "),
    "Ray": _before("(RayTrainWorker pid=4242, ip=10.0.0.3) "),
    "host": _before("host-17: "),
    "ISO clock": _each("2025-01-01T10:00:{s} "),
    "ISO clock with zone": _each("2025-01-01T10:00:{s}.000000000Z "),
    "clock with comma": _each("2025-01-01 10:00:{s},123 "),
    "clock in brackets": _each("[2025-01-01 10:00:{s}] "),
    "syslog": _each("Jan  1 10:00:{s} n1 train[4242]: "),
    "epoch": _each("17357256{s}.123 "),
    "containerd": _each("2025-01-01T10:00:{s}.000000000Z stderr F "),
    "glog": _each("E0101 10:00:{s}.000000 4242 train.py:42] "),
    "logging": _each("2025-01-01 10:00:{s},123 - trainer - ERROR - "),
    "logging with level": _each("[2025-01-01 10:00:{s},123][trainer][ERROR] - "),
    "loguru": _each("2025-01-01 10:00:{s}.123 | ERROR    | trainer:run:42 - "),
    "docker's JSON": _as_json(log="LINE\n", stream="stderr", time="2025-01-01T10:00:00Z"),
    "a logger's JSON": _as_json(time="2025-01-01T10:00:00Z", level="error", message="LINE"),
    "a cloud's JSON": _as_json(severity="ERROR", textPayload="LINE", timestamp="2025-01-01T10:00:00Z"),
    "red": lambda lines: [f"\x1b[31m{line}\x1b[0m" for line in lines],
    "CRLF": lambda lines: [f"{line}\r" for line in lines],
    "indented": _before("    "),
    "quoted": _before("> "),
    "numbered": lambda lines: [f"{number:6d}\t{line}" for number, line in enumerate(lines, 1)],
    "trailing blanks": lambda lines: [f"{line}   " for line in lines],
    "a terminal of 100 columns": lambda lines: _broken(lines, 100),
    "a quoted terminal of 120": lambda lines: [f"> {line}" for line in _broken(lines, 120)],
    "each line twice": lambda lines: [line for line in lines for _ in range(2)],
    "the text twice": lambda lines: lines + lines,
    "innocent ranks between": _with_innocents,
    "steps before": lambda lines: _steps() + lines,
    "survived errors before": lambda lines: _SURVIVED + _steps() + lines,
    "a bar before": lambda lines: ["\r  1%|#         | 1/100 [00:01<01:00,  1.0it/s]\r  2%|#         | 2/100 [00:02<01:00]", *lines],
    "srun's end after": lambda lines: lines + _STEP_END,
    "torchrun's end after": lambda lines: lines + _AGENT_END,
}  # fmt: skip


def judge(folder: Path) -> Counter[tuple[str, str]]:
    """How often each form gave ``same``, or another ``cause``, ``rank`` or ``retry`` than the log as it was pasted."""
    found: Counter[tuple[str, str]] = Counter()
    for label in labels_of(folder):
        found.update(judge_log(folder / label.log, label))
    return found


def judge_log(path: Path, label: Label) -> list[tuple[str, str]]:
    """The form's name and what became of the verdict, for all forms of one log."""
    text = path.read_text(errors="replace").splitlines()
    pasted = explain_files([path]).verdict
    made = []
    with tempfile.TemporaryDirectory() as name:
        for form, change in FORMS.items():
            # The name of a file can tell a rank.
            other = Path(name) / path.name
            other.write_text("\n".join(change(text)) + "\n")
            made.append((form, _compared(pasted, explain_files([other]).verdict, label)))
    return made


def _compared(pasted: Verdict, other: Verdict, label: Label) -> str:
    accepted = {pasted.cause.slug, *(label.accept if pasted.cause.slug in label.accept else ())}
    # A launcher's code after a text without a clear cause is a cause of its own.
    if pasted.cause.confidence in ("unknown", "suspected"):
        accepted.add("user_exit")
    if other.cause.slug not in accepted:
        return "cause"
    if other.rank not in {pasted.rank, label.rank, SHOWN, None}:
        return "rank"
    return "same" if other.retry == pasted.retry or other.cause.slug != pasted.cause.slug else "retry"


def rows(found: Counter[tuple[str, str]], name: str) -> list[Row]:
    """One row."""
    number = found.total()
    same = sum(count for (_, result), count in found.items() if result == "same")
    others = ", ".join(
        f"{sum(count for (_, result), count in found.items() if result == what)} another {what}"
        for what in ("cause", "rank", "retry")
    )
    figure = f"{same} of {number} the same ({same / number:.1%}), {others}" if number else "no log"
    return [
        Row(
            f"verdict in other forms, {name}",
            figure,
            f"{STEADY:.0%}",
            same >= STEADY * number,
            f"each log in {len(FORMS)} forms",
        )
    ]


def page(found: Sequence[Counter[tuple[str, str]]]) -> str:
    """A row for each form in which a verdict changed."""
    total: Counter[tuple[str, str]] = sum(found, Counter())
    lines = ["| form | logs | another cause | another rank | another retry |", "| --- | --- | --- | --- | --- |"]
    for form in FORMS:
        counts = [total[form, what] for what in ("cause", "rank", "retry")]
        if any(counts):
            number = sum(count for (name, _), count in total.items() if name == form)
            lines.append(f"| {form} | {number} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)
