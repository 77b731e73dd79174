"""One real bed for all cluster tests: the one that is up, else one that is started here and taken down at the end.

``KUBECONFIG_FOR_TESTS`` names an existing cluster instead; tests that need faults of the machine then skip with the reason. In CI a skip of
the bed is a failure.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from helpers import MEASURED
from testbed import bed as beds
from testbed.__main__ import assemble
from testbed.client import Kubectl
from testbed.layout import Layout


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in MEASURED.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def bed() -> Iterator[beds.Bed]:
    if "KUBECONFIG_FOR_TESTS" in os.environ:
        pytest.skip("needs faults of the machine, and KUBECONFIG_FOR_TESTS names a cluster that is not ours")
    reason = beds.unsupported()
    if reason:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    layout = Layout(int(os.environ.get("TESTBED", "0")))
    mine = not beds.is_up(layout)
    made = assemble(layout)
    if mine:
        made.up()
    yield made
    if mine:
        beds.down(layout)


@pytest.fixture(scope="session")
def kubectl(request: pytest.FixtureRequest) -> Kubectl:
    """The administrator of the bed, or of the cluster that ``KUBECONFIG_FOR_TESTS`` names."""
    given = os.environ.get("KUBECONFIG_FOR_TESTS")
    if given is None:
        made: beds.Bed = request.getfixturevalue("bed")
        return made.kubectl
    program = shutil.which("kubectl")
    if program is None:
        pytest.fail("KUBECONFIG_FOR_TESTS needs kubectl on the PATH")
    return Kubectl(Path(program), Path(given))


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of this test's own; gone afterwards with all that is in it."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    yield name
    kubectl.run("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report
