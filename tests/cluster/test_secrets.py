"""Marked secrets through a whole run: what a person is shown and what is kept has none of them, whatever repeats them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.chaos_world import OURS, PLUGIN, Chaos, counting
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl
from testbed.proxy import Answer, Match, Proxy, before

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
ENV, WORD, HIDDEN = "S3CR3T-of-the-environment", "S3CR3T-of-the-command", "S3CR3T-of-a-sidecar"


@pytest.fixture
def chaos(bed: Bed, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Chaos]:
    with Proxy(before.settings(bed.layout)) as proxy:
        made = Chaos(bed, proxy, home=tmp_path / "home", kubectl=kubectl, namespace=namespace)
        yield made
        made.close()


def test_jobapi_no_secret_shows_in_a_whole_run(chaos, kubectl, tmp_path):
    token = kubectl("create", "token", "rankfall", "--namespace", chaos.namespace).strip()
    plugin = tmp_path / "login"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o700)
    (tmp_path / "login.token").write_text(token)
    chaos.log_in_by(plugin)
    spec = counting(backend="job", namespace=chaos.namespace, lines=5)
    spec["command"] += ["--api-key", WORD, f"--password={WORD}"]
    spec["env"] |= {"HF_TOKEN": ENV, "WANDB_API_KEY": ENV}
    variable = {"name": "DB_PASSWORD", "value": HIDDEN}
    spec["kubernetes"]["pod"]["spec"]["containers"] = [{"name": "main", "env": [variable]}]
    path = str(chaos.file(spec))
    # What a server or a proxy on the way says may hold what it was sent.
    for number, method in enumerate(("GET", "POST", "PATCH")):
        words = Answer(status=500, message=f"bad header: Authorization: Bearer {token}")
        chaos.proxy.add(f"echo-{number}", words, Match(method=method, user_agent=OURS, times=2))

    said = [chaos.cli("run", "--file", path, "--dry-run", *more) for more in ((), ("-o", "json"), ("-o", "yaml"))]
    said.append(chaos.cli("run", "--file", path))
    assert [one.returncode for one in said] == [0] * 4, chaos.cli("status", chaos.only_run().name).stdout
    run = chaos.only_run()
    chaos.proxy.add("no", Answer(status=403, message=f"not you, Bearer {token}"), Match(user_agent=OURS))
    said.append(chaos.cli("run", "--file", path))
    assert said[-1].returncode != 0
    assert "not you" in said[-1].stderr
    said += [chaos.cli(command, run.name) for command in ("status", "why", "logs", "attach")]
    said += [chaos.cli(command, run.name, "-o", "json") for command in ("status", "why")]

    shown = "".join(one.stdout + one.stderr for one in said)
    assert "line 4" in shown
    for secret in (token, ENV, WORD, HIDDEN):
        assert secret not in shown
    kept = {path: path.read_bytes() for path in chaos.home.rglob("*") if path.is_file()}
    # In a file of their own, for the supervisors: with it every attempt is made.
    values = [path for path in kept if path.name == "secrets.json"]
    assert values
    for secret in (token, ENV, WORD, HIDDEN):
        holders = [str(path.relative_to(chaos.home)) for path, text in kept.items() if secret.encode() in text]
        assert holders == ([] if secret == token else [str(path.relative_to(chaos.home)) for path in values])


SEES = """
import os, sys
seen = os.environ["MY_TOKEN"] == "S3CR3T" + "-of-the-environment", "--api-key=S3CR3T" + "-of-the-command" in sys.argv
print("sees", *seen, flush=True)
while "wait" in sys.argv:
    import time
    time.sleep(0.1)
"""


@pytest.mark.parametrize("end", ["cancel", "success"])
def test_i18_p9_the_pod_sees_the_values_and_the_job_object_refers_to_a_secret(chaos, kubectl, end):
    spec = counting(backend="job", namespace=chaos.namespace, lines=1)
    spec["command"] = ["python3", "-c", SEES, f"--api-key={WORD}", "wait" if end == "cancel" else "go"]
    spec["launcher"] = "exec"
    spec["env"] |= {"MY_TOKEN": ENV}
    path = str(chaos.file(spec))
    shown = chaos.cli("run", "--file", path, "--dry-run", "-o", "yaml").stdout
    assert "kind: Secret" in shown
    assert "***" in shown
    started = chaos.cli("submit", "--file", path)
    assert started.returncode == 0, started.stderr
    run = chaos.only_run()
    wait_until(lambda: "sees True True" in chaos.cli("logs", run.name).stdout, timeout=90, what="the job's line")

    def left():
        return kubectl.get("secrets", "-n", chaos.namespace, "-l", f"rankfall.dev/run={run.name}")["items"]

    (job,) = kubectl.get("jobs", "-n", chaos.namespace)["items"]
    (one,) = left()
    assert one["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    text = json.dumps([job, kubectl.get("pods", "-n", chaos.namespace)["items"]])
    assert ENV not in text
    assert WORD not in text
    if end == "cancel":
        assert chaos.cli("cancel", run.name).returncode == 0
    else:
        assert chaos.cli("wait", run.name).returncode == 0
        kubectl("delete", "job", job["metadata"]["name"], "-n", chaos.namespace)
    wait_until(lambda: not left(), timeout=60, what="the removal of the Secret")
