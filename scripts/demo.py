"""``make demo``: the main job on real input. Shows the command that it runs, so that it can be typed again with other values.

Two nodes of two ranks train examples/train_char_lm.py. In step 50 rank 2 is killed; Rankfall says so, starts the job again, and the job
goes on from its checkpoint. The run stays in Rankfall's own home, where ``rankfall why`` finds it.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINTS = Path("build") / "demo" / "checkpoints"
RUN = (
    "rankfall",
    "run",
    "--nnodes",
    "2",
    "--nproc-per-node",
    "2",
    "--env",
    "DEMO_FAULT=rank=2,step=50,kind=sigkill",
    "examples/train_char_lm.py",
    "--steps",
    "60",
    "--checkpoint-dir",
    str(CHECKPOINTS),
)


def main() -> int:
    """Run it; the exit code is the run's own."""
    # A checkpoint of an earlier demo would let the job start behind the fault.
    shutil.rmtree(ROOT / CHECKPOINTS, ignore_errors=True)
    print(f"$ {shlex.join(RUN)}", flush=True)
    program = Path(sys.executable).parent / RUN[0]
    code = subprocess.run((str(program), *RUN[1:]), cwd=ROOT, check=False).returncode
    if code == 0:
        print(
            "\nLook closer:  .venv/bin/rankfall why --attempt 1\n              .venv/bin/rankfall logs --attempt 1 --rank 2 --tail 5"
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
