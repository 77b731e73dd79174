"""Two faults at once on three real nodes: the first one is named, nothing is started again or avoided wrongly, and no line is lost without a word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest

from cluster.fault_runs import Runs, Seen
from conformance.suite import chosen
from faults.cluster_page import Row
from faults.cluster_table import Cell
from faults.pairs_page import ROWS, judged
from faults.pairs_table import Pair, pairs
from rankfall.backends.kubernetes.rights import rules
from testbed import accounts, faults
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
NODE_RIGHTS = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
EVENT_RIGHTS = {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]}


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, bed: Bed, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    space = f"t-{uuid4().hex[:8]}"
    kubectl.create_namespace(space)
    # Events of nodes lie in the namespace "default"; with these rights a run reads them.
    config = accounts.create(
        bed.control, kubectl, "rankfall", namespace=space, rules=rules(), cluster_rules=[NODE_RIGHTS, EVENT_RIGHTS]
    )
    with faults.extra_node(bed, 3):
        made = Runs(
            bed=bed,
            kubectl=kubectl,
            namespace=space,
            kubeconfig=config,
            folder=tmp_path_factory.mktemp("pairs"),
            keep=keep,
        )
        wanted = [params["pair"] for params in chosen(request)]
        made.begin(sorted(wanted, key=lambda pair: pair.alone))
        yield made
        made.close()
        kubectl.run("delete", "namespace", space, "--wait=false", "--ignore-not-found")


def keep(cell: Cell, seen: Seen) -> None:
    """For the page."""
    assert isinstance(cell, Pair)
    if seen.errors:
        # Something was not done to it, so it is not that cell.
        return
    first = seen.ours.verdicts[0] if seen.ours and seen.ours.verdicts else None
    state = seen.ours.state if seen.ours else "none"
    ROWS.add(Row.of(cell, first, judged(cell, seen), state))


@pytest.mark.parametrize("pair", [*pairs()], ids=lambda pair: pair.id)
@pytest.mark.xdist_group("fault-pairs")
def test_i19_pairs_of_faults(runs: Runs, kubectl: Kubectl, pair: Pair) -> None:
    seen = runs.seen(pair)
    assert not seen.errors, seen.errors
    assert seen.ours is not None, seen.stderr
    found = judged(pair, seen)
    assert found.grade != "wrong", (found.faults, seen.stderr)
    assert seen.left == ()
    # Of our own; those of the job stand inside the evidence.
    assert not re.search(r"^Traceback", seen.stderr, re.MULTILINE)
    taints = [taint["key"] for node in kubectl.get("nodes")["items"] for taint in node["spec"].get("taints", ())]
    assert not any(key.startswith("rankfall") for key in taints), taints
