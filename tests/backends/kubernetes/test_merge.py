"""Overrides of pods: merged by name, with what a run needs kept, and nodes excluded whatever the affinity is."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.kubernetes.made import BACKENDS, compiled, container, spec, template
from rankfall.backends.kubernetes.manifests.pod_overrides import merged, without_nodes
from rankfall.model import SpecError

HOSTNAME = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
JSON = st.recursive(
    st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_launch_s06_overrides_are_merged_by_name_and_our_mounts_survive(backend):
    name = "node" if backend == "trainjob" else "main"
    own = {
        "name": name,
        "env": [{"name": "A", "value": "over"}, {"name": "NEW", "value": "1"}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "securityContext": {"runAsUser": 1000},
    }
    pod = {
        "metadata": {"annotations": {"networking/interfaces": "eth1"}},
        "spec": {
            "containers": [{"name": "sidecar", "image": "proxy:1"}, own],
            "volumes": [{"name": "extra", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
            "tolerations": [{"key": "b"}],
            "hostIPC": True,
        },
    }
    section = {
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        "tolerations": [{"key": "a"}],
        "pod": pod,
    }
    made = compiled(spec(backend=backend, env={"A": "first", "B": "2"}, kubernetes=section))
    training, whole = container(made), template(made)
    assert [mount["mountPath"] for mount in training["volumeMounts"]] == [
        "/rankfall",
        "/rankfall-run",
        "/data",
        "/extra",
    ]
    values = {item["name"]: item.get("value") for item in training["env"]}
    assert (values["A"], values["B"], values["NEW"]) == ("over", "2", "1")
    assert training["securityContext"] == {"runAsUser": 1000}
    assert [one["name"] for one in whole["spec"]["containers"]] == [name, "sidecar"]
    volumes = {item["name"]: item for item in whole["spec"]["volumes"]}
    assert list(volumes) == ["rankfall-inside", "rankfall-run", "data", "extra"]
    # A volume is one thing: half of the old one would be refused by the server.
    assert volumes["data"] == {"name": "data", "emptyDir": {}}
    assert whole["spec"]["tolerations"] == [{"key": "a"}, {"key": "b"}]
    assert whole["spec"]["hostIPC"] is True
    assert whole["metadata"]["annotations"] == {"networking/interfaces": "eth1"}


@pytest.mark.parametrize(
    ("pod", "named"),
    [
        ({"spec": {"hostname": "x"}}, "spec.hostname"),
        ({"spec": {"subdomain": "x"}}, "spec.subdomain"),
        ({"spec": {"volumes": [{"name": "rankfall-run", "emptyDir": {}}]}}, "spec.volumes[0].name"),
        ({"spec": {"containers": [{"name": "main", "command": ["x"]}]}}, "spec.containers[0].command"),
        ({"spec": {"containers": [{"name": "main", "image": "x"}]}}, "spec.containers[0].image"),
        (
            {"spec": {"containers": [{"name": "main", "env": [{"name": "MASTER_ADDR", "value": "x"}]}]}},
            "spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"containers": [{"name": "main", "env": [{"name": "RANKFALL_X", "value": "x"}]}]}},
            "spec.containers[0].env[0].name",
        ),
        (
            {"spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "x", "mountPath": "/rankfall/"}]}]}},
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        ({"spec": {"initContainers": [{"name": "main", "image": "x"}]}}, "spec.initContainers[0].name"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"spec": {"nodeSelector": None}}, "spec.nodeSelector"),
    ],
)
def test_what_a_run_cannot_do_without_is_not_overridden(pod, named):
    with pytest.raises(SpecError) as caught:
        compiled(spec(kubernetes={"pod": pod}))
    assert caught.value.path == f"$.kubernetes.pod.{named}"


def test_a_volume_under_our_name_is_refused():
    with pytest.raises(SpecError, match=r"kubernetes\.volumes\[0\]\.name"):
        compiled(spec(kubernetes={"volumes": [{"name": "rankfall-inside", "emptyDir": {}}]}))


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_merging_changes_neither_side_and_says_all_of_the_second(base, over):
    before = copy.deepcopy((base, over))
    result = merged(base, over)
    assert (base, over) == before
    assert set(result) == {*base, *over}
    assert merged(base, {}) == base
    assert merged(result, {key: value for key, value in over.items() if not isinstance(value, list | dict)}) == result


def test_excluded_nodes_join_every_term_of_an_affinity():
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    field = {"key": "metadata.name", "operator": "In", "values": ["n9"]}
    affinity = {
        "podAffinity": {"kept": True},
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [field]}, {}]
            },
        },
    }
    made = compiled(spec(kubernetes={"affinity": affinity, "exclude_nodes": ["n2"]}), excluded_nodes=["n1", "n2"])
    node = template(made)["spec"]["affinity"]["nodeAffinity"]
    assert node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone, HOSTNAME]},
        {"matchFields": [field], "matchExpressions": [HOSTNAME]},
        # Matches no node; with an expression it would match all others.
        {},
    ]
    assert node["preferredDuringSchedulingIgnoredDuringExecution"] == [{"weight": 1}]
    assert template(made)["spec"]["affinity"]["podAffinity"] == {"kept": True}


def test_excluding_without_an_affinity_makes_one_and_excluding_nothing_makes_none():
    assert without_nodes({}, ["n2", "n1"])["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ] == {"nodeSelectorTerms": [{"matchExpressions": [HOSTNAME]}]}
    assert without_nodes({}, []) == {}


def test_an_affinity_of_the_overrides_does_not_undo_an_exclusion():
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [{"key": "k"}]}]}
    }
    pod = {"spec": {"affinity": {"nodeAffinity": required}}}
    made = compiled(spec(kubernetes={"pod": pod}), excluded_nodes=["n1", "n2"])
    terms = template(made)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms["nodeSelectorTerms"][0]["matchExpressions"] == [HOSTNAME]
