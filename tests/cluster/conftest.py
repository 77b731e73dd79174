"""One real bed for all cluster tests: the one that is up (the gate starts its own), else one that is started here and taken down at the end.

Under pytest-xdist each worker has a bed of its own, with the number ``TESTBED`` plus the worker's: whatever befalls one disturbs nobody.
``KUBECONFIG_FOR_TESTS`` names an existing cluster instead; tests that need faults of the machine then skip with the reason. In the stages
of the gate a skip of the bed is a failure (scripts/gate/stages.py).
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from cluster.covering import covers, on_other_versions
from testbed import bed as beds
from testbed import builds
from testbed.__main__ import assemble
from testbed.client import Kubectl
from testbed.components import choose
from testbed.layout import Layout
from testbed.ondemand import kwok
from testbed.proxy import Proxy, before


@pytest.fixture(scope="session")
def bed() -> Iterator[beds.Bed]:
    if "KUBECONFIG_FOR_TESTS" in os.environ:
        pytest.skip("needs the machine of the test bed, and KUBECONFIG_FOR_TESTS names a cluster that is not ours")
    reason = beds.unsupported()
    if reason:
        pytest.skip(reason)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    layout = Layout(int(os.environ.get("TESTBED", "0")) + worker)
    mine = not beds.is_up(layout)
    made = assemble(layout)
    if mine:
        made.up()
    yield made
    if mine:
        beds.down(layout)


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """The administrator of the bed, or of the cluster that ``KUBECONFIG_FOR_TESTS`` names."""
    given = os.environ.get("KUBECONFIG_FOR_TESTS")
    if given is None:
        made: beds.Bed = request.getfixturevalue("bed")
        return made.kubectl
    if not Path(given).is_file():
        pytest.fail(f"KUBECONFIG_FOR_TESTS={given}: there is no such file")
    (kubernetes,) = choose(["kubernetes"])
    program = shutil.which("kubectl") or shutil.which("kubectl", path=builds.folder(kubernetes))
    if program is None:
        pytest.fail("KUBECONFIG_FOR_TESTS needs kubectl on the PATH; python -m testbed build kubernetes makes one")
    # Nothing is written beside a kubeconfig that is not ours.
    return Kubectl(Path(program), Path(given).absolute(), cache=tmp_path_factory.mktemp("kubectl"))


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of this test's own; gone afterwards with all that is in it."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kubectl.create_namespace(name)
    yield name
    kubectl.run("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def proxy(bed: beds.Bed) -> Iterator[Proxy]:
    """Between a client and the bed's API server, with the faults that a test asks for."""
    with Proxy(before.settings(bed.layout)) as made:
        yield made


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if not covers(item.name):
            item.add_marker(pytest.mark.full)
        if on_other_versions(item.nodeid):
            item.add_marker(pytest.mark.versions)
        # What is made once a module and is dear is made by one worker only.
        if "fleet" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("fleet"))


@pytest.fixture
def nodes(kubectl: Kubectl) -> list[str]:
    """Names of two real nodes."""
    names = [item["metadata"]["name"] for item in kubectl.get("nodes", "-l", f"!{kwok.LABEL}")["items"]]
    if len(names) < 2:
        pytest.skip(f"needs two nodes, and this cluster has {len(names)}")
    return names[:2]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        # One place for all, so that the summary has one line for one reason.
        report.longrepr = (__file__, 0, f"Skipped: {reason}")
    return report
