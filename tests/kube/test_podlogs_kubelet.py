"""The kubelet's complaints: exact texts, told apart from lines of a job that print the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.kube.pod_logs import MAX_COMPLAINT, complaint, not_started

PATH = "/var/log/pods/ns_pod_5c1e/main/0.log"
TEXTS = {
    "unable to retrieve container logs for containerd://0a1b2c": "gone",
    f'failed to try resolving symlinks in path "{PATH}": lstat {PATH}: no such file or directory': "gone",
    f'failed to open log file "{PATH}": open {PATH}: no such file or directory': "gone",
    "failed to create fsnotify watcher: too many open files": "limits",
    'failed to watch directory "/var/log/pods/x": no space left on device': "limits",
    f'failed to watch file "{PATH}": no space left on device': "limits",
    f'failed to tail 10 lines of log file "{PATH}": read {PATH}: input/output error': "file",
    f'failed to read log file "{PATH}": read {PATH}: input/output error': "file",
    'failed to get parse function: unsupported log format: "\\x00\\x00"': "file",
    'rpc error: code = NotFound desc = an error occurred when try to find container "0a": not found': "runtime",
    "context cancelled": "runtime",
}


@pytest.mark.parametrize(("text", "kind"), TEXTS.items())
def test_launch_s31_a_complaint_of_the_kubelet_is_known(text, kind):
    found = complaint(text.encode())
    assert found is not None
    assert (found.kind, found.text) == (kind, text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stamp", ["2025-11-21T16:00:00.123456789Z ", "2025-11-21T16:00:00.123456789+02:00 "])
def test_launch_s31_a_job_that_prints_the_same_is_not_silenced(text, stamp):
    assert complaint((stamp + text).encode()) is None
    assert complaint((text + "\n").encode()) is None
    assert complaint(f"I said: {text}".encode()) is None
    assert complaint(f"{text}\n{stamp}next".encode()) is None


@given(piece=st.binary(max_size=200))
def test_other_bytes_are_nobodys_complaint(piece):
    assert complaint(b"x" + piece) is None


def test_a_long_piece_is_not_searched():
    assert complaint(b"failed to get parse function: " + b"x" * MAX_COMPLAINT) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('container "main" in pod "p" is waiting to start: ContainerCreating', "ContainerCreating"),
        (
            'container "main" in pod "p" is waiting to start: trying and failing to pull image',
            "trying and failing to pull image",
        ),
        ('container "main" in pod "p" is waiting to start - no logs yet', ""),
        ('container "main" in pod "p" is not available', ""),
        ('pod "p" cannot be found - no logs available', ""),
        ('previous terminated container "main" in pod "p" not found', None),
        ("container x is not valid for pod p", None),
    ],
)
def test_why_there_is_no_log_yet(message, reason):
    assert not_started(message) == reason
    if reason is not None:
        assert not_started(f"cannot get log of pod p: {message} (400 BadRequest)") == reason
