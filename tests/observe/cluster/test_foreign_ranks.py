"""What proves the ranks of a job that Rankfall did not start, and for which lines; what does not prove them proves nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kube.access import Access, Endpoint
from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, ObjectNotFound
from rankfall.kube.exec import ExecResult
from rankfall.observe.cluster import identify
from rankfall.observe.cluster.environ import Seen, read_ranks
from rankfall.observe.cluster.identify import Identifier, after_look
from rankfall.observe.cluster.instance import InstanceLog
from rankfall.observe.cluster.manifest_ranks import static_ranks
from rankfall.observe.cluster.told import ROUND, Told, read_told, write_told
from rankfall.store import StreamAppender

NS = 1_000_000_000
INDEX = "batch.kubernetes.io/job-completion-index"
TRAINER = [
    {"name": "PET_NNODES", "value": "2"},
    {"name": "PET_NPROC_PER_NODE", "value": "2"},
    {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}},
]


def pod(*command: str, env: list[dict[str, Any]] | None = None, index: str = "1", **container: Any) -> dict[str, Any]:
    own = {"name": "node", "command": list(command), "env": env or []} | container
    return {"metadata": {"annotations": {INDEX: index}}, "spec": {"containers": [{"name": "side"}, own]}}


@pytest.mark.parametrize(
    ("made", "ranks"),
    [
        (pod("torchrun", "train.py", env=TRAINER), {0: 2, 1: 3}),
        (pod("python", "-m", "torch.distributed.run", "--tee", "3", "train.py", env=TRAINER), {0: 2, 1: 3}),
        (pod("torchrun", "--nnodes=4", "--node_rank", "3", "--nproc-per-node", "1", "train.py"), {0: 3}),
        (pod("sh", "-c", "exec torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 train.py"), {0: 0, 1: 1}),
    ],
)
def test_a_static_node_rank_in_the_manifest_proves_the_ranks(made, ranks):
    assert static_ranks(made, "node") == ranks


@pytest.mark.parametrize(
    "made",
    [
        pod("python", "train.py", env=TRAINER),
        pod("torchrun", "--rdzv-backend=c10d", "train.py", env=TRAINER),
        pod("torchrun", "--rdzv_backend", "c10d", "train.py", env=TRAINER),
        pod("torchrun", "train.py", env=[*TRAINER, {"name": "PET_RDZV_BACKEND", "value": "c10d"}]),
        pod("torchrun", "train.py", env=TRAINER, envFrom=[{"secretRef": {"name": "x"}}]),
        pod("torchrun", "--nnodes=1:4", "--node-rank=1", "--nproc-per-node=2", "train.py"),
        pod("torchrun", "--nnodes=2", "--node-rank=1", "--nproc-per-node=gpu", "train.py"),
        pod("sh", "-c", "torchrun --nnodes=2 --node-rank=$JOB_COMPLETION_INDEX --nproc-per-node=2 train.py"),
        pod("sh", "-c", "torchrun --nnodes=2 --node-rank=1 --nproc-per-node=2 a.py; torchrun b.py", env=TRAINER),
        pod("sh", "-c", "torchrun 'unclosed train.py", env=TRAINER),
        pod("torchrun", "train.py", env=TRAINER, index="x"),
        pod("torchrun", "train.py", env=[*TRAINER[:2], {"name": "PET_NODE_RANK", "valueFrom": {"secretKeyRef": {}}}]),
        # The completion index by itself is no rank.
        pod("torchrun", "train.py", env=TRAINER[:2]),
        {"metadata": {}, "spec": {"containers": []}},
        {},
    ],
)
def test_anything_else_in_the_manifest_proves_nothing(made):
    assert static_ranks(made, "node") == {}


def process(pid: int, parent: int, *variables: str, ticks: int = 1000) -> str:
    rest = ["S", str(parent), *["0"] * 17, str(ticks), "0"]
    return "\n".join([f"@process {pid} {' '.join(rest)}", *variables])


def test_ranks_are_the_topmost_processes_that_a_launcher_made():
    text = "\n".join(
        [
            "@clock 1790000100 100.50",
            # The operator gives the whole container a RANK of its own.
            process(1, 0, "RANK=1", "WORLD_SIZE=2"),
            process(10, 1, "RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=4", ticks=2000),
            process(11, 1, "RANK=2", "LOCAL_RANK=0", "WORLD_SIZE=4"),
            # A DataLoader's.
            process(12, 11, "RANK=2", "LOCAL_RANK=0"),
        ]
    )
    found = read_ranks(text)
    assert {local: (one.rank, one.pid, one.ticks) for local, one in found.items()} == {
        0: (2, 11, 1000),
        1: (3, 10, 2000),
    }
    assert found[1].started == round((1_790_000_100 - 80.5) * NS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        process(10, 1, "RANK=3", "LOCAL_RANK=1"),
        "\n".join(["@clock 1 1", process(10, 1, "RANK=3", "LOCAL_RANK=1"), process(11, 1, "RANK=2", "LOCAL_RANK=1")]),
        "@clock 1 1\n@process 10 gone\nRANK=3\nLOCAL_RANK=1",
        "\n".join(["@clock 1 1", process(10, 1, "RANK=3", "LOCAL_RANK=1000")]),
    ],
)
def test_an_answer_that_does_not_say_proves_nothing(text):
    assert read_ranks(text) == {}


@given(st.text(alphabet="@clock proes0123456789\nRANKLO=_.", max_size=400))
def test_any_answer_is_read(text):
    assert all(isinstance(one, Seen) for one in read_ranks(text).values())


def seen(rank: int, local: int, *, pid: int, started: int = 0) -> Seen:
    return Seen(rank=rank, local_rank=local, pid=pid, ticks=pid, started=started)


def test_launch_s17_another_round_ends_what_the_first_one_proved_where_it_was_seen_last(tmp_path):
    first = {0: seen(2, 0, pid=10), 1: seen(3, 1, pid=11)}
    told = after_look(Told(), first, sizes={"0.out.log": 5, "1.out.log": 7}, folder=tmp_path)
    assert {n: (one.rank, one.since, one.until) for n, one in told.ranks.items()} == {0: (2, 0, None), 1: (3, 0, None)}
    told = after_look(told, first, sizes={"0.out.log": 50, "1.out.log": 70}, folder=tmp_path)
    assert (told.base, told.confirmed) == (0, {0: 50, 1: 70})
    second = {0: seen(0, 0, pid=20), 1: seen(1, 1, pid=21)}
    told = after_look(told, second, sizes={"0.out.log": 90, "1.out.log": 90}, folder=tmp_path)
    assert told.base == ROUND
    assert {n: (one.rank, one.until) for n, one in told.ranks.items()} == {
        0: (2, 50),
        1: (3, 70),
        ROUND: (0, None),
        ROUND + 1: (1, None),
    }


def test_lines_from_before_the_process_are_of_no_rank(tmp_path):
    stream = StreamAppender(tmp_path / "0.out")
    stream.write(b"of an earlier round\n", 10 * NS)
    stream.write(b"of this one\n", 20 * NS)
    stream.close()
    told = after_look(Told(), {0: seen(2, 0, pid=10, started=15 * NS)}, sizes={}, folder=tmp_path)
    assert told.ranks[0].since == len(b"of an earlier round\n")
    told = after_look(Told(), {0: seen(2, 0, pid=10, started=30 * NS)}, sizes={}, folder=tmp_path)
    assert told.ranks[0].since == len(b"of an earlier round\nof this one\n")


def log(folder: Path) -> InstanceLog:
    return InstanceLog(folder, on_record=lambda line, at: True, now=lambda: 0, foreign=True)


def line(second: int, text: str) -> bytes:
    return f"2026-11-21T19:00:{second:02d}.000000000Z {text}\n".encode()


def test_text_that_looks_like_a_wrappers_is_the_jobs_own_in_a_foreign_log(tmp_path):
    made = log(tmp_path)
    made.opened()
    for n, text in enumerate(
        ("[rank 3] forged", "\x1erankfall/1 x y", "[default1]:step 1", "[trainer0]: a", "[step2]: b")
    ):
        made.feed(line(n, text))
    made.routes.base = ROUND
    made.feed(line(9, "[default1]:step 2"))
    made.close()
    found = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert found == {
        "slot.out.log": "[rank 3] forged\n\x1erankfall/1 x y\n[step2]: b\n",
        "1.out.log": "[default1]:step 1\n",
        "0.out.log": "[trainer0]: a\n",
        "1001.out.log": "[default1]:step 2\n",
    }


def looker(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[Identifier, list[str]]:
    said: list[str] = []
    left = list(answers)

    async def execute(*_: Any, **__: Any) -> ExecResult:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return ExecResult(answer.encode(), b"", 0)

    monkeypatch.setattr(identify, "execute", execute)
    for name in ("_FIRST_S", "_EVERY_S"):
        monkeypatch.setattr(identify, name, 0.001)
    access = Access(context="c", cluster="k", user="u", namespace="here", endpoint=Endpoint(server="http://nowhere"))
    return Identifier(Kube(access), namespace="here", trouble=lambda name, text: said.append(text)), said


ANSWER = "\n".join(["@clock 100 100", process(10, 1, "RANK=3", "LOCAL_RANK=1")])


def watched(identifier: Identifier, folder: Path, *, looks: int) -> InstanceLog:
    made = log(folder)
    left = iter(range(looks))
    asyncio.run(
        identifier.watch("p", container="m", log=made, folder=folder, running=lambda: next(left, None) is not None)
    )
    made.close()
    return made


def test_a_container_is_looked_into_once_its_lines_bear_local_ranks(tmp_path, monkeypatch):
    identifier, said = looker(monkeypatch, ANSWER)
    watched(identifier, tmp_path, looks=3)
    assert read_told(tmp_path) == Told()
    made = log(tmp_path)
    made.opened()
    made.feed(line(1, "[default1]:x"))
    made.close()
    watched(identifier, tmp_path, looks=3)
    assert read_told(tmp_path).ranks[1].rank == 3
    assert said == []


def test_a_missing_right_is_told_and_not_asked_for_again(tmp_path, monkeypatch):
    identifier, said = looker(monkeypatch, Forbidden("no exec for you", status=403))
    made = log(tmp_path)
    made.opened()
    made.feed(line(1, "[default1]:x"))
    made.close()
    watched(identifier, tmp_path, looks=5)
    assert said == ["ranks that only a look into their pods would tell stay unknown: no exec for you"]


def test_a_container_that_cannot_be_looked_into_is_told(tmp_path, monkeypatch):
    identifier, said = looker(monkeypatch, ObjectNotFound("no such pod", status=404))
    asyncio.run(identifier.look("p", container="m", log=log(tmp_path), folder=tmp_path))
    assert said == ["which ranks run in p cannot be seen: no such pod"]


def test_what_is_damaged_or_missing_tells_nothing(tmp_path):
    assert read_told(tmp_path) == Told()
    (tmp_path / "ranks.json").write_text("{")
    assert read_told(tmp_path) == Told()
    write_told(tmp_path, Told(base=3))
    assert read_told(tmp_path).base == 3
