"""Evidence that comes after a verdict: asked for once, a new version and a new decision where the platform proves another cause."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfall.backends.kubernetes.backend import ClusterBackend
from rankfall.backends.plan import ClusterPlan, Plan, SlotPlan
from rankfall.explain import explain_run
from rankfall.model import JobSpec
from rankfall.model.timestamps import rfc3339
from rankfall.rundir import RunDir, Writer
from rankfall.rundir.cluster.journal import JournalWriter, journal_path
from rankfall.rundir.cluster.pod_facts import ContainerFact, PodFact
from rankfall.supervisor.attempt_table import Attempts
from rankfall.supervisor.attended.decisions import Decisions, LateEvidence
from rankfall.supervisor.best_effort_store import BestEffortStore
from rankfall.supervisor.run_events import Event, EventLog

CHANNEL = "t0k3n"
XID = "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Server:
    """An API server that lists nodes and the Events of nodes, and nothing else."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = [{"metadata": {"name": "n1", "uid": "uid-n1"}}]
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                items = outer.nodes if "/nodes" in self.path else []
                items = outer.events if "/namespaces/default/events" in self.path else items
                body = json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def xid(self, at: int) -> None:
        stamp = rfc3339(at)[:19] + "Z"
        self.events.append(
            {
                "metadata": {"name": "x", "uid": "x", "namespace": "default"},
                "involvedObject": {"kind": "Node", "name": "n1", "uid": "n1"},
                "reason": "GPUFault",
                "message": XID,
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
            }
        )

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Story:
    """A run whose first attempt ended by a SIGKILL that nobody knows the sender of, as its supervisor had it stored."""

    def __init__(self, folder: Path, server: Server) -> None:
        config = folder / "config"
        config.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: k, cluster: {{server: '{server.url}'}}}}]\n"
            "users: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
        )
        spec = {"command": ("x",), "backend": "job", "launcher": "exec", "policies": {"max_restarts": 3}}
        self.run = RunDir.create(msgspec.convert(spec, JobSpec), home=folder / "home")
        self.place = ClusterPlan(
            context="c",
            kubeconfig=str(config),
            namespace="here",
            selector="a=b",
            container="main",
            token=CHANNEL,
            bases={"worker": 0},
            backend="job",
            object="x-a1",
        )
        self.ended = time.time_ns()
        self.events: list[Event] = []

    def plan(self, number: int) -> Plan:
        folders = {
            "slot_dir": str(self.run.slot_dir(number, "worker", 0)),
            "stream_dir": str(self.run.stream_dir(number, "worker", 0)),
        }
        slot = SlotPlan(slot=0, role="worker", node="", argv=(), env={}, cwd="", **folders)
        return Plan(attempt=number, launcher="exec", slots=(slot,), cluster=self.place)

    def fell(self, attempts: Attempts, number: int) -> None:
        """An attempt that begins and ends so."""
        attempts.begin(self.plan(number))
        stamp = rfc3339(self.ended)[:19] + "Z"
        main = ContainerFact(state="terminated", exit_code=137, signal=9, started=stamp, finished=stamp)
        journal = JournalWriter(journal_path(self.run.path, number))
        journal.add(
            PodFact(
                seen_ns=self.ended,
                name="p",
                uid=f"u{number}",
                slot=0,
                node="n1",
                phase="Failed",
                main=main,
                log="complete",
            )
        )
        journal.close()
        attempts.conclude(number, explain_run(self.run, attempt=number, fresh=True))

    def made(self, writer: Writer) -> tuple[Attempts, Decisions, LateEvidence]:
        log = EventLog(self.run.path, self.events.append)
        run_store = BestEffortStore(writer, on_gap=pytest.fail)
        attempts = Attempts(self.run.spec, writer=writer, run_store=run_store, events=log)
        backend = ClusterBackend()
        decisions = Decisions(
            self.run.spec,
            attempts=attempts,
            backend=backend,
            writer=writer,
            run_store=run_store,
            events=log,
            total_at=lambda: None,
        )
        return attempts, decisions, LateEvidence(self.run, attempts=attempts, decisions=decisions, backend=backend)


@pytest.fixture
def story(tmp_path, server) -> Story:
    return Story(tmp_path, server)


def test_i19_p12_a_fresh_verdict_asks_the_cluster_once_more_and_stores_nothing(story, server):
    with story.run.lease() as writer:
        attempts, decisions, _ = story.made(writer)
        story.fell(attempts, 1)
        assert decisions.goes_on(1)
        attempts.begin(story.plan(2))
        decisions.close()
    held = explain_run(story.run, attempt=1).verdict
    assert (held.cause.slug, held.node) == ("killed_unknown", "n1")
    server.xid(story.ended - 3_000_000_000)
    found = explain_run(story.run, attempt=1, fresh=True, ask=True).verdict
    assert (found.cause.slug, found.cause.confidence, found.node) == ("gpu_fallen_off_bus", "proven", "n1")
    # The decision is the one that was carried out.
    assert found.decision == held.decision
    assert (found.decision.action, found.decision.state) == ("retry", "done")
    assert explain_run(story.run, attempt=1).verdict == held
    assert explain_run(story.run, attempt=1, fresh=True).verdict.cause.slug == "killed_unknown"


def test_i19_p12_a_cluster_that_cannot_be_asked_is_said(story, server):
    with story.run.lease() as writer:
        attempts, _, _ = story.made(writer)
        story.fell(attempts, 1)
    Path(story.place.kubeconfig).unlink()
    found = explain_run(story.run, attempt=1, fresh=True, ask=True).verdict
    assert found.cause.slug == "killed_unknown"
    assert any("the current data of the cluster about attempt 1" in text for text in found.missing)


def test_i19_p12_the_next_attempt_avoids_the_node_of_late_evidence(story, server):
    with story.run.lease() as writer:
        attempts, decisions, late = story.made(writer)
        story.fell(attempts, 1)
        assert decisions.goes_on(1)
        assert (late.look(), decisions.avoided()) == ([], frozenset())
        server.xid(story.ended - 3_000_000_000)
        ((number, found),) = late.look()
        assert (number, found.verdict.version, found.verdict.cause.slug) == (1, 2, "gpu_fallen_off_bus")
        assert decisions.about(1).action == "retry_elsewhere"
        assert decisions.avoided() == {"n1"}
        assert late.look() == []
    assert [event.data["slug"] for event in story.events if event.kind == "verdict"] == [
        "killed_unknown",
        "gpu_fallen_off_bus",
    ]


def test_i19_p12_of_an_attempt_that_was_followed_only_the_node_to_avoid_is_new(story, server):
    with story.run.lease() as writer:
        attempts, decisions, late = story.made(writer)
        story.fell(attempts, 1)
        assert decisions.goes_on(1)
        attempts.begin(story.plan(2))
        decisions.close()
        server.xid(story.ended - 3_000_000_000)
        ((number, _),) = late.look()
        assert number == 1
        assert "found only after attempt 2 had started" in decisions.about(1).because
    # Whoever takes over reads the same.
    with story.run.lease() as writer:
        _, decisions, _ = story.made(writer)
        assert decisions.avoided() == {"n1"}


def test_i19_p12_what_does_not_answer_delays_nothing(story, server):
    with story.run.lease() as writer:
        attempts, decisions, late = story.made(writer)
        story.fell(attempts, 1)
        assert decisions.goes_on(1)
        Path(story.place.kubeconfig).unlink()
        assert late.look() == []
