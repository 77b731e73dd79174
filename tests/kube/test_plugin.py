"""Exec plug-ins: real programs, started as the kubeconfig says and never through a shell."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankfall.kube.auth import exec_plugin
from rankfall.kube.auth.access import Access, Endpoint, ExecPlugin
from rankfall.kube.auth.exec_plugin import Plugin
from rankfall.kube.errors import CredentialsError
from rankfall.kube.secret import Secret
from support.helpers import gone, wait_until

V1 = "client.authentication.k8s.io/v1"
BETA = "client.authentication.k8s.io/v1beta1"
TOKEN = {"token": "t0ken-of-plugin"}


def credential(status: Any, *, version: str = V1, kind: str = "ExecCredential") -> str:
    return json.dumps({"apiVersion": version, "kind": kind, "status": status})


class Program:
    """A program that notes how it was started, then does what the test says."""

    def __init__(self, folder: Path, body: str) -> None:
        self.path, self.starts = folder / "login plugin", folder / "starts"
        self.starts.mkdir(exist_ok=True)
        self.path.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys, time, signal\n"
            f"note = {{'argv': sys.argv[1:], 'env': dict(os.environ), 'tty': sys.stdin.isatty(), 'pid': os.getpid()}}\n"
            f"name = {str(self.starts)!r} + '/' + str(os.getpid())\n"
            "open(name + '.new', 'w').write(json.dumps(note))\n"
            "os.rename(name + '.new', name)\n" + body
        )
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    @property
    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.starts.iterdir() if path.suffix != ".new"]


def printing(folder: Path, text: str, *, before: str = "") -> Program:
    return Program(folder, f"{before}\nprint({text!r})\n")


def made(
    program: Program | str, *, endpoint: Endpoint | None = None, how: dict[str, Any] | None = None, **spec: Any
) -> Plugin:
    command = program if isinstance(program, str) else str(program.path)
    endpoint = endpoint or Endpoint(server="https://a", tls_server_name="n", proxy=Secret("http://p:1"))
    access = Access(context="c", cluster="k", user="bob", namespace="n", endpoint=endpoint)
    found = ExecPlugin(
        version=spec.pop("version", V1), command=command, interactive=spec.pop("interactive", "Never"), **spec
    )
    return Plugin(found, access, **{"authorities": lambda: b"CA", **(how or {})})


def given(plugin: Plugin, times: int = 1) -> list[Any]:
    async def story():
        try:
            return [await plugin.get() for _ in range(times)]
        finally:
            await plugin.close()

    return asyncio.run(story())


@pytest.mark.parametrize("version", [V1, BETA])
def test_what_it_is_started_with(tmp_path, version, monkeypatch):
    monkeypatch.setenv("FROM_US", "kept")
    program = printing(tmp_path, credential(TOKEN, version=version))
    args = ("--flag", "two words", "$(touch x)", "; rm")
    plugin = made(
        program,
        version=version,
        args=tuple(map(Secret, args)),
        env=(("A", Secret("b")),),
        tell_cluster=True,
        cluster_config=Secret('{"audience":"x"}'),
    )
    [found] = given(plugin)
    assert found.token.reveal() == TOKEN["token"]
    [note] = program.notes
    assert tuple(note["argv"]) == args
    assert (note["env"]["A"], note["env"]["FROM_US"], note["tty"]) == ("b", "kept", False)
    info = json.loads(note["env"]["KUBERNETES_EXEC_INFO"])
    cluster = {
        "server": "https://a",
        "tls-server-name": "n",
        "certificate-authority-data": base64.b64encode(b"CA").decode(),
        "proxy-url": "http://p:1",
        "config": {"audience": "x"},
    }
    assert info == {
        "kind": "ExecCredential",
        "apiVersion": version,
        "spec": {"interactive": False, "cluster": cluster},
    }


def test_the_cluster_is_told_only_to_who_asks(tmp_path):
    program = printing(tmp_path, credential(TOKEN))
    given(made(program))
    assert json.loads(program.notes[0]["env"]["KUBERNETES_EXEC_INFO"])["spec"] == {"interactive": False}


def test_what_is_not_known_of_the_cluster_is_not_told(tmp_path):
    program = printing(tmp_path, credential(TOKEN))
    endpoint = Endpoint(server="https://a", insecure=True)
    given(made(program, endpoint=endpoint, how={"authorities": lambda: None}, tell_cluster=True))
    told = json.loads(program.notes[0]["env"]["KUBERNETES_EXEC_INFO"])["spec"]["cluster"]
    assert told == {"server": "https://a", "insecure-skip-tls-verify": True}


def test_a_hundred_callers_start_one_process(tmp_path):
    program = printing(tmp_path, credential(TOKEN), before="time.sleep(0.3)")
    plugin = made(program)

    async def story():
        callers = [asyncio.create_task(plugin.get()) for _ in range(100)]
        # The first one gives up while it waits: the others get their answer all the same.
        await asyncio.to_thread(wait_until, lambda: program.notes, timeout=20, what="the start of the plug-in")
        callers[0].cancel()
        found = await asyncio.gather(*callers[1:])
        assert {each.token.reveal() for each in found} == {TOKEN["token"]}
        await plugin.close()

    asyncio.run(story())
    assert len(program.notes) == 1


def test_it_is_asked_again_shortly_before_its_credential_ends(tmp_path):
    now = [1_000_000.0]
    ends = "1970-01-12T13:50:00Z"  # 200 s after now
    program = printing(tmp_path, credential({**TOKEN, "expirationTimestamp": ends}))
    plugin = made(program, how={"clock": lambda: now[0]})

    async def story():
        for seconds, starts in ((0, 1), (189, 1), (191, 2)):
            now[0] = 1_000_000.0 + seconds
            await plugin.get()
            assert len(program.notes) == starts

    asyncio.run(story())


def test_a_wrong_clock_does_not_start_it_for_every_request(tmp_path):
    program = printing(tmp_path, credential({**TOKEN, "expirationTimestamp": "2001-01-01T00:00:00+00:00"}))
    given(made(program), times=20)
    assert len(program.notes) == 1


def test_what_is_still_good_is_used_when_renewing_it_early_fails(tmp_path):
    now = [1_000_000.0]
    program = printing(tmp_path, credential({**TOKEN, "expirationTimestamp": "1970-01-12T13:50:00Z"}))
    plugin = made(program, how={"clock": lambda: now[0]})

    async def story():
        await plugin.get()
        program.path.write_text("#!/bin/sh\nexit 1\n")
        now[0] += 195
        assert (await plugin.get()).token.reveal() == TOKEN["token"]
        now[0] += 10
        with pytest.raises(CredentialsError, match="exit code 1"):
            await plugin.get()

    asyncio.run(story())


def test_a_certificate_instead_of_a_token(tmp_path):
    status = {"clientCertificateData": "CERT", "clientKeyData": "KEY"}
    [found] = given(made(printing(tmp_path, credential(status))))
    assert (found.certificate, found.key.reveal(), found.token) == (b"CERT", "KEY", None)
    assert repr(found) == "Given(certificate, key)"


WRONG = {
    "printed no JSON object": "no",
    "printed Status v1, not ExecCredential": json.dumps({"kind": "Status", "apiVersion": "v1"}),
    "v1beta1, not ExecCredential": credential(TOKEN, version=BETA),
    "gave no status": credential(None),
    "fields of the wrong type": credential({"token": 7}),
    "a certificate without its key": credential({"clientCertificateData": "x"}),
    "neither a token nor a certificate": credential({"token": ""}),
    "that is not a time: soon": credential({**TOKEN, "expirationTimestamp": "soon"}),
    "printed more than 1048576 bytes": "x" * (1 << 20) + "xx",
}


@pytest.mark.parametrize("why", WRONG)
def test_what_cannot_be_understood(tmp_path, why):
    text = WRONG[why]
    (tmp_path / "text").write_text(text)
    program = Program(tmp_path, f"sys.stdout.write(open({str(tmp_path / 'text')!r}).read())\n")
    with pytest.raises(CredentialsError, match=why) as caught:
        given(made(program))
    assert TOKEN["token"] not in str(caught.value)
    assert "the credential plug-in login plugin of user 'bob'" in caught.value.message


def test_it_fails_and_its_words_are_bounded_escaped_and_redacted(tmp_path):
    words = "\x1b[2Jlogged out; password=hunter22 arg-secret env-secret " + "x" * 100_000
    program = Program(tmp_path, f"sys.stderr.write({words!r}); sys.stderr.flush(); sys.exit(3)\n")
    plugin = made(program, args=(Secret("arg-secret"),), env=(("A", Secret("env-secret")),))
    with pytest.raises(CredentialsError, match="exit code 3; its message: ") as caught:
        given(plugin)
    assert len(str(caught.value)) < 1000
    assert "\x1b" not in str(caught.value)


def test_short_words_are_shown_without_secrets(tmp_path):
    words = "\x1b[2Jlogged out; password=hunter22 arg-secret\n"
    program = Program(tmp_path, f"sys.stderr.write({words!r}); sys.exit(3)\n")
    with pytest.raises(CredentialsError) as caught:
        given(made(program, args=(Secret("arg-secret"),)))
    assert "its message: \\x1b[2Jlogged out; password=*** ***" in caught.value.message


def test_it_is_not_there(tmp_path):
    with pytest.raises(CredentialsError, match="is not installed") as caught:
        given(made("no-such-plugin", install_hint="get it from\nthe shop"))
    assert caught.value.hint == "get it from the shop"
    assert caught.value.exit_code == 77
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(CredentialsError, match="cannot be started: No such file"):
        given(made(str(broken)))


def test_it_takes_too_long_and_is_ended_with_what_it_started(tmp_path):
    body = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
    body += f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\nprint('one moment', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    program = Program(tmp_path, body)
    with pytest.raises(CredentialsError, match="did not end within 1 s; its message: one moment"):
        given(made(program, how={"timeout": 1.0}))
    pids = [program.notes[0]["pid"], int((tmp_path / "child").read_text())]
    wait_until(lambda: all(map(gone, pids)), timeout=10, what="the end of the plug-in")


def test_it_is_ended_when_the_client_is_closed(tmp_path):
    program = Program(tmp_path, "time.sleep(600)\n")
    plugin = made(program)

    async def story():
        caller = asyncio.create_task(plugin.get())
        await asyncio.to_thread(wait_until, lambda: program.notes, timeout=20, what="the start of the plug-in")
        given_up = asyncio.create_task(plugin.get())
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await plugin.close()
        with pytest.raises(CredentialsError, match="was stopped"):
            await caller

    asyncio.run(story())
    wait_until(lambda: gone(program.notes[0]["pid"]), timeout=10, what="the end of the plug-in")


def test_an_agent_that_it_leaves_behind_lives_on(tmp_path):
    body = "import subprocess\nnull = subprocess.DEVNULL\n"
    body += "child = subprocess.Popen(['sleep', '30'], stdout=null, stderr=null)\n"
    body += f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\nprint({credential(TOKEN)!r})\n"
    given(made(Program(tmp_path, body)))
    child = int((tmp_path / "child").read_text())
    assert not gone(child)
    os.kill(child, 9)


def test_without_a_terminal_nobody_can_be_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115, PTH123 - lives as long as the test
    program = printing(tmp_path, credential(TOKEN))
    with pytest.raises(CredentialsError, match="needs a terminal for input"):
        given(made(program, interactive="Always"))
    assert program.notes == []
    given(made(program, interactive="IfAvailable"))
    assert program.notes[0]["tty"] is False
    sys.stdin.close()
    given(made(program, interactive="IfAvailable"))


@pytest.mark.parametrize("mode", ["Always", "IfAvailable", "Never"])
def test_at_a_terminal_it_may_ask_and_its_words_are_shown_as_they_come(tmp_path, monkeypatch, mode):
    """A prompt has no newline; the test answers it only after it was shown."""
    body = "sys.stderr.write('open https://login\\nCode: '); sys.stderr.flush()\n"
    body += f"code = sys.stdin.readline().strip() if sys.stdin.isatty() else 'none'\nprint({credential(TOKEN)!r}.replace('t0ken-of', code))\n"
    program = Program(tmp_path, body)
    ours, theirs = pty.openpty()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line == "Code:":
            os.write(ours, b"1234\n")

    # The child inherits descriptor 0, as from a shell.
    keep = os.dup(0)
    os.dup2(theirs, 0)
    try:
        with os.fdopen(os.dup(theirs)) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            [found] = given(made(program, interactive=mode, how={"say": say}))
    finally:
        os.dup2(keep, 0)
        for fd in (keep, ours, theirs):
            os.close(fd)
    asked = mode != "Never"
    assert found.token.reveal() == ("1234-plugin" if asked else "none-plugin")
    assert said == (["open https://login", "Code:"] if asked else [])


def test_its_words_go_to_our_stderr_by_default(capsys):
    exec_plugin.to_stderr("hello")
    assert capsys.readouterr().err == "hello\n"


def test_the_end_of_a_credential_may_have_any_zone(tmp_path):
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 7200 + 3600)) + "+01:00"
    program = printing(tmp_path, credential({**TOKEN, "expirationTimestamp": soon}))
    [found, _] = given(made(program), times=2)
    assert abs(found.expires - time.time() - 7200) < 60
    assert len(program.notes) == 1
