"""A small API server in memory, for speed: names, UIDs, versions, 409, preconditions, finalizers, owners, watches, and a Job's pods.

What it decides it decides as the real one does (tests/cluster/test_launch.py runs the same stories there); what launch and removal do not use
it does not have. Faults strike by the number of the request: before it took effect, after it, or as an answer in its place.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from rankfall.kube.auth.access import Access, Endpoint
from rankfall.kube.client import Kube
from rankfall.kube.request import Retry

Object = dict[str, Any]
KINDS = {
    "jobs": "Job",
    "jobsets": "JobSet",
    "trainjobs": "TrainJob",
    "trainingruntimes": "TrainingRuntime",
    "services": "Service",
    "leases": "Lease",
    "events": "Event",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "pods": "Pod",
    "nodes": "Node",
}
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
CASCADE = "foregroundDeletion"


class Refusal(Exception):
    def __init__(self, code: int, message: str = "no", *, reason: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.reason = code, message, reason or REASONS[code]


@dataclass
class Api:
    """``faults``: request number -> "before", "after" (the connection is cut), "kill before", "kill after", or a status."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    faults: dict[int, str | int] = field(default_factory=dict)
    fault: Callable[[web.Request], str | int | None] = lambda _: None
    webhook: Callable[[web.Request], None] = lambda _: None
    killed: asyncio.Event = field(default_factory=asyncio.Event)
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    dead_nodes: set[str] = field(default_factory=set)
    made: list[tuple[str, str, str]] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[int, str, str, Object]] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    version: int = 100
    number: int = 0
    port: int = 0

    def kube(self, **options: Any) -> Kube:
        endpoint = Endpoint(server=f"http://127.0.0.1:{self.port}")
        access = Access(context="c", cluster="k", user="u", namespace="here", endpoint=endpoint)
        return Kube(access, **{"retry": Retry(first_s=0.01, cap_s=0.05), "rate": 500.0, "burst": 100, **options})

    # What tests ask and do.

    def get(self, plural: str, name: str) -> Object | None:
        return self.objects.get((plural, name))

    def all(self, plural: str) -> list[Object]:
        return [item for (kind, _), item in self.objects.items() if kind == plural]

    def count_made(self, plural: str) -> int:
        return sum(kind == plural for kind, _, _ in self.made)

    def put(self, plural: str, item: Object, **meta: Any) -> Object:
        """As somebody else would make it."""
        item = {**item, "metadata": {**item["metadata"], **meta}}
        made = self._create(plural, copy.deepcopy(item))
        self._work()
        return made

    def ends(self, plural: str, name: str, condition: str) -> None:
        item = self.objects[plural, name]
        item.setdefault("status", {})["conditions"] = [{"type": condition, "status": "True"}]
        self._tell("MODIFIED", plural, item)

    def change(self, plural: str, name: str, **meta: Any) -> None:
        item = self.objects[plural, name]
        item["metadata"].update(meta)
        self._tell("MODIFIED", plural, item)
        self._work()

    async def wake(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    # The server.

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.number += 1
        fault = self.faults.get(self.number) or self.fault(request)
        body = json.loads(await request.read() or b"null")
        self.seen.append((request.method, request.path))
        if isinstance(fault, int):
            return _status(Refusal(fault))
        if fault == "before":
            return _cut(request)
        if fault == "kill before":
            return await self._silent()
        if request.query.get("watch"):
            return _cut(request) if fault else await self._watch(request)
        try:
            self.webhook(request)
            code, answer = self._carry_out(request, body)
        except Refusal as refusal:
            answer, code = None, 0
            response = _status(refusal)
        else:
            response = web.json_response(answer, status=code)
        self._work()
        await self.wake()
        if fault == "after":
            return _cut(request)
        if fault == "kill after":
            return await self._silent()
        return response

    async def _silent(self) -> web.StreamResponse:
        self.killed.set()
        await asyncio.Event().wait()
        return web.Response()

    def _carry_out(self, request: web.Request, body: Any) -> tuple[int, Object]:
        parts = request.path.strip("/").split("/")
        parts = (
            parts[4:]
            if "namespaces" in parts[:3] and parts[0] == "api"
            else parts[5:]
            if "namespaces" in parts
            else parts[-2:]
        )
        plural, name = parts[0], parts[1] if len(parts) > 1 else None
        for (method, kind), refusal in self.refusals.items():
            if (method, kind) == (request.method, plural):
                raise refusal
        if request.method == "POST":
            return 201, copy.deepcopy(self._create(plural, body))
        if name is None:
            return 200, self._list(request, plural)
        item = self.objects.get((plural, name))
        if item is None:
            raise Refusal(404, f'{plural} "{name}" not found')
        if request.method == "PATCH":
            self._patch(plural, item, body)
        elif request.method == "DELETE":
            self._delete(plural, item, body)
        return 200, copy.deepcopy(item)

    def _create(self, plural: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (plural, name) in self.objects:
            raise Refusal(409, f'{plural} "{name}" already exists', reason="AlreadyExists")
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        identity = {"uid": str(uuid.uuid4()), "creationTimestamp": stamp, "namespace": "here"}
        item = {**body, "kind": KINDS[plural], "metadata": {**identity, **body["metadata"]}}
        self.objects[plural, name] = item
        self.made.append((plural, name, item["metadata"]["uid"]))
        self._tell("ADDED", plural, item)
        return item

    def _list(self, request: web.Request, plural: str) -> Object:
        items = [copy.deepcopy(item) for item in self.all(plural) if _fits(item, request.query)]
        return {"kind": "List", "metadata": {"resourceVersion": str(self.version)}, "items": items}

    def _patch(self, plural: str, item: Object, body: Any) -> None:
        if isinstance(body, list):
            for step in body:
                *path, last = (part.replace("~1", "/") for part in step["path"].strip("/").split("/"))
                place = item
                for part in path:
                    place = place[part]
                if step["op"] == "test" and place.get(last) != step["value"]:
                    raise Refusal(422, f"testing value {step['path']} failed")
                if step["op"] in {"add", "replace"}:
                    place[last] = step["value"]
        else:
            body = copy.deepcopy(body)
            if body.get("metadata", {}).pop("resourceVersion", None) not in {None, item["metadata"]["resourceVersion"]}:
                raise Refusal(409, "the object has been modified")
            _merge(item, body)
        self._tell("MODIFIED", plural, item)

    def _delete(self, plural: str, item: Object, options: Object | None) -> None:
        options = options or {}
        wanted = options.get("preconditions", {}).get("uid")
        meta = item["metadata"]
        if options.get("preconditions", {}).get("resourceVersion") not in {None, meta["resourceVersion"]}:
            raise Refusal(409, "Precondition failed: resourceVersion")
        if wanted not in {None, meta["uid"]}:
            raise Refusal(409, f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {meta['uid']}")
        if options.get("propagationPolicy") == "Foreground" and CASCADE not in meta.get("finalizers", []):
            meta["finalizers"] = [*meta.get("finalizers", []), CASCADE]
        if "deletionTimestamp" not in meta:
            meta["deletionTimestamp"] = (datetime.now(UTC) - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._tell("MODIFIED", plural, item)

    def _tell(self, kind: str, plural: str, item: Object) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, plural, copy.deepcopy(item)))

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        plural = request.path.rpartition("/")[2]
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            async with self.changed:
                news = [event for event in self.events if event[0] > since]
                if not news:
                    await self.changed.wait()
                    continue
            for version, kind, which, item in news:
                since = version
                if which == plural and _fits(item, request.query):
                    await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    # Controllers and the garbage collector.

    def _work(self) -> None:
        while any([self._jobs(), self._sets(), self._collect()]):
            pass

    def _jobs(self) -> bool:
        new = False
        for job in self.all("jobs"):
            mine = [pod for pod in self.all("pods") if _owned(pod, job)]
            if job["spec"].get("suspend") or "deletionTimestamp" in job["metadata"] or job.get("status") or mine:
                continue
            for index in range(job["spec"].get("parallelism", 1)):
                self._child(
                    job, "pods", f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}", self._pod(job, index)
                )
                new = True
        return new

    def _pod(self, job: Object, index: int) -> Object:
        labels = {
            **job["spec"].get("template", {}).get("metadata", {}).get("labels", {}),
            "job-name": job["metadata"]["name"],
        }
        return {"metadata": {"labels": labels}, "spec": {"nodeName": f"n{index + 1}"}}

    def _sets(self) -> bool:
        new = False
        for item in self.all("jobsets"):
            name = item["metadata"]["name"]
            job = self.objects.get(("jobs", f"{name}-node-0"))
            mark = {"jobset.sigs.k8s.io/jobset-name": name}
            if job is None and "deletionTimestamp" not in item["metadata"]:
                spec = {"suspend": True, "parallelism": 2, "template": {"metadata": {"labels": mark}}}
                self._child(item, "jobs", f"{name}-node-0", {"metadata": {"labels": mark}, "spec": spec})
                self._child(item, "services", name, {"metadata": {}, "spec": {}})
                new = True
            elif job is not None and job["spec"]["suspend"] != item["spec"]["suspend"] and _owned(job, item):
                job["spec"]["suspend"] = item["spec"]["suspend"]
                self._tell("MODIFIED", "jobs", job)
                new = True
        return new

    def _child(self, owner: Object, plural: str, name: str, body: Object) -> None:
        reference = {
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        self._create(plural, {**body, "metadata": {**body["metadata"], "name": name, "ownerReferences": [reference]}})

    def _collect(self) -> bool:
        alive = {item["metadata"]["uid"] for item in self.objects.values()}
        new = False
        for (plural, name), item in list(self.objects.items()):
            meta = item["metadata"]
            owners = meta.get("ownerReferences", [])
            if owners and not any(one["uid"] in alive for one in owners) and "deletionTimestamp" not in meta:
                self._delete(plural, item, None)
                new = True
            if CASCADE in meta.get("finalizers", []):
                below = [(kind, one) for (kind, _), one in self.objects.items() if _owned(one, item)]
                blocking = [
                    one
                    for _, one in below
                    if any(r.get("blockOwnerDeletion") for r in one["metadata"]["ownerReferences"])
                ]
                for kind, one in below:
                    if "deletionTimestamp" not in one["metadata"]:
                        self._delete(kind, one, {"propagationPolicy": "Foreground"} if kind == "jobs" else None)
                        new = True
                if not blocking:
                    meta["finalizers"].remove(CASCADE)
            stuck = plural == "pods" and item["spec"].get("nodeName") in self.dead_nodes
            if "deletionTimestamp" in meta and not meta.get("finalizers") and not stuck:
                del self.objects[plural, name]
                self._tell("DELETED", plural, item)
                new = True
        return new


def _merge(into: Object, patch: Object) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(into.get(key), dict):
                into[key] = {}
            _merge(into[key], value)
        else:
            into[key] = value


def _owned(item: Object, owner: Object) -> bool:
    return any(one["uid"] == owner["metadata"]["uid"] for one in item["metadata"].get("ownerReferences", []))


def _fits(item: Object, query: Any) -> bool:
    labels = item["metadata"].get("labels", {})
    wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
    field, _, value = query.get("fieldSelector", "").partition("=")
    known = {"": "", "metadata.name": item["metadata"]["name"], "spec.nodeName": item.get("spec", {}).get("nodeName")}
    return all(labels.get(key) == value for key, value in wanted) and known.get(field, value) == value


def _status(refusal: Refusal) -> web.Response:
    details = {"retryAfterSeconds": 1} if refusal.code == 429 else {}
    body = {
        "kind": "Status",
        "status": "Failure",
        "code": refusal.code,
        "reason": refusal.reason,
        "message": refusal.message,
        "details": details,
    }
    return web.json_response(body, status=refusal.code)


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def serving() -> AsyncIterator[Api]:
    api = Api()
    runner = web.ServerRunner(web.Server(api.handle), shutdown_timeout=0.05)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.port = site._server.sockets[0].getsockname()[1]
    try:
        yield api
    finally:
        await runner.cleanup()
