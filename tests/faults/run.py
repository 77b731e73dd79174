"""Runs one fault: under Rankfall, and side by side under plain torchrun, and says what each made of it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from faults.inject import injected
from faults.table import Fault, Launcher
from rankfall.model import Decision, Diagnosis, Verdict
from rankfall.rundir import RunDir, list_runs
from support.patience import scaled

WORKER = Path(__file__).with_name("worker.py")
BIN = Path(sys.executable).parent
TIMEOUT_S = 150
GRADES = ("right", "weak", "unknown", "wrong")
Grade = Literal["right", "weak", "unknown", "wrong"]


@dataclass(frozen=True)
class Ours:
    """What Rankfall said.

    Attributes:
        verdicts: newest verdict of each attempt, in order; None where there is none.
        left: command lines of processes that outlived the run.
        places: slot of each rank in the first attempt; c10d deals the ranks out as it likes.
    """

    state: str
    code: int
    verdicts: tuple[Verdict | None, ...]
    decisions: tuple[Decision, ...]
    diagnosis: Diagnosis | None
    stderr: str
    left: tuple[str, ...]
    places: dict[int, int]
    run: RunDir


@dataclass(frozen=True)
class Theirs:
    """What plain torchrun left: the block and the text of each node, and the earliest error.json of all nodes."""

    nodes: tuple[str, ...]
    ranks: tuple[int | None, ...]
    earliest: str
    earliest_rank: int | None
    tie: bool
    texts: tuple[Path, ...]


def write_plan(fault: Fault, folder: Path, *, progress: bool = True, torch: bool = True) -> Path:
    """The worker's plan under a name that tells nothing.

    Args:
        fault: what it is to do.
        folder: that the worker sees too.
        progress: false keeps the worker from loading the recorder by itself.
        torch: whether its ranks meet by gloo, or by plain sockets.
    """
    plan = folder / f"{secrets.token_hex(6)}.json"
    plan.write_text(json.dumps({"actions": fault.actions, "progress": progress, "torch": torch} | fault.plan))
    return plan


def run_ours(
    fault: Fault, folder: Path, *, launcher: Launcher, nnodes: int = 2, hook: bool = True, torch: bool = True
) -> Ours:
    """The fault under the real ``rankfall run``.

    Args:
        folder: an empty folder; Rankfall's home is made inside it.
        hook: false = the recorder is kept out of the ranks.
        torch: false = the ranks meet by plain sockets, which starts in a moment.
    """
    plan = write_plan(fault, folder, progress=hook, torch=torch)
    scratch = folder / "scratch"
    scratch.mkdir()
    home = folder / "home"
    with injected(fault, plan=plan, scratch=scratch) as setting:
        file = job_file(fault, plan=plan, env=setting.env, launcher=launcher, nnodes=nnodes, hook=hook)
        done = subprocess.run(
            (*setting.prefix, str(BIN / "rankfall"), "run", "--quiet", "--file", str(file)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=scaled(TIMEOUT_S),
            check=False,
            env=os.environ | {"RANKFALL_HOME": str(home), "NO_COLOR": "1"},
        )
        left = still_running(plan)
    runs = list_runs(home)
    assert runs, f"no run was made: {done.stderr}"
    return read(runs[0], done, left)


def job_file(
    fault: Fault, *, plan: Path, env: Mapping[str, str], launcher: Launcher, nnodes: int = 2, hook: bool = True
) -> Path:
    """The job of a fault on this machine, in the folder of its plan.

    Args:
        fault: the row.
        plan: of the worker.
        env: added by the injector.
        launcher, nnodes, hook: as in :func:`run_ours`.
    """
    job = {
        "name": "job",
        "command": fault.command or [str(WORKER)],
        "module": fault.module,
        "launcher": "plain" if launcher == "plain" else "torchrun",
        "nnodes": nnodes,
        "nproc_per_node": 2,
        "cwd": str(plan.parent),
        "env": {"PLAN": str(plan), "OMP_NUM_THREADS": "1"} | fault.env | dict(env),
        "inside": "auto" if hook else "off",
        "rdzv": "auto" if launcher == "plain" else launcher,
        "policies": {"max_restarts": 0, "grace_s": 3.0, "backoff_s": 0.1, "hang_timeout_s": 60.0} | fault.policies,
    }
    file = plan.with_name("job.yaml")
    file.write_text(json.dumps(job))
    return file


def read(run: RunDir, done: subprocess.CompletedProcess[str], left: tuple[str, ...]) -> Ours:
    """What the run's directory holds at its end."""
    with run.reader() as reader:
        attempts = [row.attempt for row in reader.attempts()]
        found = [reader.diagnosis(attempt) for attempt in attempts]
        decisions = tuple(row.decision for row in reader.decisions())
        state = reader.run().state
        places = {
            item.rank: item.slot for item in (reader.ranks(attempts[0]) if attempts else ()) if item.slot is not None
        }
    kept = [item for item in found if item is not None]
    return Ours(
        state=state,
        code=done.returncode,
        verdicts=tuple(item.verdict if item else None for item in found),
        decisions=decisions,
        diagnosis=kept[-1] if kept else None,
        stderr=done.stderr,
        left=left,
        places=places,
        run=run,
    )


