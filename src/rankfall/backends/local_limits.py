"""What the local backend cannot do for a job: refused when it would change what happens, told in the plan when it only goes unused."""

from __future__ import annotations

import msgspec

from rankfall.model import JobSpec, Kubernetes, Refused


def unused(spec: JobSpec) -> tuple[str, ...]:
    """What the job asks for and processes on one machine have no use for, in words for the plan.

    Raises:
        Refused: it asks for what the local backend cannot do.
    """
    if spec.unattended:
        raise Refused(
            "$.unattended: the local backend has no platform that would run the job alone",
            hint="leave unattended out; rankfall submit keeps a supervisor in the background",
        )
    notes = []
    plain = Kubernetes()
    given = [name for name in msgspec.structs.asdict(plain) if getattr(spec.kubernetes, name) != getattr(plain, name)]
    if given:
        notes.append(f"kubernetes: not used by the local backend ({', '.join(given)})")
    if spec.ttl_s is not None:
        notes.append("ttl_s: not used by the local backend; the run's directory stays until you remove it")
    return tuple(notes)
