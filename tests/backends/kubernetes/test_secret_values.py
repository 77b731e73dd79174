"""Secrets of a job in a cluster: the Secret holds them, the workload refers to it, and the process gets them byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kubernetes.launch_server import Api, Refusal
from backends.kubernetes.launch_stories import COMPANIONS, LABELS, launched, manifest, tell, whole
from backends.kubernetes.made import BACKENDS, SERVED, compiled, container, secret_data, spec, started, workload
from backends.kubernetes.test_launch_failures import killed
from rankfall.backends.kubernetes.lifecycle.errors import LaunchError
from rankfall.backends.kubernetes.manifests.request import Compiled
from rankfall.kube.errors import Forbidden

VALUE = 'h$(RANKFALL_SLOT) "q\\uoted" $$ü\n'


def secrets(made: Compiled) -> list[dict[str, Any]]:
    return [item for item in made.objects if item["kind"] == "Secret"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("runtime", [None, "torch-distributed"])
def test_i18_p9_a_secret_variable_is_a_reference_and_comes_whole(backend: str, runtime: str | None) -> None:
    section = {"runtime": runtime} if backend == "trainjob" else {}
    made = compiled(spec(backend=backend, env={"HF_TOKEN": VALUE, "LR": "0.1"}, kubernetes=section))
    (one,) = secrets(made)
    assert one["metadata"]["labels"] == next(
        item["metadata"]["labels"] for item in made.objects if item["kind"] == "ConfigMap"
    )
    others = json.dumps([item for item in made.objects if item["kind"] != "Secret"], ensure_ascii=False)
    assert json.dumps(VALUE, ensure_ascii=False)[1:-1] not in others
    assert made.objects.index(one) > made.workload
    if runtime is None or backend != "trainjob":
        _, variables = started(made)
        assert (variables["HF_TOKEN"], variables["LR"]) == (VALUE, "0.1")
    assert (
        set(one["data"].values())
        & set(next(s for s in made.masked_objects() if s["kind"] == "Secret")["data"].values())
        == set()
    )
    assert next(s for s in made.masked_objects() if s["kind"] == "Secret")["data"] == {"worker.env.HF_TOKEN": "***"}


@settings(max_examples=50)
@given(value=st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=8, max_size=30))
def test_i18_p9_secret_arguments_come_whole_through_both_launchers(value: str) -> None:
    words = ["train.py", "--lr", "$x", f"--api-key=k{value}", "--token", f"t{value}"]
    made = compiled(spec(command=words))
    command, variables = started(made)
    assert command[-5:] == words[1:]
    assert json.loads(variables["RANKFALL_TORCHRUN"])[-5:] == words[1:]
    assert set(secret_data(made)[secrets(made)[0]["metadata"]["name"]]) == {
        "worker.command.3", "worker.command.3.json", "worker.command.5", "worker.command.5.json",
    }  # fmt: skip
    sent = json.dumps(workload(made))
    assert json.dumps(f"k{value}")[1:-1] not in sent


def test_i18_p9_the_users_own_pod_keeps_its_secrets_out_of_the_workload_too() -> None:
    sidecar = {
        "name": "proxy",
        "image": "p",
        "env": [
            {"name": "PROXY_TOKEN", "value": "a$$b-secret"},
            {"name": "AUTH_HEADER", "value": "Basic $(PROXY_TOKEN)"},
            {"name": "MODE", "value": "fast"},
        ],
    }
    made = compiled(spec(kubernetes={"pod": {"spec": {"containers": [sidecar]}}}))
    (one,) = secrets(made)
    assert secret_data(made)[one["metadata"]["name"]] == {"worker.pod.0": "a$b-secret"}
    containers = workload(made)["spec"]["template"]["spec"]["containers"]
    env = next(item for item in containers if item["name"] == "proxy")["env"]
    assert env[0] == {
        "name": "PROXY_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": one["metadata"]["name"], "key": "worker.pod.0"}},
    }
    assert env[1:] == sidecar["env"][1:]


def test_i18_p9_roles_have_values_of_their_own_in_one_secret() -> None:
    roles = [
        {
            "name": "actor",
            "env": {"API_KEY": "actor-key"},
            "command": ["act.py", "--password=actor-pass"],
            "launcher": "exec",
        },
        {"name": "learner", "env": {"API_KEY": "learner-key"}},
    ]
    made = compiled(spec(backend="jobset", env={"DB_DSN": "postgres://u:pw@h/x"}, roles=roles))
    ((name, data),) = secret_data(made).items()
    assert data == {
        "actor.env.DB_DSN": "postgres://u:pw@h/x",
        "actor.env.API_KEY": "actor-key",
        "actor.command.1": "--password=actor-pass",
        "learner.env.DB_DSN": "postgres://u:pw@h/x",
        "learner.env.API_KEY": "learner-key",
    }
    assert name.startswith("job-0a1b2c")


def test_i18_p9_a_job_without_secrets_makes_none_and_each_request_has_its_own_name() -> None:
    assert secrets(compiled(spec(env={"LR": "0.1", "TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "4096"}))) == []
    job = spec(env={"HF_TOKEN": "abcdefgh"})
    names = {secrets(compiled(job, token=token))[0]["metadata"]["name"] for token in ("a", "b", "a")}
    assert len(names) == 2


def test_i18_p9_without_the_recorder_too() -> None:
    made = compiled(spec(inside="off", launcher="exec", command=["run", "--token", "abcdef"]), served=SERVED)
    command, variables = started(made)
    assert command == ["run", "--token", "abcdef"]
    assert variables["RANKFALL_SECRET_2"] == command[-1]
    assert "abcdef" not in json.dumps(container(made))


SECRET = manifest("Secret", metadata={"name": "train-0a1b2c-a1-0f0f0f0f", "namespace": "here", "labels": LABELS})


@pytest.mark.parametrize("fault", ["kill before", "kill after", "after", 503])
@pytest.mark.parametrize("number", [2, 3])
def test_i18_p9_a_secret_is_made_once_and_never_read(number: int, fault: str | int) -> None:
    async def story(api: Api) -> None:
        api.faults = {number: fault}
        if "kill" in str(fault):
            await killed(api, companions=(SECRET, *COMPANIONS))
        async with api.kube() as kube:
            done = await launched(kube, companions=(SECRET, *COMPANIONS))
        whole(api, uid=done.uid)
        ((reference,),) = [item["metadata"]["ownerReferences"] for item in api.all("secrets")]
        assert reference["uid"] == done.uid
        assert {method for method, path in api.seen if "/secrets" in path} == {"POST"}

    tell(story)


def test_i18_p9_a_launch_that_is_refused_takes_its_secret_back() -> None:
    async def story(api: Api) -> None:
        api.refusals["POST", "services"] = Refusal(403, "no services")
        async with api.kube() as kube:
            with pytest.raises(Forbidden):
                await launched(kube, companions=(SECRET, *COMPANIONS))
        assert api.count_made("secrets") == 1
        assert ("DELETE", f"/api/v1/namespaces/here/secrets/{SECRET['metadata']['name']}") in api.seen
        assert api.all("secrets") + api.all("jobs") == []

    tell(story)


def test_i18_p9_without_the_right_nothing_runs_and_the_message_says_what_is_missing() -> None:
    async def story(api: Api) -> None:
        api.refusals["POST", "secrets"] = Refusal(403, "secrets is forbidden")
        async with api.kube() as kube:
            with pytest.raises(LaunchError, match="a Secret for them cannot be created") as refused:
                await launched(kube, companions=(SECRET, *COMPANIONS))
        assert "kubernetes.env_from" in str(refused.value.hint)
        assert api.count_made("pods") == 0
        assert api.all("jobs") == []

    tell(story)
