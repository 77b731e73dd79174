"""Marked secrets through a whole run: what a person is shown and what is kept has none of them, whatever repeats them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.chaos_world import OURS, PLUGIN, Chaos, counting
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
    # The job itself is kept as it was given: with it every attempt is made.
    specs = [path for path in kept if path.name == "spec.json"]
    assert specs
    for secret in (token, ENV, WORD, HIDDEN):
        holders = [str(path.relative_to(chaos.home)) for path, text in kept.items() if secret.encode() in text]
        assert holders == ([] if secret == token else [str(path.relative_to(chaos.home)) for path in specs])