def still_running(plan: Path) -> tuple[str, ...]:
    """Command lines of processes of this job that live on."""
    needle = f"PLAN={plan}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return tuple(found)


@dataclass(frozen=True)
class Judged:
    """The grade of one verdict, and what is wrong with it."""

    grade: Grade
    faults: tuple[str, ...] = ()


def judge(fault: Fault, verdict: Verdict | None, *, world: int = 4, slot: int | None = None) -> Judged:
    """Compare the verdict of the last fallen attempt with the table.

    Args:
        fault: the row.
        verdict: what Rankfall said.
        world: number of ranks.
        slot: where the culprit was; counts for faults of a whole slot.
    """
    if verdict is None:
        return Judged("wrong", ("there is no verdict",))
    wrong, grade = [], "right"
    slug = verdict.cause.slug
    if verdict.rank != fault.rank:
        if verdict.rank is not None:
            wrong.append(f"rank {verdict.rank} is blamed, not {fault.rank}")
        else:
            grade = "weak"
    if fault.slot is not None and verdict.slot != slot:
        if verdict.slot is not None:
            wrong.append(f"slot {verdict.slot} is blamed, not {slot}")
        grade = "weak"
    if slug not in fault.slugs:
        only_that_it_left = (
            slug == "peer_lost" and verdict.cause.confidence == "suspected" and verdict.rank == fault.rank
        )
        if slug in fault.weak or only_that_it_left:
            grade = "weak"
        elif slug == "unknown":
            grade = "unknown"
        else:
            wrong.append(f"cause {slug}, not {' or '.join(fault.slugs)}")
    if verdict.node_action not in {"none", fault.node_action}:
        wrong.append(f"node action {verdict.node_action}")
    if slug in fault.slugs and verdict.retry not in fault.retry:
        wrong.append(f"retry {verdict.retry}, allowed: {', '.join(sorted(fault.retry))}")
    fallen = [item.rank for item in verdict.consequences]
    if fault.rank is not None and verdict.rank is not None and fault.rank in fallen:
        wrong.append(f"culprit {fault.rank} is named as a victim")
    if fault.victims and verdict.rank == fault.rank:
        absent = set(range(world)) - {fault.rank} - set(fallen)
        if absent:
            wrong.append(f"ranks {sorted(absent)} are not named as victims")
    if wrong:
        return Judged("wrong", tuple(wrong))
    return Judged(msgspec.convert(grade, Grade))


def kept_text(run: RunDir, folder: Path) -> Path:
    """The lines of the newest attempt, as ``rankfall logs`` prints them for whoever mails a log."""
    text = folder / "kept.log"
    with text.open("wb") as file:
        subprocess.run(
            (str(BIN / "rankfall"), "logs", run.path.name),
            stdout=file,
            stderr=subprocess.DEVNULL,
            timeout=scaled(TIMEOUT_S),
            check=True,
            env=os.environ | {"RANKFALL_HOME": str(run.path.parents[1]), "NO_COLOR": "1"},
        )
    return text


# What text says of a failure whose rank said nothing: others lost it, or waited until somebody stopped them.
_FOLLOWS = frozenset({"peer_lost", "collective_timeout", "rdzv_closed", "external_signal"})


def judge_text(fault: Fault, verdict: Verdict) -> Judged:
    """Compare what text alone shows, cause and rank, with the table."""
    slug = verdict.cause.slug
    if slug == "unknown" or (verdict.rank is None and slug in _FOLLOWS.difference(fault.slugs)):
        return Judged("unknown")
    # Only the kernel knows why a process was killed.
    weak = {*fault.weak, *({"killed_unknown"} if {"host_oom", "node_oom"} & {*fault.slugs} else ())}
    wrong = [f"cause {slug}, not {' or '.join(fault.slugs)}"] if slug not in {*fault.slugs, *weak} else []
    if fault.rank is not None and verdict.rank not in {None, fault.rank}:
        wrong.append(f"rank {verdict.rank} is blamed, not {fault.rank}")
    if verdict.node_action not in ("none", fault.node_action):
        wrong.append(f"node action {verdict.node_action}")
    if wrong:
        return Judged("wrong", tuple(wrong))
    return Judged("weak" if slug not in fault.slugs or verdict.rank != fault.rank else "right")


