"""The recorder of one attempt's pods as a process of its own, so that a test can kill it at any moment and see what it costs.

``python recorder.py RUN_DIR KUBECONFIG NAMESPACE SELECTOR`` records until its stdin ends. It is what ``run`` starts in a thread, with the same
pace towards the API server, and nothing around it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rankfall.collect.pods.lazy_collector import LazyCollector
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.pod_source import PodSource

CHANNEL = "t0k3n"
# Its rights are those of docs/kubernetes.md that following needs, and none besides: no exec, no word about nodes.
ACCOUNT = "recorder"


def main(run: str, kubeconfig: str, namespace: str, selector: str) -> None:
    source = PodSource(
        context=ACCOUNT,
        kubeconfig=kubeconfig,
        namespace=namespace,
        selector=selector,
        container="main",
        token=CHANNEL,
        bases={"worker": 0},
    )
    feed = LazyCollector(RunDir(Path(run)), attempt=1, source=source)
    feed.start()
    while os.read(0, 1):
        pass
    feed.stop()
    for trouble in feed.troubles():
        print(trouble, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
