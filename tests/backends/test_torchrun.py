"""A given torchrun: read in every spelling, completed, refused where it contradicts, and its script's arguments left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.backends.torchrun import FLAGS, TorchrunCommand, as_words, merge, parse, rendezvous_flags
from rankfall.model import JobSpec, SpecError

SPEC = JobSpec(command=("torchrun",), nnodes=2, nproc_per_node=4)


def ours(backend: str = "static", *, node: int = 1, least: int = 2, most: int = 2) -> dict[str, str]:
    return rendezvous_flags(spec=SPEC, nnodes=least, most=most, node=node, backend=backend, run="job-1-a1", port=29999)


def parsed(*words: str) -> TorchrunCommand:
    found = parse(("torchrun", *words))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (("torchrun", "t.py"), ("torchrun",)),
        (("bin/torchrun", "t.py"), ("bin/torchrun",)),
        (("python", "-m", "torch.distributed.run", "t.py"), ("python", "-m", "torch.distributed.run")),
        (
            ("python3.11", "-u", "-X", "dev", "-m", "torch.distributed.launch", "t.py"),
            ("python3.11", "-u", "-X", "dev", "-m", "torch.distributed.launch"),
        ),
    ],
)
def test_torchrun_is_known_in_its_forms(command: tuple[str, ...], prefix: tuple[str, ...]) -> None:
    found = parse(command)
    assert found is not None
    assert (found.prefix, found.rest) == (prefix, ("t.py",))


@pytest.mark.parametrize(
    "command", [("python", "t.py"), ("python", "-m", "json.tool"), ("accelerate", "launch"), ("sh", "torchrun")]
)
def test_other_programs_are_not_torchrun(command: tuple[str, ...]) -> None:
    assert parse(command) is None


@pytest.mark.parametrize(
    "words",
    [
        ("--nproc-per-node", "4"),
        ("--nproc_per_node", "4"),
        ("--nproc-per-node=4",),
        ("--nproc_per_node=4",),
        ("--nproc=4",),
        ("--virtual-local-rank", "--nproc-per-node", "4"),
    ],
)
def test_every_spelling_of_a_flag_is_read(words: tuple[str, ...]) -> None:
    found = parsed(*words, "t.py", "--nproc-per-node", "9")
    assert found.given["nproc-per-node"] == "4"
    assert merge(found, ours(), env={})[-len(words) - 3 :] == (*words, "t.py", "--nproc-per-node", "9")


def test_what_is_missing_is_filled_in_before_the_users_words() -> None:
    command = merge(parsed("--nnodes=2", "-m", "pkg.train", "--lr", "1"), ours(), env={})
    assert command[0] == "torchrun"
    assert command[-5:] == ("--nnodes=2", "-m", "pkg.train", "--lr", "1")
    assert "--nnodes" not in command
    assert command[1:-5] == as_words({name: value for name, value in ours().items() if name != "nnodes"})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--nnodes", "3"), "--nnodes 3 contradicts --nnodes 2"),
        (("--nproc_per_node=gpu",), "--nproc-per-node gpu contradicts --nproc-per-node 4"),
        (("--max-restarts=3",), "--max-restarts 3 contradicts --max-restarts 0"),
        (("--node_rank", "0"), "--node-rank 0 contradicts --node-rank 1"),
        (("--master-port=1234",), "--master-port 1234 contradicts the free port of each attempt"),
        (("--standalone",), "--standalone contradicts --rdzv-backend static"),
        (("--rdzv-endpoint", "host:1"), "--rdzv-endpoint host:1 contradicts --rdzv-backend static"),
        (("--rdzv_id=abc",), "--rdzv-id abc contradicts the new id of each attempt"),
        (("--rdzv-backend", "etcd"), "--rdzv-backend etcd contradicts --rdzv-backend static"),
    ],
)
def test_what_contradicts_is_refused_with_both_values_and_a_way_out(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(SpecError) as caught:
        merge(parsed(*words, "t.py"), ours(), env={})
    assert named in caught.value.message
    assert caught.value.path == "$.command"
    assert caught.value.hint


def test_variables_of_torchrun_count_as_its_flags() -> None:
    with pytest.raises(SpecError, match="PET_NNODES 5 contradicts --nnodes 2"):
        merge(parsed("t.py"), ours(), env={"PET_NNODES": "5"})
    merge(parsed("--nnodes=2", "t.py"), ours(), env={"PET_NNODES": "5"})
    merge(parsed("t.py"), ours(), env={"PET_NNODES": "2:2", "PET_STANDALONE": "0"})


def test_elastic_uses_one_host_of_the_store_and_a_range() -> None:
    first, second = ours("c10d", node=0, least=1, most=2), ours("c10d", node=1, least=1, most=2)
    assert first["nnodes"] == "1:2"
    quick = ",last_call_timeout=5,keep_alive_interval=2"
    assert (first["rdzv-conf"], second["rdzv-conf"]) == (f"is_host=1{quick}", f"is_host=0{quick}")
    # Its agents outlive the falls of their peers; of those the supervisor takes care.
    assert (first["max-restarts"], ours("c10d", node=0, least=2, most=2)["max-restarts"]) == ("1000", "0")
    assert first["rdzv-endpoint"] == second["rdzv-endpoint"] == "127.0.0.1:29999"
    assert "master-port" not in first


@given(st.lists(st.text(max_size=8), max_size=6), st.sampled_from(sorted(FLAGS)))
def test_words_behind_the_script_are_never_read_nor_changed(words: list[str], flag: str) -> None:
    tail = ("t.py", f"--{flag}", *words)
    found = parsed("--nnodes=2", *tail)
    assert found.given == {"nnodes": "2"}
    assert merge(found, ours(), env={})[-len(tail) :] == tail
