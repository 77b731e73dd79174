"""The scenarios of errors.md section 7 that hold without Kubernetes, each as a real run on this machine and what it must say.

A job of Python that meets its own end needs no torch; where the scenario speaks of torchrun, the real one starts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from faults.inject import injected
from faults.run import WORKER, write_plan
from faults.table import Fault, at, raising
from rankfall.explain import explain_files
from rankfall.model import JobSpec, Outcome, Record, Verdict
from rankfall.rundir import RunDir
from support.patience import scaled

from .conftest import Bench

STORIES: dict[int, Callable[[Bench], None]] = {}
ONCE = {"max_restarts": 0}

# What the jobs below use: meeting each other, and waiting for what others left. All of it is looked at, nothing is timed.
TOOLS = """
import json, pathlib
records = pathlib.Path(os.environ["RANKFALL_RECORD_DIR"])
slots = pathlib.Path(os.environ["RANKFALL_SLOT_DIR"]).parent
def until(seen):
    while not seen(): time.sleep(0.005)
def errors(count): until(lambda: len(list(records.glob("error-*.json"))) >= count)
def meet(count):
    pathlib.Path(f"here-{rank}").touch()
    until(lambda: len(list(pathlib.Path().glob("here-*"))) >= count)
def lost(): raise ConnectionResetError("[Errno 104] Connection reset by peer")
"""
FOUR: dict[str, Any] = {"nnodes": 2, "nproc_per_node": 2}
ONE: dict[str, Any] = {"nnodes": 1}


def story(number: int) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    def keep(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        STORIES[number] = function
        return function

    return keep


def fall(bench: Bench, code: str, **fields: Any) -> tuple[RunDir, Outcome, Verdict]:
    """Run a job that falls once, to its end."""
    policies = ONCE | fields.pop("policies", {})
    run, outcome = bench.run(TOOLS + code, policies=policies, **fields)
    assert outcome.state == "failed"
    assert outcome.verdict is not None
    return run, outcome, outcome.verdict


def named(verdict: Verdict) -> tuple[str, int | None, str | None]:
    return verdict.cause.slug, verdict.rank, verdict.node


def victims(verdict: Verdict) -> list[int | None]:
    return sorted(item.rank for item in verdict.consequences if item.rank is not None)


def records(run: RunDir, kind: str) -> list[Record]:
    return [msgspec.json.decode(path.read_bytes(), type=Record) for path in run.records_dir.glob(f"{kind}-*.json")]


@story(1)
def raises_first(bench: Bench) -> None:
    code = "if rank == 2: raise ValueError('bad sample')\nerrors(1); time.sleep(0.2); lost()"
    run, _, verdict = fall(bench, code, **FOUR)
    assert {record.rank for record in records(run, "error")} == {0, 1, 2, 3}
    assert named(verdict) == ("user_code_exception", 2, "node1")
    assert (verdict.slot, victims(verdict)) == (1, [0, 1, 3])


@story(2)
def all_write_at_once(bench: Bench) -> None:
    run, _, verdict = fall(bench, "meet(4); raise ValueError('of rank', 'abcd'[rank])", **FOUR)
    found = records(run, "error")
    assert len({record.id for record in found}) == len(found) == 4
    assert {record.error.message for record in found if record.error} == {f"('of rank', '{x}')" for x in "abcd"}
    assert verdict.cause.slug == "user_code_exception"


@story(3)
def a_record_says_it_all(bench: Bench) -> None:
    code = "from rankfall_inside import Retryable\nif rank == 1: raise Retryable('store is away')\nerrors(1); lost()"
    run, _, verdict = fall(bench, code)
    (record,) = (item for item in records(run, "error") if item.rank == 1)
    (end,) = (item for item in records(run, "end") if item.rank == 1)
    assert record.error is not None
    assert record.error.raised_ns is not None
    assert record.error.raised_ns % 1_000_000 != 0
    assert (record.node, record.slot, record.writer) == ("node1", 1, "hook")
    assert (record.error.types[0].rpartition(".")[2], record.error.message) == ("Retryable", "store is away")
    assert (record.error.mark, record.error.frames[-1].user) == ("retryable", True)
    assert end.exit is not None
    assert end.exit.code == 1
    assert (verdict.rank, verdict.retry, verdict.cause.family) == (1, "yes", "user")


@story(4)
def the_first_one_decides(bench: Bench) -> None:
    code = """
