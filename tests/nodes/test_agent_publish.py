"""What an agent writes: one annotation, one condition, Events that are never sent twice; again until it is taken, with bounded memory."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rankfall.kube.auth.access import Access, Endpoint, Login
from rankfall.kube.errors import Conflict, Forbidden, KubeConfigError, ServerError, Unreachable
from rankfall.kube.secret import Secret
from rankfall.model.node_health.kernel_reports import KernelEntry, KernelReport, Place, decode_report
from rankfall.nodes.agent.api import NodeApi
from rankfall.nodes.agent.publisher import Publisher, Standing
from support.patience import scaled

BOOT = "060af334-3f16-446a-8c45-845f66fefde6"


def entry(seq: int, code: str = "xid/79", *, trust: str = "kernel") -> KernelEntry:
    return KernelEntry(code=code, trust=trust, seen=(Place(seq, 10**18),), first=Place(seq, 10**18), text="a line")  # type: ignore[arg-type]


def standing(*entries: KernelEntry, **more: object) -> Standing:
    return Standing(report=KernelReport(boot=BOOT, entries=entries, **more))  # type: ignore[arg-type]


class Server:
    """Takes requests, or fails as it is told: an error for each one that is to fail."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.patches: list[dict] = []
        self.events: list[dict] = []
        self.taken = threading.Semaphore(0)

    def patch(self, body, /):
        if self.failures:
            raise self.failures.pop(0)
        self.patches.append(body)
        self.taken.release()
        return {"metadata": {"uid": "u-1"}}

    def event(self, body, /):
        self.events.append(body)
        self.taken.release()
        return body


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def publisher(server, **more) -> Publisher:
    return Publisher(server, node="n1", say=more.pop("say", lambda text: None), rng=random.Random(1), **more)


def once(publisher: Publisher, *offers) -> None:
    """One pass of the thread, on this one."""
    for each, new in offers:
        publisher.offer(each, new=new)
    assert publisher._wanted is not None
    publisher._try(publisher._wanted)


def test_a_new_fault_is_one_request_that_names_only_what_is_the_agents():
    server = Server()
    made = publisher(server, clock=Clock())
    once(made, (standing(entry(7), injected=True, lost=3), entry(7)))
    (body,) = server.patches
    assert set(body) == {"metadata", "status"}
    assert list(body["metadata"]["annotations"]) == ["rankfall.dev/kernel-faults"]
    assert decode_report(body["metadata"]["annotations"]["rankfall.dev/kernel-faults"]).entries == (entry(7),)
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("RankfallKernelLog", "True", "Reading")
    assert "TEST MODE" in condition["message"]
    assert "3 records lost" in condition["message"]
    (event,) = server.events
    assert (event["metadata"]["namespace"], event["involvedObject"]["uid"], event["type"]) == (
        "default",
        "u-1",
        "Warning",
    )
    assert event["message"] == f"xid/79: a line (boot {BOOT}, record 7)"
    assert made.published == 7


def test_an_event_is_sent_once_whoever_sends_it_again():
    class There(Server):
        def event(self, body, /):
            super().event(body)
            raise Conflict("there", status=409)

    server = There()
    made = publisher(server, clock=Clock(), published=7)
    once(made, (standing(entry(7)), entry(7)), (standing(entry(7), entry(8)), entry(8, trust="injected")))
    assert [each["message"][:11] for each in server.events] == ["(TEST MODE:"]
    assert made.published == 8
    made.forget()
    assert made.published == -1


def test_events_past_the_rate_are_left_out_and_the_annotation_has_everything():
    server, clock = Server(), Clock()
    made = publisher(server, clock=clock)
    once(made, *((standing(entry(n)), entry(n)) for n in range(60)))
    assert (len(server.events), made.left_out) == (20, 40)
    once(made, *((standing(entry(n)), entry(n)) for n in range(60, 65)))
    assert len(server.events) == 20
    clock.now += 61
    once(made, (standing(entry(65)), None))
    assert len(server.events) == 22


def test_a_server_that_is_away_gets_the_newest_report_when_it_is_back():
    said: list[str] = []
    server, clock = Server(Unreachable("no answer"), ServerError("500", status=500, retry_after=90.0)), Clock()
    made = publisher(server, clock=clock, say=said.append)
    for number in range(3):
        once(made, (standing(entry(number)), None))
        if number < 2:
            assert made._due() > 0
    assert made._pause >= 90
    assert [decode_report(each["metadata"]["annotations"]["rankfall.dev/kernel-faults"]).entries for each in server.patches] == [(entry(2),)]  # fmt: skip
    assert said == ["no answer; trying again; the newest report waits", "the API server accepts the agent's writes again"]  # fmt: skip


