from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from rankfall_inside import claims, procfs


def test_errors_s2_many_claims_at_once_get_different_ordinals(tmp_path: Path) -> None:
    barrier = threading.Barrier(16)
    got: list[int | None] = []

    def claim(number: int) -> None:
        text = claims.text_of(pid=number, start=1, root=(number, 1), found={"rank": number})
        barrier.wait()
        got.append(claims.claim(str(tmp_path), text=text, root=(number, 1)))

    threads = [threading.Thread(target=claim, args=(10_000_000 + n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(16))
    assert claims.has_rank(str(tmp_path), 10_000_003)
    assert not claims.has_rank(str(tmp_path), 3)


def test_one_root_has_one_live_rank_at_a_time(tmp_path: Path) -> None:
    me = os.getpid()
    start = procfs.start_ticks(me)
    root = (me, start)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = claims.text_of(pid=child.pid, start=procfs.start_ticks(child.pid), root=root, found={"rank": 0})
    assert claims.claim(str(tmp_path), text=theirs, root=root) == 0
    other = claims.text_of(pid=1 << 22, start=5, root=root, found={"rank": 0})
    assert claims.claim(str(tmp_path), text=other, root=root) is None
    child.communicate(b"\n")
    assert claims.claim(str(tmp_path), text=other, root=root) == 1


def test_a_late_hook_takes_over_what_the_wrapper_adopted(tmp_path: Path) -> None:
    root = (os.getpid(), procfs.start_ticks(os.getpid()))
    adopted = claims.text_of(pid=root[0], start=root[1], root=root, found={"rank": 0}, adopted=True)
    assert claims.claim(str(tmp_path), text=adopted, root=root) == 0
    mine = claims.text_of(pid=root[0], start=root[1], root=root, found={"rank": 0})
    assert claims.claim(str(tmp_path), text=mine, root=root) == 0
    below = claims.text_of(pid=1 << 22, start=9, root=root, found={"rank": 0})
    assert claims.claim(str(tmp_path), text=below, root=root) == 0
    assert claims.find_ordinal(str(tmp_path), (1, 1)) is None
