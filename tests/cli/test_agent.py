"""The command itself, in a process of its own: socket in, JSON lines out, ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

from support.patience import scaled

BOOT = "060af334-3f16-446a-8c45-845f66fefde6"
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ENVIRON = {key: value for key, value in os.environ.items() if key not in {"NODE_NAME", "KUBECONFIG"}}


def start(*words: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rankfall", "agent", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRON | {"NODE_NAME": "n1"},
        **more,  # type: ignore[call-overload]
    )


def test_records_of_a_socket_become_lines_until_a_signal_ends_it(tmp_path):
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(tmp_path / "kmsg"))
    listening.listen(1)
    listening.settimeout(30)
    words = ("--no-publish", "--kmsg-socket", str(tmp_path / "kmsg"), "--state", str(tmp_path / "state"), "--accept-injected-kmsg")  # fmt: skip
    with listening, start(*words) as process:
        connection, _ = listening.accept()
        with connection:
            connection.send(BOOT.encode())
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["kind"] == "start"
            connection.send(f"3,1,1000000,-;{XID}\n".encode())
            connection.send(f"11,2,2000000,-;{XID}\n".encode())
            found = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert [(each["seq"], each["trust"], each["code"]) for each in found] == [(1, "kernel", "xid/79"), (2, "injected", "xid/79")]  # fmt: skip
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=scaled(30))
    assert process.returncode == 0
    assert "TEST MODE" in error
    assert json.loads((tmp_path / "state" / "agent.json").read_text())["cursor"] == {"boot": BOOT, "seq": 2}


def test_the_agent_must_know_its_node():
    done = subprocess.run(
        [sys.executable, "-m", "rankfall", "agent", "--no-publish", "--once"],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(30),
        env=ENVIRON,
    )
    assert done.returncode == 2
    assert "the agent does not know the name of its Node" in done.stderr
    assert "NODE_NAME" in done.stderr


def test_a_ring_that_cannot_be_read_once_is_an_error_with_the_next_step(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "rankfall", "agent", "--node", "n1", "--no-publish", "--once", "--kmsg", str(tmp_path / "no")],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(30),
        env=ENVIRON,
    )  # fmt: skip
    assert done.returncode == 74
    assert "CAP_SYSLOG" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_records_is_printed_whole_and_never_published(tmp_path):
    path = tmp_path / "kmsg.txt"
    path.write_text(
        "4,100,1000000,-;NVRM: Xid (PCI:0000:4e:00): 79, pid=1, name=x, GPU has fallen off the bus.\n"
        "3,101,1000001,-;EXT4-fs (sda1): Remounting filesystem read-only\n"
    )
    words = [sys.executable, "-m", "rankfall", "agent", "--node", "n1", "--once", "--kmsg", str(path)]
    done = subprocess.run([*words, "--no-publish"], capture_output=True, text=True, check=False, timeout=scaled(30), env=ENVIRON)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["seq"] for line in lines if line["kind"] == "record"] == [100, 101]
    assert "is a file: times count from this node's boot" in done.stderr
    refused = subprocess.run(words, capture_output=True, text=True, check=False, timeout=scaled(30), env=ENVIRON)
    assert refused.returncode == 2
    assert "next: add --no-publish" in refused.stderr
