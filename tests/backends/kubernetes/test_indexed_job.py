"""The Indexed Job as a manifest: who it is, where its pods find each other, how it restarts, and what is left to whom."""

from __future__ import annotations

import json

import pytest

from backends.kubernetes.made import BACKENDS, SERVED, child, compiled, container, spec, started, template, workload
from rankfall.backends.kubernetes.manifests.request import ServedFacts, request_token

ORDER = {
    "job": ["Job", "Service", "ConfigMap"],
    "jobset": ["JobSet", "ConfigMap"],
    "trainjob": ["TrainingRuntime", "TrainJob", "ConfigMap"],
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_is_created_in_order_suspended_and_under_one_name(backend):
    made = compiled(spec(backend=backend, nnodes=3), namespace="team")
    assert [item["kind"] for item in made.objects] == ORDER[backend]
    assert {(item["metadata"]["name"], item["metadata"]["namespace"]) for item in made.objects} == {
        ("job-0a1b2c-a1", "team")
    }
    top = workload(made)
    assert top["spec"]["suspend"] is True
    assert made.release is True
    assert top["metadata"]["annotations"]["rankfall.dev/request-token"] == made.request_token
    for item in (*made.objects, template(made)):
        marks = item["metadata"]["labels"]
        assert (marks["rankfall.dev/run"], marks["rankfall.dev/attempt"]) == ("job-0a1b2c", "1")
    assert made.selector == "rankfall.dev/run=job-0a1b2c,rankfall.dev/attempt=1"
    assert made.slots == child(made)["completions"] == child(made)["parallelism"] == 3
    assert child(made)["completionMode"] == "Indexed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_input_gives_the_same_manifests(backend):
    job = spec(backend=backend, env={"B": "1", "A": "2"}, nnodes=2)
    first, second = (compiled(job, excluded_nodes=nodes) for nodes in (["b", "a"], {"a", "b"}))
    assert json.dumps(first.objects) == json.dumps(second.objects)


def test_a_request_token_does_not_tell_the_attempts_token():
    assert request_token("t0k3n") == request_token("t0k3n") != request_token("t0k3m")
    made = compiled(spec())
    texts = json.dumps([made.request_token, workload(made)["metadata"]])
    assert "t0k3n" not in texts


def test_seed_s27_pods_find_each_other_before_they_are_ready():
    made = compiled(spec(nnodes=2))
    service = made.objects[1]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    marks = template(made)["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= marks.items()
    assert template(made)["spec"]["subdomain"] == service["metadata"]["name"]


@pytest.mark.parametrize(
    ("backend", "host"),
    [("job", "job-0a1b2c-a1"), ("jobset", "job-0a1b2c-a1-worker-0"), ("trainjob", "job-0a1b2c-a1-node-0")],
)
def test_a_fixed_size_starts_with_static_node_ranks(backend, host):
    made = compiled(spec(backend=backend, nnodes=2, nproc_per_node=4), namespace="team")
    command, variables = started(made, slot=1)
    torchrun = json.loads(variables["RANKFALL_TORCHRUN"])
    flags = dict(zip(torchrun[3:-1:2], torchrun[4:-1:2], strict=True))
    assert flags == {
        "--nnodes": "2",
        "--nproc-per-node": "4",
        "--max-restarts": "0",
        "--rdzv-id": "job-0a1b2c-a1",
        "--rdzv-backend": "static",
        "--node-rank": "1",
        "--master-addr": f"{host}-0.job-0a1b2c-a1.team.svc",
        "--master-port": "29500",
        "--log-dir": "/rankfall-run/torchelastic",
    }
    waited = [command[place + 1] for place, word in enumerate(command) if word == "--wait-for"]
    assert waited == [f"{host}-{slot}.job-0a1b2c-a1.team.svc" for slot in (0, 1)]
    assert command[command.index("--launcher") + 1] == "auto"
    assert variables["MASTER_ADDR"] == flags["--master-addr"]
    assert (variables["RANKFALL_PLAIN_NNODES"], variables["RANKFALL_PLAIN_NODE_RANK"]) == ("2", "1")


def test_min_max_nodes_start_with_c10d_and_wait_for_its_host_only():
    made = compiled(spec(nnodes=2, nnodes_max=4, kubernetes={"master_port": 1234}))
    command, variables = started(made)
    torchrun = json.loads(variables["RANKFALL_TORCHRUN"])
    assert torchrun[torchrun.index("--nnodes") + 1] == "2:4"
    assert torchrun[torchrun.index("--rdzv-backend") + 1] == "c10d"
    assert torchrun[torchrun.index("--rdzv-endpoint") + 1] == "job-0a1b2c-a1-0.job-0a1b2c-a1.default.svc:1234"
    assert "--node-rank" not in torchrun
    assert command.count("--wait-for") == 1
    assert command[command.index("--launcher") + 1] == "torchrun"
    assert child(made)["completions"] == 4


def test_jobapi_s20_two_attempts_never_share_a_rendezvous():
    ids = {
        json.loads(started(compiled(spec(), attempt=attempt, run=run))[1]["RANKFALL_TORCHRUN"])[10]
        for attempt in (1, 2)
        for run in ("job-000000", "job-000001")
    }
    assert ids == {"job-000000-a1", "job-000000-a2", "job-000001-a1", "job-000001-a2"}


def test_a_job_that_may_grow_is_told_min_and_max_whatever_it_begins_with():
    made = compiled(spec(nnodes=1, nnodes_max=4), nnodes=1)
    torchrun = json.loads(started(made)[1]["RANKFALL_TORCHRUN"])
    assert (made.slots, torchrun[torchrun.index("--nnodes") + 1]) == (1, "1:4")
    # Those that come later have the same template, and their rendezvous is slot 0.
    assert started(made)[0].count("--wait-for") == 1
    assert (child(made)["completions"], child(made)["parallelism"]) == (1, 1)


def test_a_list_of_names_is_bounded():
    made = compiled(spec(nnodes=5000))
    assert started(made)[0].count("--wait-for") == 1
    assert any("slot 0's name only" in note for note in made.notes)
    assert started(compiled(spec(nnodes=512)))[0].count("--wait-for") == 512
    assert len(json.dumps(compiled(spec(nnodes=1024)).objects[0])) < 256 * 1024


@pytest.mark.parametrize(
    ("minor", "retries"),
    [
        (34, {"backoffLimitPerIndex": 0, "podReplacementPolicy": "Failed"}),
        (29, {"backoffLimitPerIndex": 0, "podReplacementPolicy": "Failed"}),
        # Dropped without a word by older servers, so never written there.
        (28, {"backoffLimit": 0}),
    ],
)
def test_supervised_a_failed_pod_is_not_replaced_and_does_not_end_its_peers(minor, retries):
    served = ServedFacts(version=(1, minor), kinds=SERVED.kinds)
    body = child(compiled(spec(success={"policy": "rank0"}, deadlines={"attempt_s": 60}), served=served))
    named = ("backoffLimit", "backoffLimitPerIndex", "podReplacementPolicy", "maxFailedIndexes")
    assert {key: body[key] for key in named if key in body} == retries
    assert template(compiled(spec()))["spec"]["restartPolicy"] == "Never"
    # What would contradict the supervisor is not there.
    assert not {"activeDeadlineSeconds", "podFailurePolicy", "successPolicy"} & set(body)


def test_supervised_one_replica_is_started_again_by_its_index():
    body = child(compiled(spec(restart_scope="replica", launcher="exec", policies={"max_restarts": 5})))
    assert body["backoffLimitPerIndex"] == 5


def test_supervised_a_replica_may_fall_as_often_as_the_supervisor_can_decide():
    rules = [{"exit_codes": [7], "action": "ignore", "budget": "flaky"}]
    policies = {"max_restarts": 2, "budgets": {"flaky": 4, "host_oom": 9}}
    body = child(compiled(spec(restart_scope="replica", launcher="exec", policies=policies, rules=rules)))
    assert body["backoffLimitPerIndex"] == 6


def test_a_job_of_one_slot_is_its_own_gang():
    body = child(compiled(spec(restart_scope="replica", launcher="plain", policies={"max_restarts": 5})))
    assert body["backoffLimitPerIndex"] == 0


def test_an_old_server_gives_the_index_in_an_annotation():
    made = compiled(spec(), served=ServedFacts(version=(1, 27), kinds=SERVED.kinds))
    path = container(made)["env"][0]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.mark.parametrize("backend", BACKENDS)
def test_launch_s05_labels_and_annotations_stand_on_the_object_and_on_the_pods(backend):
    section = {"labels": {"team": "a"}, "annotations": {"networking/interfaces": "eth1"}}
    made = compiled(spec(backend=backend, kubernetes=section))
    for item in (workload(made), template(made)):
        assert item["metadata"]["labels"]["team"] == "a"
        assert item["metadata"]["annotations"]["networking/interfaces"] == "eth1"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_queue_releases_the_job_itself(backend):
    made = compiled(spec(backend=backend, kubernetes={"queue": "gpus"}))
    assert workload(made)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert made.release is False


@pytest.mark.parametrize("backend", BACKENDS)
def test_jobapi_s09_the_object_of_an_attempt_is_released_also_when_its_run_began_suspended(backend):
    # No attempt begins before the resume; held by its own object it would never run.
    assert compiled(spec(backend=backend, suspend=True)).release is True
    assert compiled(spec(backend="job", suspend=True, unattended=True, policies={"max_restarts": 0})).release is False


def test_what_a_pod_may_use():
    section = {
        "image_pull_policy": "Never",
        "image_pull_secrets": ["pull"],
        "service_account": "trainer",
        "priority_class": "high",
        "node_selector": {"gpu": "h100"},
        "resources": {"gpus": 8, "requests": {"cpu": "4"}, "limits": {"memory": "1Gi"}},
        "env_from": {"KEY": {"secret": "s", "key": "k"}, "MAP": {"config_map": "c", "key": "m"}},
    }
    made = compiled(spec(cwd="/code", python="/venv/bin/python", kubernetes=section, policies={"grace_s": 2.5}))
    pod, one = template(made)["spec"], container(made)
    assert (one["imagePullPolicy"], one["workingDir"], one["image"]) == ("Never", "/code", "registry/train:1")
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("trainer", "high")
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert one["resources"] == {
        "requests": {"cpu": "4", "nvidia.com/gpu": "8"},
        "limits": {"memory": "1Gi", "nvidia.com/gpu": "8"},
    }
    # The kubelet's SIGKILL never comes before the wrapper's own.
    assert pod["terminationGracePeriodSeconds"] == 8
    command, variables = started(made)
    assert command[command.index("--grace") + 1] == "2.5"
    assert command[command.index("--") + 1] == variables["RANKFALL_PYTHON"] == "/venv/bin/python"
    sources = {item["name"]: item["valueFrom"] for item in one["env"] if item["name"] in {"KEY", "MAP"}}
    assert sources == {
        "KEY": {"secretKeyRef": {"name": "s", "key": "k"}},
        "MAP": {"configMapKeyRef": {"name": "c", "key": "m"}},
    }
    assert "securityContext" not in pod
    assert "securityContext" not in one


@pytest.mark.parametrize(
    ("fields", "launcher", "tail"),
    [
        ({"command": ["train.py", "x"], "launcher": "plain"}, "plain", ["python3", "train.py", "x"]),
        ({"command": ["pkg.train"], "module": True, "launcher": "exec"}, "exec", ["python3", "-m", "pkg.train"]),
        ({"command": ["./train", "x"]}, "plain", ["./train", "x"]),
        ({"command": ["accelerate", "launch"], "launcher": "exec"}, "exec", ["accelerate", "launch"]),
    ],
)
def test_each_form_of_a_command_is_started_in_its_way(fields, launcher, tail):
    command, variables = started(compiled(spec(**fields)))
    assert command[command.index("--launcher") + 1] == launcher
    assert command[command.index("--") + 1 :] == tail
    assert "RANKFALL_TORCHRUN" not in variables


@pytest.mark.parametrize(
    ("fields", "tail"),
    [
        ({"command": ["train.py"]}, ["train.py"]),
        ({"command": ["pkg.train", "1"], "module": True}, ["-m", "pkg.train", "1"]),
        ({"command": ["./train"], "launcher": "torchrun"}, ["--no-python", "./train"]),
    ],
)
def test_each_form_of_a_command_goes_through_torchrun_in_its_way(fields, tail):
    torchrun = json.loads(started(compiled(spec(**fields)))[1]["RANKFALL_TORCHRUN"])
    assert torchrun[:3] == ["python3", "-m", "torch.distributed.run"]
    assert torchrun[-len(tail) :] == tail


def test_with_inside_off_one_rank_a_slot_knows_its_place():
    _, variables = started(compiled(spec(inside="off", nnodes=3)), slot=2)
    assert {name: variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")} == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert "RANKFALL_TOKEN" not in variables


def test_a_slot_that_is_started_again_alone_waits_for_no_peer_which_may_have_ended():
    fields = {"nnodes": 2, "launcher": "exec"}
    assert "--wait-for" in json.dumps(compiled(spec(**fields)).objects)
    assert "--wait-for" not in json.dumps(compiled(spec(restart_scope="replica", **fields)).objects)


def test_launch_s16_a_named_python_starts_the_wrapper_without_a_shell():
    words = container(compiled(spec(inside="require", python="/opt/python3")))["command"]
    assert words[:5] == ["/opt/python3", "-I", "-S", "/rankfall/inside.pyz", "wrap"]
    # Where it is only preferred, or nobody named one, a shell looks for it.
    for fields in ({"inside": "require"}, {"python": "/opt/python3"}):
        assert container(compiled(spec(**fields)))["command"][0] == "sh"


def test_i32_the_end_of_a_log_that_nobody_followed_stays_in_the_pods_status():
    assert container(compiled(spec()))["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert container(compiled(spec(inside="off")))["terminationMessagePolicy"] == "FallbackToLogsOnError"
    name = container(compiled(spec()))["name"]
    own = {"spec": {"containers": [{"name": name, "terminationMessagePolicy": "File"}]}}
    assert container(compiled(spec(kubernetes={"pod": own})))["terminationMessagePolicy"] == "File"
