"""``make bench-foreign``: lets a job fall that Rankfall did not start and writes into docs/results what torchrun, Kubernetes and Rankfall say.

On the bed that ``TESTBED`` numbers, which is started where it is not up (root).
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from pathlib import Path

from bench.bed import bench_bed
from bench.common import ROOT
from bench.foreign.fall import fall
from bench.foreign.page import shown, wrong
from bench.logs.page import replaced

PAGE = ROOT / "docs" / "results" / "bench-foreign.md"


def main() -> int:
    """Run, print, write; 1, and nothing written, when the verdict is not right."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    with bench_bed() as bed:
        bed.kubectl.create_namespace(namespace)
        try:
            with tempfile.TemporaryDirectory() as name:
                seen = fall(bed, bed.kubectl, namespace=namespace, folder=Path(name))
        finally:
            bed.kubectl.run("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
    faults = wrong(seen)
    if faults:
        print(seen.why, *faults, sep="\n", file=sys.stderr)
        return 1
    text = shown(seen)
    print(text)
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "foreign", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
