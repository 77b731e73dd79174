"""The page ``docs/exit-codes.md``, made from the table: ``rankfall config exit-codes`` prints it, and a test holds both together."""

from __future__ import annotations

from typing import Final

from rankfall.model.exit_codes import CAUSE_CODES, CODE_TABLE, CodeRow

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
    """The whole page as Markdown."""
    causes = "".join(f"| `{name}` | {code} |\n" for name, code in CAUSE_CODES.items())
    return f"{_HEAD}{''.join(map(_row, CODE_TABLE))}{_TAIL}{causes}"


def _row(row: CodeRow) -> str:
    budget = f"`{row.budget}`" if row.budget else ""
    return f"| {row.codes} | {row.kind} | {row.action} | {budget} | {row.meaning} |\n"
