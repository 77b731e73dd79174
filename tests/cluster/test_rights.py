"""No right of the table is superfluous: what real runs ask the API server for is counted at a proxy before it, and compared with what they were granted."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from cluster.rights_used import OF_NODES, Triple, granted, needed
from conformance.cases import CASES, CLUSTER
from conformance.drive import Driver
from conformance.pods import cluster, prepare
from rankfall.backends.kubernetes.rights import BACKENDS, rules
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Proxy, before

TESTS = Path(__file__).resolve().parents[1]
# A new attempt after a fall, and stacks of a run that hangs.
RUNS = ("a_rank_is_killed", "a_rank_hangs", "cancel")

# What undisturbed runs need not ask for, and the tests that cannot do without it, by an account of the same rights.
_LEFT = "test_launch_s12_killed_at_each_request_and_started_again"
_COPIES = "test_launch_s53_a_tree_goes_to_a_volume_and_back_as_it_was"
_OTHERWISE: dict[Triple, str] = {
    **{("", "configmaps", verb): _LEFT for verb in ("get", "list", "watch", "delete")},
    **{("", "services", verb): _LEFT for verb in ("get", "list", "watch", "delete")},
    **{("trainer.kubeflow.org", "trainingruntimes", verb): _LEFT for verb in ("get", "list", "watch", "delete")},
    **{
        (group, plural, "get"): "test_errors_s40_a_job_that_somebody_deleted_is_not_started_again"
        for group, plural in (("batch", "jobs"), ("jobset.x-k8s.io", "jobsets"), ("trainer.kubeflow.org", "trainjobs"))
    },
    # Watched only while something is still there when it is looked for.
    **{
        (group, plural, "watch"): "test_launch_s42_object_children_and_pods_are_gone"
        for group, plural in (("batch", "jobs"), ("jobset.x-k8s.io", "jobsets"), ("trainer.kubeflow.org", "trainjobs"))
    },
    # Asked for by servers from 1.35 on; until then it is the same request.
    ("", "pods/exec", "create"): "test_the_section_of_the_page_is_that_of_the_table",
    ("", "pods", "get"): "test_a_pod_that_vanished_while_nobody_looked_is_gone_for_the_next_feed",
    **{("", "pods", verb): _COPIES for verb in ("create", "delete")},
    ("", "persistentvolumeclaims", "get"): _COPIES,
    ("", "secrets", "create"): "test_i18_p9_the_pod_sees_the_values_and_the_job_object_refers_to_a_secret",
    ("", "secrets", "delete"): "test_i18_p9_a_launch_that_is_refused_takes_its_secret_back",
    ("", "events", "create"): "test_a_verdict_is_shown_by_kubectl_describe",
    ("", "events", "list"): "test_launch_s54_what_never_runs_fails_early_with_its_reason_and_leaves_no_pod",
}


@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", CLUSTER)
def test_no_right_is_superfluous(  # noqa: PLR0917 - fixtures
    bed: Bed, kubectl: Kubectl, namespace: str, proxy: Proxy, tmp_path: Path, backend: str
) -> None:
    direct = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=rules([backend]))
    config = before.through(proxy.url, direct, tmp_path / "kubeconfig")
    prepare(kubectl, namespace=namespace)
    for case in CASES:
        if case.name in RUNS:
            folder = tmp_path / case.name
            folder.mkdir()
            seen = Driver(case, cluster(backend, folder, kubeconfig=config, namespace=namespace)).run()
            assert seen.code == case.code, seen.stderr
    # Of nodes those may hear who may; it is no right of the Role (docs/kubernetes.md), and the answer no is taken.
    log = [record for record in proxy.log() if not OF_NODES.fullmatch(record.path)]
    used = {
        one for record in log if (one := needed(record.method, record.path, watching="watch" in parse_qs(record.query)))
    }
    assert {record.path for record in log if record.status == 403} == set()
    allowed = granted(rules([backend]))
    assert used <= allowed
    assert allowed - used <= _OTHERWISE.keys()


def test_what_undisturbed_runs_do_not_need_is_tried_elsewhere() -> None:
    known = "\n".join(path.read_text() for path in TESTS.rglob("*.py"))
    for name in _OTHERWISE.values():
        assert re.search(rf"def {name}\b", known), name
    assert set(_OTHERWISE) <= granted(rules(BACKENDS))
