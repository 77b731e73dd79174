"""From the command to the first pod, beside ``kubectl apply`` of the same manifests."""

from __future__ import annotations

import base64
import subprocess
import sys
import time

import yaml

from bench.cluster.place import Place, job
from bench.common import Row, median_pairs

FIRST_POD_S = 3.0


def rows(where: Place) -> list[Row]:
    """The rows of the page."""
    from rankfall.backends.payload import build_zip

    path = where.home.parent / "first.yaml"
    path.write_text(yaml.safe_dump(job(where)))
    manifests = where.cli("run", "--file", str(path), "--dry-run")
    number = 0

    def ours() -> float:
        return _until_pod(where, [sys.executable, "-m", "rankfall", "submit", "--file", str(path)])

    def plain() -> float:
        nonlocal number
        number += 1
        text = manifests.replace("bench-000000", f"plain-{number:06d}")
        items = [item for item in yaml.safe_load_all(text) if item]
        for item in items:
            if item["kind"] == "Job":
                item["spec"]["suspend"] = False
            if item["kind"] == "ConfigMap":
                # Shown by its size only.
                item["binaryData"] = {"inside.pyz": base64.b64encode(build_zip()).decode()}
        file = where.home.parent / "plain.yaml"
        file.write_text(yaml.safe_dump_all(items))
        return _until_pod(where, where.kubectl.command("apply", "-n", where.namespace, "-f", str(file)))

    a, b, added = median_pairs(ours, plain, runs=7)
    return [
        Row(
            "from the command to the first pod, beside `kubectl apply` of the same manifests",
            f"+{added:.2f} s ({a:.2f} / {b:.2f}, {a / b:.1f} x)",
            f"+{FIRST_POD_S:.0f} s",
            added <= FIRST_POD_S,
            "median of 7 pairs; start of two Python processes, plan with refusals, detached supervisor, launch",
        )
    ]


def _until_pod(where: Place, argv: list[str]) -> float:
    """Seconds from the start of a command to the first new pod, as a watch tells it."""
    words = where.kubectl.command("get", "pods", "-n", where.namespace, "--watch-only", "-o", "name")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
        try:
            # A watch says nothing of its beginning.
            time.sleep(1.0)
            begin = time.perf_counter()
            with subprocess.Popen(argv, env=where.environment(), stdout=subprocess.DEVNULL):
                if watch.stdout is None or not watch.stdout.readline():
                    raise RuntimeError("no pod came")
                return time.perf_counter() - begin
        finally:
            watch.kill()
