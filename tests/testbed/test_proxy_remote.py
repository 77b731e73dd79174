"""The proxy as a process of its own takes the same orders over its control socket."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from support.helpers import wait_until
from support.patience import scaled
from testbed.errors import TestbedError
from testbed.proxy import Answer, Certificates, Cut, EndStream, Match, Place, Remote, Rule, When

ROOT = Path(__file__).parents[2]


@pytest.fixture
def process(world, tmp_path):
    """The proxy's process, its address and its control socket."""
    settings = world.settings
    control = tmp_path / "control"
    words = {
        "listen": "127.0.0.1:0",
        "upstream": settings.upstream,
        "ca": settings.authority,
        "cert": settings.serving.cert,
        "key": settings.serving.key,
        "client-ca": settings.clients,
        "front-cert": settings.front.cert,
        "front-key": settings.front.key,
        "control": control,
    }
    command = [sys.executable, "-m", "testbed.proxy", *(f"--{name}={value}" for name, value in words.items())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ) as started:
        line = started.stdout.readline()
        wait_until(control.exists, timeout=20, what="the control socket")
        yield started, ("127.0.0.1", int(line.rpartition(":")[2])), Remote(control)
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
        started.wait(scaled(20))


def get(world, address, target: str, pair=None) -> int:
    context = ssl.create_default_context(cafile=str(world.cluster.cert))
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    client = http.client.HTTPSConnection(*address, timeout=scaled(20), context=context)
    try:
        client.request("GET", target)
        answer = client.getresponse()
        answer.read()
        return answer.status
    finally:
        client.close()


def test_faults_are_ordered_and_asked_for_from_another_process(world, process, tmp_path):
    _, address, remote = process
    world.upstream.answers("/a", {})
    assert get(world, address, "/a", world.cluster.issue("jane", user="jane")) == 200
    assert world.upstream.seen[0].headers["x-remote-user"] == ["jane"]
    action = Answer(status=429, retry_after_s=1)
    remote.add("busy", action, Match(times=1))
    assert remote.rules() == {"busy": Rule(action=action, match=Match(times=1))}
    assert [get(world, address, "/a") for _ in range(2)] == [429, 200]
    remote.clear()
    assert remote.rules() == {}
    assert remote.counters().by_rule == {"busy": 1}
    assert [record.status for record in remote.log()] == [200, 429, 200]
    remote.present(Certificates(world.cluster, tmp_path / "other", ("127.0.0.1",)).expired())
    with pytest.raises(ssl.SSLCertVerificationError):
        get(world, address, "/a")


def test_what_is_wrong_with_an_order_is_said(process, tmp_path):
    started, _, remote = process
    with pytest.raises(TestbedError, match="no rule 'nobody'"):
        remote.release("nobody")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "control"))
        sock.sendall(b'{"do": "Dance"}\n')
        assert b"Invalid value 'Dance'" in sock.recv(1000)
    started.send_signal(signal.SIGTERM)
    assert started.wait(scaled(20)) == 0
    assert not (tmp_path / "control").exists()
    with pytest.raises(TestbedError, match="does not answer"):
        remote.counters()


def test_it_ends_at_once_with_streams_open(world, process):
    started, address, _ = process
    stream = world.upstream.streams("/log")
    context = ssl.create_default_context(cafile=str(world.cluster.cert))
    client = http.client.HTTPSConnection(*address, timeout=scaled(20), context=context)
    client.request("GET", "/log")
    answer = client.getresponse()
    stream.chunks.put(b"one\n")
    assert answer.readline() == b"one\n"
    started.send_signal(signal.SIGTERM)
    assert started.wait(scaled(20)) == 0
    assert stream.gone.wait(scaled(10))
    client.close()


@pytest.mark.parametrize(
    "rule",
    [
        Rule(action=Cut(at=When(random_bytes=(1, 5)))),
        Rule(action=EndStream(place=Place.INSIDE, at=When(mean_life_s=1.5)), match=Match(follow=True, nth=2)),
    ],
)
def test_a_rule_survives_its_way_as_json(rule):
    assert msgspec.json.decode(msgspec.json.encode(rule), type=Rule) == rule


def test_a_wrong_command_line_is_refused(world):
    done = subprocess.run(
        [sys.executable, "-m", "testbed.proxy", "--listen=x", "--upstream=https://h", "--ca=/dev/null"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "Missing option" in done.stderr or "does not exist" in done.stderr or "is not a" in done.stderr