from rankfall_inside import Final, Retryable
if os.environ["RANKFALL_ATTEMPT"] == "2": sys.exit(0)
first, later = {kinds}
if rank == 0: raise first("at first")
errors(1); time.sleep(0.1)
raise later("as a consequence")
"""
    _, outcome = bench.run(TOOLS + code.format(kinds="Retryable, Final"))
    assert (outcome.state, outcome.attempts) == ("succeeded", 2)
    _, outcome = bench.run(TOOLS + code.format(kinds="Final, Retryable"))
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert outcome.verdict is not None
    assert (outcome.verdict.rank, outcome.verdict.retry) == (0, "no")


@story(5)
def the_earliest_comes_late(bench: Bench) -> None:
    code = """
raised = pathlib.Path("raised")
if rank == 1:
    error = KeyError("vocab")
    error.timestamp = time.time()
    raised.touch()
    until((slots / "worker-0" / "end.json").exists)
    time.sleep(0.7)
    raise error
until(raised.exists)
time.sleep(0.1)
lost()
"""
    run, _, verdict = fall(bench, code, policies={"settle_quiet_s": scaled(3.0)})
    assert named(verdict) == ("user_code_exception", 1, "node1")
    late = next(item for item in records(run, "error") if item.rank == 1)
    assert late.error is not None
    assert late.at_ns is not None
    assert late.at_ns - (late.error.raised_ns or 0) > 700_000_000
    with run.reader() as reader:
        assert late.at_ns > (reader.slots(1)[0].ended_at or 0)
    assert victims(verdict) == [0]


@story(6)
def one_never_writes(bench: Bench) -> None:
    code = """
if rank == 3:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path("deaf").touch()
    time.sleep(600)
until(pathlib.Path("deaf").exists)
if rank == 0: raise ValueError("bad sample")
errors(1); lost()
"""
    run, _, verdict = fall(bench, code, nnodes=4, policies={"grace_s": 0.3, "settle_max_s": scaled(2.0)})
    assert named(verdict) == ("user_code_exception", 0, "node0")
    assert {record.rank for record in records(run, "error")} == {0, 1, 2}
    because = {item.rank: item.because for item in verdict.consequences}
    assert because[3] == "Rankfall stopped it after another rank had failed"
    # The record of rank 3, which never comes, is not waited for: the run has ended.
    assert [event.kind for event in bench.events].count("verdict") >= 1


@story(7)
def all_is_there(bench: Bench) -> None:
    code = "if rank == 2: raise ValueError('bad sample')\nerrors(1); lost()"
    run, _, verdict = fall(bench, code, policies={"settle_quiet_s": 600.0, "settle_max_s": 900.0}, **FOUR)
    # The quiet time would outlast the test.
    assert verdict.rank == 2
    with run.reader() as reader:
        last = max(facts.ended_at or 0 for facts in reader.slots(1))
    told = next(event.at for event in bench.events if event.kind == "verdict")
    assert told >= last


SINGLE = """
def single(text):
    stack = f"Traceback (most recent call last):\\n  File 'train.py', line 1, in <module>\\n{text}\\n"
    message = {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))}}
    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": message}))
"""


@story(8)
def old_and_new_writers(bench: Bench) -> None:
    # An old worker: no recorder, the one file of torchelastic, and not a word on stderr.
    code = """
if rank == 1:
    single("KeyError: 'vocab'")
    pathlib.Path("written").touch()
    os._exit(1)
until(pathlib.Path("written").exists)
lost()
"""
    _, _, verdict = fall(bench, SINGLE + code, inside="off")
    assert named(verdict) == ("user_code_exception", 1, "node1")
    assert verdict.decisive is not None
    assert verdict.decisive.where == "slots/attempt-1/worker-1/errors/0.json"
    assert "KeyError" in verdict.decisive.line
    # A record of a later version says more than is known here, one of an earlier version less; an old reader finds its file as ever.
    code = """
def write(**fields):
    record = {"id": f"of-rank-{rank}", "kind": "error", "rank": rank, "slot": rank, "pid": os.getpid(), **fields}
    (records / f"error-by-another-version-{rank}.json").write_text(json.dumps(record))
if rank == 1:
    single("KeyError: 'vocab'")
    error = {"types": ["KeyError"], "message": "'vocab'", "chain": ["'vocab'"], "severity": {"page": True}}
    write(schema="rankfall.record/1", writer="hook", at_ns=time.time_ns(), weather="fine", error=error)
    os._exit(1)
