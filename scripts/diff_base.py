"""Writes the diff that the coverage of changed lines is asked of, and says what it compares with.

The base is, in this order:

1. ``RANKFALL_DIFF_BASE``, when set: any commit.
2. The merge base with ``origin/main`` (or ``main``), when that is an older commit than HEAD: a branch on a developer's machine.
3. Otherwise, as in a fresh clone of main itself: the newest commit on the first-parent line that is more than four hours older than HEAD.
   Work lands in sessions of at most three hours, so everything newer belongs to the change that is being looked at.
4. When there is none: the empty tree, so every line counts as changed.

Only ``src`` counts: tests and scripts are not measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SESSION_S = 4 * 3600


def git(*arguments: str) -> str:
    """Output of git; empty when it fails."""
    done = subprocess.run(("git", *arguments), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def base() -> tuple[str, str]:
    """The commit (or tree) to compare with, and why that one."""
    chosen = os.environ.get("RANKFALL_DIFF_BASE")
    if chosen:
        return git("rev-parse", "--verify", chosen) or chosen, "named by RANKFALL_DIFF_BASE"
    head = git("rev-parse", "HEAD")
    for branch in ("origin/main", "main"):
        shared = git("merge-base", "HEAD", branch)
        if shared and shared != head:
            return shared, f"the merge base with {branch}"
    stamps = [line.split() for line in git("log", "--first-parent", "--format=%H %ct").splitlines()]
    for commit, stamp in stamps:
        if int(stamps[0][1]) - int(stamp) > SESSION_S:
            return commit, f"the newest commit more than {SESSION_S // 3600} h older than HEAD"
    return git("hash-object", "-t", "tree", os.devnull), "the empty tree: no commit is older than this session"


def main(target: Path) -> None:
    """Write the diff to ``target``."""
    commit, why = base()
    # Also what is not committed yet: a developer wants to know before the commit.
    text = subprocess.run(("git", "diff", commit, "--", "src"), capture_output=True, check=True).stdout
    target.write_bytes(text)
    print(f"changed lines are those since {commit[:12]} ({why})", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
