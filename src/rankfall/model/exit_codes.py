"""Meaning of bare exit codes; codes 200-219 pass a cause through torchrun's 1.

A proven cause beats a bare code, a job's rule beats ``CODE_TABLE``. :func:`page` renders ``docs/exit-codes.md``; a test
compares them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

import msgspec

ExitClass = Literal["success", "permanent", "retryable", "user_retryable"]
CodeAction = Literal["none", "fail", "restart"]

SUCCESS = 0
USAGE = 2
NOT_FOUND = 66
INFRASTRUCTURE = 69
EVIDENCE_LOST = 74
LINES_LOST = 65
CANCELLED = 130
USER_RETRYABLE = 138
MAX_CODE = 255
# A shell's codes of a process that a signal ended: this and the signal's number.
SIGNALLED = 128

# One code per group of causes, for platforms with native rules.
CAUSE_CODES = MappingProxyType(
    {
        "user": 200,
        "import_error": 201,
        "user_retryable": 202,
        "data": 203,
        "memory": 204,
        "gpu_oom": 205,
        "gpu": 206,
        "network": 207,
        "peer": 208,
        "storage": 209,
        "disk_full": 210,
        "platform": 211,
        "preempted": 212,
        "control": 213,
        "cancelled": 214,
        "hang": 215,
        "native_crash": 216,
        "killed": 217,
        "startup": 218,
        "unknown": 219,
    }
)


class CodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Codes ``first`` to ``last``, inclusive.

    Attributes:
        kind: Class of the codes.
        meaning: Meaning, as text.
        budget: Budget of a new attempt besides the total; None = the cause's budgets.
    """

    first: int
    last: int
    kind: ExitClass
    meaning: str
    budget: str | None = None

    @property
    def action(self) -> CodeAction:
        """Default action."""
        return "none" if self.kind == "success" else "fail" if self.kind == "permanent" else "restart"

    @property
    def codes(self) -> str:
        """Codes as text, as ``3-125``."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def _row(first: int, last: int, kind: ExitClass, meaning: str, budget: str | None = None) -> CodeRow:
    return CodeRow(first=first, last=last, kind=kind, meaning=meaning, budget=budget)


CODE_TABLE: Final = (
    _row(0, 0, "success", "done"),
    _row(1, 1, "permanent", "an error of the program; Python's code after any exception"),
    _row(2, 2, "permanent", "wrong arguments, or the interpreter cannot open the script"),
    _row(3, 125, "permanent", "an error of the program, which defines the number's meaning"),
    _row(126, 126, "permanent", "the command cannot be executed"),
    _row(127, 127, "permanent", "the command was not found"),
    _row(128, 128, "permanent", "the program exited with an invalid code"),
    _row(129, 129, "permanent", "128+SIGHUP as a code"),
    _row(130, 130, "retryable", "128+SIGINT as a code: stopped from outside"),
    _row(131, 136, "permanent", "128+SIGQUIT to 128+SIGFPE as a code: it crashed"),
    _row(137, 137, "retryable", "128+SIGKILL as a code: killed from outside"),
    _row(138, 138, "user_retryable", "128+SIGUSR1: the program requests a new attempt", "user"),
    _row(139, 139, "permanent", "128+SIGSEGV as a code: it crashed"),
    _row(140, 142, "permanent", "128+SIGUSR2 to 128+SIGALRM as a code"),
    _row(143, 143, "retryable", "128+SIGTERM as a code: stopped from outside"),
    _row(144, 199, "permanent", "another signal as a code, or no standard meaning"),
    _row(200, 201, "permanent", "cause: user, import_error"),
    _row(202, 202, "user_retryable", "cause: user_retryable", "user"),
    _row(203, 205, "permanent", "cause: data, memory, gpu_oom"),
    _row(206, 209, "retryable", "cause: gpu, network, peer, storage"),
    _row(210, 210, "permanent", "cause: disk_full"),
    _row(211, 212, "retryable", "cause: platform, preempted"),
    _row(213, 214, "permanent", "cause: control, cancelled"),
    _row(215, 219, "retryable", "cause: hang, native_crash, killed, startup, unknown"),
    _row(220, 254, "permanent", "no standard meaning"),
    _row(255, 255, "permanent", "an error of the program, as by exit(-1), or of ssh"),
)


def code_row(code: int) -> CodeRow:
    """Returns the row of a bare exit code.

    Raises:
        ValueError: The code is outside 0-255.
    """
    if not SUCCESS <= code <= MAX_CODE:
        raise ValueError(f"exit code {code} is outside 0-{MAX_CODE}")
    return next(row for row in CODE_TABLE if row.first <= code <= row.last)


def exit_class(code: int) -> ExitClass:
    """Returns the class of a bare exit code.

    Raises:
        ValueError: The code is outside 0-255.
    """
    return code_row(code).kind


def shell_code(*, code: int | None, signal: int | None) -> int | None:
    """Returns a shell's code, 128+n for a signal; None if unknown."""
    return SIGNALLED + signal if signal is not None else code


_HEAD: Final = """# Exit codes of ranks

After this page you know what each exit code of a rank leads to, and can change it. `rankfall config exit-codes` generates this page; do not edit it. Codes of Rankfall's commands: [local.md](local.md#exit-codes).

## By default

This table decides only without other evidence: no exception, no signal, no message of the kernel or the platform. A proven cause takes
precedence: a rank that the kernel killed for memory has the cause `host_oom`, whatever its code. A signal in a wait status is also a proven
cause; a number that a shell made of it (128+N) is not.

| code | class | default | budget | meaning |
| --- | --- | --- | --- | --- |
"""
_TAIL: Final = """
`restart` begins a new attempt of the whole gang, within `policies.max_restarts` and the budget of the row, or the `policies.budgets` of the cause and
its family. The default of the budget `user` is `max_restarts`. A slot with exit code 0 restarts only with its gang.

## Otherwise

Rules of the job precede the table; the first that matches decides:

```yaml
command: [train.py]
policies:
  max_restarts: 10
  budgets: {app: 1, infra: 5}
rules:
  - {exit_codes: [3], action: restart, budget: app}
  - {exit_codes: [128, 139], action: restart_elsewhere}
  - {causes: [network, node_lost], action: restart, budget: infra}
  - {causes: [gpu_oom], action: fail}
```

A rule matches on `exit_codes` (a signal N counts as 128+N), `signals`, `causes` (slug or family), `roles`, and the `reasons` and `conditions` of the
root cause's pod. Each given list must contain a value of the failure. A rule with only codes and signals also yields to a proven cause. Actions are
`fail`, `restart`, `restart_elsewhere` and `ignore`; `ignore` begins a new attempt outside `max_restarts` and therefore needs a budget.

## Codes for causes

torchrun exits with 1 for every failure. In `unattended` runs the platform's rules need the cause, so Rankfall's wrapper exits with one of these codes.
No signal maps to them (128+64 is 192).

| cause | code |
| --- | --- |
"""


def page() -> str:
    """Returns the page as Markdown."""
    causes = "".join(f"| `{name}` | {code} |\n" for name, code in CAUSE_CODES.items())
    return f"{_HEAD}{''.join(map(_page_row, CODE_TABLE))}{_TAIL}{causes}"


def _page_row(row: CodeRow) -> str:
    budget = f"`{row.budget}`" if row.budget else ""
    return f"| {row.codes} | {row.kind} | {row.action} | {budget} | {row.meaning} |\n"
