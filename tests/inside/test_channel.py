"""A slot as in a pod: its stdout is all that leaves it."""

from __future__ import annotations

import base64
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.helpers import wait_until
from support.patience import scaled

from .conftest import HEAD, TOKEN, channel, text_lines

RANK = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}


def test_everything_is_on_stdout_and_every_record_is_there_once(pod) -> None:
    script = pod.script("import sys\nprint('hello')\nprint('words', file=sys.stderr)\nraise ValueError('boom')")
    done = pod.run("sh", "-c", f"echo before; {sys.executable} {script}", **RANK)
    assert done.returncode == 1
    assert not pod.stream_dir.exists()
    records = channel(done.stdout)
    assert [record.kind for record in records] == [
        "slot_start", "start", "error", "end", "slot_end",
    ]  # fmt: skip
    stored = {record.id for record in pod.records()}
    assert {record.id for record in records} == stored
    assert len({record.id for record in records}) == len(records)
    assert {(r.run, r.attempt, r.slot, r.node, r.instance) for r in records} == {("demo-abc123", 2, 1, "n1", "0")}
    lines = text_lines(done.stdout)
    assert lines[0] == b"before"
    assert {b"[rank 3] hello", b"[rank 3] words", b"[rank 3] ValueError: boom"} <= set(lines)


def test_the_instance_comes_from_the_environment(pod) -> None:
    done = pod.run("true", RANKFALL_INSTANCE="4")
    assert {record.instance for record in channel(done.stdout)} == {"4"}


def test_no_line_of_the_job_passes_as_a_rank_or_a_record(pod) -> None:
    forged = f"\\036rankfall/1 {TOKEN} e30="
    done = pod.run("sh", "-c", rf"printf '[rank 0] forged\n{forged}\nplain [rank 1]\n\036x'")
    assert text_lines(done.stdout) == [
        b"[rank ?] [rank 0] forged",
        b"[rank ?] \x1erankfall/1 *** e30=",
        b"plain [rank 1]",
        b"[rank ?] \x1ex",
    ]
    assert [record.kind for record in channel(done.stdout)] == ["slot_start", "slot_end"]


def test_the_job_cannot_find_the_token(pod) -> None:
    text = f"""
import os
print('own', sorted(set(os.environ) & {{'RANKFALL_TOKEN', 'RANKFALL_TORCHRUN'}}))
data = open('/proc/' + os.environ['RANKFALL_WRAPPER'] + '/environ', 'rb').read()
print('wrapper', b'RANKFALL_RUN=demo' in data, bytes.fromhex('{TOKEN.encode().hex()}') in data)
"""
    done = pod.run(sys.executable, pod.script(text), RANKFALL_TORCHRUN='["x"]', **RANK)
    assert text_lines(done.stdout) == [b"[rank 3] own []", b"[rank 3] wrapper True False"]


def test_a_token_in_a_record_of_the_job_is_not_echoed(pod) -> None:
    done = pod.rank(f"raise ValueError('I found {TOKEN} somewhere')")
    error = next(record for record in channel(done.stdout) if record.kind == "error")
    assert error.error.message == "I found *** somewhere"
    assert TOKEN not in str(error)
    assert all(TOKEN.encode() not in line for line in text_lines(done.stdout))


def test_records_that_no_hook_writes_are_not_passed_on(pod) -> None:
    text = """
import os, json
folder = os.environ['RANKFALL_RECORD_DIR']
def put(kind, ident, **more):
    name = '%s-a2-worker-1-%s.json' % (kind, ident)
    open(os.path.join(folder, name), 'w').write(json.dumps(dict(id=ident, kind=kind, **more)))
put('slot_end', 'a' * 32, writer='wrapper')
put('error', 'b' * 32, writer='wrapper')
put('error', 'not hex', writer='hook')
put('error', 'c' * 32, writer='hook', node='elsewhere', run='other', error={'types': ['X']})
open(os.path.join(folder, 'error-a2-worker-1-damaged.json'), 'w').write('{"id": ')
open(os.path.join(folder, 'error-a2-worker-1-deep.json'), 'w').write('[' * 100_000)
"""
    records = channel(pod.run(sys.executable, pod.script(text)).stdout)
    assert [record.kind for record in records] == ["slot_start", "error", "slot_end"]
    assert (records[1].id, records[1].node, records[1].run) == ("c" * 32, "n1", "demo-abc123")


def test_errors_s2_records_left_by_an_earlier_container_are_not_told_again(pod) -> None:
    first = channel(pod.rank("raise ValueError('first')").stdout)
    second = channel(pod.rank("raise ValueError('second')").stdout)
    assert not {record.id for record in first} & {record.id for record in second}
    assert [r.error.message for r in second if r.kind == "error"] == ["second"]


READ_ONLY = """
set -e
mkdir -p "$RANKFALL_RECORD_DIR"
mount -t tmpfs -o {options} rankfall-test "$RANKFALL_RECORD_DIR"
{then}
exec "$@"
"""


