"""``doctor`` on a cluster: what it reads of a server, what a weak account, an old table or a dead server makes of it."""

from __future__ import annotations

import csv
import json
import re
import socket
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import Runner
from cluster.rights_used import granted
from rankfall.backends.kubernetes.rights import BACKENDS, RIGHTS, needs_of, needs_of_foreign, rules
from rankfall.cli import app, cluster_checks
from rankfall.cli.cluster_checks import version_check, versions_run
from rankfall.cli.commands import doctor
from rankfall.kube.resources import JOBS, TRAINJOBS

ROOT = Path(__file__).parents[2]
TOKEN = "sesame-0451-open"  # noqa: S105 - a secret to look for
KINDS = {
    "batch/v1": [("jobs", "Job")],
    "jobset.x-k8s.io/v1alpha2": [("jobsets", "JobSet")],
    "trainer.kubeflow.org/v1alpha1": [("trainjobs", "TrainJob"), ("trainingruntimes", "TrainingRuntime")],
}
SPACE = "/api/v1/namespaces/here"


def deployment(image: str) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"image": "sidecar:latest"}, {"image": image}]}}}}


class Cluster(ThreadingHTTPServer):
    """Answers by path, and each question for a right; ``raw`` answers everything instead."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.refused: set[tuple[str, str]] = set()
        self.raw: tuple[int, bytes] | None = None
        self.asked: list[dict[str, str]] = []
        self.answers: dict[str, dict[str, Any]] = {
            "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.4"},
            SPACE: {"metadata": {"name": "here"}},
            f"{SPACE}/resourcequotas": {"metadata": {}, "items": []},
            "/apis/apps/v1/namespaces/jobset-system/deployments/jobset-controller-manager": deployment(
                "registry.k8s.io:443/jobset/jobset:v0.8.2@sha256:00"
            ),
            "/apis/apps/v1/namespaces/kubeflow-system/deployments/kubeflow-trainer-controller-manager": deployment(
                "ghcr.io/kubeflow/trainer:v2.0.0"
            ),
        }
        self.serve(KINDS)

    def serve(self, kinds: dict[str, list[tuple[str, str]]]) -> None:
        self.answers["/api"] = {"versions": ["v1"]}
        self.answers["/apis"] = {"groups": [{"versions": [{"groupVersion": name}]} for name in kinds]}
        for name, each in kinds.items():
            rows = [{"name": plural, "kind": kind, "namespaced": True} for plural, kind in each]
            self.answers[f"/apis/{name}"] = {"resources": rows}


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cluster

    def do_GET(self) -> None:
        found = self.server.answers.get(self.path.partition("?")[0])
        if found is not None and "code" in found:
            self._send(found["code"], found)
            return
        self._send(404 if found is None else 200, found or {"kind": "Status", "code": 404})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path.startswith("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?")
        asked = body["spec"]["resourceAttributes"]
        self.server.asked.append(asked)
        name = f"{asked['resource']}/{asked['subresource']}" if asked["subresource"] else asked["resource"]
        self._send(201, {"status": {"allowed": not {(asked["verb"], name), ("*", name)} & self.server.refused}})

    def _send(self, code: int, document: dict[str, Any]) -> None:
        code, body = self.server.raw or (code, json.dumps(document).encode())
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def config(path: Path, port: int) -> Path:
    named = {
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "lab", "context": {"cluster": "k", "user": "u", "namespace": "here"}}],
    }
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "lab", **named}))
    return path


@pytest.fixture
def reached(cluster: Cluster, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("KUBECONFIG", str(config(tmp_path / "kubeconfig", cluster.server_address[1])))
    return cluster


@pytest.fixture(autouse=True)
def _only_the_cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "rankfall" not in request.fixturenames:
        here = (cluster_checks.Check(name="here", state="pass", text="this machine"),)
        monkeypatch.setattr(doctor, "run_checks", lambda _python, _backend: here)


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """Checks by name."""
    assert app.run(["doctor", "-o", "json", *words]) == code, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    assert document["state"] in {"pass", "warn", "fail"}
    assert all(check["next"] for check in document["checks"] if check["state"] in {"warn", "fail"})
    return {check["name"]: check for check in document["checks"]}


def test_i32_p4_the_real_command_says_reach_versions_and_rights(rankfall: Runner, reached: Cluster) -> None:
    done = rankfall("doctor")
    assert done.returncode == 0, done.stderr
    lines = dict(re.findall(r"^pass  (\S+) +(.*)$", done.stdout, re.MULTILINE))
    assert lines["cluster"].startswith("context lab: http://127.0.0.1:")
    dates = {row.product: row.date for row in versions_run() if row.extent == "jobs"}
    assert lines["kubernetes"] == f"Kubernetes v1.34.4: run on {dates['Kubernetes']}"
    assert lines["jobset"] == f"JobSet 0.8.2, API v1alpha2: run on {dates['JobSet']}"
    assert lines["trainer"] == f"Trainer 2.0.0, API v1alpha1: run on {dates['Trainer']}"
    assert {"hook", "namespace", "run-job", "run-jobset", "run-trainjob", "foreign", "nodes"} <= set(lines)
    assert "note" not in done.stdout
    # Whoever only asks changes nothing, and asks each right once in its place.
    places = [tuple(sorted(each.items())) for each in reached.asked]
    assert len(places) == len(set(places))
    assert {each.get("namespace") for each in reached.asked if each["resource"] == "nodes"} == {None}


def test_i32_p4_a_version_that_was_never_run_is_untried_and_no_failure(reached, capsys):
    reached.answers["/version"] = {"major": "1", "minor": "99+", "gitVersion": "v1.99.0-eks.7"}
    for path, image in (("jobset", "jobset:v0.11.0"), ("trainer", "trainer:2.1.0")):
        (name,) = [one for one in reached.answers if one.endswith(f"{path}-controller-manager")]
        reached.answers[name] = deployment(image)
    # With a weak account at the same time: its lack is the only limit.
    reached.refused = {("create", "pods/exec"), ("get", "pods/exec")}
    checks = asked(capsys, "--backend", "job")
    assert {name: checks[name]["state"] for name in ("kubernetes", "jobset", "trainer")} == dict.fromkeys(
        ("kubernetes", "jobset", "trainer"), "note"
    )
    assert checks["kubernetes"]["text"].startswith("Kubernetes v1.99.0-eks.7: untried; jobs were run with 1.34.4 (")
    assert checks["jobset"]["text"].startswith("JobSet 0.11.0, API v1alpha2: untried; ")
    assert "untried but for its definitions" in checks["trainer"]["text"]
    assert checks["run-job"]["state"] == "warn"
    assert "may not get, create pods/exec: no Python stacks" in checks["run-job"]["text"]


def test_i32_p4_missing_rights_and_a_full_quota_are_named_and_fail_only_for_the_backend_that_is_asked_for(
    reached, capsys
):
    reached.refused = {("create", "jobs"), ("*", "leases"), ("patch", "nodes/status")}
    reached.answers[f"{SPACE}/resourcequotas"]["items"] = [
        {"status": {"hard": {"pods": "8", "cpu": "9"}, "used": {"pods": "8", "cpu": "3"}}}
    ]
    checks = asked(capsys)
    assert checks["run-job"]["state"] == "warn"
    checks = asked(capsys, "--backend", "job", code=69)
    assert checks["run-job"]["state"] == "fail"
    assert re.search(r"may not create jobs\.batch; .* leases\.coordination\.k8s\.io$", checks["run-job"]["text"])
    assert "config rights --backend job -n here" in checks["run-job"]["next"]
    assert "run-jobset" not in checks
    assert checks["namespace"]["text"].endswith("its quota has no more pods")
    assert "may read them for verdicts; this account may not report failures to them" in checks["nodes"]["text"]
    assert checks["foreign"]["state"] == "pass"


def test_i32_p4_what_a_cluster_does_not_have_is_said_once(reached, capsys):
    reached.serve({"batch/v1": KINDS["batch/v1"], "jobset.x-k8s.io/v1beta1": []})
    del reached.answers[SPACE]
    checks = asked(capsys)
    assert (checks["jobset"]["state"], checks["namespace"]["state"]) == ("note", "warn")
    assert checks["jobset"]["text"].startswith("the cluster serves JobSet v1beta1, not v1alpha2")
    assert "run-jobset" not in checks
    checks = asked(capsys, "--backend", "trainjob", "-n", "there", code=69)
    assert [checks[name]["state"] for name in ("jobset", "trainer", "namespace")] == ["fail"] * 3
    assert "kubectl create namespace there" in checks["namespace"]["next"]


def test_i32_p4_controllers_and_a_namespace_that_may_not_be_read_are_unknown(reached, capsys):
    for path in [path for path in reached.answers if "/deployments/" in path or path == SPACE]:
        del reached.answers[path]
    reached.answers[SPACE] = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    checks = asked(capsys)
    assert checks["jobset"]["text"].startswith("JobSet of unknown version, API v1alpha2: jobs were run with 0.8.2 (")
    assert "other versions are untried" in checks["trainer"]["text"]
    assert checks["namespace"]["text"].endswith("enforces the pod security level restricted")


def test_i32_p4_a_server_that_fails_in_between_leaves_what_was_found(reached, capsys):
    forbidden = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}
    reached.answers[SPACE] = forbidden
    reached.answers[f"{SPACE}/resourcequotas"] = forbidden
    assert asked(capsys)["namespace"]["text"] == "the account may not read the namespace here"
    reached.answers[f"{SPACE}/resourcequotas"] = forbidden | {"code": 503, "reason": "", "message": "busy"}
    checks = asked(capsys)
    assert list(checks) == ["here", "cluster", "kubernetes", "jobset", "trainer"]
    assert "cannot list resourcequotas in here: busy (503)" in checks["cluster"]["text"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b"<html><title>Login</title>"), "not a JSON object"),
        ((401, b'{"kind":"Status","message":"Unauthorized","code":401}'), "401"),
        ((503, b"busy"), "503"),
        ((200, b'{"major": "1"}'), "its answer has none"),
        ((200, b'{"major": 1, "minor": [], "gitVersion": {"a": [' + b'"\\u001b[31m",' * 9_999 + b"0]}}"), "has none"),
    ],
)
def test_i32_p4_an_address_that_is_no_api_server_costs_one_line(reached, capsys, answer, words):
    reached.raw = answer
    assert app.run(["doctor"]) == 0
    out, err = capsys.readouterr()
    (line,) = re.findall(r"^warn  .*\n +next: .*$", out, re.MULTILINE)
    assert line.startswith("warn  cluster       context lab: cannot get")
    assert words in line
    assert out.startswith("pass  here ")
    assert len(out) < 2_000
    assert "\x1b" not in out
    assert "Traceback" not in err
    assert app.run(["doctor", "--context", "lab"]) == 69


def test_i32_p4_a_dead_server_and_a_silent_one_are_said_and_given_up(tmp_path, home, monkeypatch, capsys):
    monkeypatch.setattr(cluster_checks, "_REQUEST_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("KUBECONFIG", str(config(tmp_path / "kubeconfig", port)))
        checks = asked(capsys)
        assert f"no answer from http://127.0.0.1:{port}" in checks["cluster"]["text"]
    monkeypatch.undo()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(doctor, "run_checks", lambda _python, _backend: ())
    checks = asked(capsys, "--backend", "job", code=69)
    assert (list(checks), checks["cluster"]["state"]) == (["cluster"], "fail")


def test_i32_p4_without_a_kubeconfig_the_machine_alone_is_checked(tmp_path, home, monkeypatch, capsys):
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert asked(capsys)["cluster"]["state"] == "note"
    assert asked(capsys, "--backend", "job", code=69)["cluster"]["state"] == "fail"
    assert list(asked(capsys, "--backend", "local")) == ["here"]
    assert app.run(["doctor", "--backend", "local", "-n", "a"]) == 2
    assert app.run(["doctor", "--backend", "kubernetes"]) == 2
    capsys.readouterr()
    # A broken one is something else than none, and what is in it is not printed.
    path.write_text(f"users: [{{name: u, user: {{token: {TOKEN}}}}}]\nclusters: {{{{\n")
    assert app.run(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^warn  cluster .*\n +next: ", out, re.MULTILINE)
    assert TOKEN not in out + err
    config(path, 1)
    assert asked(capsys, "--context", "nope", code=69)["cluster"]["state"] == "fail"


_NUMBERS = st.tuples(*[st.integers(0, 999)] * 3).map(lambda each: ".".join(map(str, each)))


@given(
    st.sampled_from(sorted({row.product for row in versions_run()})),
    _NUMBERS | st.sampled_from([row.version for row in versions_run()]),
    st.sampled_from(["", "v"]),
    st.sampled_from(["", "-gke.1", "+k3s1", "-rc.0"]),
)
def test_i32_p4_only_what_the_table_has_was_run(product, number, before, after):
    found = version_check(product, f"{before}{number}{after}", name="x", text="t")
    ran = any(row[:2] == (product, number) and row.extent == "jobs" for row in versions_run())
    assert found.state == ("pass" if ran else "note")
    assert ("untried" in found.text) is not ran


@given(st.text(max_size=40))
def test_a_word_that_is_no_version_is_untried(word):
    found = version_check("Kubernetes", word, name="x", text="t")
    assert found.state == "note" or word.lstrip("v").startswith("1.34.4")


def test_i32_p4_the_page_has_the_table_and_the_table_is_the_beds():
    page = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    section = page.partition("## Versions\n")[2].partition("\n## ")[0]
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line][2:]
    extents = {"jobs": "jobs on a real cluster", "definitions": "its CRDs check manifests"}
    assert shown == [[row.product, row.version, row.api, row.date, extents[row.extent]] for row in versions_run()]
    table = tomllib.loads((ROOT / "testbed" / "components.toml").read_text("utf-8"))
    bed = table["component"]
    names = {"Kubernetes": "kubernetes", "JobSet": "jobset", "Trainer": "trainer"}
    started = {
        (product, bed[rows.get(name, name)]["version"].removeprefix("v"))
        for rows in ({}, *table["versions"].values())
        for product, name in names.items()
    }
    assert started == {(row.product, row.version) for row in versions_run() if row.extent == "jobs"}
    defined = {bed[name]["version"].removeprefix("v") for name in bed if name.endswith("-files")}
    assert {row.version for row in versions_run() if row.extent == "definitions"} == defined
    text = Path(cluster_checks.__file__).with_name("tested_versions.csv").read_text("utf-8")
    assert len(list(csv.reader(text.splitlines()))) == len(versions_run()) + 1


def test_i32_p4_the_rights_are_those_of_the_role():
    for backend in BACKENDS:
        assert set(needs_of(backend)) == granted(rules([backend]))
    foreign = needs_of_foreign([JOBS])
    assert set(foreign) - set(needs_of("job")) == set()
    assert all(verb in {"get", "list", "watch"} for _, name, verb in foreign if name != "pods/exec")
    assert ("jobset.x-k8s.io", "jobsets", "get") in needs_of_foreign([TRAINJOBS])
    # What the page calls an exception is no condition of a run.
    for row in RIGHTS:
        assert bool(row.without) == bool(re.search(r"[Ww]ithout the right|Only with|Only for", row.why)), row.name


def test_a_broken_file_of_signatures_is_a_limit(home, monkeypatch):
    monkeypatch.setenv("RANKFALL_HOME", str(home))
    assert doctor.signatures() == []
    (home / "signatures").mkdir(parents=True)
    own = home / "signatures" / "own.toml"
    own.write_text("x = \n")
    [check] = doctor.signatures()
    assert check.state == "warn"
    assert str(own) in check.text
    own.write_text("")
    [check] = doctor.signatures()
    assert check.state == "pass"
