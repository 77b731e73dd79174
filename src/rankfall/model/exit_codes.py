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
    _row(3, 125, "permanent", "an error of the program, by its own numbers"),
    _row(126, 126, "permanent", "the command cannot be executed"),
    _row(127, 127, "permanent", "the command was not found"),
    _row(128, 128, "permanent", "the program left with an invalid code"),
    _row(129, 129, "permanent", "128+SIGHUP, told as a code"),
    _row(130, 130, "retryable", "128+SIGINT, told as a code: stopped from outside"),
    _row(131, 136, "permanent", "128+SIGQUIT to 128+SIGFPE, told as a code: it crashed"),
    _row(137, 137, "retryable", "128+SIGKILL, told as a code: killed from outside"),
    _row(138, 138, "user_retryable", "128+SIGUSR1: the program asks for a new attempt", "user"),
    _row(139, 139, "permanent", "128+SIGSEGV, told as a code: it crashed"),
    _row(140, 142, "permanent", "128+SIGUSR2 to 128+SIGALRM, told as a code"),
    _row(143, 143, "retryable", "128+SIGTERM, told as a code: stopped from outside"),
    _row(144, 199, "permanent", "other signals told as a code, and numbers without a meaning of their own"),
    _row(200, 201, "permanent", "cause: user, import_error"),
    _row(202, 202, "user_retryable", "cause: user_retryable", "user"),
    _row(203, 205, "permanent", "cause: data, memory, gpu_oom"),
    _row(206, 209, "retryable", "cause: gpu, network, peer, storage"),
    _row(210, 210, "permanent", "cause: disk_full"),
    _row(211, 212, "retryable", "cause: platform, preempted"),
    _row(213, 214, "permanent", "cause: control, cancelled"),
    _row(215, 219, "retryable", "cause: hang, native_crash, killed, startup, unknown"),
    _row(220, 255, "permanent", "numbers without a meaning of their own"),
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
    return 128 + signal if signal is not None else code


_HEAD: Final = """# Exit codes of ranks

Made by `rankfall config exit-codes`; do not edit. What Rankfall's own commands end with stands in [cli.md](cli.md#exit-codes).

## By default

A bare exit code is one about which nothing else is known: no exception, no signal, no word of the kernel or the platform. Then this
table decides. A proven cause beats it: a rank that the kernel killed for memory ended by `host_oom`, whatever its code. So a signal that was
seen as one (a wait status, not a number that a shell made of it) is not looked up here either: the cause it tells of decides.

| code | class | default | budget | says |
| --- | --- | --- | --- | --- |
"""
_TAIL: Final = """
`restart` begins a new attempt of the whole gang, within `policies.max_restarts` and the budget that is named here, or those that
`policies.budgets` gives for the cause and its family. The budget `user` allows `max_restarts` new attempts where the job gives it no number. Exit
code 0 is never started again by itself: only with its gang, when another slot fell.

## Otherwise

Rules of the job come before the table, in their order; the first that matches decides:

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

A rule matches on `exit_codes` (a signal N counts as 128+N), `signals`, `causes` (slug or family), `roles`, and, of the root cause's pod,
`reasons` and `conditions`; each list that is given must have one of its values in the failure. A rule on codes and signals alone speaks of the
bare code, so it too yields to a proven cause. The actions are `fail`, `restart`, `restart_elsewhere` and `ignore`, which begins a new attempt that does
not count in `max_restarts` and therefore needs a budget.

## Codes that carry a cause

torchrun ends with 1 whatever killed its ranks. Where a platform's own rules must see the cause (`unattended`), Rankfall's wrapper ends with one of
these instead; no signal maps to them (128+64 is 192).

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
