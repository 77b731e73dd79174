"""Stories of errors that were survived, generated with fixed seeds; and of errors that were not, as the counter-check.

In a survived story one rank prints text of some cause and works on; later a bug of the user's own ends a rank. In an honest one the text is
really the end: nothing follows, or the noise of an end does. Both are told as files (one a rank, or mixed with prefixes) and as a run directory.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from rankfall.evidence.attempt.observer import AttemptObserver
from rankfall.explain import explain_files
from rankfall.model import JobSpec, Verdict
from rankfall.rundir import RunDir
from rankfall.verdict.diagnose import diagnose
from rankfall.verdict.signatures.catalogue import FAMILIES, parse, source
from support.stream_files import FakeStream

S: Final = 1_000_000_000
T0: Final = 1_790_000_000 * S
#: How lines of several ranks are told apart in one file.
PREFIXES: Final = ("[rank{n}]: ", "[rank {n}] ", "{n}: ", "[1,{n}]<stderr>: ", "pod-{n} | [rank {n}] ")
BUGS: Final = (
    "KeyError: 'token_type_ids'",
    "ValueError: bad length -1",
    "AssertionError: batch is empty",
    "shop.train.LedgerMismatch: 3 != 4",
)
#: Bugs that leave no traceback.
CODES: Final = ("sys.exit(1)", "os._exit(3)")
# What only other programs than a rank print, whatever they are quoted for.
_RETYPED: Final = (
    "{text}",
    "WARNING: {text}, retrying",
    "retry 1/5: {text}",
    "caught {text}; going on with half of the batch",
    "[W data.py:88] {text} (attempt 2 of 3)",
    "checkpoint load failed, falling back: {text}",
)


@dataclass
class Story:
    """One story.

    Attributes:
        lines: of each rank (seconds, text), in order.
        culprit: whose bug ended the job; ``shown``: the text alone names that rank.
        slug: of the text that was survived, or of the honest error.
    """

    seed: int
    slug: str
    world: int
    speaker: int
    culprit: int
    final: str
    layout: str
    stamped: bool
    lines: list[list[tuple[float, str]]]
    steps: dict[int, tuple[int, float]] = field(default_factory=dict)
    end: float = 30.0

    @property
    def label(self) -> bool:
        return self.layout == "run" or self.final in BUGS

    def text(self, rank: int) -> Iterator[tuple[float, str]]:
        for at, line in self.lines[rank]:
            stamp = f"2026-11-21 09:{int(at) // 60:02d}:{at % 60:06.3f} " if self.stamped else ""
            # What Python prints of an exception has no stamp.
            bare = line.startswith((" ", "Traceback", *BUGS, "\r"))
            yield at, line if bare else stamp + line


@cache
def recoverable() -> dict[str, tuple[str, ...]]:
    """Lines that signatures know as a primary cause, by slug."""
    found: dict[str, list[str]] = {}
    for family in FAMILIES:
        for signature in parse(source(family), origin=family, check=False):
            if signature.role == "primary" and {"line", "kernel"} & set(signature.where):
                # A launcher's line about several tasks is no rank's.
                texts = (one.text for one in signature.example if " tasks " not in one.text)
                found.setdefault(signature.slug, []).extend(texts)
    return {slug: tuple(texts) for slug, texts in sorted(found.items())}


def traceback(final: str, *, file: str = "/app/train.py", depth: int = 2) -> list[str]:
    """What Python prints of an exception."""
    frames = [f'  File "{file}", line {40 + n}, in f{n}\n    g{n}(batch)' for n in range(depth)]
    return ["Traceback (most recent call last):", *"\n".join(frames).split("\n"), final]


def _work(style: int, number: int, rng: random.Random) -> str:
    loss = rng.random()
    return (
        f"step {number} loss={loss:.4f} lr=3e-4",
        f"Epoch [{1 + number // 100}/9] Iter [{number}/900] loss: {loss:.4f}",
        f" iteration {number:8d}/  100000 | consumed samples: {number * 512} | lm loss: {loss:.6E}",
        f"{{'loss': {loss:.4f}, 'grad_norm': {rng.random():.3f}, 'epoch': {number / 100:.2f}}}",
        f"Training: {number // 10}%|###       | {number}/1000 [00:{number % 60:02d}<10:00,  4.6it/s]",
        f"Train Epoch: 1 [{number * 64}/60000 ({number}%)]\tLoss: {loss:.6f}",
        f"{number}/900 [====>.........] - ETA: 1:02 - loss: {loss:.4f}",
        f"throughput {rng.randrange(9000)} tokens/s, step={number}",
        f"wrote part {rng.randrange(10**6)} of the table {rng.choice('abcdefgh')}",
    )[style]


STYLES: Final = 9
#: The style whose lines are no counters: many of them are needed.
PLAIN: Final = 8


def survived(seed: int) -> Story:
    """A survived error, and the bug that ended the job later."""
    rng = random.Random(f"survived {seed}")
    slugs = list(recoverable())
    slug = slugs[seed % len(slugs)]
    text = rng.choice(recoverable()[slug])
    world = rng.choice((1, 2, 3, 4, 8))
    speaker, culprit = rng.randrange(world), rng.randrange(world)
    layout = ("ranks", "mixed", "run")[seed % 3]
    final = rng.choice((*BUGS, *CODES) if layout == "run" or seed % 5 == 0 else BUGS)
    style = rng.randrange(STYLES)
    story = Story(seed, slug, world, speaker, culprit, final, layout, seed % 2 == 0, [[] for _ in range(world)])
    before, after = rng.randrange(3, 9), 60 if style == PLAIN else rng.randrange(5, 40)
    printed = rng.choice(_RETYPED).format(text=text)
    at = 0.0
    for number in range(before):
        at = _everywhere(story, at, style, number, rng)
    if ": " in text and text.split(":")[0].isidentifier() and rng.random() < 0.3:
        story.lines[speaker] += [
            (at, line) for line in ("ERROR data: read failed", *traceback(text, file="/app/data.py"))
        ]
    else:
        story.lines[speaker].append((at, printed))
    for number in range(before, before + after):
        at = _everywhere(story, at, style, number, rng)
    if final in BUGS:
        story.lines[culprit] += [(at, line) for line in traceback(final)]
    elif final == "sys.exit(1)":
        story.lines[culprit].append((at, "leaving"))
    story.end = at
    return story


def _everywhere(story: Story, at: float, style: int, number: int, rng: random.Random) -> float:
    """A step of all ranks; returns when it ended."""
    for rank in range(story.world):
        story.lines[rank].append((at + rng.random() / 10, _work(style, number + 100, rng)))
        if story.seed % 4 == 0:
            story.steps[rank] = (number + 100, at + 0.1)
    return at + 0.5


NOISE: Final = (
    (),
    ("wandb: Run summary:", "wandb:       loss 0.125", "wandb:       step 108"),
    (
        "[rank0]:[W1121 09:41:49.153 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called before program exit",
    ),
    (
        "[E1121 09:41:50.1 ProcessGroupNCCL.cpp:616] [PG 0 Rank 1] heartbeat monitor thread is alive",
        "logging thread: queue is empty, closing",
    ),
    (
        "DataLoader worker 1: batch 118 loaded",
        "DataLoader worker 1: batch 119 loaded",
        "DataLoader worker 0: batch 120 loaded",
    ),
    ("heartbeat 17: alive", "heartbeat 18: alive", "heartbeat 19: alive"),
    ("shutting down", "cleaning up /tmp/cache", "sys:1: ResourceWarning: unclosed file"),
    ("Training:  10%|###       | 108/1000 [00:48<10:00,  4.6it/s]",),
    ("Exception ignored in: <function Pool.__del__ at 0x7f66>", *traceback("OSError: handle is closed", depth=1)),
    ("Error in atexit._run_exitfuncs:", *traceback("ValueError: I/O operation on closed file", depth=1)),
)


def honest(seed: int) -> Story:
    """An error that ended its rank, with nothing or noise after it."""
    rng = random.Random(f"honest {seed}")
    slugs = list(recoverable())
    slug = slugs[seed % len(slugs)]
    text = rng.choice(recoverable()[slug])
    world = rng.choice((1, 2, 4, 8))
    speaker = rng.randrange(world)
    layout = ("ranks", "mixed", "run")[seed % 3]
    story = Story(seed, slug, world, speaker, speaker, text, layout, seed % 2 == 0, [[] for _ in range(world)])
    style = rng.randrange(PLAIN)
    at = 0.0
    for number in range(rng.randrange(3, 9)):
        at = _everywhere(story, at, style, number, rng)
    story.steps = {rank: (step, min(when, at - 0.4)) for rank, (step, when) in story.steps.items()}
    whole = text.partition(": ")[0].endswith(("Error", "Exception")) and rng.random() < 0.5
    story.lines[speaker] += [(at, line) for line in (traceback(text) if whole else [text])]
    for other in range(world):
        if other != speaker and rng.random() < 0.5:
            peer = "RuntimeError: [../gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.3]:22188"
            story.lines[other] += [(at + 0.3, line) for line in traceback(peer)]
    story.lines[speaker] += [(at + 0.1, line) for line in NOISE[seed // 3 % len(NOISE)]]
    story.end = at + 1
    return story


def verdict_of(story: Story, folder: Path) -> Verdict:
    """What Rankfall says of a story that is written below this folder."""
    folder.mkdir(parents=True)
    if story.layout == "run":
        return _run(story, folder)
    if story.layout == "ranks":
        for rank in range(story.world):
            (folder / f"rank-{rank}.log").write_text("".join(f"{line}\n" for _, line in story.text(rank)))
    else:
        prefix = PREFIXES[story.seed // 3 % len(PREFIXES)]
        rows = sorted(
            (at, rank, n, line) for rank in range(story.world) for n, (at, line) in enumerate(story.text(rank))
        )
        (folder / "job.log").write_text("".join(f"{prefix.format(n=rank)}{line}\n" for _, rank, _, line in rows))
    return explain_files([folder]).verdict


def _run(story: Story, home: Path) -> Verdict:
    """The same as what wrapper and hook leave of a run, observed as it grows."""
    spec = JobSpec(command=("train.py",), nnodes=1, nproc_per_node=story.world, launcher="plain")
    run = RunDir.create(spec, home=home)
    run.records_dir.mkdir(parents=True, exist_ok=True)
    slot = run.slot_dir(1, "worker", 0)
    (slot / "progress").mkdir(parents=True)
    _record(run, "slot_start", 0.0, launcher="plain")
    hook = story.seed % 2 == 0
    for rank in range(story.world):
        place = {"rank": rank, "local_rank": rank, "group_rank": 0, "pid": 1000 + rank, "ordinal": rank}
        _record(run, "start", 0.0, writer="hook" if hook else "wrapper", world_size=story.world, **place)
    observer = AttemptObserver(run, spec=spec, attempt=1, launcher="plain")
    streams = [_streams(run, rank) for rank in range(story.world)]
    polls = 4
    for part in range(polls):
        for rank in range(story.world):
            lines = list(story.text(rank))
            for at, line in lines[len(lines) * part // polls : len(lines) * (part + 1) // polls]:
                out = line.startswith(("step", "Epoch", " iteration", "{", "Train Epoch", "throughput", "wrote"))
                streams[rank][0 if out or story.seed % 4 else 1].write(f"{line}\n".encode(), at=T0 + round(at * S))
        observer.poll(T0 + round(story.end * S))
    for rank, (step, when) in story.steps.items() if hook else ():
        path = slot / "progress" / f"{rank}.json"
        path.write_text(json.dumps({"step": step, "phase": "step", "at_ns": T0 + round(when * S), "pid": 1000 + rank}))
        os.utime(path, ns=(T0 + round(when * S),) * 2)
    _ends(story, run, hook=hook)
    while observer.poll(T0 + round((story.end + 5) * S)).bytes:
        pass
    return diagnose(observer.case()).verdict


def _ends(story: Story, run: RunDir, *, hook: bool) -> None:
    at = story.end + 0.2
    code = 3 if "_exit(3)" in story.final else 1
    if hook and (story.final in BUGS or story.final == "sys.exit(1)"):
        kind, _, message = story.final.partition(": ") if story.final in BUGS else ("SystemExit", "", "1")
        error: dict[str, Any] = {
            "types": [kind],
            "chain": [message],
            "message": message,
            "raised_ns": T0 + round(story.end * S),
        }
        if kind == "SystemExit":
            error["exit_code"] = 1
        _record(run, "error", at, writer="hook", rank=story.culprit, pid=1000 + story.culprit, error=error)
    for rank in range(story.world):
        end = {"code": code} if rank == story.culprit else {"signal": 15, "ours": True}
        _record(run, "end", at + (rank != story.culprit), rank=rank, pid=1000 + rank, exit={"how": "pidfd", **end})
    _record(run, "slot_end", at + 2, exit={"code": code})


def _streams(run: RunDir, rank: int) -> tuple[FakeStream, FakeStream]:
    folder = run.stream_dir(1, "worker", 0, 0)
    return FakeStream(folder / f"{rank}.out.log"), FakeStream(folder / f"{rank}.err.log")


def _record(run: RunDir, kind: str, at: float, **fields: Any) -> None:
    stamp = T0 + round(at * S)
    data = {"schema": "rankfall.record/1", "id": uuid.uuid4().hex, "kind": kind, "run": run.id, "attempt": 1}
    data |= {"slot": 0, "role": "worker", "node": "node0", "at_ns": stamp, "writer": "wrapper"} | fields
    path = run.records_dir / f"{kind}-a1-worker-0-{data['id']}.json"
    path.write_text(json.dumps(data))
    os.utime(path, ns=(stamp, stamp))