def test_counts_wait_a_little_and_new_faults_do_not():
    server, clock = Server(), Clock()
    made = publisher(server, clock=clock)
    assert made._due() == 300
    once(made, (standing(entry(1)), None))
    assert made._due() == 300
    made.offer(standing(entry(1), seq=9))
    assert made._due() == 5
    made.offer(standing(entry(1), entry(2)), new=entry(2))
    assert made._due() == pytest.approx(0.1)
    clock.now += 400
    once(made)
    assert len(server.patches) == 2
    made._urgent = False
    clock.now += 301
    assert made._due() < 0
    once(made)
    assert len(server.patches) == 3


def test_the_thread_writes_what_it_is_offered_and_what_is_left_when_it_ends():
    server = Server()
    made = publisher(server)
    thread = threading.Thread(target=made.run)
    thread.start()
    made.offer(standing(entry(1)), new=entry(1))
    assert server.taken.acquire(timeout=scaled(10))
    assert server.taken.acquire(timeout=scaled(10))
    made.offer(standing(entry(1), seq=9))
    made.stop()
    thread.join(scaled(10))
    assert not thread.is_alive()
    assert len(server.patches) == 2
    assert made.written == 2


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(
            (self.command, self.path, self.headers["Content-Type"], self.headers["Authorization"], body)
        )  # type: ignore[attr-defined]
        status, answer = self.server.answers.pop(0) if self.server.answers else (200, b'{"metadata":{}}')  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.close_connection = self.server.closing  # type: ignore[attr-defined]

    do_PATCH = do_POST = answer  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.seen, made.answers, made.closing = [], [], False  # type: ignore[attr-defined]
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join(scaled(10))
    made.server_close()


def access(server, **login: object) -> Access:
    return Access(
        context="c",
        cluster="c",
        user="u",
        namespace="default",
        endpoint=Endpoint(server=f"http://127.0.0.1:{server.server_port}"),
        login=Login(**login),  # type: ignore[arg-type]
    )


def test_requests_go_to_the_own_node_and_survive_a_connection_that_was_closed(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("first-token")
    with NodeApi(access(server, token_file=str(token)), node="n1") as api:
        assert api.patch({"a": 1}) == {"metadata": {}}
        server.closing = True  # the server closes without saying so; the next request finds out
        api.patch({"a": 2})
        api.patch({"a": 3})
        token.write_text("second-token")
        server.answers = [(401, b"{}"), (200, b'{"b":1}')]
        assert api.event({"e": 1}) == {"b": 1}
    assert {each[:3] for each in server.seen if each[0] == "PATCH"} == {
        ("PATCH", "/api/v1/nodes/n1/status?fieldManager=rankfall-agent", "application/strategic-merge-patch+json")
    }
    assert server.seen[-1][1].startswith("/api/v1/namespaces/default/events?")
    assert [each[4] for each in server.seen[:3]] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert server.seen[-1][3] == "Bearer second-token"


def test_an_error_says_what_the_server_said_and_never_the_token(server):
    with NodeApi(access(server, token=Secret("very-secret-token")), node="n1") as api:
        server.answers = [(403, b'{"message":"very-secret-token may not"}')]
        with pytest.raises(Forbidden, match=r"403 .*may not") as caught:
            api.patch({})
        assert "very-secret" not in str(caught.value)
        server.answers = [(500, b"<html>")]
        with pytest.raises(ServerError):
            api.patch({})
        server.answers = [(200, b"[]")]
        with pytest.raises(Unreachable, match="not an object"):
            api.patch({})
        server.answers = [(200, b"nonsense")]
        with pytest.raises(Unreachable, match="not an object"):
            api.patch({})


def test_a_server_that_is_not_there_is_unreachable_and_a_proxy_is_refused(server):
    gone = access(server)
    server.shutdown()
    server.server_close()
    with NodeApi(gone, node="n1", timeout=2) as api, pytest.raises(Unreachable, match="no answer"):
        api.patch({})
    endpoint = Endpoint(server="https://10.0.0.1", proxy=Secret("http://p:1"))
    with pytest.raises(KubeConfigError, match="proxy"):
        NodeApi(Access(context="c", cluster="c", user="u", namespace="d", endpoint=endpoint), node="n1")