_BLOCK = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (?P<rank>\d+) .*?exitcode\s*: (?P<code>-?\d+).*?traceback : (?P<text>[^\n]*(?:\n(?!=)[^\n]*)*)",
    re.DOTALL,
)
_LAST = re.compile(r"^[ \t]*(?:\[rank\d+\]: )?(\w+(?:\.\w+)*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)


def run_theirs(fault: Fault, folder: Path, *, nnodes: int = 2) -> Theirs:
    """The same worker under plain torchrun, one agent a node, with error files kept."""
    plan = write_plan(fault, folder)
    scratch = folder / "scratch"
    scratch.mkdir()
    port = _free_port()
    with injected(fault, plan=plan, scratch=scratch) as setting:
        env = os.environ | {"PLAN": str(plan), "OMP_NUM_THREADS": "1"} | fault.env | setting.env
        program = ("-m", *fault.command) if fault.command and fault.module else fault.command or (str(WORKER),)
        agents = []
        for node in range(nnodes):
            command = (
                *setting.prefix,
                sys.executable,
                "-m",
                "torch.distributed.run",
                f"--nnodes={nnodes}",
                f"--node-rank={node}",
                "--nproc-per-node=2",
                "--master-addr=127.0.0.1",
                f"--master-port={port}",
                f"--log-dir={folder / f'log{node}'}",
                *program,
            )
            with (folder / f"node{node}.txt").open("wb") as out:
                agents.append(
                    subprocess.Popen(command, stdout=out, stderr=out, env=env, cwd=folder, start_new_session=True)
                )
        _end(agents, plan)
    shown = [_block((folder / f"node{node}.txt").read_text(errors="replace")) for node in range(nnodes)]
    name, rank, tie = _earliest(folder, nnodes)
    texts = tuple(folder / f"node{node}.txt" for node in range(nnodes))
    return Theirs(tuple(text for text, _ in shown), tuple(rank for _, rank in shown), name, rank, tie, texts)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _end(agents: list[subprocess.Popen[bytes]], plan: Path) -> None:
    """Wait for all agents; once one is gone, the other gets the time that a person would have."""
    first = True
    for agent in agents:
        try:
            agent.wait(scaled(40 if first else 15))
        except subprocess.TimeoutExpired:
            first = False
            for other in agents:
                other.terminate()
    for agent in agents:
        try:
            agent.wait(scaled(10))
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
    needle = f"PLAN={plan}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), 9)
            except OSError:
                continue


def _block(text: str) -> tuple[str, int | None]:
    """What one node's torchrun printed as root cause, in a few words, and the rank it blames."""
    found = _BLOCK.search(text)
    if found:
        said = _LAST.findall(found["text"])
        words = said[-1] if said else found["text"].strip().splitlines()[0]
        return f"rank {found['rank']}, exit {found['code']}: {words[:80]}", int(found["rank"])
    last = [line for line in _LAST.findall(text) if "ChildFailed" not in line]
    return (f"no block ({last[-1][:80]})" if last else "nothing"), None


def _earliest(folder: Path, nnodes: int) -> tuple[str, int | None, bool]:
    """What the earliest error.json of all nodes says, whose it is, and whether another has the same second."""
    found: list[tuple[int, int, str]] = []
    for node in range(nnodes):
        for path in sorted((folder / f"log{node}").rglob("error.json")):
            rank = node * 2 + int(path.parent.name) if path.parent.name.isdigit() else -1
            try:
                message: Any = json.loads(path.read_bytes()[:1_000_000])["message"]
                found.append((int(message["extraInfo"]["timestamp"]), rank, str(message["message"])))
            except (ValueError, KeyError, TypeError):
                # A reader that sorts by time has nothing to sort by here.
                continue
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    if not found:
        return "nothing", None, False
    found.sort()
    first = found[0]
    tie = any(item[0] == first[0] and item[1] != first[1] for item in found)
    return f"rank {first[1]}: {first[2].splitlines()[0][:60] if first[2] else ''}", first[1], tie
