"""What a job may name as its log store."""

from __future__ import annotations

import pytest

from rankfall.model import JobSpec, SpecError, check_spec
from rankfall.model.jobspec.kubernetes import Kubernetes, Workspace, log_store_place

MOUNT = {"name": "v", "mountPath": "/data/"}
VOLUME = {"name": "v", "persistentVolumeClaim": {"claimName": "team"}}


def job(place: str, **section: object) -> JobSpec:
    return JobSpec(command=("x",), backend="job", kubernetes=Kubernetes(log_store=place, image="i", **section))


@pytest.mark.parametrize("place", ["volume:/data", "volume:/data/logs", "file:///data/logs"])
def test_a_path_on_a_volume_of_the_pods_is_one(place):
    check_spec(job(place, volumes=(VOLUME,), volume_mounts=(MOUNT,)))
    check_spec(job("volume:/workspace/logs", workspace=Workspace(claim="team")))
    assert log_store_place(place).path.startswith("/data")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("volume:/other", "is on no writable volume of the pods"),
        ("volume:/database", "is on no writable volume of the pods"),
        ("volume:data", "not an absolute path"),
        ("volume:/data/../etc", "not an absolute path"),
        ("file://data", "not an absolute path"),
        ("volume:/", "not an absolute path"),
        ("gs://bucket/logs", "has only Python's standard library"),
        ("s3://user:secret@bucket/logs", "is not a log store"),
        ("s3://bucket/../other", "is not a log store"),
        ("s3://b", "is not a log store"),
        ("/data/logs", "is not a log store"),
        ("", "is not a log store"),
    ],
)
def test_what_cannot_hold_the_lines_is_refused(place, said):
    with pytest.raises(SpecError, match=said) as caught:
        check_spec(job(place, volumes=(VOLUME,), volume_mounts=(MOUNT,)))
    assert caught.value.path == "$.kubernetes.log_store"


@pytest.mark.parametrize("place", ["s3://bucket", "s3://my-bucket/team/a=b", "s3://bucket/x/"])
def test_a_bucket_needs_no_volume(place):
    check_spec(job(place))
    assert log_store_place(place).path == place


def test_a_volume_that_can_only_be_read_is_none():
    with pytest.raises(SpecError, match="is on no writable volume"):
        check_spec(job("volume:/data", volumes=(VOLUME,), volume_mounts=({**MOUNT, "readOnly": True},)))
