"""Jobs that write what breaks a careless reader: giant numbers, deep JSON, by each way that a job has. The run ends as without it.

Each of them ended ``run``, ``attach`` and ``why`` with 74 before, or took the slot's wrapper with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.cli import app

from .conftest import Runner

ATTACK = r"""
import json, os, sys, time
from pathlib import Path

slot, records = Path(os.environ["RANKFALL_SLOT_DIR"]), Path(os.environ["RANKFALL_RECORD_DIR"])
nines, deep = "9" * 5_000, '{"x":' + "[" * 4_000
end = f"a1-{os.environ['RANKFALL_ROLE']}-0-{'0' * 32}.json"
names = {"schema": "rankfall.record/1", "id": "0" * 32, "kind": "error", "writer": "hook", "run": os.environ["RANKFALL_RUN"], "attempt": 1}
agent = "torch/distributed/elastic/multiprocessing/api.py:900]"
print("step 1", flush=True)
match sys.argv[1]:
    case "number in a report of torchrun":
        print(f"W0101 00:00:00.000000 1 {agent} Sending process {nines} closing signal SIGTERM", flush=True)
    case "numbers in all lines of torchrun":
        print(f"E0101 00:00:00.000000 1 {agent} failed (exitcode: -{nines}) local_rank: {nines} (pid: {nines}) of binary: x", flush=True)
        print(f"W0101 00:00:00.000000 1 {agent} Unable to shutdown process {nines} via SIGTERM, forcefully exiting via SIGKILL", flush=True)
        print(f"W0101 00:00:00.000000 1 {agent} Received {nines} death signal, shutting down workers", flush=True)
        print(f"[rank{nines}]: rank      : {nines} (local_rank: {nines})\n  exitcode  : {nines} (pid: {nines})", flush=True)
    case "deep record":
        (records / f"error-{end}").write_text(deep)
        (records / f"end-{end}").write_text(deep)
    case "deep record of the right kind":
        (records / f"error-{end}").write_text(json.dumps(names)[:-1] + ',"error":' + deep)
    case "numbers in records":
        (records / f"error-{end}").write_text(json.dumps({**names, "slot": 0, "instance": nines}))
        (records / f"end-{end}").write_text(json.dumps(names)[:-1] + f',"pid":{nines},"rank":1e999}}')
    case "records that are no UTF-8":
        (records / f"error-{end}").write_bytes(b'{"id":"\xff"}')
        (records / f"end-{end}").write_bytes(b'{"id":"\\ud800"}')
    case "deep progress":
        for number in range(3):
            (slot / "progress" / f"{number}.json").write_text(deep)
    case "number in progress":
        (slot / "progress" / "0.json").write_text('{"step":' + nines[:4_000] + "}")
        (slot / "progress" / ("9" * 240 + ".json")).write_text('{"step":1}')
    case "number in a claim":
        from rankfall_inside.hook.rank_process import notify_wrapper, state
        state.slot_dir = str(slot)
        assert notify_wrapper([b"claim " + nines[:4_080].encode(), nines[:1_000].encode() + b"\n"], patience_s=5.0)
        part = b"part %b %b %b x\n" % (b"0" * 32, nines[:400].encode(), nines[:401].encode())
        assert notify_wrapper([part], patience_s=5.0)
    case "deep end":
        (slot / "end.json").write_text(deep)
    case "deep error files":
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(deep)
        (slot / "errors" / "error.json").write_text(deep)
    case "carriage returns":
        sys.stdout.write("\r" * 300_000 + "x\n")
        sys.stdout.flush()
    case "pipe in place of a lock" | "pipe in place of a claim" | "pipe in place of progress" | "link in place of a claim":
        name = {"lock": "lock", "claim": "claims/o0", "progress": "progress/0.json"}[sys.argv[1].split()[-1]]
        (slot / name).unlink(missing_ok=True)
        os.symlink("/dev/zero", slot / name) if "link" in sys.argv[1] else os.mkfifo(slot / name)
    case "claims of others":
        (slot / "claims" / "o7").write_text(nines)
        (slot / "claims" / ("o" + "9" * 200)).write_text("1 2 3 4 5 6 7 8 9")
