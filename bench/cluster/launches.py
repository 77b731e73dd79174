"""How many requests a launch costs the API server: the same number for 8 slots and for 512."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from bench.cluster.place import Place, job
from bench.common import Row

SLOTS = (8, 64, 512)
# Requests of a launch after its plan, by backend; of the plan, once the schemas are known. Trainer's webhook may not see the new runtime at once
# and is asked again then, at most so often: a create, a look, and another look at the runtime each.
LAUNCH = {"job": 4, "jobset": 3, "trainjob": 11}
AGAIN = {"job": 0, "jobset": 0, "trainjob": 9}
PLAN = 2


def rows(where: Place) -> list[Row]:
    """The rows of the page."""
    # No pod is made: this is about our requests, and thousands of pods take the controllers of a small machine minutes.
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": where.namespace}}
    where.kubectl.apply([quota | {"spec": {"hard": {"pods": "0"}}}])
    try:
        return _launched_by_backend(where)
    finally:
        where.kubectl("delete", "resourcequota", "none", "-n", where.namespace)


def _launched_by_backend(where: Place) -> list[Row]:
    found = []
    for backend, bound in LAUNCH.items():
        launched(where, job(where, backend=backend))  # fetches the schemas
        counts = {slots: launched(where, job(where, backend=backend, slots=slots)) for slots in SLOTS}
        totals = [sum(done.values()) for _, done in counts.values()]
        plans = [sum(asked.values()) for asked, _ in counts.values()]
        by_verb = ", ".join(f"{number} {verb}" for verb, number in sorted(counts[SLOTS[-1]][1].items()))
        found.append(
            Row(
                f"requests of a launch, `{backend}`, {', '.join(map(str, SLOTS))} slots",
                f"{', '.join(map(str, totals))} ({by_verb}) after {', '.join(map(str, plans))} of the plan",
                f"{bound}{f' to {bound + AGAIN[backend]}' if AGAIN[backend] else ''}, after {PLAN}",
                all(bound <= total <= bound + AGAIN[backend] for total in totals) and set(plans) == {PLAN},
                "from the proxy's log; the schemas are known from an earlier launch",
            )
        )
    return found


def launched(where: Place, spec: Mapping[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """What the server was asked for by the plan and by the launch of one attempt; it is removed again."""
    from rankfall.backends.kubernetes.backend import ClusterBackend
    from rankfall.model import spec_from
    from rankfall.rundir import RunDir

    directory = RunDir.create(spec_from(dict(spec)), home=where.home)
    backend = ClusterBackend()
    try:
        began = where.last
        plan = backend.plan(directory.spec, directory, 1)
        planned = where.last
        backend.submit(plan)
        done = where.requests(planned)
        backend.clear(plan)
    finally:
        backend.release()
    return where.requests(began) - where.requests(planned), done
