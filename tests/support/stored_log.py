"""One container's log in a run directory, fed by a test, and what was written down of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankfall.collect.pods.instance_folders import Instances
from rankfall.model import JobSpec, Record
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.log_routes import stamp_text

START = 1_790_000_000 * 1_000_000_000
UID = "uid-0"


class Stored:
    """One container's log in a run directory, and what was written down of it."""

    def __init__(self, home: Path, *, token: str) -> None:
        self.token = token
        self.run = RunDir.create(JobSpec(name="job", command=("train.py",)), home=home)
        self.instances = Instances(self.run, attempt=1, role_of=lambda _: "worker", token=self.token)
        self.log = self.instances.open(0, uid=UID, number=0)
        self.number = 0

    def reopen(self) -> None:
        self.instances.close()
        self.instances = Instances(self.run, attempt=1, role_of=lambda _: "worker", token=self.token)
        self.log = self.instances.open(0, uid=UID, number=0)

    def push(self, out: bytes) -> None:
        """Lines of the container's stdout, as the API gives them."""
        for line in out.split(b"\n")[:-1]:
            self.number += 1
            self.log.push(stamp_text(START + self.number).encode() + b" " + line + b"\n")

    def settle(self, *, changed: bool = False) -> bool | None:
        return self.instances.settle(0, uid=UID, number=0, changed=changed)

    def gaps(self) -> list[Record]:
        found = sorted(self.run.records_dir.glob("gap-*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=Record) for path in found]

    def lost(self) -> dict[str | None, tuple[int | None, int | None]]:
        return {gap.lost.stream: (gap.lost.lines, gap.lost.bytes) for gap in self.gaps() if gap.lost is not None}