raise KeyError("vocab")
"""
# One of each way in: torchrun's lines, records, progress, the wrapper's orders, special files. The others take the same ways.
COVERING = {
    "number in a report of torchrun",
    "deep record",
    "numbers in records",
    "deep progress",
    "number in a claim",
    "pipe in place of a claim",
}
ATTACKS = [
    pytest.param(name, marks=[pytest.mark.full] * (name not in COVERING))
    for line in ATTACK.splitlines()
    if line.strip().startswith("case ")
    for name in line.split('"')[1::2]
]


def gang(attack: str) -> tuple[str, ...]:
    """Options of a run of one rank. Only torchrun's own files need torchrun, which takes five times as long."""
    launcher = "torchrun" if "torchrun" in attack else "plain"
    return ("--nproc-per-node", "1", "--max-restarts", "0", "--launcher", launcher)


@pytest.mark.parametrize("attack", ATTACKS)
def test_i18_p1_p2_a_run_ends_with_its_own_verdict(attack: str, folder: Path, rankfall: Runner) -> None:
    (folder / "attack.py").write_text(ATTACK)
    done = rankfall("run", *gang(attack), "attack.py", attack)
    assert (done.returncode, "defect" in done.stderr) == (1, False), done.stderr[-2000:]
    assert "KeyError" in done.stdout + done.stderr
    why = rankfall("why")
    assert why.returncode == 0, why.stderr[-2000:]
    assert "user_code_exception" in why.stdout or "KeyError" in why.stdout


@pytest.mark.parametrize(
    "attack",
    [
        "deep record",
        pytest.param("number in a report of torchrun", marks=pytest.mark.full),
        pytest.param("deep progress", marks=pytest.mark.full),
    ],
)
def test_i18_p1_p2_a_viewer_sees_a_run_to_its_end(attack: str, folder: Path, rankfall: Runner) -> None:
    (folder / "attack.py").write_text(ATTACK)
    made = rankfall("submit", *gang(attack), "attack.py", attack)
    assert made.returncode == 0, made.stderr[-2000:]
    seen = rankfall("attach")
    assert (seen.returncode, "defect" in seen.stderr) == (1, False), seen.stderr[-2000:]
    assert "KeyError" in seen.stdout + seen.stderr
    assert rankfall("why").returncode == 0


# What a run directory may hold beside what a run leaves there: marks of requests, of copies, of followed objects.
MARKS = [
    "cancel",
    "suspend",
    "resize",
    "resized",
    "compressing",
    "foreign.json",
    "log-dir.json",
    "closing",
    "followed.json",
]
READS = (["why"], ["status"], ["logs", "--tail", "3"], ["attach"], ["logs", "--level", "error"])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"x":' + "[" * 4_000, id="deep"),
        pytest.param('{"pid":' + "9" * 5_000 + "}", id="number", marks=pytest.mark.full),
        pytest.param("9" * 5_000, id="digits", marks=pytest.mark.full),
    ],
)
def test_i18_p2_a_damaged_file_of_a_run_directory_is_no_defect(
    text: str, folder: Path, rankfall: Runner, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rankfall("run", *gang(text), "train.py").returncode == 0
    monkeypatch.chdir(folder)
    (run,) = (one for one in (folder.parent / "home" / "runs").iterdir() if one.is_dir())
    files = [one for one in run.rglob("*") if one.is_file() and one.suffix not in {".log", ".py", ".pyc"}]
    assert len(files) > 5
    for path in [*files, *(run / name for name in MARKS if not (run / name).exists())]:
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.write_text(text)
        for verb, *more in READS:
            # 74 as such is the answer where spec.json cannot be read: with a message of its own.
            assert app.run([verb, run.name, *more]) in {0, 1, 65, 66, 74}, (path.name, verb)
            said = capsys.readouterr().err
            assert "defect" not in said, (path.name, verb, said[-2000:])
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)
