"""``why`` over a large log, beside ripgrep (or grep -E) with the same patterns."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.common import Row, in_fresh_process, peak_mib

SIZE_MIB = 1024
# grep -E with hundreds of patterns is slow beyond patience; it gets a sample.
GREP_MIB = 4
LIMIT_RATE, LIMIT_MIB = 150.0, 200.0


def write_log(path: Path, *, mib: int) -> None:
    """A training log: 16 ranks, ordinary lines, a failure in the middle of it."""
    rng = random.Random(7)
    lines = [
        f"[rank{rng.randrange(16)}]: 2026-11-21 09:{rng.randrange(60):02d}:{rng.randrange(60):02d} INFO step {n} "
        f"loss {rng.random():.4f} lr 3.0e-04 grad_norm {rng.random():.3f} tokens/s {rng.randrange(90000)} mem 61.2GiB\n"
        for n in range(20_000)
    ]
    block = "".join(lines).encode()
    failure = (
        b"[rank7]: Traceback (most recent call last):\n"
        b'[rank7]:   File "train.py", line 88, in step\n[rank7]:     loss = model(batch)\n'
        b"[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 7 has a total capacity of 79.1 GiB\n"
    )
    total = mib << 20
    with path.open("wb") as file:
        while file.tell() < total // 2:
            file.write(block)
        file.write(failure)
        while file.tell() < total:
            file.write(block)


def measure(path: str) -> None:
    """Explain one file on one core; print MiB/s and peak MiB."""
    from rankfall.explain import explain_files

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    size = Path(path).stat().st_size / 2**20
    with Path(path).open("rb") as file:  # in the page cache for everybody
        while file.read(1 << 24):
            pass
    begin = time.perf_counter()
    verdict = explain_files([Path(path)]).verdict
    spent = time.perf_counter() - begin
    if (verdict.rank, verdict.cause.slug) != (7, "gpu_oom"):
        raise SystemExit(f"wrong verdict: {verdict.cause.slug} at rank {verdict.rank}")
    print(f"{size / spent:.0f} {peak_mib():.0f}")


def _searcher(patterns: Path, log: Path, folder: Path) -> tuple[str, float]:
    """Name and MiB/s of the best searcher there is, with the same patterns, counting lines that match."""
    rg = shutil.which("rg")
    if rg:
        argv = [
            rg,
            "--no-unicode",
            "-a",
            "-c",
            "-j1",
            "--dfa-size-limit",
            "1G",
            "--regex-size-limit",
            "1G",
            "-f",
            str(patterns),
        ]
        name, sample, mib = "ripgrep", log, SIZE_MIB
    else:
        name, mib = "grep -E", GREP_MIB
        argv = ["grep", "-a", "-c", "-E", "-f", str(patterns)]
        sample = folder / "sample.log"
        write_log(sample, mib=mib)
    begin = time.perf_counter()
    subprocess.run([*argv, str(sample)], check=False, stdout=subprocess.DEVNULL, env=os.environ | {"LC_ALL": "C"})
    return name, mib / (time.perf_counter() - begin)


def rows() -> list[Row]:
    """The rows of this part."""
    from rankfall.verdict.signatures.catalogue import default_catalogue

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "job.log"
        write_log(log, mib=SIZE_MIB)
        rate, mib = map(float, in_fresh_process("text", str(log)))
        patterns = folder / "patterns"
        signatures = [s for s in default_catalogue().signatures if set(s.where) & {"line", "launcher"}]
        plain = [s.pattern.replace("(?P<", "(?P<") for s in signatures]
        patterns.write_text("".join(_unnamed(p) + "\n" for p in plain), encoding="utf-8")
        peer, peer_rate = _searcher(patterns, log, folder)
    return [
        Row(
            f"`why` over {SIZE_MIB} MiB of logs, one core",
            f"{rate:.0f} MiB/s, {mib:.0f} MiB",
            f"{LIMIT_RATE:.0f} MiB/s, {LIMIT_MIB:.0f} MiB",
            rate >= LIMIT_RATE and mib <= LIMIT_MIB,
            f"whole verdict; {len(signatures)} line signatures; log in the page cache",
        ),
        Row(
            f"the same patterns in {peer}, counting lines",
            f"{peer_rate:.1f} MiB/s; ours is {rate / peer_rate:.1f} x",
            "-",
            None,
            "finds lines only: no ranks, no tracebacks, no verdict",
        ),
    ]


def _unnamed(pattern: str) -> str:
    """The pattern in the syntax that grep and ripgrep share: groups without names."""
    import re

    return re.sub(r"\(\?P<\w+>|\(\?:", "(", pattern)


if __name__ == "__main__":
    measure(sys.argv[1])
