"""A log store in an object store, in real pods: each line once, also when the endpoint is away for a while."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import boto3
import pytest

from cluster.run_world import RULES, World
from support.helpers import wait_until
from testbed import accounts, process
from testbed.ondemand import s3
from testbed.workloads import PYTHON_IMAGE

# Half a minute and more each.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
STORE = "s3://logs/team/a"
COUNT = """
import os, sys, time
for number in range(int(os.environ["LINES"])):
    print("rank", os.environ["RANK"], "number", number, flush=True)
    time.sleep(float(os.environ["PAUSE"]))
print("to stderr", file=sys.stderr)
"""


class Bucket:
    """The bed's server with a bucket, and what it holds."""

    def __init__(self, bed, url: str) -> None:
        self.url = url
        self._bed = bed
        login = s3.LOGIN
        self.client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name=login["AWS_DEFAULT_REGION"],
            aws_access_key_id=login["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=login["AWS_SECRET_ACCESS_KEY"],
        )
        self.client.create_bucket(Bucket="logs")

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="logs")
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    @contextmanager
    def away(self) -> Iterator[None]:
        """It takes connections and answers none."""
        daemon = process.find(self._bed.layout, "s3")
        assert daemon is not None
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(daemon.pid, signal.SIGCONT)


@pytest.fixture
def bucket(bed, monkeypatch):
    with s3.run(bed) as url:
        for name, value in {**s3.LOGIN, "AWS_ENDPOINT_URL": url}.items():
            monkeypatch.setenv(name, value)
        yield Bucket(bed, url)


@pytest.fixture
def world(bed, kubectl, namespace, tmp_path):
    path = accounts.create(bed.control, kubectl, "rankfall", namespace=namespace, rules=RULES)
    (tmp_path / "home").mkdir()
    return World(tmp_path / "home", kubeconfig=path, kubectl=kubectl, namespace=namespace)


def job(world: World, bucket: Bucket, *, lines: int, pause: float = 0.0, **more: object) -> dict[str, object]:
    return {
        "name": "far",
        "backend": "job",
        "command": ["python3", "-c", COUNT],
        "launcher": "plain",
        "nnodes": 2,
        "nproc_per_node": 2,
        "env": {**s3.LOGIN, "AWS_ENDPOINT_URL": bucket.url, "LINES": str(lines), "PAUSE": str(pause)},
        "kubernetes": {
            "image": PYTHON_IMAGE,
            "image_pull_policy": "Never",
            "namespace": world.namespace,
            "log_store": STORE,
        },
        **more,
    }


def said(rank: int, lines: int) -> list[str]:
    return [f"rank {rank} number {number}" for number in range(lines)]


def shown(world: World, *words: str) -> list[str]:
    done = world.cli("logs", world.only_run().name, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_line_of_each_rank_comes_once_over_the_bucket_and_none_through_the_api(world, bucket):
    lines = 2000
    done = world.run(job(world, bucket, lines=lines))
    assert done.returncode == 0, done.stderr
    run = world.only_run()
    for rank in range(4):
        assert shown(world, "--rank", str(rank), "--no-prefix", "--stream", "stdout") == said(rank, lines)
    assert shown(world, "--rank", "3", "--no-prefix", "--tail", "2") == [said(3, lines)[-1], "to stderr"]
    assert shown(world, "--rank", "first", "--grep", "number 17$") == ["rank 0 number 17"]
    stamps = [json.loads(line)["at"] for line in shown(world, "--rank", "1", "--stream", "stdout", "-o", "json")]
    assert stamps == sorted(stamps)
    middle = stamps[len(stamps) // 2]
    since = shown(world, "--rank", "1", "--stream", "stdout", "--no-prefix", "--since", middle)
    assert since == said(1, lines)[stamps.index(middle) :]
    assert datetime.fromisoformat(middle[:19] + "+00:00") <= datetime.now(UTC)
    pods = world.kubectl("logs", "-n", world.namespace, "-l", f"rankfall.dev/run={run.name}", "--tail=-1")
    assert "number" not in pods
    assert f"lines of ranks go to the log store: {STORE}/{run.name}/attempt-1/worker-" in pods
    keys = bucket.names()
    assert sum(key.endswith("/end.json") for key in keys) == 2
    assert all(
        re.fullmatch(rf"team/a/{run.name}/attempt-1/worker-[01]/[^/]+/(begin\.json|end\.json|\d{{15}}\.part)", key)
        for key in keys
    )


def submitted(world: World, spec: dict[str, object]) -> None:
    done = world.cli("submit", "--file", str(world.file(spec)))
    assert done.returncode == 0, done.stderr


def test_a_followed_run_loses_and_repeats_no_line_while_the_endpoint_is_away(world, bucket, tmp_path):
    lines = 1500
    submitted(world, job(world, bucket, lines=lines, pause=0.01))
    run = world.only_run()
    out = tmp_path / "followed"
    words = (
        sys.executable,
        "-m",
        "rankfall",
        "logs",
        "-f",
        run.name,
        "--rank",
        "2",
        "--stream",
        "stdout",
        "--no-prefix",
    )
    with (
        out.open("wb") as file,
        subprocess.Popen(words, env=world.environment(), stdout=file, stderr=subprocess.PIPE) as follow,
    ):
        try:
            wait_until(lambda: b"rank 2 number 50\n" in out.read_bytes(), timeout=120, what="the first lines, live")
            with bucket.away():
                began = time.monotonic()
                wait_until(
                    lambda: time.monotonic() - began > 12, timeout=30, what="a cut longer than any request waits"
                )
            done = world.cli("wait", run.name)
            assert done.returncode == 0, done.stderr
            follow.wait(60)
        finally:
            follow.kill()
    assert out.read_text().splitlines() == said(2, lines)
    for rank in range(4):
        assert shown(world, "--rank", str(rank), "--no-prefix", "--stream", "stdout") == said(rank, lines)
    assert sum(key.endswith("/end.json") for key in bucket.names()) == 2
    assert not list((run / "records").glob("gap-*"))
