"""Calls one repair hook once: a command, a webhook or a Job.

The hook's answer alone proves no repair: a new boot id proves a reboot, node checks prove other repairs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from rankfall.kube.client import Kube
from rankfall.kube.errors import Conflict, KubeError
from rankfall.kube.resources import JOBS
from rankfall.model.node_health.records import OpenCause, printable
from rankfall.nodes.checks.jobs import Object
from rankfall.nodes.hooks.ladder import Hook, HookJob

_POLL_S: Final = 1.0
_MAX_OUTPUT: Final = 4_096
# Last characters of a command's output.
_MAX_REPORTED: Final = 200


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Data for a hook.

    Attributes:
        node: Node to repair.
        cause: Cause of the call.
        attempt: Attempt of this step, from 1.
        key: Identifies the attempt; a repeated key already ran.
    """

    node: str
    cause: OpenCause
    attempt: int
    key: str

    def words(self, hook: Hook) -> dict[str, str]:
        """Returns the hook's environment; a webhook gets the names in lower case without the prefix."""
        variables = {
            "NODE": self.node, "STEP": hook.step, "CAUSE": self.cause.code, "DEVICE": self.cause.device or "", "ATTEMPT": str(self.attempt), "KEY": self.key,
        }  # fmt: skip
        return {f"RANKFALL_{name}": value for name, value in variables.items()}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call; ``ok``: the hook reported success."""

    ok: bool
    text: str


async def call_hook(kube: Kube, hook: Hook, call: Call, *, namespace: str) -> Answer:
    """Calls a hook and waits at most ``timeout_s`` for its answer. Raises nothing but the caller's cancellation."""
    words = call.words(hook)
    try:
        async with asyncio.timeout(hook.timeout_s):
            if hook.command is not None:
                return await _command(hook.command, words)
            if hook.webhook is not None:
                return await _webhook(hook.webhook, hook.token_file, words)
            if hook.job is not None:
                return await _job(kube, hook.job, words, node=call.node, namespace=namespace, limit=hook.timeout_s)
    except TimeoutError:
        return Answer(ok=False, text=f"had not answered after {hook.timeout_s} s")
    except (OSError, KubeError, aiohttp.ClientError, ValueError) as error:
        # ValueError: characters that arguments cannot contain.
        return Answer(ok=False, text=printable(str(error)))
    raise AssertionError(hook)


async def _command(command: tuple[str, ...], words: Mapping[str, str]) -> Answer:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **words},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output = await _tail(process.stdout)
        await process.wait()
    finally:
        if process.returncode is None:
            # Kills the session: no child may continue.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    text = printable(" ".join(output.decode("utf-8", "replace").split())[-_MAX_REPORTED:])
    return Answer(ok=process.returncode == 0, text=f"ended with {process.returncode}{': ' if text else ''}{text}")


async def _tail(stream: asyncio.StreamReader | None) -> bytes:
    output = b""
    while stream is not None and (part := await stream.read(_MAX_OUTPUT)):
        output = (output + part)[-_MAX_OUTPUT:]
    return output


async def _webhook(url: str, token_file: str | None, words: Mapping[str, str]) -> Answer:
    headers = {"Idempotency-Key": words["RANKFALL_KEY"]}
    if token_file is not None:
        # Tokens rotate.
        token = (await asyncio.to_thread(Path(token_file).read_text, "utf-8")).strip()
        if not (token.isascii() and token.isprintable()):
            return Answer(ok=False, text=f"{printable(token_file)} holds no token that is valid in a header")
        headers["Authorization"] = f"Bearer {token}"
    body = {name.removeprefix("RANKFALL_").lower(): value for name, value in words.items()}
    async with (
        aiohttp.ClientSession(trust_env=True) as session,
        session.post(url, json=body, headers=headers, allow_redirects=False) as response,
    ):
        output = (await response.content.read(_MAX_OUTPUT)).decode("utf-8", "replace").strip()
        text = f"answered {response.status}{': ' if output else ''}{output}"
        return Answer(ok=200 <= response.status < 300, text=printable(text))  # noqa: PLR2004 - 2xx


async def _job(kube: Kube, job: HookJob, words: Mapping[str, str], *, node: str, namespace: str, limit: int) -> Answer:
    name = f"rankfall-hook-{words['RANKFALL_KEY']}"
    try:
        await kube.create(JOBS, hook_job(job, words, node=node, name=name, limit=limit), namespace=namespace)
    except Conflict as error:
        if not error.already_exists:
            raise
    begun = time.monotonic()
    try:
        while True:
            status = (await kube.get(JOBS, name, namespace=namespace)).get("status") or {}
            for each in status.get("conditions") or ():
                if each.get("status") == "True" and each.get("type") in {"Complete", "Failed"}:
                    text = f"after {time.monotonic() - begun:.0f} s: {each.get('message') or each['type']}"
                    return Answer(ok=each["type"] == "Complete", text=printable(text))
            await asyncio.sleep(_POLL_S)
    finally:
        with contextlib.suppress(KubeError):
            await kube.delete(JOBS, name, namespace=namespace)


def hook_job(job: HookJob, words: Mapping[str, str], *, node: str, name: str, limit: int) -> Object:
    """Returns the Job of a hook: one try, at most ``limit`` seconds, removed an hour after its end."""
    container: Object = {
        "name": "hook",
        "image": job.image,
        "command": list(job.command),
        "env": [{"name": key, "value": value} for key, value in words.items()],
        "securityContext": {"privileged": True} if job.privileged else {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    pod: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": job.service_account is not None,
        "containers": [container],
    }
    if job.service_account is not None:
        pod["serviceAccountName"] = job.service_account
    if job.on_node:
        pod["tolerations"] = [{"operator": "Exists"}]
        pod["nodeName"] = node
    if job.privileged:
        pod["hostPID"] = True
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": limit,
        "ttlSecondsAfterFinished": 3_600,
        "template": {"spec": pod},
    }
    meta = {"name": name, "labels": {"app.kubernetes.io/name": "rankfall-hook"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
