"""What becomes of the streams when a run is over: the large ones are compressed, whoever was killed over it."""

from __future__ import annotations

from rankfall.client import create_run
from rankfall.explain import explain_run
from rankfall.rundir import RunDir
from rankfall.rundir.lines import LineQuery, read_lines
from rankfall.rundir.streams.writer import MARK
from rankfall.supervisor.run_events import read_events
from rankfall.supervisor.supervise import compress_ended_runs

from .conftest import Bench

MUCH = "print('\\n'.join(f'rank {rank} line {n} ' + '.' * 80 for n in range(15000)))"


def forms(run: RunDir) -> set[str]:
    return {path.name for path in run.logs_dir.rglob("*.out.*") if path.suffix != ".idx"}


def test_large_streams_are_compressed_at_the_end_and_everything_reads_them(bench: Bench) -> None:
    run, outcome = bench.run(f"{MUCH}\nraise KeyError('lost')", nnodes=1, policies={"max_restarts": 0})
    assert forms(run) == {"0.out.log.zst"}
    assert not (run.path / MARK).exists()
    lines = list(read_lines(run, LineQuery(ranks=frozenset({0}), streams="out")))
    assert [line.data.split()[3] for line in lines] == [b"%d" % n for n in range(15000)]
    assert (run.path / "rank-00000.log").read_text().count("\n") > 15000
    assert outcome.verdict is not None
    assert explain_run(run, fresh=True).verdict.cause == outcome.verdict.cause


def test_what_a_killed_process_left_halfway_is_ended_by_the_next_run(bench: Bench) -> None:
    left, _ = bench.run("print('a')", nnodes=1)
    stream = next(left.logs_dir.rglob("0.out.log"))
    stream.write_bytes(b"x\n" * 600_000)
    (left.path / MARK).touch()
    with left.lease():
        compress_ended_runs(bench.run("print('b')", nnodes=1)[0])
        assert stream.exists(), "somebody holds it"
    bench.run("print('c')", nnodes=1)
    assert forms(left) == {"0.out.log.zst"}
    assert not (left.path / MARK).exists()


def test_a_run_that_goes_on_is_left_alone(bench: Bench) -> None:
    left = bench.run_dir(bench.spec("pass"))
    folder = left.stream_dir(1, "worker", 0)
    folder.mkdir(parents=True)
    (folder / "0.out.log").write_bytes(b"x\n" * 600_000)
    (left.path / MARK).touch()
    bench.run("print('c')", nnodes=1)
    assert forms(left) == {"0.out.log"}


def test_why_a_stream_stays_raw_is_kept_with_the_run(bench: Bench) -> None:
    run, _ = bench.run("print('a')", nnodes=1)
    stream = next(run.logs_dir.rglob("0.out.log"))
    with stream.open("ab") as file:
        file.write(b"x\n" * 600_000)
        compress_ended_runs(run)
    event = read_events(run.path)[0][-1]
    assert (event.kind, event.text.partition(": ")[2]) == ("raw", "a process still has it open for writing")


def test_a_log_dir_has_the_files_of_a_run_that_is_over(bench: Bench) -> None:
    folder = bench.folder / "logs"
    spec = bench.spec("print('hello')", nnodes=1, log_dir=str(folder))
    run = create_run(spec, home=bench.home)
    bench.made.append(run)
    assert bench.supervise(run).state == "succeeded"
    assert [path.read_text() for path in folder.glob("log*.out")] == ["[attempt 1]\n[rank 0] hello\n"]
    assert bench.texts("gap") == []


def test_a_log_dir_that_is_gone_costs_the_run_nothing_and_is_told_once(bench: Bench) -> None:
    folder = bench.folder / "logs"
    run = create_run(
        bench.spec(f"import shutil; shutil.rmtree({str(folder)!r})", nnodes=1, log_dir=str(folder)), home=bench.home
    )
    bench.made.append(run)
    outcome = bench.supervise(run)
    assert (outcome.state, outcome.code) == ("succeeded", 0)
    (told,) = bench.texts("gap")
    assert told.endswith(
        f"log_dir: {folder} cannot be written: No such file or directory; the same files are in {run.path}"
    )
    with run.reader() as reader:
        assert reader.run().incomplete == (told[told.index("log_dir") :],)
    assert (run.path / "log-allranks_0.out").exists()