errors(1)
write(error={"types": ["ConnectionResetError"], "message": "[Errno 104] Connection reset by peer"})
os._exit(1)
"""
    run, _, verdict = fall(bench, SINGLE + code)
    assert named(verdict) == ("user_code_exception", 1, "node1")
    assert victims(verdict) == [0]
    old = bench.folder / "error.json"
    old.write_bytes((run.slot_dir(1, "worker", 1) / "errors" / "0.json").read_bytes())
    assert explain_files([old]).verdict.cause.slug == "user_code_exception"


@story(18)
def one_pod_is_told_to_end(bench: Bench) -> None:
    fault = Fault(
        "",
        (at("import", "mark"), at("import", "hang", ranks=None)),
        (),
        inject="signal",
        arguments={"number": 15, "to": "wrapper", "rank": 2},
    )
    run, outcome = _as_worker(bench, fault, launcher="torchrun", **FOUR)
    (told,) = (item for item in records(run, "kill") if item.exit is not None and item.exit.how == "received")
    assert (told.slot, told.exit.signal if told.exit else None) == (1, 15)
    verdict = outcome.verdict
    assert verdict is not None
    assert (verdict.cause.slug, verdict.slot, verdict.rank) == ("external_signal", 1, None)
    assert verdict.cause.family != "user"


@story(19)
def every_way_to_leave(bench: Bench) -> None:
    for code, ended in (("sys.exit(3)", 3), ("raise KeyboardInterrupt", 130), ("os._exit(4)", 4)):
        run, outcome, verdict = fall(bench, code, **ONE)
        (end,) = records(run, "end")
        assert end.exit is not None
        shown = end.exit.code if end.exit.signal is None else 128 + end.exit.signal
        assert (shown, end.rank, verdict.rank, outcome.code) == (ended, 0, 0, ended)


@story(20)
def what_cannot_be_said_or_kept(bench: Bench) -> None:
    for fault in (
        Fault("", (raising("Unprintable", when="import", ranks=None),), ()),
        Fault("", (raising("ValueError", when="import", ranks=None, text="bad name \udcff\udc80"),), ()),
    ):
        run, outcome = _as_worker(bench, fault, **ONE)
        (record,) = records(run, "error")
        assert record.error is not None
        assert record.error.types[0].rpartition(".")[2] == fault.actions[0]["type"]
        assert outcome.code == 1
        assert outcome.verdict is not None
        assert outcome.verdict.cause.slug == "user_code_exception"
    # root may write into a read-only folder, so the folder is none any more.
    code = "import shutil; shutil.rmtree(records); records.touch(); raise ValueError('late')"
    _, outcome, verdict = fall(bench, code, **ONE)
    assert (outcome.code, verdict.rank, verdict.cause.slug) == (1, 0, "user_code_exception")
    assert verdict.decisive is not None
    assert "ValueError: late" in verdict.decisive.line


@story(21)
def the_rendezvous_goes_down_after_it(bench: Bench) -> None:
    # The store of c10d lives in one of the agents: when that one has left, the other finds it gone as soon as it wants to leave too. It is held
    # still meanwhile: an agent remembers for a second what it has read, and one that has read "closed" in time asks the store no more.
    code = """
agent = pathlib.Path(f"/proc/{os.getppid()}")
endpoint = re.search(rb"rdzv.endpoint.[^:]*:(\\d+)", (agent / "cmdline").read_bytes())
listens = {
    f"socket:[{line.split()[9]}]"
    for table in ("/proc/net/tcp", "/proc/net/tcp6")
    for line in open(table).readlines()[1:]
    if line.split()[3] == "0A" and int(line.split()[1].rpartition(":")[2], 16) == int(endpoint[1])
}
still = pathlib.Path("still")
if listens & {os.readlink(fd) for fd in (agent / "fd").iterdir() if fd.is_symlink()}:
    until(still.exists)
    raise KeyError("vocab")
os.kill(os.getppid(), signal.SIGSTOP)
until(lambda: (agent / "stat").read_text().rpartition(")")[2].split()[0] == "T")
still.touch()
until((slots / f"worker-{1 - int(os.environ['RANKFALL_SLOT'])}" / "end.json").exists)
os.kill(os.getppid(), signal.SIGCONT)
lost()
"""
    patient = {"settle_min_s": 40.0, "settle_quiet_s": 40.0, "settle_max_s": 80.0}
    run, _, verdict = fall(bench, "import re\n" + code, launcher="torchrun", rdzv="c10d", policies=patient)
    assert verdict.cause.slug == "user_code_exception"
    assert verdict.slot is not None
    assert victims(verdict) == [1 - (verdict.rank or 0)]
    other = run.path / "logs" / "attempt-1" / f"worker-{1 - verdict.slot}"
    assert b"endezvous" in b"".join(path.read_bytes() for path in other.rglob("slot.*.log"))


@story(22)
def an_agent_stops_the_siblings(bench: Bench) -> None:
    code = "meet(8)\nif rank == 3: raise KeyError('vocab')\ntime.sleep(600)"
    _, _, verdict = fall(bench, code, launcher="torchrun", nnodes=1, nproc_per_node=8)
    assert named(verdict) == ("user_code_exception", 3, "node0")
    assert {item.rank: item.slug for item in verdict.consequences} == {
        rank: "peer_teardown" for rank in range(8) if rank != 3
    }
    assert verdict.alternatives == ()


@story(23)
def each_attempt_its_own(bench: Bench) -> None:
    code = """
