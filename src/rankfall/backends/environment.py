"""The environment of a slot. Variables of an outer job are removed, because the job would use its rank."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from rankfall.model import JobSpec, Part
from rankfall.rundir import RunDir

FOREIGN: Final = frozenset(
    {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK", "PMI_RANK", "TF_CONFIG",
    }
)  # fmt: skip
_FOREIGN_PREFIXES: Final = ("TORCHELASTIC_", "RANKFALL_")
# The user's setting, not a job's identity.
_KEPT: Final = frozenset({"RANKFALL_HOME"})


def removed(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted inherited variables that a slot must not see."""
    return tuple(
        sorted(name for name in names if (name in FOREIGN or name.startswith(_FOREIGN_PREFIXES)) and name not in _KEPT)
    )


def identity(spec: JobSpec, run_dir: RunDir, *, attempt: int, slot: int, node: str, strategy: str) -> dict[str, str]:
    """Slot's ``RANKFALL_*`` variables with the effective ``strategy``."""
    env = {
        "RANKFALL_RUN": run_dir.id,
        "RANKFALL_ATTEMPT": str(attempt),
        "RANKFALL_ROLE": spec.role,
        "RANKFALL_SLOT": str(slot),
        "RANKFALL_SLOT_DIR": str(run_dir.slot_dir(attempt, spec.role, slot)),
        "RANKFALL_RECORD_DIR": str(run_dir.records_dir),
        "RANKFALL_NODE": node,
        "RANKFALL_INSIDE": spec.inside,
        "RANKFALL_STRATEGY": strategy,
    }
    if spec.record_store is not None:
        env["RANKFALL_RECORD_STORE"] = spec.record_store
    if spec.error_file is not None:
        env["RANKFALL_ERROR_FILE"] = spec.error_file
    if spec.policies.retryable:
        env["RANKFALL_RETRYABLE"] = ",".join(spec.policies.retryable)
    if spec.policies.final:
        env["RANKFALL_FINAL"] = ",".join(spec.policies.final)
    return env


def place(spec: JobSpec, part: Part, *, hosts: Mapping[str, str]) -> dict[str, str]:
    """Returns variables with a role's position; empty for a single role.

    The wrapper adds the slot index.
    """
    if not spec.several_roles:
        return {}
    base = {f"RANKFALL_HOST_{role.upper().replace('-', '_')}": host for role, host in hosts.items()}
    base["RANKFALL_SLOT_BASE"] = str(part.base)
    if part.first_node is None:
        return {**base, "RANKFALL_OUTSIDE": "1"}
    return {
        **base,
        "RANKFALL_FIRST_NODE": str(part.first_node),
        "RANKFALL_FIRST_RANK": str(part.first_rank),
        "RANKFALL_WORLD_SIZE": str(spec.world_size),
        "RANKFALL_ROLE_SIZE": str(part.count * part.spec.nproc_per_node),
    }


def assembled(*, own: Mapping[str, str], job: Mapping[str, str], drop: Iterable[str]) -> dict[str, str]:
    """Returns a slot's environment: inherited, Rankfall's (``own``), then the job's (without ``RANKFALL_*``)."""
    dropped = set(drop)
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**inherited, **own, **job, "RANKFALL_SUPERVISOR_PID": str(os.getpid())}
