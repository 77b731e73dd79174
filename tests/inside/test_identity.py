from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall_inside import identity


@pytest.mark.parametrize(
    ("environ", "rank", "local", "world", "source"),
    [
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, 5, 1, 8, "env:RANK"),
        (
            {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            2,
            0,
            4,
            "env:OMPI_COMM_WORLD_RANK",
        ),
        ({"PMIX_RANK": "7"}, 7, None, None, "env:PMIX_RANK"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, None, 2, "env:PMI_RANK"),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16"}, 9, 1, 16, "env:SLURM_PROCID"),
        ({"RANK": "1", "SLURM_PROCID": "0"}, 1, None, None, "env:RANK"),
        ({"RANK": "none", "SLURM_PROCID": "3"}, 3, None, None, "env:SLURM_PROCID"),
    ],
)
def test_launchers_variables_name_the_rank_and_their_source(environ, rank, local, world, source) -> None:
    found = identity.read(environ)
    assert found is not None
    assert (found["rank"], found["local_rank"], found["world_size"], found["rank_source"]) == (
        rank,
        local,
        world,
        source,
    )
    assert identity.has_rank(environ)


@pytest.mark.parametrize(
    ("task", "rank"), [(("chief", 0), 0), (("worker", 1), 2), (("ps", 0), None), (("evaluator", 0), None)]
)
def test_tensorflow_cluster_counts_the_chief_first(task, rank) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    found = identity.read({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task[0], "index": task[1]}})})
    assert (found and found["rank"]) == rank
    if found:
        assert (found["world_size"], found["rank_source"]) == (3, "env:TF_CONFIG")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"task": 3}',
        '{"task": {"type": "worker", "index": "x"}}',
        '{"task":{"type":"worker","index":0},"cluster":[]}',
    ],
)
def test_damaged_tensorflow_cluster_is_no_rank(text: str) -> None:
    assert identity.read({"TF_CONFIG": text}) is None


@given(st.text())
def test_only_plain_numbers_are_ranks(text: str) -> None:
    found = identity.read({"RANK": text})
    if found is not None:
        assert 0 <= found["rank"] < 10**9
        assert str(found["rank"]) == text.strip().lstrip("0") or set(text.strip()) == {"0"}


def test_key_differs_between_a_pods_rank_and_its_workers() -> None:
    pod = {"RANK": "1"}
    worker = pod | {"RANK": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
    assert identity.key(pod) != identity.key(worker)
    assert identity.key(worker) == identity.key(dict(worker, OTHER="1"))
    assert identity.key({}) is None


def test_launchers_are_known_by_their_command_line() -> None:
    assert identity.is_launcher(("/usr/bin/python", "/venv/bin/torchrun", "x.py"))
    assert identity.is_launcher(("python", "-m", "torch.distributed.run", "x.py"))
    assert not identity.is_launcher(("python", "train.py"))
