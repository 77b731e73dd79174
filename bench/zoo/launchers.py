"""The launchers, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TORCH: Final = ("torch", "numpy")
# All that is left is that others lost a peer.
LOST: Final = ("unknown", "peer_lost")
LIBRARIES: Final = (*TORCH, "accelerate", "lightning", "transformers", "deepspeed")


@dataclass(frozen=True)
class Launcher:
    """One way to start a job of several ranks.

    Attributes:
        packages: from the package index, into a virtual environment of their own; launchers with the same share it.
        command: words; {bin} is the folder of that environment, {world} the number of ranks, {port} a free port.
        program: in `programs`.
        env: added to the environment.
        torch: the ranks have torch.
        names_rank: the text of a failed job names the global rank, or its launcher's end does.
        without_words: what the text supports besides where a rank ended without a word; empty: its launcher reports code or signal.
        without: faults that it cannot have.
        needs: a program of the machine, in PATH.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    program: str
    env: Mapping[str, str] = field(default_factory=dict)
    torch: bool = True
    names_rank: bool = True
    without_words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    needs: str = ""


def _each(*setting: str) -> tuple[str, ...]:
    """One shell that starts every rank with the settings of its number $i, as a script without a launcher does."""
    words = " ".join(setting)
    return (
        "bash",
        "-c",
        (
            f"for i in $(seq 0 $(({{world}} - 1))); do {words} {{bin}}/python {{program}} & done; "
            "failed=0; for i in $(seq {world}); do wait -n || failed=$?; done; exit $failed"
        ),
    )


_TF_CONFIG: Final = (
    r"""TF_CONFIG='{{"cluster":{{"worker":["127.0.0.1:{port}","127.0.0.1:{port1}","127.0.0.1:{port2}"]}},"""
    r""""task":{{"type":"worker","index":'$i'}}}}'"""
)
_TORCHRUN: Final = ("{bin}/torchrun", "--nproc-per-node", "{world}", "--master-port", "{port}")
_MPIRUN: Final = ("{bin}/mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "{world}")

# Ranks by Slurm's numbers of tasks; SLURM_CONF names a running cluster of one node.
_SRUN: Final = ("srun", "-n", "{world}", "--overcommit")
_SRUN_RANK: Final = (
    "bash",
    "-c",
    "RANK=$SLURM_PROCID WORLD_SIZE={world} MASTER_ADDR=127.0.0.1 MASTER_PORT={port} exec {bin}/python {program}",
)

LAUNCHERS: Final[Mapping[str, Launcher]] = {
    "torchrun": Launcher(TORCH, (*_TORCHRUN, "{program}"), "train_torch.py"),
    "torchrun-tee": Launcher(TORCH, (*_TORCHRUN, "--tee", "3", "{program}"), "train_torch.py"),
    "torchrun-nodes": Launcher(
        TORCH,
        (
            "bash",
            "-c",
            (
                "for node in 0 1; do {bin}/torchrun --nnodes 2 --node-rank $node --nproc-per-node 2 --master-addr 127.0.0.1"
                " --master-port {port} {program} & done; failed=0; wait -n || failed=$?; wait; exit $failed"
            ),
        ),
        "train_torch.py",
    ),
    "spawn": Launcher(TORCH, ("{bin}/python", "{program}"), "train_spawn.py"),
    "accelerate": Launcher(
        LIBRARIES,
        (
            "{bin}/accelerate",
            "launch",
            "--multi_gpu",
            "--num_processes",
            "{world}",
            "--main_process_port",
            "{port}",
            "{program}",
        ),
        "train_torch.py",
    ),
    "deepspeed": Launcher(
        LIBRARIES,
        ("{bin}/deepspeed", "--num_gpus", "{world}", "--master_port", "{port}", "{program}"),
        "train_torch.py",
        {"DS_ACCELERATOR": "cpu"},
        names_rank=False,
        without_words=LOST,
    ),
    "lightning": Launcher(LIBRARIES, ("{bin}/python", "{program}"), "train_lightning.py", without_words=LOST),
    "transformers": Launcher(LIBRARIES, (*_TORCHRUN, "{program}"), "train_hf.py"),
    "ray": Launcher(
        ("torch", "numpy", "ray[train]"),
        ("{bin}/python", "{program}"),
        "train_ray.py",
        without_words=(*LOST, "killed_unknown"),
        # Its training function runs in a thread, which SIGINT does not reach.
        without=("interrupted",),
    ),
    "jax": Launcher(
        ("jax",), _each("ZOO_PROCESS=$i"), "train_jax.py", torch=False, names_rank=False, without_words=LOST
    ),
    "tensorflow": Launcher(
        ("tensorflow-cpu",), _each(_TF_CONFIG), "train_tensorflow.py", torch=False, names_rank=False, without_words=LOST
    ),
    "srun": Launcher(TORCH, (*_SRUN, *_SRUN_RANK), "train_torch.py", needs="srun"),
    "srun-label": Launcher(TORCH, (*_SRUN, "--label", *_SRUN_RANK), "train_torch.py", needs="srun"),
    "openmpi": Launcher(
        ("openmpi", "mpi4py"), (*_MPIRUN, "{bin}/python", "-m", "mpi4py", "{program}"), "train_mpi.py", torch=False
    ),
    "openmpi-tagged": Launcher(
        ("openmpi", "mpi4py"),
        (*_MPIRUN, "--tag-output", "{bin}/python", "-m", "mpi4py", "{program}"),
        "train_mpi.py",
        torch=False,
    ),
    # Its launcher joins the ends of the first process and of those that it stopped, and names no rank.
    "mpich": Launcher(
        ("mpich", "mpi4py"),
        ("{bin}/mpiexec", "-l", "-n", "{world}", "{bin}/python", "-m", "mpi4py", "{program}"),
        "train_mpi.py",
        torch=False,
        without_words=("killed_unknown", "unknown"),
    ),
}
