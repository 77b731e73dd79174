"""What proves the ranks of a job that Rankfall did not start, and for which lines; what does not prove them proves nothing."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.collect.pods import rank_discovery
from rankfall.collect.pods.instance_log import InstanceLog
from rankfall.collect.pods.rank_discovery import COMMAND, END, RankProber, Seen, read_ranks, update_rank_map
from rankfall.kube.auth.access import Access, Endpoint
from rankfall.kube.client import Kube
from rankfall.kube.errors import Forbidden, ObjectNotFound
from rankfall.kube.exec.session import ExecResult
from rankfall.rundir import StreamAppender
from rankfall.rundir.cluster.manifest_ranks import Launch, launch_of
from rankfall.rundir.cluster.marks import ROUND, RankMap, read_rank_map, write_rank_map
from support.feeding import until
from support.patience import scaled

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


TEE = ("--tee", "3")


@pytest.mark.parametrize(
    ("made", "roles", "ranks"),
    [
        (
            pod("python3.11", "-u", "-m", "torch.distributed.run", *TEE, "train.py", env=TRAINER),
            "default",
            {0: 2, 1: 3},
        ),
        (pod("torchrun", "-t3", "train.py", env=TRAINER), "default", {0: 2, 1: 3}),
        (pod("torchrun", "train.py", env=[*TRAINER, {"name": "PET_TEE", "value": "3"}]), "default", {0: 2, 1: 3}),
        (pod("torchrun", *TEE, "--nnodes=4", "--node_rank", "3", "--nproc-per-node", "1", "a.py"), "default", {0: 3}),
        (
            pod("sh", "-c", "exec torchrun -t 3 --nnodes=2 --node-rank=0 --nproc-per-node=2 a.py"),
            "default",
            {0: 0, 1: 1},
        ),
        (
            pod("bash", "-ec", "set -x\ncd /job\n# it\ntorchrun --tee 3 \\\n  a.py 2>&1", env=TRAINER),
            "default",
            {0: 2, 1: 3},
        ),
        (
            pod("torchrun", *TEE, "--role=learner", "-m", "train", "--node-rank", "7", env=TRAINER),
            "learner",
            {0: 2, 1: 3},
        ),
        (pod("torchrun", *TEE, "a.py", env=[*TRAINER, {"name": "PET_ROLE", "value": "x1"}]), "x1", {0: 2, 1: 3}),
        # The lines are marked, and the ranks are those of a rendezvous.
        (pod("torchrun", *TEE, "--rdzv-backend=c10d", "train.py", env=TRAINER), "default", {}),
        (pod("torchrun", *TEE, "--rdzv_backend", "c10d", "train.py", env=TRAINER), "default", {}),
        (pod("torchrun", *TEE, "a.py", env=[*TRAINER, {"name": "PET_RDZV_BACKEND", "value": "c10d"}]), "default", {}),
        (pod("torchrun", *TEE, "--nnodes=1:4", "--node-rank=1", "--nproc-per-node=2", "train.py"), "default", {}),
        (pod("torchrun", *TEE, "--nnodes=2", "--node-rank=1", "--nproc-per-node=gpu", "train.py"), "default", {}),
        (pod("torchrun", *TEE, "train.py", env=TRAINER, index="x"), "default", {}),
        (
            pod(
                "torchrun",
                *TEE,
                "a.py",
                env=[*TRAINER[:2], {"name": "PET_NODE_RANK", "valueFrom": {"secretKeyRef": {}}}],
            ),
            "default",
            {},
        ),
        # The completion index by itself is no rank.
        (pod("torchrun", *TEE, "train.py", env=TRAINER[:2]), "default", {}),
    ],
)
def test_i19_p11_a_manifest_proves_torchruns_own_prefixes_and_a_static_node_rank(made, roles, ranks):
    assert launch_of(made, "node") == Launch(roles=(roles,), ranks=ranks)


@pytest.mark.parametrize(
    "made",
    [
        pod("torchrun", "train.py", env=TRAINER),
        pod("torchrun", "--tee=0", "train.py", env=[*TRAINER, {"name": "PET_TEE", "value": "3"}]),
        pod("torchrun", "train.py", "--tee", "3", env=TRAINER),
    ],
)
def test_i19_p11_without_tee_no_line_bears_a_prefix_of_torchruns(made):
    assert launch_of(made, "node") == Launch(roles=())


@pytest.mark.parametrize(
    "made",
    [
        pod("python", "train.py", env=TRAINER),
        pod("python", "train.py", "torchrun", "--tee", "3", "a.py", env=TRAINER),
        pod("torchrun", *TEE, "train.py", env=TRAINER, envFrom=[{"secretRef": {"name": "x"}}]),
        pod("torchrun", "--tee=1", "train.py", env=TRAINER),
        pod("torchrun", "--tee=0:3,1:0", "train.py", env=TRAINER),
        pod("torchrun", *TEE, "--some-new-option", "train.py", env=TRAINER),
        pod("torchrun", *TEE, env=TRAINER),
        pod("torchrun", "--tee", env=TRAINER),
        pod("torchrun", *TEE, "$(MORE)", "train.py", env=TRAINER),
        pod("torchrun", *TEE, "--logs-specs", "mine", "train.py", env=TRAINER),
        pod("torchrun", *TEE, "a.py", env=[*TRAINER, {"name": "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "value": "x"}]),
        pod("torchrun", "a.py", env=[*TRAINER, {"name": "PET_TEE", "valueFrom": {"secretKeyRef": {}}}]),
        pod("torchrun", *TEE, "a.py", env=[*TRAINER, {"name": "PET_ROLE", "valueFrom": {"secretKeyRef": {}}}]),
        pod("sh", "-c", "torchrun --tee 3 --nnodes=2 --node-rank=$JOB_COMPLETION_INDEX --nproc-per-node=2 train.py"),
        pod("sh", "-c", "torchrun --tee 3 $ARGS --node-rank=1 train.py", env=TRAINER),
        pod(
            "sh", "-c", "torchrun --tee 3 --nnodes=2 --node-rank=1 --nproc-per-node=2 a.py; torchrun b.py", env=TRAINER
        ),
        pod("sh", "-c", "torchrun --tee 3 'unclosed train.py", env=TRAINER),
        pod("sh", "-c", "export PET_NODE_RANK=0\ntorchrun --tee 3 a.py", env=TRAINER),
        pod("sh", "-c", "PET_NODE_RANK=0 torchrun --tee 3 a.py", env=TRAINER),
        pod("sh", "-c", "echo '[default1]:ready'\ntorchrun --tee 3 a.py", env=TRAINER),
        pod("sh", "-c", "torchrun --tee 3 a.py\necho '[default1]:done'", env=TRAINER),
        pod("sh", "-c", "", env=TRAINER),
        pod("sh", "/job/start.sh", env=TRAINER),
        pod(env=TRAINER),
        {"metadata": {}, "spec": {"containers": [{"name": "node", "command": ["torchrun", 3]}]}},
        {"metadata": {}, "spec": {"containers": []}},
        {},
    ],
)
def test_i19_p11_anything_else_in_the_manifest_proves_nothing(made):
    assert launch_of(made, "node") == Launch()


def process(pid: int, parent: int, *variables: str, ticks: int = 1000) -> str:
    rest = ["S", str(parent), *["0"] * 17, str(ticks), "0"]
    return "\n".join([f"@process {pid} {' '.join(rest)}", *variables])


def whole(*lines: str) -> str:
    """A complete answer of a container."""
    return "\n".join(lines) + f"\n{END}"


def test_ranks_are_the_topmost_processes_that_a_launcher_made():
    text = whole(
        "@clock 1790000100 100.50",
        # The operator gives the whole container a RANK of its own.
        process(1, 0, "RANK=1", "WORLD_SIZE=2"),
        process(10, 1, "RANK=3", "LOCAL_RANK=1", "WORLD_SIZE=4", ticks=2000),
        process(11, 1, "RANK=2", "LOCAL_RANK=0", "WORLD_SIZE=4"),
        # A DataLoader's.
        process(12, 11, "RANK=2", "LOCAL_RANK=0"),
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
        END,
        whole(process(10, 1, "RANK=3", "LOCAL_RANK=1")),
        whole("@clock 1 1", process(10, 1, "RANK=3", "LOCAL_RANK=1"), process(11, 1, "RANK=2", "LOCAL_RANK=1")),
        whole("@clock 1 1", "@process 10 gone", "RANK=3", "LOCAL_RANK=1"),
        whole("@clock 1 1", process(10, 1, "RANK=3", "LOCAL_RANK=1000")),
    ],
)
def test_an_answer_that_does_not_say_proves_nothing(text):
    assert read_ranks(text) == {}


@given(st.text(alphabet="@clock proes0123456789\nRANKLO=_.", max_size=400))
def test_any_answer_is_read(text):
    assert all(isinstance(one, Seen) for one in read_ranks(whole(text)).values())


def test_an_answer_that_was_cut_proves_nothing():
    # Listed first, and without its parent taken for the rank: a DataLoader's. Cut after "RANK=1", the rank has another number.
    text = whole(
        "@clock 100 100",
        process(100, 20, "LOCAL_RANK=1", "RANK=12"),
        process(20, 1, "LOCAL_RANK=1", "RANK=12"),
        *redirected(1, 1),
    )
    assert [one.pid for one in read_ranks(text).values()] == [20]
    assert [end for end in range(len(text)) if read_ranks(text[:end])] == []


def test_the_command_ends_its_answer():
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=True, timeout=scaled(30))
    assert done.stdout.startswith("@clock ")
    assert done.stdout.endswith(f"\n{END}")


def redirected(local: int, launcher: int, *, where: str = "/tmp/x y/none_1/attempt_0", reads: bool = True) -> list[str]:
    """What the answer says of the outputs of a rank under ``--tee 3``."""
    files = [f"{where}/{local}/stdout.log", f"{where}/{local}/stderr.log"]
    return [f"@out {files[0]}", f"@err {files[1]}", *(f"@reads {launcher} {file}" for file in files if reads)]


@pytest.mark.parametrize(
    ("outputs", "uptime", "marked"),
    [
        (redirected(1, 5), 100.0, True),
        # Redirected and not shown, to files of another rank, by another process; started just now.
        (redirected(1, 5, reads=False), 100.0, False),
        (redirected(0, 5), 100.0, False),
        (redirected(1, 6), 100.0, False),
        (["@out pipe:[1]", "@err pipe:[2]"], 100.0, False),
        ([], 100.0, False),
        (["@out pipe:[1]", "@err pipe:[2]"], 11.0, None),
    ],
)
def test_i19_p11_lines_bear_torchruns_prefix_where_it_reads_both_outputs_of_a_rank(outputs, uptime, marked):
    lines = [f"@clock 1000 {uptime}", process(10, 5, "RANK=3", "LOCAL_RANK=1", "ROLE_NAME=a learner"), *outputs]
    found = read_ranks(whole(*lines))
    assert (found[1].marked, found[1].role) == (marked, "a learner")


def seen(rank: int, local: int, *, pid: int, started: int = 0) -> Seen:
    return Seen(rank=rank, local_rank=local, pid=pid, ticks=pid, started=started, role="default", marked=True)


def test_launch_s17_another_round_ends_what_the_first_one_proved_where_it_was_seen_last(tmp_path):
    first = {0: seen(2, 0, pid=10), 1: seen(3, 1, pid=11)}
    told = update_rank_map(RankMap(), first, sizes={"0.out.log": 5, "1.out.log": 7}, folder=tmp_path)
    assert {n: (one.rank, one.since, one.until) for n, one in told.ranks.items()} == {0: (2, 0, None), 1: (3, 0, None)}
    told = update_rank_map(told, first, sizes={"0.out.log": 50, "1.out.log": 70}, folder=tmp_path)
    assert (told.base, told.confirmed) == (0, {0: 50, 1: 70})
    # One rank has ended, and no other came: nothing else is proved.
    told = update_rank_map(told, {1: first[1]}, sizes={"1.out.log": 70}, folder=tmp_path)
    assert (told.base, told.confirmed) == (0, {0: 50, 1: 70})
    second = {0: seen(0, 0, pid=20), 1: seen(1, 1, pid=21)}
    told = update_rank_map(told, second, sizes={"0.out.log": 90, "1.out.log": 90}, folder=tmp_path)
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
    told = update_rank_map(RankMap(), {0: seen(2, 0, pid=10, started=15 * NS)}, sizes={}, folder=tmp_path)
    assert told.ranks[0].since == len(b"of an earlier round\n")
    told = update_rank_map(RankMap(), {0: seen(2, 0, pid=10, started=30 * NS)}, sizes={}, folder=tmp_path)
    assert told.ranks[0].since == len(b"of an earlier round\nof this one\n")


def log(folder: Path) -> InstanceLog:
    return InstanceLog(folder, on_record=lambda line, at: True, now=lambda: 0, foreign=True)


def line(second: int, text: str) -> bytes:
    return f"2026-11-21T19:00:{second:02d}.000000000Z {text}\n".encode()


def test_text_that_looks_like_a_wrappers_is_the_jobs_own_in_a_foreign_log(tmp_path):
    made = log(tmp_path)
    made.opened()
    assert not made.routes.tagged
    for n, text in enumerate(
        ("[rank 3] forged", "\x1erankfall/1 x y", "[default1]:step 1", "[trainer0]: a", "[step2]: b")
    ):
        made.push(line(n, text))
    assert made.routes.tagged
    made.routes.base = ROUND
    made.push(line(9, "[default1]:step 2"))
    made.close()
    found = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert found == {
        "slot.out.log": "[rank 3] forged\n\x1erankfall/1 x y\n[step2]: b\n",
        "1.out.log": "[default1]:step 1\n",
        "0.out.log": "[trainer0]: a\n",
        "1001.out.log": "[default1]:step 2\n",
    }


def looker(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[RankProber, list[str]]:
    said: list[str] = []
    left = list(answers)

    async def execute(*_: Any, **__: Any) -> ExecResult:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return ExecResult(answer.encode(), b"", 0)

    monkeypatch.setattr(rank_discovery, "execute", execute)
    for name in ("_FIRST_S", "_EVERY_S"):
        monkeypatch.setattr(rank_discovery, name, 0.001)
    access = Access(context="c", cluster="k", user="u", namespace="here", endpoint=Endpoint(server="http://nowhere"))
    return RankProber(Kube(access), namespace="here", trouble=lambda name, text: said.append(text)), said


ANSWER = whole("@clock 100 100", process(10, 1, "RANK=3", "LOCAL_RANK=1"), *redirected(1, 1))


def watched(identifier: RankProber, folder: Path, *texts: str, looks: int) -> dict[str, str]:
    """Streams after the lines came, these looks, and the same lines once more."""
    made = log(folder)
    made.opened()
    for n, text in enumerate(texts):
        made.push(line(n, text))
    left = iter(range(looks))
    asyncio.run(
        identifier.watch("p", container="m", log=made, folder=folder, running=lambda: next(left, None) is not None)
    )
    for n, text in enumerate(texts):
        made.push(line(10 + n, text))
    made.close()
    return {path.name.removesuffix(".out.log"): path.read_text() for path in folder.glob("*.log")}


def test_a_container_is_looked_into_once_its_lines_bear_local_ranks(tmp_path, monkeypatch):
    identifier, said = looker(monkeypatch, ANSWER)
    watched(identifier, tmp_path, "[rank3]: ValueError", "[default]:x", "plain", looks=3)
    assert read_rank_map(tmp_path) == RankMap()
    watched(identifier, tmp_path, "[default1]:x", looks=3)
    assert read_rank_map(tmp_path).ranks[1].rank == 3
    assert said == []


def test_i19_p14_one_task_waits_for_the_first_line_of_all_containers(tmp_path, monkeypatch):
    identifier, _ = looker(monkeypatch, ANSWER)
    folders = [tmp_path / str(slot) for slot in range(20)]
    logs = [log(folder) for folder in folders]
    for made in logs:
        made.opened()
        made.push(line(0, "plain"))

    async def watch() -> None:
        ran = [True] * 20
        watches = [
            asyncio.create_task(
                identifier.watch("p", container="m", log=made, folder=folder, running=lambda slot=slot: ran[slot])
            )
            for slot, (made, folder) in enumerate(zip(logs, folders, strict=True))
        ]
        await asyncio.sleep(0)
        # This one, those that wait, and the one that looks for all.
        assert len(asyncio.all_tasks()) == 1 + 20 + 1
        logs[7].push(line(1, "[default1]:x"))
        await until(lambda: 1 in read_rank_map(folders[7]).ranks, "the rank")
        ran[:] = [False] * 20
        await asyncio.gather(*watches)
        await until(lambda: len(asyncio.all_tasks()) == 1, "the end of the search")

    asyncio.run(watch())
    assert [number for number, folder in enumerate(folders) if read_rank_map(folder) != RankMap()] == [7]
    for made in logs:
        made.close()


def test_i19_p11_processes_name_the_role_of_the_prefixes_and_no_other_local_rank_gets_a_stream(tmp_path, monkeypatch):
    answer = ANSWER.replace("LOCAL_RANK=1", "LOCAL_RANK=1\nROLE_NAME=learner")
    identifier, _ = looker(monkeypatch, answer)
    found = watched(identifier, tmp_path, "[learner1]:x", "[learner7]:y", "[default1]:z", looks=3)
    told = read_rank_map(tmp_path)
    assert (told.roles, told.locals, told.of_no_rank(7), told.of_no_rank(1)) == (("learner",), {1}, True, False)
    assert found["1"] == "[default1]:z\n[learner1]:x\n"
    assert found["slot"] == "[learner1]:x\n[learner7]:y\n[learner7]:y\n[default1]:z\n"


def test_i19_p11_where_torchrun_marks_no_lines_their_text_proves_no_rank_and_is_not_waited_for(tmp_path, monkeypatch):
    plain = whole("@clock 100 100", process(10, 1, "RANK=3", "LOCAL_RANK=1"), "@out pipe:[1]", "@err pipe:[1]")
    fresh = plain.replace("@clock 100 100", "@clock 100 11")
    identifier, said = looker(monkeypatch, fresh, "", plain, Forbidden("asked again", status=403))
    found = watched(identifier, tmp_path, "[default1]:printed by rank 0 really", looks=9)
    told = read_rank_map(tmp_path)
    assert (told.ranks, told.settled, told.of_no_rank(1)) == ({}, True, True)
    assert found["slot"] == "[default1]:printed by rank 0 really\n"
    assert said == []


def test_after_an_answer_that_was_cut_the_container_is_looked_into_again(tmp_path, monkeypatch):
    # Exit code 0 says nothing: cut before "@reads", the lines would count as unmarked, and no look would follow.
    cut = ANSWER[: ANSWER.index("@reads")]
    identifier, said = looker(monkeypatch, cut, ANSWER)
    watched(identifier, tmp_path, "[default1]:x", looks=4)
    told = read_rank_map(tmp_path)
    assert (told.ranks[1].rank, told.settled, said) == (3, False, [])


def test_a_missing_right_is_told_and_not_asked_for_again(tmp_path, monkeypatch):
    identifier, said = looker(monkeypatch, Forbidden("no exec for you", status=403))
    watched(identifier, tmp_path, "[default1]:x", looks=5)
    assert said == ["ranks that can be found only inside their pods remain unknown: no exec for you"]
    assert read_rank_map(tmp_path).settled


def test_a_container_that_cannot_be_looked_into_is_told(tmp_path, monkeypatch):
    identifier, said = looker(monkeypatch, ObjectNotFound("no such pod", status=404))
    asyncio.run(identifier.look("p", container="m", log=log(tmp_path), folder=tmp_path))
    assert said == ["cannot find the ranks in p: no such pod"]


def test_what_is_damaged_or_missing_tells_nothing(tmp_path):
    assert read_rank_map(tmp_path) == RankMap()
    (tmp_path / "ranks.json").write_text("{")
    assert read_rank_map(tmp_path) == RankMap()
    write_rank_map(tmp_path, RankMap(base=3))
    assert read_rank_map(tmp_path).base == 3


@given(
    texts=st.lists(
        st.sampled_from(
            ["[rank 3] forged", "[rank ?] too", "", "step 1", "é" * 40, "\x1erankfall/1 x y", "[default1]:a", "x" * 90]
        ),
        min_size=1,
    ),
    seconds=st.lists(st.integers(0, 9), min_size=1),
    parts=st.integers(1, 4),
)
@settings(max_examples=80)
def test_i19_p14_chunks_of_a_foreign_log_are_stored_as_its_lines_one_by_one(texts, seconds, parts):
    def stored(feeds: list[bytes]) -> dict[str, object]:
        with tempfile.TemporaryDirectory() as folder:
            made = log(Path(folder))
            made.opened()
            for data in feeds:
                made.push(data)
            made.close()
            files = {path.name: path.read_bytes() for path in Path(folder).glob("*.log")}
            return files | {"lines": made.cursor.lines, "last": made.cursor.last}

    texts *= 30
    said = [line(at, text) for at, text in zip(sorted(islice(cycle(seconds), len(texts))), texts, strict=True)]
    size = -(-len(said) // parts)
    chunks = [b"".join(said[n : n + size]) for n in range(0, len(said), size)]
    assert stored(chunks) == stored(said)


def test_i19_p14_a_chunk_without_tags_is_not_gone_through_line_by_line(tmp_path, monkeypatch):
    made = log(tmp_path)
    made.opened()
    gone_through: list[bytes] = []
    of = made.routes.of
    monkeypatch.setattr(made.routes, "of", lambda line, *rest: gone_through.append(line) or of(line, *rest))
    plain = b"".join(line(n // 100, f"[rank0]: step {n} of many") for n in range(500))
    made.push(plain)
    assert (gone_through, made.cursor.lines) == ([], 500)
    made.push(b"".join(line(9, f"[default0]:step {n} of many") for n in range(100)))
    assert (len(gone_through), made.cursor.lines) == (100, 600)
    made.close()
    assert (tmp_path / "slot.out.log").read_bytes().startswith(b"[rank0]: step 0 of many\n[rank0]: step 1 ")
