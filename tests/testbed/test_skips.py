"""Where there is no bed, the tests that need one skip with one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("tests/cluster/test_clock.py", "tests/cluster/test_proxy.py")
# Not root: a user of a namespace of its own, who may still read what this one may.
OTHER = ("unshare", "--user", "--map-user=1000", "--")


def outcome(*before: str, **env: str) -> str:
    own = {name: value for name, value in os.environ.items() if name != "KUBECONFIG_FOR_TESTS"}
    command = (*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES)
    return subprocess.run(command, cwd=ROOT, env=own | env, capture_output=True, text=True, check=False).stdout


def test_a_cluster_that_is_not_ours_has_no_machine(tmp_path):
    config = tmp_path / "kubeconfig"
    config.touch()
    said = outcome(KUBECONFIG_FOR_TESTS=str(config))
    (line,) = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert "KUBECONFIG_FOR_TESTS names a cluster that is not ours" in line
    assert " passed" not in said
    assert "failed" not in said


@pytest.mark.skipif(
    subprocess.run((*OTHER, "true"), capture_output=True, check=False).returncode != 0
    if sys.platform == "linux"
    else True,
    reason="no user namespaces here",
)
def test_without_root_one_line_says_why():
    said = outcome(*OTHER)
    (line,) = [line for line in said.splitlines() if line.startswith("SKIPPED")]
    assert "the test bed needs root" in line
    assert " passed" not in said
    assert "failed" not in said
