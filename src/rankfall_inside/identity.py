"""Reads the rank of a process from its environment and names the variable that set it.

A table lists what launchers set. A value that is no plain number is refused: an unknown rank is better than a
wrong one.
"""

from __future__ import annotations

from rankfall_inside import untrusted

TYPE_CHECKING = False  # importing typing costs milliseconds
if TYPE_CHECKING:
    from typing import Any, Mapping

# (rank, local rank, world size, local world size), best first. torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI), Slurm.
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
# Set in slots of a role outside the world of ranks: numbers that its programs give each other are none of the job's ranks.
OUTSIDE = "RANKFALL_OUTSIDE"
# Programs that start ranks: they may inherit a RANK of the pod (operators set one), but are none themselves.
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
# How much of a command line is looked at: the launcher's name stands among the first words.
_LAUNCHER_WORDS = 6


def number(text: str | None) -> int | None:
    """The non-negative number that ``text`` says, at most nine digits, else None."""
    if not text:
        return None
    text = text.strip()
    return untrusted.whole(text, 9)


def has_rank(environ: Mapping[str, str]) -> bool:
    """Whether any launcher's variable is there: the cheap question, asked in every process."""
    return OUTSIDE not in environ and (any(source[0] in environ for source in SOURCES) or "TF_CONFIG" in environ)


def read(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Identity of a rank, as fields of a record, or None when no variable names a rank.

    Returns:
        ``rank``, ``local_rank``, ``group_rank``, ``world_size``, ``local_world_size``, ``restart_count`` (each None when nobody said
        it) and ``rank_source``, such as ``env:RANK``.
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
    """TensorFlow's cluster description: the chief is rank 0, workers follow; other task types (ps, evaluator) are no ranks."""
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
    """What is equal in a rank and in its own children, and differs between a rank and its launcher; None without a rank."""
    for rank_name, local_name, _, _ in SOURCES:
        if rank_name in environ:
            names = (rank_name, local_name, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
            return tuple(environ.get(name) for name in names)
    return ("TF_CONFIG", environ["TF_CONFIG"]) if "TF_CONFIG" in environ else None


def is_launcher(argv: tuple[str, ...]) -> bool:
    """Whether a command line is that of a program that starts ranks."""
    for word in argv[:_LAUNCHER_WORDS]:
        if word.rpartition("/")[2] in LAUNCHERS or word.endswith("torch/distributed/run.py"):
            return True
    return False
