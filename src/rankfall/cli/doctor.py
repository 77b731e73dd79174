"""``doctor``: whether this machine can run jobs, and what cannot be told here. Ends with 69 when a check failed."""

from __future__ import annotations

import sys
from typing import Final

import click

from rankfall.cli import emit
from rankfall.cli.checks import Check, DoctorDocument, State, disk, kernel, pythons, worst
from rankfall.cli.emit import Output
from rankfall.cli.options import output_option
from rankfall.report.escape import clean
from rankfall.report.paint import Paint

_INFRASTRUCTURE: Final = 69
_WIDTH: Final = 14


@click.command("doctor")
@click.option("--python", help="The job's Python; default: Rankfall's own.")
@output_option()
def doctor(*, python: str | None, output: Output) -> int:
    """Check what this machine can do for Rankfall, and say what to do about the rest."""
    checks = run_checks(python)
    found = worst(checks)
    if output is Output.TABLE:
        _print(checks, found)
    else:
        sys.stdout.write(emit.document(DoctorDocument(state=found, checks=checks), output))
    return _INFRASTRUCTURE if found == "fail" else 0


def run_checks(python: str | None) -> tuple[Check, ...]:
    """All checks, in the order in which a person would want them."""
    job, interpreter = pythons.job_python(python)
    of_python = [pythons.own_python(), job]
    of_home = [disk.home_folder(), disk.modes(), disk.journal(), disk.space()]
    if interpreter is not None:
        of_python += [pythons.torch(interpreter), pythons.hook(interpreter)]
    return (
        *of_python,
        *of_home,
        disk.shared_memory(),
        kernel.proc(),
        kernel.oom_counter(),
        kernel.kernel_log(),
        kernel.stack_signal(),
        kernel.ports(),
        kernel.limits(),
    )


def _print(checks: tuple[Check, ...], found: State) -> None:
    paint = Paint(color=emit.color_on())
    style = {"pass": paint.good, "warn": paint.warn, "fail": paint.bad}
    for check in checks:
        emit.out(f"{style[check.state](check.state)}  {check.name:<{_WIDTH}}{clean(check.text)}")
        if check.next and check.state != "pass":
            emit.out(f"{'':<{_WIDTH + 6}}{paint.dim(f'next: {clean(check.next)}')}")
    words = {
        "pass": "Everything works here.",
        "warn": "Jobs run here; what is marked warn limits what can be told.",
        "fail": "Jobs will not run here until what is marked fail is mended.",
    }
    emit.out()
    emit.out(words[found])
