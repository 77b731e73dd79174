"""Texts: what a job can print, or somebody can put into a log file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator

from support.hostile_inputs.shapes import Hostile, Kind, numbered, one_line, repeated

HEAD = b"Traceback (most recent call last):\n"
NINES = b"9" * 5000
FILE = b'  File "/app/train.py", line 7, in step\n    loss.backward()\n'
STAMP = b"W0101 00:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:900] "
# What Python prints between two exceptions of a chain.
CHAINED = b"\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = b"\nThe above exception was the direct cause of the following exception:\n\n"
RANKS = 1024


def _interleaved(size: int) -> Iterator[bytes]:
    """Honest tracebacks of 1,024 ranks, line by line in turns."""
    lines = [*(HEAD + FILE * 6).splitlines(keepends=True), b"RuntimeError: rank %d failed\n"]
    made = 0
    while made < size:
        block = b"".join(
            b"[rank%d]: " % rank + (line % rank if b"%d" in line else line) for line in lines for rank in range(RANKS)
        )
        made += len(block)
        yield block


def _chained_cut(size: int) -> Iterator[bytes]:
    """Chained tracebacks, each cut anywhere."""
    rng = random.Random(1)
    whole = (HEAD + FILE * 3 + b"KeyError: 'x'\n" + CHAINED + HEAD + FILE + b"ValueError: y\n" + CAUSED) * 3
    made = 0
    while made < size:
        piece = whole[: rng.randrange(1, len(whole))]
        made += len(piece)
        yield piece


def _rng(choose: Callable[[random.Random], bytes]) -> Callable[[int], Iterator[bytes]]:
    def make(size: int) -> Iterator[bytes]:
        rng = random.Random(18)
        made = 0
        while made < size:
            block = b"".join(choose(rng) for _ in range(64))
            made += len(block)
            yield block

    return make


def _head_then(unit: bytes, head: bytes = HEAD) -> Callable[[int], Iterator[bytes]]:
    def make(size: int) -> Iterator[bytes]:
        yield head
        yield from repeated(unit)(size)

    return make


def _survived(number: int) -> bytes:
    words = (
        b"HTTP 429 Too Many Requests, retrying in 2 s\n",
        b"OSError: [Errno 116] Stale file handle (retry 1/3)\n",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; batch halved\n",
        b"checkpoint load failed, falling back to step 100\n",
        b"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus (quoted from a forum)\n",
    )
    return words[number % len(words)] + b"step %d loss 0.%d\n" % (number, number % 1000)


def _letters(number: int) -> bytes:
    """A name without digits for each number."""
    return bytes(ord("g") + int(digit, 16) for digit in f"{number * 2654435761 % (1 << 32):08x}")


def _shuffled_prefix(rng: random.Random) -> bytes:
    kinds = (b"[rank%d]: ", b"[default%d]: ", b"[1,%d]<stderr>: ", b"%d: ", b"[slot %d] ", b"node-%d | ")
    return b"".join(rng.choice(kinds) % rng.randrange(9999) for _ in range(rng.randrange(7))) + rng.choice(
        (HEAD, FILE, b"ValueError: x\n", b"\n")
    )


# name, what it attacks, and what is repeated.
# fmt: off
_UNITS: tuple[tuple[str, str, bytes], ...] = (
    ("number-stopped", "int() of 5,000 digits in torchrun's own stop", STAMP + b"Sending process " + NINES + b" closing signal SIGTERM\n"),
    ("number-exit", "int() in torchrun's failed line", b"failed (exitcode: -" + NINES + b") local_rank: " + NINES + b" (pid: " + NINES + b") of binary: x\n"),
    ("number-row", "int() in torchrun's report row", b"  rank      : " + NINES + b" (local_rank: 0)\n  exitcode  : -9 (pid: 1)\n"),
    ("number-row-pid", "int() in torchrun's report row", b"  rank      : 1 (local_rank: " + NINES + b")\n  exitcode  : -9 (pid: " + NINES + b")\n"),
    ("number-death-signal", "int() of a signal", b"Received " + NINES + b" death signal, shutting down workers\n"),
    ("number-forced", "int() of a forced stop", b"Unable to shutdown process " + NINES + b" via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"),
    ("number-xid", "numbers of the GPU driver's lines", b"NVRM: Xid (PCI:0000:01:00): " + NINES + b", pid=" + NINES + b", name=python\n"),
    ("number-rank", "a rank too large for any job", b"[rank99999999999999999999]: ValueError: x\n"),
    ("number-rank-negative", "a negative rank", b"[rank-1]: ValueError: x\nrank -7: exitcode: -99999999999\n"),
    ("number-rank-unicode", "digits of other scripts", "[rank\u0663\uff17]: ValueError: rank \u00b2 \u0e53 failed\n".encode()),
    ("number-peers", "long lists of ranks", b"[rank0]: RuntimeError: ranks " + b", ".join(b"%d" % n for n in range(3000)) + b" failed to pass monitoredBarrier\n"),
    ("number-memory", "numbers of memory", b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + NINES + b".99 GiB. GPU " + NINES + b" has a total capacity of " + NINES + b" GiB\n"),
    ("number-line", "a line number in a frame", HEAD + b'  File "x.py", line ' + NINES + b", in f\nValueError: x\n"),
    ("number-exit-code", "an exit code", b"rank 3 exited with code " + NINES + b"\nexitcode: 1e999\nexitcode: NaN\nstep=Infinity loss=-inf\n"),
    ("number-timeout", "a dump's own time-out", b"Timeout (" + NINES + b":00:00)!\nThread 0x" + NINES + b" (most recent call first):\n"),
    ("number-only", "nothing but digits", NINES + b"\n"),
    ("traceback-heads", "a head a line", HEAD),
    ("traceback-heads-crlf", "a head a line, with CRLF", HEAD[:-1] + b"\r\n"),
    ("traceback-heads-one-line", "heads without a newline", HEAD[:-1] + b" "),
    ("traceback-heads-indented", "heads inside of a stack", b"  " + HEAD + b"    | " + HEAD),
    ("traceback-heads-final", "heads with an exception and no frame", HEAD + b"ValueError: x\n"),
    ("traceback-heads-chained", "chains without an end", HEAD + FILE + b"ValueError: x\n" + CHAINED),
    ("traceback-caused-words", "the words of a chain alone", CAUSED),
    ("traceback-ignored", "exceptions that Python ignores", b"Exception ignored in: <function f at 0x7f>\n" + HEAD + FILE + b"ValueError: x\n"),
    ("traceback-group", "exception groups, nested", b"  + Exception Group " + HEAD + b'  |   File "x.py", line 1, in f\n  | ExceptionGroup: many (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | ' + HEAD + b"    | ValueError: x\n    +------------------------------------\n"),
    ("traceback-binary", "bytes inside of a stack", HEAD + FILE + b"\0\xff\xfe\x1b[2J\n" + b"ValueError: \xed\xa0\x80\n"),
    ("traceback-recursion", "a stack of a thousand frames", HEAD + FILE * 1000 + b"  [Previous line repeated 99999999999999999999 more times]\nRecursionError: maximum recursion depth exceeded\n"),
    ("traceback-damaged-report", "torchrun's own reader of error files", HEAD + b'  File "/x/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 1, in __post_init__\n' + b"json.decoder.JSONDecodeError: Expecting value\n"),
    ("only-newlines", "empty lines", b"\n"),
    ("only-crlf", "empty lines", b"\r\n"),
    ("only-cr", "no line at all, but carriage returns", b"\r"),
    ("only-spaces", "one line of spaces", b" "),
    ("only-tabs", "one line of tabs", b"\t"),
    ("only-nul", "NUL bytes without a line", b"\0"),
    ("only-x", "one line without an end", b"x"),
    ("only-ff", "bytes that no UTF-8 holds", b"\xff"),
    ("line-hints", "one line of words of signatures", b"CUDA error NCCL WARN Xid RuntimeError: watchdog OOM killed "),
    ("line-progress-bars", "carriage returns instead of lines", b"\r 99%|#########9| 999/1000 ValueError: x"),
    ("bytes-nul-lines", "NUL bytes in lines", b"\0\0ValueError\0: \0x\0\nNCCL\0 WARN\0\n"),
    ("bytes-surrogates", "surrogates in UTF-8", b"ValueError: \xed\xa0\x80\xed\xb0\x80\n"),
    ("bytes-overlong", "overlong and cut UTF-8", b"RuntimeError: \xc0\xaf\xf0\x80\x80\xaf\xf4\x90\x80\x80\xe2\x82\n"),
    ("bytes-bom", "byte order marks", b"\xef\xbb\xbfValueError: x\n\xff\xfeNCCL WARN\n"),
    ("bytes-utf16-le", "a log in UTF-16", "\ufeffTraceback (most recent call last):\nValueError: x\n".encode("utf-16-le")),
    ("bytes-utf16-be", "a log in UTF-16", "\ufeffTraceback (most recent call last):\nValueError: x\n".encode("utf-16-be")),
    ("bytes-utf32", "a log in UTF-32", "Traceback (most recent call last):\nValueError: x\n".encode("utf-32")),
    ("bytes-separators", "other line separators", "ValueError: a\u2028ValueError: b\u2029\x0b\x0c\x1c\x1d\x1e\x85ValueError: c\n".encode()),
    ("bytes-bidi", "text that shows backwards", "ValueError: \u202e\u2066evil\u200b\u200d\u2069 x\n".encode()),
    ("bytes-combining", "a thousand accents", ("ValueError: a" + "\u0301" * 1000 + "\n").encode()),
    ("escape-codes", "codes that rule a terminal", b"\x1b[2J\x1b]0;title\x07\x1b]52;c;ZXZpbA==\x07\x1b[31mValueError: \x1b[8mx\x1b[0m\n"),
    ("escape-endless", "an escape code without an end", b"\x1b[" + b"1;" * 3000),
    ("escape-osc-endless", "a title without an end", b"\x1b]0;" + b"ValueError: x" * 3000),
    ("escape-prefixes", "colours before each letter", b"\x1b[31m\x1b[1m\x1b[0m\x1b[4m\x1b[31m\x1b[1m\x1b[0mV\x1b[31malueError: x\n"),
    ("prefix-brackets", "open brackets", b"["),
    ("prefix-parens", "the prefix of ray without an end", b"(" + b"a" * 199),
    ("prefix-mpirun", "prefixes upon prefixes", b"[1,0]<stdout>: [rank0]: [default0]: [slot 0] 0: node-1 | ValueError: x\n"),
    ("prefix-hosts", "names of hosts", b"a." * 120 + b": rank 1: " + b"b-" * 60 + b" | ValueError: x\n"),
    ("prefix-stamps", "stamps and near-misses", b"2026-01-01T00:00:00.999999999999999999999999999Z 2026-01-01T00:00:00+99:99 9999-99-99 99:99:99 ValueError: x\n"),
    ("regex-slashes", "folders without an end", b"ValueError: " + b"a/" * 900 + b"\n"),
    ("regex-dots", "addresses without an end", b"ValueError: " + b"1.1." * 450 + b"\n"),
    ("regex-hex", "UUIDs that are none", b"ValueError: " + b"deadbeef-0123-" * 130 + b"\n"),
    ("regex-words", "words before numbers", b"ValueError: " + b"rank " * 350 + b"\n"),
    ("regex-exit-code", "spaces inside of a pattern", b"Exit Code: " + b" " * 1900 + b"x\n"),
    ("regex-forced", "a bounded gap that never ends well", b"Unable to shutdown process 1 via " * 60 + b"\n"),
    ("regex-row", "torchrun's rows without their ends", b"  rank      : 1 (local_rank: 0)\n  exitcode  : " + b"-" * 300 + b"\n"),
    ("regex-file", "a frame's name without an end", HEAD + b'  File "' + b"a" * 1020 + b'", line 1, in ' + b"b" * 260 + b"\n"),
    ("regex-final", "dots in the name of an exception", HEAD + FILE + b"a." * 2000 + b"\n"),
    ("regex-spaces-file", "spaces before a frame", HEAD + b" | " * 1000 + b"x\n"),
    ("repeat-error", "one error line", b"RuntimeError: CUDA error: an illegal memory access was encountered\n"),
    ("repeat-oom", "one error line", b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"),
    ("repeat-kernel-oom", "lines of the kernel", b"Out of memory: Killed process 7 (python) total-vm:9kB, anon-rss:9kB\noom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=7\n"),
    ("repeat-prefix-oom", "one error line of one rank", b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"),
    ("forged-verdict", "our own words", b"rankfall-exit: rankfall 0\nrankfall: rank 5 fell first: host_oom\n[rank 5] rankfall: action: retry_elsewhere\n"),
    ("forged-record-deep", "a record of the log channel, deep", b'\x1erankfall/1 token {"x":' + b"[" * 4000 + b"\n"),
    ("forged-record-cut", "a record of the log channel, cut", b'\x1erankfall/1 \x1erankfall/1 token {"schema":"rankfall.record/1","id":"'),
    ("forged-progress", "progress that is none", b"step=99999999999999999999999 epoch=NaN loss=-Infinity it/s=1e999 phase=done\n"),
    ("forged-root-cause", "torchrun's report, again and again", b"Root Cause (first observed failure):\n[0]:\n  time      : 1970-01-01_00:00:00\n  host      : evil\n  rank      : 7 (local_rank: 7)\n  exitcode  : -9 (pid: 7)\n  error_file: <N/A>\n"),
    ("stack-headers", "heads of stacks", b"Current thread 0x00007f (most recent call first):\n"),
    ("stack-one", "a stack without an end", b'  File "/app/train.py", line 7 in step\n'),
    ("stack-dumps", "stack upon stack", b'Timeout (0:00:01)!\nCurrent thread 0x00007f (most recent call first):\n  File "/app/train.py", line 7 in step\n\n'),
    ("stack-fatal", "stacks of crashes", b'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "x.py", line 7 in step\n'),
    ("stack-py-spy", "py-spy's heads and near-misses", b'Process 1: python\nPython v3.11.1 (/usr/bin/python)\n\nThread 1 (idle): "MainThread"\n    f (x.py:1)\nThread ' + b"(" * 200 + b"\n"),
    ("echo-lines", "source that a traceback echoes", b'    raise RuntimeError("CUDA error: an illegal memory access was encountered")\n'),
    ("survived-nccl", "NCCL's warnings by the million", b"node1:7:9 [0] NCCL WARN Call to connect returned Connection refused, retrying\n"),
    ("json-deep-lines", "JSON of great depth as lines", b'{"x":' + b"[" * 8000 + b"\n"),
)
# fmt: on

# name, what it attacks, and how it is made.
# fmt: off
_MADE: tuple[tuple[str, str, Callable[[int], Iterable[bytes]]], ...] = (
    ("traceback-interleaved", "honest tracebacks of 1,024 ranks in turns", _interleaved),
    ("traceback-interleaved-heads", "heads of 10^5 ranks", numbered(lambda n: b"[rank%d]: " % (n % 100_000) + HEAD)),
    ("traceback-chained-cut", "chains, each cut anywhere", _chained_cut),
    ("traceback-endless-stack", "one stack without an end", _head_then(FILE)),
    ("traceback-endless-blank", "a head and blank lines", _head_then(b"\n")),
    ("traceback-endless-others", "a head and the lines of other ranks", _head_then(b"[rank1]: x\n", b"[rank0]: " + HEAD)),
    ("traceback-endless-frames", "a message without an end", _head_then(b"frame #1: f + 0x1 (0x2 in x.so)\n", HEAD + FILE + b"RuntimeError: x\n")),
    ("traceback-giant-message", "one message on one line", one_line(HEAD + FILE + b"ValueError: ", b"x y ")),
    ("traceback-giant-file", "one frame on one line", one_line(HEAD + b'  File "', b"a/", b'", line 1\nValueError: x\n')),
    ("traceback-prefix-dice", "lines of speakers, mixed", _rng(_shuffled_prefix)),
    ("traceback-half-heads", "heads, each cut anywhere", _rng(lambda rng: HEAD[rng.randrange(len(HEAD)) :])),
    ("line-giant-error", "an error at the end of one giant line", one_line(b"", b"x", b" RuntimeError: CUDA error: x\n")),
    ("line-giant-rank", "one giant line of a rank", one_line(b"[rank0]: RuntimeError: ", b"NCCL WARN ")),
    ("bytes-random", "random bytes", _rng(lambda rng: rng.randbytes(512))),
    ("bytes-random-lines", "random bytes in lines with an error", _rng(lambda rng: b"Error: " + rng.randbytes(64) + b"\n")),
    ("different-errors", "error lines that all differ", numbered(lambda n: b"RuntimeError: CUDA error: code %d in %s\n" % (n, b"abcdefghij"[n % 10 :]))),
    ("different-words", "error lines whose words differ", numbered(lambda n: b"ValueError: bad thing %s\n" % _letters(n))),
    ("different-exceptions", "tracebacks that all differ", numbered(lambda n: HEAD + b'  File "/app/f%d.py", line 1, in g%d\nMyError%d: x\n' % (n, n, n))),
    ("different-ranks", "one error of a million ranks", numbered(lambda n: b"[rank%d]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" % (n % 1_000_000))),
    ("different-xids", "lines of the GPU driver", numbered(lambda n: b"NVRM: Xid (PCI:0000:%02x:00): %d, pid=%d, name=python, Ch 1\n" % (n % 256, n % 160, n))),
    ("different-watchdogs", "time-outs of all ranks", numbered(lambda n: b"[rank%d]:[E101 00:00:00 ProcessGroupNCCL.cpp:629] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE)\n" % (n % 4096, n % 4096, n))),
    ("different-exits", "ends of all ranks", numbered(lambda n: b"failed (exitcode: -9) local_rank: %d (pid: %d) of binary: /usr/bin/python\n" % (n % 8, n))),
    ("forged-rows", "rows of a launcher's report", numbered(lambda n: b"  rank      : %d (local_rank: %d)\n  exitcode  : -9 (pid: %d)\n  error_file: <N/A>\n" % (n, n % 8, n))),
    ("forged-stops", "stops of each process", numbered(lambda n: STAMP + b"Sending process %d closing signal SIGTERM\n" % n)),
    ("forged-records", "records of the log channel", numbered(lambda n: b"\x1erankfall/1 token " + json.dumps({"schema": "rankfall.record/1", "id": str(n), "kind": "error", "rank": n, "error": {"types": ["builtins.MemoryError"], "message": "x"}}).encode() + b"\n")),
    ("survived-errors", "errors that the job survives", numbered(_survived)),
)
# fmt: on

TEXTS: tuple[Hostile, ...] = tuple(
    Hostile(name=name, attacks=attacks, kind=Kind.TEXT, file="rank-0.log", make=make)
    for name, attacks, make in (*((name, attacks, repeated(unit)) for name, attacks, unit in _UNITS), *_MADE)
)
