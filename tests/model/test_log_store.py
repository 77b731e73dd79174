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
        ("volume:/other", "lies on no volume of the pods"),
        ("volume:/database", "lies on no volume of the pods"),
        ("volume:data", "no absolute path"),
        ("volume:/data/../etc", "no absolute path"),
        ("file://data", "no absolute path"),
        ("volume:/", "no absolute path"),
        ("gs://bucket/logs", "standard library only"),
        ("s3://user:secret@bucket/logs", "is no log store"),
        ("s3://bucket/../other", "is no log store"),
        ("s3://b", "is no log store"),
        ("/data/logs", "is no log store"),
        ("", "is no log store"),
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
    with pytest.raises(SpecError, match="lies on no volume"):
        check_spec(job("volume:/data", volumes=(VOLUME,), volume_mounts=({**MOUNT, "readOnly": True},)))