attempt = os.environ["RANKFALL_ATTEMPT"]
if attempt == "1" and rank == 0: os.kill(os.getpid(), signal.SIGKILL)
if attempt == "2" and rank == 1: os.kill(os.getpid(), signal.SIGSEGV)
if attempt == "3" and rank == 0: raise KeyError("vocab")
time.sleep(0.1)
"""
    run, outcome = bench.run(code, policies={"max_restarts": 3})
    assert (outcome.state, outcome.attempts) == ("failed", 3)
    with run.reader() as reader:
        found = [reader.diagnosis(number) for number in (1, 2, 3)]
    told = [item.verdict for item in found if item is not None]
    assert [(item.attempt, item.cause.slug, item.rank) for item in told] == [
        (1, "killed_unknown", 0),
        (2, "segfault", 1),
        (3, "user_code_exception", 0),
    ]
    for verdict in told:
        others = {f"{place}{n}" for n in (1, 2, 3) if n != verdict.attempt for place in ("-a", "attempt-")}
        assert not [proof.where for proof in verdict.evidence if any(f"{x}-" in proof.where for x in others)]


@story(24)
def a_used_volume(bench: Bench) -> None:
    run = bench.run_dir(bench.spec(TOOLS + "if rank == 1: raise KeyError('vocab')\ntime.sleep(0.3)", policies=ONCE))
    run.records_dir.mkdir(exist_ok=True)
    base = {"schema": "rankfall.record/1", "kind": "error", "rank": 0, "slot": 0, "role": "worker", "at_ns": 1}
    error = {"types": ["MemoryError"], "message": "of long ago"}
    for number, place in enumerate(({"run": "job-000000", "attempt": 1}, {"run": run.id, "attempt": 7})):
        left = base | place | {"id": f"old-{number}", "error": error}
        (run.records_dir / f"error-a1-worker-0-old{number}.json").write_text(json.dumps(left))
    verdict = bench.supervise(run).verdict
    assert verdict is not None
    assert named(verdict) == ("user_code_exception", 1, "node1")
    assert "of long ago" not in msgspec.json.encode(verdict).decode()


@story(27)
def the_silent_one(bench: Bench) -> None:
    code = """
if rank == 0: lost()
errors(1)
if rank == 3:
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
lost()
"""
    _, outcome, verdict = fall(bench, code, **FOUR)
    assert named(verdict) == ("killed_unknown", 3, "node1")
    assert outcome.code == 137
    assert {item.rank: item.slug for item in verdict.consequences}[0] == "peer_lost"
    assert verdict.node_action == "none"


@story(29)
def the_one_that_never_came(bench: Bench) -> None:
    code = """
if rank == 5: time.sleep(600)
meet_all = [n for n in range(5)]
pathlib.Path(f"waits-{rank}").touch()
until(lambda: all(pathlib.Path(f"waits-{n}").exists() for n in meet_all))
if rank != 2: errors(1)
raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete")
"""
    _, _, verdict = fall(bench, code, nnodes=3, nproc_per_node=2)
    assert named(verdict) == ("rank_stuck", 5, "node2")
    assert {0, 1, 2, 3, 4} <= set(victims(verdict))


@story(31)
def everywhere_the_same(bench: Bench) -> None:
    run, _, verdict = fall(bench, "meet(16); raise ValueError('d_model % n_heads')", nnodes=2, nproc_per_node=8)
    assert (verdict.cause.slug, verdict.scope, verdict.rank) == ("user_code_exception", "all", None)
    assert (verdict.retry, verdict.node_action, verdict.consequences) == ("no", "none", ())
    with run.reader() as reader:
        assert [row.decision.action for row in reader.decisions()] == ["stop"]


def _as_worker(bench: Bench, fault: Fault, **fields: Any) -> tuple[RunDir, Outcome]:
    """The fault matrix's own worker and injectors, on a run of this bench."""
    plan = write_plan(fault, bench.folder, progress=False)
    plain = bench.spec(policies=ONCE, launcher=fields.pop("launcher", "plain"), **fields)
    env = {"PLAN": str(plan), "OMP_NUM_THREADS": "1"}
    scratch = Path(bench.folder)
    with injected(fault, plan=plan, scratch=scratch) as setting:
        spec: JobSpec = msgspec.structs.replace(
            plain, command=(str(WORKER),), env=env | setting.env, python=sys.executable
        )
        run = bench.run_dir(spec)
        outcome = bench.supervise(run)
    assert outcome.state == "failed"
    return run, outcome
