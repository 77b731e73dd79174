"""The registry of backends: one place, loaded when used, and a name that nobody answers to is refused before anything is created."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.backends import registry
from rankfall.backends.local.backend import LocalBackend
from rankfall.model import JobSpec, Refused
from rankfall.rundir import RunDir
from rankfall.supervisor.supervise import supervise


def test_the_local_backend_is_found_by_its_name() -> None:
    assert isinstance(registry.backend_for(JobSpec(command=("true",))), LocalBackend)


@pytest.fixture
def only_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKENDS", {"local": registry.BACKENDS["local"]})


@pytest.mark.usefixtures("only_local")
@pytest.mark.parametrize("name", ["job", "jobset", "trainjob"])
def test_a_backend_that_this_version_lacks_is_refused(name: str, tmp_path: Path) -> None:
    spec = JobSpec(command=("true",), backend=name)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=rf"\$\.backend: {name}") as caught:
        registry.backend_for(spec)
    assert caught.value.hint is not None
    assert "local" in caught.value.hint
    run = RunDir.create(spec, home=tmp_path / "home")
    with pytest.raises(Refused):
        supervise(run)
    assert run.lease_holder() is None


def test_what_is_registered_is_there_and_can_do_what_a_backend_does() -> None:
    for name in registry.BACKENDS:
        backend = registry.backend_for(JobSpec(command=("true",), backend=name))  # type: ignore[arg-type]
        for method in ("plan", "submit", "adopt", "life", "stop", "end", "sources", "release"):
            assert callable(getattr(backend, method)), (name, method)


def test_only_a_platform_can_run_a_job_without_supervisor() -> None:
    cluster = registry.backend_for(JobSpec(command=("true",), backend="job", unattended=True))
    assert registry.native_of(cluster) is cluster
    with pytest.raises(Refused, match=r"\$\.unattended: .*no platform"):
        registry.native_of(LocalBackend())
