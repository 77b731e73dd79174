"""The conformance suite on the bed: each case by an account with the rights of its one backend, compared with the same case on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conformance.cases import CASES, CLUSTER, Case
from conformance.drive import Place, local
from conformance.pods import cluster, prepare
from conformance.report import Rows
from conformance.suite import Suite, chosen
from rankfall.backends.kubernetes.rights import rules
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
# The optional ClusterRole (docs/kubernetes.md): what is said of a right that is missing is said on a cluster alone.
NODES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}]


def cells() -> list[object]:
    """Case and backend, a backend's together, so that one worker has them all."""
    return [
        pytest.param(
            case,
            backend,
            id=f"{backend}-{case.name}",
            marks=pytest.mark.xdist_group(f"conformance-{backend}"),
        )
        for backend in CLUSTER
        for case in CASES
    ]


@pytest.fixture(scope="module")
def suite(
    request: pytest.FixtureRequest, bed: Bed, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Suite]:
    spaces = {backend: f"t-{uuid4().hex[:8]}" for backend in CLUSTER}
    configs = {}
    for backend, space in spaces.items():
        kubectl.create_namespace(space)
        prepare(kubectl, namespace=space)
        configs[backend] = accounts.create(
            bed.control, kubectl, "rankfall", namespace=space, rules=rules([backend]), cluster_rules=NODES
        )

    def place(backend: str, folder: Path) -> Place:
        if backend == "local":
            return local(folder)
        return cluster(backend, folder, kubeconfig=configs[backend], namespace=spaces[backend])

    made = Suite(place, folder=tmp_path_factory.mktemp("conformance"), rows=Rows())
    for params in chosen(request):
        case, backend = params["case"], params["backend"]
        made.begin((case, one) for one in (backend, reference(case, backend)) if one is not None)
    yield made
    made.close()
    for space in spaces.values():
        kubectl.run("delete", "namespace", space, "--wait=false", "--ignore-not-found")


def reference(case: Case, backend: str) -> str | None:
    """What a backend's documents are compared with: this machine's, else those of an Indexed Job."""
    if case.drive == "plan" or backend in case.refused or backend in case.absent:
        return None
    usable = [one for one in ("local", "job") if one not in case.absent and one not in case.refused]
    return usable[0] if usable and usable[0] != backend else None


@pytest.mark.parametrize(("case", "backend"), cells())
def test_jobapi_s28_a_case_is_the_same_on_every_backend(suite: Suite, case: Case, backend: str) -> None:
    suite.check(case, backend, reference=reference(case, backend))
