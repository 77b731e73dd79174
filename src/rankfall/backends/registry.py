"""Which backends there are, by the name that a spec gives. The one place that knows their classes; each is loaded when it is used.

Refuses a name that no backend of this version answers to, before anything is created.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rankfall.model import JobSpec, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankfall.backends.protocol import Backend

# Name in a spec -> module and class; the class is called without arguments.
BACKENDS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "local": ("rankfall.backends.local", "LocalBackend"),
        "job": ("rankfall.backends.cluster.backend", "ClusterBackend"),
        "jobset": ("rankfall.backends.cluster.backend", "ClusterBackend"),
        "trainjob": ("rankfall.backends.cluster.backend", "ClusterBackend"),
    }
)


def backend_for(spec: JobSpec) -> Backend:
    """A new backend for one run of this job.

    Raises:
        Refused: this version has no such backend.
    """
    found = BACKENDS.get(spec.backend)
    if found is None:
        raise Refused(
            f"$.backend: {spec.backend} is not available in this version of Rankfall",
            hint=f"allowed: {', '.join(BACKENDS)}; as --backend local",
        )
    module, name = found
    backend: Backend = getattr(importlib.import_module(module), name)()
    return backend


def check_startable(spec: JobSpec) -> None:
    """Refuse what can be planned and shown, and not yet be started.

    Raises:
        Refused: names the field.
    """
    if spec.unattended:
        raise Refused(
            "$.unattended: its manifests can be looked at (--dry-run), but this version starts no run without a supervisor: two would decide "
            "about its restarts",
            hint="leave it out, and use rankfall submit: the supervisor runs in the background",
        )
