"""The verdict of an attempt for those who look at the platform and not at Rankfall: put on the attempt's object, where the job wants it.

Only where the job says so, and only on what Rankfall made. Nothing depends on it: what cannot be written is told, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from rankfall.backends.plan import Plan
from rankfall.backends.protocol import Backend, ShowingBackend
from rankfall.model import Diagnosis, JobSpec


def show_verdict(
    backend: Backend, plan: Plan, diagnosis: Diagnosis | None, *, spec: JobSpec, say: Callable[[str], None]
) -> None:
    """Show what is said of an attempt that fell.

    Args:
        backend: of the run.
        plan: of the attempt.
        diagnosis: of its end; None where nothing is said of it.
        spec: of the job.
        say: takes what could not be done.
    """
    if not spec.kubernetes.annotate or diagnosis is None or diagnosis.verdict.state != "failed":
        return
    if isinstance(backend, ShowingBackend) and (problem := backend.show(plan, diagnosis.verdict)) is not None:
        say(problem)