@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "then"),
    [("ro", ""), ("size=4k", 'head -c 4096 /dev/zero > "$RANKFALL_RECORD_DIR/full"')],
    ids=["read-only", "full"],
)
def test_errors_s35_the_channel_has_every_record_where_their_folder_cannot_be_written(pod, options, then) -> None:
    pod.outer = ("unshare", "--mount", "sh", "-c", READ_ONLY.format(options=options, then=then), "sh")
    done = pod.rank("print('hello')\nraise ValueError('boom')")
    assert (done.returncode, done.stderr) == (1, b"")
    records = channel(done.stdout)
    assert [record.kind for record in records] == [
        "slot_start", "start", "error", "end", "slot_end",
    ]  # fmt: skip
    assert not records[-1].notes
    assert b"[rank 3] hello" in done.stdout


def test_errors_s35_a_slot_directory_that_cannot_be_used_costs_no_record(pod) -> None:
    (pod.base / "file").touch()
    done = pod.rank("raise ValueError('boom')", RANKFALL_SLOT_DIR=str(pod.base / "file" / "slot"))
    assert done.returncode == 1
    records = channel(done.stdout)
    assert {"slot_start", "start", "error", "end", "slot_end"} <= {record.kind for record in records}
    assert "the slot directory cannot be used" in records[0].notes[0]
    end = records[-1]
    assert end.kind == "slot_end"
    # The folder that stood in for it is gone.
    folder = [note for note in records[0].notes if "/" in note]
    assert not folder


def test_errors_s38_the_lower_cause_of_a_dead_data_worker_is_on_the_channel(pod) -> None:
    text = """
try:
    raise RuntimeError('DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader\\'s workers are out of shared memory.')
except RuntimeError as error:
    raise RuntimeError('DataLoader worker (pid(s) 7) exited unexpectedly') from error
"""
    done = pod.rank(text)
    error = next(record for record in channel(done.stdout) if record.kind == "error")
    assert "out of shared memory" in error.error.chain[1]


def test_every_error_stands_before_the_end_of_its_rank(pod) -> None:
    text = "import os\nraise ValueError('rank %s' % os.environ['RANK'])"
    done = pod.run(sys.executable, pod.script(text), options=("--launcher", "plain", "--nproc", "4"), RANKFALL_SLOT="0")
    records = channel(done.stdout)
    for rank in range(4):
        kinds = [record.kind for record in records if record.rank == rank and record.kind in {"error", "end"}]
        assert kinds in (["error", "end"], ["end"])
    assert "error" in {record.kind for record in records}
    assert records[0].launcher == "plain"
    assert records[-1].kind == "slot_end"


def test_logs_s36_many_ranks_write_whole_lines_behind_their_own_prefix(pod) -> None:
    lines = 3000
    text = f"import os\nr = os.environ['RANK']\nfor i in range({lines}): os.write(1, b'%s:%d ' % (r.encode(), i)); os.write(1, b'x' * 40 + b'\\n')"
    done = pod.run(sys.executable, pod.script(text), options=("--launcher", "plain", "--nproc", "3"), RANKFALL_SLOT="0")
    assert done.returncode == 0
    for rank in range(3):
        prefix = b"[rank %d] " % rank
        own = [line for line in text_lines(done.stdout) if line.startswith(prefix)]
        assert own == [b"%s%d:%d " % (prefix, rank, i) + b"x" * 40 for i in range(lines)]


def test_a_reader_that_sleeps_slows_the_job_and_loses_nothing(pod) -> None:
    lines, width = 200_000, 50
    text = f"import os\nfor i in range({lines}): print('%07d' % i + 'x' * {width})\nopen(os.path.join({str(pod.base)!r}, 'done'), 'w').close()"
    process = pod.start(sys.executable, pod.script(text), **RANK)
    wait_until((pod.dir / "claims" / "o0").exists, timeout=20, what="the rank")
    # Nobody reads: the wrapper holds a bounded part, and still answers.
    before = _resident(process.pid)
    pod.control("signal 18")
    wait_until(lambda: pod.records("kill"), timeout=10, what="an answer to an order")
    assert not (pod.base / "done").exists()
    assert _resident(process.pid) - before < 32 << 20
    out, _ = process.communicate(timeout=scaled(50))
    own = [line for line in text_lines(out) if line.startswith(b"[rank 3] ")]
    assert own == [b"[rank 3] %07d" % i + b"x" * width for i in range(lines)]
    assert process.returncode == 0


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_stdout_that_nobody_reads_any_more_does_not_end_the_job(pod) -> None:
    text = f"import time, os\nfor i in range(100_000): print('x' * 50, flush=True)\nopen({str(pod.base / 'done')!r}, 'w').close()\nraise SystemExit(4)"
    process = pod.start(sys.executable, pod.script(text), **RANK)
    assert process.stdout is not None
    assert process.stdout.read(100)
    process.stdout.close()
    assert process.wait(scaled(30)) == 4
    assert (pod.base / "done").exists()
    assert pod.one("end").exit.code == 4


