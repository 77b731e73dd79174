"""``doctor`` on a real API server: what it says of an account's rights is what the server's own authoriser says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cluster.run_world import RULES, World
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl

WEAK = ({"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list", "watch"]},)
READS = ({"apiGroups": ["*"], "resources": ["jobs"], "verbs": ["*"]},)


@pytest.mark.cluster
def test_i32_p4_doctor_knows_what_an_account_may(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> None:
    def world(name: str, *rules: dict[str, list[str]]) -> World:
        config = accounts.create(bed.control, kubectl, name, namespace=namespace, rules=rules)
        return World(tmp_path / name, kubeconfig=config, kubectl=kubectl, namespace=namespace)

    def checks(of: World, *words: str, code: int) -> dict[str, dict[str, str]]:
        done = of.cli("doctor", "-o", "json", "-n", namespace, *words)
        assert done.returncode == code, done.stdout + done.stderr
        return {check["name"]: check for check in json.loads(done.stdout)["checks"]}

    own = world("rankfall", *RULES)
    for backend in ("job", "jobset", "trainjob"):
        found = checks(own, "--backend", backend, code=0)
        assert [found[name]["state"] for name in ("cluster", "kubernetes", f"run-{backend}")] == ["pass"] * 3
        # Controllers of the bed are processes, so nobody can read their versions.
        assert {found[name]["state"] for name in ("jobset", "trainer", "nodes")} == {"note"}
    # A quota that is full and an account that may only read, in a namespace of which it knows the name alone.
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": namespace},
        "spec": {"hard": {"pods": "0"}},
    }
    kubectl.apply([quota])
    wait_until(
        lambda: kubectl.get("resourcequota", "none", "-n", namespace)["status"].get("used"),
        timeout=60,
        what="a quota that is counted",
    )
    weak = world("weak", *WEAK, *READS)
    found = checks(weak, "--backend", "job", code=69)
    assert found["run-job"]["state"] == "fail"
    missing = found["run-job"]["text"].partition("may not ")[2]
    assert "leases.coordination.k8s.io" in missing
    # A wildcard grants what it means, and what is granted is not missing.
    assert not re.search(r"jobs\.batch|pods/log|\b(get|list|watch)\b[^;]* pods$", missing)
    assert found["namespace"]["text"].startswith("the account may not read the namespace")
    assert checks(weak, code=0)["foreign"]["state"] == "warn"
    administrator = World(tmp_path / "admin", kubeconfig=kubectl.kubeconfig, kubectl=kubectl, namespace=namespace)
    full = checks(administrator, code=0)["namespace"]
    assert (full["state"], "no more pods" in full["text"]) == ("warn", True)
