"""Reads the rank of a process from launcher variables; an unknown rank is better than a wrong one."""

from __future__ import annotations

from rankfall_inside import untrusted

TYPE_CHECKING = False  # importing typing costs milliseconds
if TYPE_CHECKING:
    from typing import Any, Mapping

# (rank, local rank, world size, local world size) of torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI), Slurm; best
# first.
SOURCES: tuple[tuple[str, str, str, str], ...] = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMIX_RANK", "PMIX_LOCAL_RANK", "PMIX_SIZE", "PMIX_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_LOCAL_RANK", "PMI_SIZE", "PMI_LOCAL_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
)
# For roles outside the world of ranks.
OUTSIDE = "RANKFALL_OUTSIDE"
# They may inherit the pod's RANK but are no ranks.
LAUNCHERS = (
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch/distributed/run.py",
    "accelerate",
    "deepspeed",
    "horovodrun",
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "srun",
    "ft_launcher",
)
_LAUNCHER_WORDS = 6


def number(text: str | None) -> int | None:
    """Returns the non-negative number in ``text`` (at most nine digits), else None."""
    if not text:
        return None
    text = text.strip()
    return untrusted.whole(text, 9)


def has_rank(environ: Mapping[str, str]) -> bool:
    """Returns True if a launcher variable is set; every process calls it."""
    return OUTSIDE not in environ and (any(source[0] in environ for source in SOURCES) or "TF_CONFIG" in environ)


def read(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Returns the identity of a rank as record fields, or None.

    ``rank``, ``local_rank``, ``group_rank``, ``world_size``, ``local_world_size``, ``restart_count`` (None = unknown),
    ``rank_source`` (``env:RANK``).
    """
    if OUTSIDE in environ:
        return None
    for rank_name, local_name, world_name, local_world_name in SOURCES:
        rank = number(environ.get(rank_name))
        if rank is not None:
            return {
                "rank": rank,
                "local_rank": number(environ.get(local_name)),
                "group_rank": number(environ.get("GROUP_RANK")),
                "world_size": number(environ.get(world_name)),
                "local_world_size": number(environ.get(local_world_name)),
                "restart_count": number(environ.get("TORCHELASTIC_RESTART_COUNT")),
                "rank_source": "env:" + rank_name,
            }
    if "TF_CONFIG" in environ:
        return _tf_config(environ["TF_CONFIG"])
    return None


def _tf_config(text: str) -> dict[str, Any] | None:
    """Reads TF_CONFIG: chief is rank 0, then workers; None for others: ps and evaluator are no ranks."""
    try:
        config = untrusted.loads(text)
        kind, index = str(config["task"]["type"]), untrusted.whole(str(config["task"]["index"]))
        sizes = {name: len(hosts) for name, hosts in config.get("cluster", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if index is None:
        return None
    heads = sizes.get("chief", 0) + sizes.get("master", 0)
    if kind in ("chief", "master"):
        rank = index
    elif kind == "worker":
        rank = heads + index
    else:
        return None
    return {
        "rank": rank,
        "local_rank": None,
        "group_rank": None,
        "world_size": (heads + sizes.get("worker", 0)) or None,
        "local_world_size": None,
        "restart_count": None,
        "rank_source": "env:TF_CONFIG",
    }


def key(environ: Mapping[str, str]) -> tuple[str | None, ...] | None:
    """Returns values that a rank shares with its children but not its launcher; None without rank."""
    for rank_name, local_name, _, _ in SOURCES:
        if rank_name in environ:
            names = (rank_name, local_name, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
            return tuple(environ.get(name) for name in names)
    return ("TF_CONFIG", environ["TF_CONFIG"]) if "TF_CONFIG" in environ else None


def is_launcher(argv: tuple[str, ...]) -> bool:
    """Returns True if the command line starts a launcher."""
    for word in argv[:_LAUNCHER_WORDS]:
        if word.rpartition("/")[2] in LAUNCHERS or word.endswith("torch/distributed/run.py"):
            return True
    return False
