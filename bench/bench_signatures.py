"""How fast signatures are found, next to ``grep -E`` of the same patterns: ``python bench/bench_signatures.py [MiB]``.

One core, ordinary training output (lines of about 120 bytes, one failure in 50,000 lines), read as chunks of whole lines.
``grep`` gets the alternatives that are not specific to RE2; it prints matching lines to nowhere and runs in the C locale.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankfall.verdict.signatures.catalogue import Where

CHUNK = 4 << 20
LINES_PER_FAILURE = 50_000
GREP_LIMIT = 60


def ordinary(size: int, seed: int = 7) -> bytes:
    """Lines that training programs print, about ``size`` bytes, with a failure line in 50,000."""
    draw = random.Random(seed)
    lines: list[str] = []
    total = 0
    while total < size:
        number = len(lines)
        stamp = f"2026-11-21 09:{number // 60 % 60:02d}:{number % 60:02d},{draw.randrange(1000):03d}"
        kind = draw.randrange(6)
        if number % LINES_PER_FAILURE == LINES_PER_FAILURE - 1:
            line = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacity of 9.68 GiB"
        elif kind <= 2:
            line = (
                f"[rank{draw.randrange(8)}] {stamp} INFO trainer step {number:>8} loss {draw.random() * 3:.5f} "
                f"grad_norm {draw.random():.4f} lr {draw.random() / 1e3:.3e} tokens/s {draw.randrange(10**5)} mfu {draw.random():.3f}"
            )
        elif kind == 3:
            line = f"{stamp} - megatron - INFO - iteration {number}/500000 | consumed samples: {number * 512} | elapsed time per iteration (ms): {draw.random() * 900:.1f} | lm loss: {draw.random():.6E}"
        elif kind == 4:
            line = f"gpu-{draw.randrange(64):02d}:{draw.randrange(99999)}:{draw.randrange(99999)} [{draw.randrange(8)}] NCCL INFO Channel {draw.randrange(16):02d}/0 : {draw.randrange(64)}[{draw.randrange(8)}] -> {draw.randrange(64)}[{draw.randrange(8)}] via P2P/CUMEM"
        else:
            line = f"Epoch {number // 1000}:  {draw.randrange(100)}%|#########  | {number % 9188}/9188 [30:57<01:45,  4.68it/s, loss={draw.random():.3f}, v_num=0]"
        lines.append(line)
        total += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def row(name: str, seconds: float, size: int, found: int) -> None:
    """Print one row of the table."""
    sys.stdout.write(f"{name:<44} {seconds:8.2f} s {size / seconds / (1 << 20):9.0f} MiB/s {found:8d} lines\n")


def main() -> None:
    """Print the table."""
    from rankfall.verdict.signatures.catalogue import default_catalogue
    from rankfall.verdict.signatures.patterns import required_words

    start = time.perf_counter()
    catalogue = default_catalogue()
    loaded = time.perf_counter() - start
    start = time.perf_counter()
    list(catalogue.scan(b"RuntimeError: boom\n"))
    compiled = time.perf_counter() - start
    sys.stdout.write(
        f"{len(catalogue.signatures)} signatures: read in {loaded * 1e3:.0f} ms, compiled in {compiled * 1e3:.0f} ms\n"
    )

    data = ordinary(int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 256 << 20)
    kinds: dict[str, tuple[Where, ...]] = {"rankfall, lines": ("line",), "rankfall, lines + kernel": ("line", "kernel")}
    for label, where in kinds.items():
        # Compiling is the row above.
        catalogue.prepare(where)
        start = time.perf_counter()
        position = 0
        lines: set[int] = set()
        while position < len(data):
            end = data.rfind(b"\n", position, position + CHUNK) + 1 or len(data)
            lines.update(position + hit.line_start for hit in catalogue.scan(data[position:end], where))
            position = end
        row(label, time.perf_counter() - start, len(data), len(lines))

    grep = shutil.which("grep")
    if grep is None:
        return
    chosen = [each for each in catalogue.signatures if {"line", "launcher"} & set(each.where)]
    words = sorted({word for each in chosen for word in required_words(each.pattern) or ()})
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        log.write_bytes(data)
        for label, flag, rules in (
            ("grep -F, only the words the patterns need", "-F", words),
            ("grep -E, the patterns", "-E", [posix(each.pattern) for each in chosen]),
        ):
            Path(folder, "rules").write_text("\n".join(rules) + "\n")
            command = [grep, "-c", "-a", flag, "-f", str(Path(folder, "rules")), str(log)]
            start = time.perf_counter()
            try:
                done = subprocess.run(
                    command,
                    env=os.environ | {"LC_ALL": "C"},
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=GREP_LIMIT,
                )
            except subprocess.TimeoutExpired:
                sys.stdout.write(f"{label:<44} no end within {GREP_LIMIT} s\n")
            else:
                row(label, time.perf_counter() - start, len(data), int(done.stdout or 0))


def posix(pattern: str) -> str:
    """The pattern as ``grep -E`` knows it: no names, no lazy repeats, no classes with a backslash inside brackets."""
    for old, new in (
        ("(?i)", ""),
        (r"[^\n]", "."),
        (r"\n", ""),
        ("(?:", "("),
        ("*?", "*"),
        ("+?", "+"),
        ("??", "?"),
        ("}?", "}"),
        (r"\d", "[0-9]"),
        (r"\S", "[^ ]"),
    ):
        pattern = pattern.replace(old, new)
    while (at := pattern.find("(?P<")) >= 0:
        pattern = pattern[: at + 1] + pattern[pattern.index(">", at) + 1 :]
    return pattern.replace("[[0-9]", "[0-9").replace("[0-9].]", "0-9.]").replace("0-9], ]", "0-9, ]")


if __name__ == "__main__":
    main()