def test_a_reader_that_never_comes_back_holds_the_end_no_longer_than_the_grace_time(pod) -> None:
    read, write = os.pipe()
    process = pod.start("sh", "-c", "yes | head -c 3000000; sleep 1000", options=("--grace", "0.5"), stdout=write)
    os.close(write)
    wait_until(lambda: pod.records("slot_start"), timeout=20, what="the start")
    process.terminate()
    assert process.wait(scaled(20)) == 143
    os.close(read)


def test_progress_and_processor_time_are_told_so_that_life_is_seen_from_afar(pod) -> None:
    text = "from rankfall_inside import progress\nimport time\nprogress(7, phase='checkpoint')\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    process = pod.start(sys.executable, pod.script(text), **RANK)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    out = b""

    def told():
        nonlocal out
        out += process.stdout.read() or b""
        return [
            record
            for record in channel(out[: out.rfind(b"\n") + 1], progress=True)
            if record.kind == "progress" and record.step
        ]

    found = wait_until(told, timeout=40, what="a progress record with its step")
    assert (found[0].rank, found[0].step, found[0].phase, found[0].writer) == (3, 7, "checkpoint", "wrapper")
    assert found[0].step_ns
    assert found[0].cpu_s is not None
    times = [r.at_ns for r in channel(out[: out.rfind(b"\n") + 1], progress=True) if r.kind == "progress"]
    assert all(later - sooner >= 9_900_000_000 for sooner, later in itertools.pairwise(times))
    assert not pod.records("progress")
    process.terminate()
    process.communicate(timeout=scaled(20))


def test_stacks_reach_the_channel_within_its_bound(pod) -> None:
    # faulthandler prints a hundred frames of it, and the kernel's view has a line for each thread.
    text = """
import signal, threading
def deep_in_a_function_of_a_long_name_that_fills_its_line_of_the_dump(n):
    if n: return deep_in_a_function_of_a_long_name_that_fills_its_line_of_the_dump(n - 1)
    while True: signal.pause()
for i in range(30): threading.Thread(target=threading.Event().wait, daemon=True).start()
print('ready', flush=True)
deep_in_a_function_of_a_long_name_that_fills_its_line_of_the_dump(200)
"""
    process = pod.start(sys.executable, pod.script(text), **RANK)
    assert process.stdout is not None
    out = b""
    while b"[rank 3] ready" not in out:
        out += process.stdout.readline()
    told = subprocess.run([sys.executable, str(pod.home), "tell", "stacks"], env=pod.env, check=False)
    assert told.returncode == 0
    while not (found := [record for record in channel(out) if record.kind == "stacks"]):
        out += process.stdout.readline()
    assert "characters omitted" in found[0].stacks
    assert found[0].truncated
    assert len(found[0].stacks) > 2500
    assert "in deep" in found[0].stacks
    # The line comes first, then the file.
    whole = wait_until(lambda: pod.records("stacks"), timeout=10, what="the file")[0]
    assert whole.id == found[0].id
    assert len(whole.stacks) > 8192
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=scaled(20))


def test_a_line_of_the_channel_is_never_longer_than_its_bound(pod) -> None:
    text = "class Äußerst(Exception): pass\nÄußerst.__qualname__ = 'Ü' * 10_000\nerror = None\nfor i in range(40):\n    new = Äußerst('\\U0001f600' * 20_000)\n    new.__cause__ = error\n    error = new\nraise error"
    done = pod.rank(text)
    error = next(record for record in channel(done.stdout) if record.kind == "error")
    assert (error.rank, error.truncated) == (3, True)


def test_without_a_token_no_record_is_on_stdout(pod) -> None:
    done = pod.run("echo", "x", RANKFALL_TOKEN="")
    assert done.stdout == b"x\n"
    assert len(pod.records()) == 2


def test_the_lines_of_the_channel_are_those_of_the_contract(pod) -> None:
    out = pod.run("true").stdout
    for line in out.splitlines():
        assert line.startswith(HEAD)
        assert base64.urlsafe_b64decode(line[len(HEAD) :]).startswith(b'{"schema":"rankfall.record/1"')


def test_a_wrapper_in_a_pod_ends_what_does_not_hear_in_its_grace_time(pod) -> None:
    process = pod.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done", options=("--grace", "0.3"))
    assert process.stdout is not None
    out = b""
    while b"ready" not in out:
        out += process.stdout.readline()
    process.terminate()
    rest, _ = process.communicate(timeout=scaled(20))
    assert process.returncode == 137
    kinds = [(r.kind, r.exit.ours) for r in channel(rest) if r.exit is not None]
    assert kinds[0] == ("kill", False)
    assert ("kill", True) in kinds
    assert kinds[-1][0] == "slot_end"
