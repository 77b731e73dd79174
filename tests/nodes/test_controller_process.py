"""The controller as its command: what it is told by flags and environment, the lease, probes, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner

from backends.kubernetes.launch_server import Refusal
from nodes.api_world import LABELS, XID, HealthApi, tried
from rankfall.cli import app
from rankfall.cli.commands.controller import _first, controller
from rankfall.kube.auth.access import Access, Endpoint
from rankfall.kube.errors import Forbidden, KubeConfigError
from rankfall.kube.lease import stamp
from rankfall.kube.resources import CONFIG_MAPS, NODES
from rankfall.kube.watch.watcher import Event
from rankfall.loki.reader import Entry
from rankfall.loki.settings import loki_settings
from rankfall.model import SpecError, UsageError
from rankfall.model.node_health.kernel_reports import KernelLine
from rankfall.model.numbers import address_of
from rankfall.model.timestamps import nanoseconds
from rankfall.nodes.controller import main as leadings
from rankfall.nodes.controller.main import Controller, _when_complete, find_access
from rankfall.nodes.controller.metrics import Metrics
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.controller.settings import (
    AGENT,
    DMESG,
    Settings,
    kernel_query,
    log_type_of,
    loki_of,
    namespace_of,
    pod_query,
    stream_of,
    watched_of,
)
from rankfall.nodes.controller.sources import loki
from rankfall.nodes.controller.sources.loki import KernelLines, kernel_texts
from rankfall.nodes.rules.policy import Policy
from support.patience import scaled

DMESG_LINE = f"[538441.007373] {XID}"


def test_the_names_of_konduktors_environment_are_taken():
    assert loki_of(None, {"LOG_ENDPOINT": "http://localhost:3100"}).url == "http://localhost:3100"
    assert loki_of("http://a:1", {"LOG_ENDPOINT": "http://b:2"}).url == "http://a:1"
    assert loki_of(None, {"RANKFALL_LOKI_URL": "http://c:3"}).url == "http://c:3"
    assert loki_of(None, {}) is None
    assert (log_type_of({}), log_type_of({"POD_LOG_TYPE": "skypilot"})) == ("otlp", "skypilot")
    assert watched_of("default, team-a,") == ("default", "team-a")
    assert watched_of(None) == ()
    assert stream_of("dmesg-logging/dmesg") == DMESG
    assert namespace_of(None, {}) == "rankfall"
    assert namespace_of(None, {"POD_NAMESPACE": "here"}) == "here"
    assert namespace_of("there", {"POD_NAMESPACE": "here"}) == "there"
    assert address_of(":9090") == ("0.0.0.0", 9090)  # noqa: S104
    assert address_of("[::1]:0") == ("::1", 0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: log_type_of({"POD_LOG_TYPE": "\x1b[2J"}),
        lambda: watched_of('default"} or {a="'),
        lambda: stream_of("dmesg"),
        lambda: stream_of("a/B"),
        lambda: namespace_of("Bad_Name", {}),
        lambda: namespace_of(None, {"POD_NAMESPACE": "a/b"}),
        lambda: address_of("here"),
        lambda: address_of("h:70000"),
        lambda: loki_of("http://u:p@host", {}),
    ],
)
def test_what_no_cluster_can_have_is_refused(wrong):
    with pytest.raises(UsageError):
        wrong()


def test_queries_name_namespace_and_daemon_set_and_paste_nothing():
    query = kernel_query(AGENT, LABELS, texts=("NVRM", 'a"b'))
    assert query == '{k8s_namespace_name="rankfall",k8s_daemonset_name="rankfall-agent"} |= "NVRM" or "a\\"b"'
    assert pod_query(("a.b", "c"), LABELS, texts=("x",)) == '{k8s_namespace_name=~"a\\\\.b|c"} |= "x"'
    texts = kernel_texts()
    assert "NVRM: " in texts
    assert all(len(each) >= 3 for each in texts)
    assert not any("NVRM: " in each for each in texts if each != "NVRM: ")


def test_lines_of_our_own_agent_are_read_for_the_node_of_their_pod_alone():
    lines = KernelLines(LABELS, boot_of=lambda _: "b")
    line = KernelLine(kind="record", node="n1", boot="b1", seq=7, at=5, trust="kernel", code="xid/79", text=XID)
    text = msgspec.json.encode(line).decode()
    found = [lines.read(Entry(at=9, key=(), text=text, labels={LABELS.node: node})) for node in ("n1", "n2")]
    assert found[0] is not None
    assert (found[0].id, found[0].trust, found[1]) == ("kmsg:b1:7", "collector", None)
    assert lines.read(Entry(at=9, key=(), text=f"{text[:-1]}x", labels={LABELS.node: "n1"})) is None
    plain = lines.read(Entry(at=9, key=("n1",), text=XID, labels={LABELS.node: "n1"}))
    assert plain is not None
    assert plain.at == 9


def test_boots_that_are_over_are_forgotten_before_their_beginnings_fill_the_state(monkeypatch):
    """One for each reboot of each node for ever would end in a ConfigMap that takes nothing more, and a controller that decides nothing more."""
    monkeypatch.setattr(loki, "MAX_BOOTS", 3)
    boots = {"n1": "b0", "n2": "b0"}
    lines = KernelLines(LABELS, boot_of=boots.get)

    contained = DMESG_LINE.replace("): 79,", "): 94,")

    def read(node: str, at: int) -> int | None:
        found = lines.read(Entry(at=at, key=(node,), text=contained, labels={LABELS.node: node}))
        assert found is not None
        return found.at

    first = read("n2", 10**18)
    for number in range(10):
        boots["n1"] = f"b{number}"
        read("n1", 2 * 10**18 + number)
        assert len(lines.begun) <= 3
    assert {"n2 b0", "n1 b9"} <= lines.begun.keys()
    # The ring of a boot that goes on is printed again: its lines have the time that they had.
    assert read("n2", 3 * 10**18) == first


def test_metrics_are_prometheuss_text():
    metrics = Metrics()
    metrics.add("health_evidence_total", source="loki", outcome='a"\n\\')
    metrics.set("health_leader", 1)
    metrics.replace("health_nodes", "state", {"healthy": 3})
    lines = metrics.text().splitlines()
    assert 'rankfall_health_evidence_total{outcome="a\\"\\n\\\\",source="loki"} 1' in lines
    assert "rankfall_health_leader 1" in lines
    assert 'rankfall_health_nodes{state="healthy"} 3' in lines
    assert "# TYPE rankfall_health_nodes gauge" in lines
    assert metrics.get("health_held_nodes", reason="budget") == 0


def test_health_s02_the_pods_own_cluster_is_preferred_and_the_fallback_is_said(tmp_path, caplog):
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [], "contexts": [{"name": "c", "context": {"cluster": "k"}}],
    }))  # fmt: skip
    environ = {"KUBECONFIG": str(kubeconfig), "KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with caplog.at_level("INFO", logger="rankfall.controller"):
        assert find_access(kubeconfig=None, context=None, environ=environ, folder=str(tmp_path)).context == "c"
        (tmp_path / "token").write_text("t")
        assert find_access(kubeconfig=None, context=None, environ=environ, folder=str(tmp_path)).context == "in-cluster"
        assert find_access(kubeconfig=None, context="c", environ=environ, folder=str(tmp_path)).context == "c"
        with pytest.raises(KubeConfigError):
            find_access(kubeconfig=str(tmp_path / "none"), context=None, environ=environ)
    assert caplog.messages[:3] == [
        "incluster config failed to load, attempting to use kubeconfig.",
        "KUBECONFIG loaded: context c, http://127.0.0.1:1",
        "in-cluster config loaded: https://10.0.0.1:443",
    ]


@contextlib.asynccontextmanager
async def cluster(*nodes: str, asked: Callable[[web.Request], web.Response | None] = lambda _: None):
    """An API server, and a Loki behind HTTP that has the lines of ``loki.lines``; ``asked`` may answer it first."""
    api = HealthApi()
    lines: list[tuple[dict[str, str], int, str]] = []

    async def answer(request):
        if not request.path.startswith("/loki"):
            return await api.handle(request)
        first = asked(request)
        if first is not None:
            return first
        start, end = int(request.query["start"]), int(request.query["end"])
        wanted = "dmesg-logging" in request.query["query"]
        found = sorted((each for each in lines if wanted and start <= each[1] < end), key=lambda each: each[1])
        result = [
            {"stream": labels, "values": [[str(at), text]]} for labels, at, text in found[: int(request.query["limit"])]
        ]
        return web.json_response({"status": "success", "data": {"resultType": "streams", "result": result}})

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.05)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.port = runner.addresses[0][1]
    for name in nodes:
        api.node(name)
    try:
        yield api, lines
    finally:
        await runner.cleanup()


def access(api: HealthApi) -> Access:
    endpoint = Endpoint(server=f"http://127.0.0.1:{api.port}")
    return Access(context="c", cluster="k", user="u", namespace="here", endpoint=endpoint)


def settings(api: HealthApi, **more) -> Settings:
    loki = loki_settings(f"http://127.0.0.1:{api.port}", {})
    return Settings(**{"identity": "one", "loki": loki, "poll_s": 0.01, "watched": ("default",), **more})


async def wait(holds, task: asyncio.Task | None = None) -> None:
    async with asyncio.timeout(scaled(15)):
        while not holds():
            if task is not None and task.done():
                task.result()
            await asyncio.sleep(0.005)


async def ended(task: asyncio.Task) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def get(port: int, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=scaled(10)) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


def test_a_controller_from_start_to_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rankfall.nodes.controller.main.RELOAD_S", 0.01)
    monkeypatch.setattr("rankfall.nodes.controller.main._NUMBERS_S", 0.01)
    path = tmp_path / "health.toml"
    path.write_text("[policy]\nkill_switch = true\n")

    async def story():
        async with cluster("n1", "n2") as (api, lines):
            given = settings(api, web=("127.0.0.1", 0), accept_injected=True)
            one = Controller(given, access=access(api), config=path, audit=lambda _: None)
            task = asyncio.create_task(one.run())
            lines.append(({LABELS.node: "n1"}, time.time_ns(), DMESG_LINE))
            await wait(lambda: api.condition("n1") == "HeldKillSwitch", task)
            path.write_text("nonsense")
            await wait(lambda: one.metrics.get("health_config_bad") == 1, task)
            path.write_text("[policy]\nkey = 'trainy.konduktor.ai/faulty'\n")
            await wait(lambda: api.tainted("trainy.konduktor.ai/faulty") == {"n1"}, task)
            switch = {"apiVersion": "v1", "metadata": {"name": "rankfall-controller"}, "data": {"kill-switch": "on"}}
            api.put("configmaps", switch)
            await api.wake()
            await wait(lambda: one.metrics.get("health_kill_switch") == 1, task)
            assert [(await get(one.port, each))[0] for each in ("/healthz", "/readyz", "/metrics", "/else")] == [200, 200, 200, 404]  # fmt: skip
            assert "rankfall_health_leader 1" in (await get(one.port, "/metrics"))[1]
            with monkeypatch.context() as stuck:
                # Not the loop itself: its next turn would begin while the request is on its way.
                stuck.setattr(one, "_loop", SimpleNamespace(turning_since=-1e9))
                assert (await get(one.port, "/healthz"))[0] == 503
            lease = api.get("leases", "rankfall-controller")
            assert lease["spec"]["holderIdentity"] == "one"
            await ended(task)
            assert not lease["spec"].get("holderIdentity")
            assert "query.dmesg-logging.dmesg" in api.get("configmaps", "rankfall-controller-state")["data"]

    with caplog.at_level("INFO", logger="rankfall.controller"):
        tried(story())
    assert "using POD_LOG_TYPE = otlp" in caplog.messages
    assert any("test mode" in each for each in caplog.messages)


def test_health_s26_another_controller_acts_when_the_lease_is_free_and_stops_when_it_is_lost(monkeypatch, caplog):
    monkeypatch.setattr(leadings, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(
        leadings, "LeaderElection", partial(leadings.LeaderElection, poll_interval_s=0.01, renew_s=0.01)
    )

    async def story():
        async with cluster("n1") as (api, _):
            lease = {
                "metadata": {"name": "rankfall-controller", "labels": leadings.LABELS},
                "spec": {"holderIdentity": "other", "leaseDurationSeconds": 3600, "renewTime": stamp(time.time_ns())},
            }
            api.put("leases", lease)
            one = Controller(settings(api, loki=None), access=access(api), config=None, audit=lambda _: None)
            task = asyncio.create_task(one.run())
            await wait(lambda: any("other leads" in each for each in caplog.messages), task)
            api.refusals["GET", "leases"] = Refusal(503)
            await wait(lambda: any("the lease cannot be read" in each for each in caplog.messages), task)
            api.refusals.clear()
            held = api.get("leases", "rankfall-controller")
            held["spec"]["holderIdentity"] = ""
            await wait(lambda: one.metrics.get("health_leader") == 1, task)
            api.refusals["PATCH", "leases"] = Refusal(503)
            await wait(lambda: any("cannot be renewed" in each for each in caplog.messages), task)
            api.refusals.clear()
            held["spec"]["holderIdentity"] = "other"
            held["metadata"]["resourceVersion"] = "99999"
            await wait(lambda: one.metrics.get("health_leader") == 0, task)
            await wait(lambda: any("is no longer the leader" in each for each in caplog.messages), task)
            await ended(task)

    with caplog.at_level("INFO", logger="rankfall.controller"):
        tried(story())


def test_health_s16_no_line_is_read_before_all_nodes_are_seen_for_the_next_controller_would_count_it_again():
    book = NodeCache()
    lines = KernelLines(LABELS, boot_of=lambda name: "b1" if name in book.nodes else None)
    entry = Entry(at=10**18, key=("n1",), text=DMESG_LINE, labels={LABELS.node: "n1"})
    unseen = lines.read(entry)
    seen = []

    async def run() -> None:
        seen.append(lines.read(entry))

    async def story():
        task = asyncio.create_task(_when_complete(book, run))
        await asyncio.sleep(0.2)
        assert seen == []
        book.nodes["n1"] = None
        book.take(Event("bookmark", {}), policy=Policy())
        await task

    tried(story())
    assert unseen is not None
    assert unseen.id != seen[0].id


def test_a_namespace_that_is_not_there_is_waited_for_and_said_once_with_the_next_step(caplog):
    async def story():
        async with cluster("n1") as (api, _), api.kube() as kube:
            api.refusals["POST", "leases"] = Refusal(404)
            leading = leadings.LeaderElection(kube, namespace="nowhere", identity="one", poll_interval_s=0.01)
            task = asyncio.create_task(leading.win())
            await wait(lambda: sum(method == "POST" for method, _ in api.seen) >= 5, task)
            api.refusals.clear()
            await task

    tried(story())
    said = [each for each in caplog.messages if "the lease cannot be read" in each]
    assert len(said) == 1
    assert said[0].endswith("next: kubectl create namespace nowhere")


def test_what_keeps_a_controller_from_its_lease_is_said_again_when_it_was_over_in_between(caplog):
    async def story():
        async with cluster("n1") as (api, _), api.kube() as kube:
            await leadings.LeaderElection(kube, namespace="here", identity="one", poll_interval_s=0.01).win()
            task = asyncio.create_task(
                leadings.LeaderElection(kube, namespace="here", identity="two", poll_interval_s=0.01).win()
            )
            for times in (1, 2):
                api.refusals["GET", "leases"] = Refusal(403)
                await wait(
                    lambda times=times: sum("the lease cannot be read" in each for each in caplog.messages) == times,
                    task,
                )
                api.refusals.clear()
                looks = len(api.seen)
                await wait(lambda looks=looks: len(api.seen) >= looks + 3, task)
            task.cancel()

    tried(story())


def test_health_s26_a_lease_that_ran_out_while_nobody_took_it_is_renewed_before_the_next_write():
    async def story():
        async with cluster("n1") as (api, _), api.kube() as kube:
            leading = leadings.LeaderElection(kube, namespace="here", identity="one", poll_interval_s=0.01)
            await leading.win()
            lock = leading._lock
            now = [lock._clock()]
            lock._clock = lambda: now[0]
            await lock.renew(kube)
            writes = len(api.writes())
            assert await leading.sure()
            assert len(api.writes()) == writes
            now[0] += 11  # longer than it counts as held, shorter than anybody else waits
            assert await leading.sure()
            assert len(api.writes()) == writes + 1
            now[0] += 11
            held = api.get("leases", "rankfall-controller")
            held["spec"]["holderIdentity"], held["metadata"]["resourceVersion"] = "other", "99999"
            assert not await leading.sure()
            assert api.get("leases", "rankfall-controller")["spec"]["holderIdentity"] == "other"

    tried(story())


def test_a_dry_run_takes_no_lease(caplog):
    async def story():
        async with cluster("n1") as (api, lines):
            one = Controller(
                settings(api, dry_run=True, watched=()), access=access(api), config=None, audit=lambda _: None
            )
            task = asyncio.create_task(one.run())
            lines.append(({LABELS.node: "n1"}, time.time_ns(), DMESG_LINE))
            await wait(lambda: any("not tainted: dry_run" in each for each in caplog.messages), task)
            await ended(task)
            assert api.writes() == []

    with caplog.at_level("INFO", logger="rankfall.controller"):
        tried(story())


def test_dry_run_in_the_file_counts_from_the_start_and_stops_acts_at_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rankfall.nodes.controller.main.RELOAD_S", 0.01)
    path = tmp_path / "health.toml"

    async def story():
        async with cluster("n1") as (api, lines):
            path.write_text("[policy]\ndry_run = true\n")
            one = Controller(settings(api), access=access(api), config=path, audit=lambda _: None)
            task = asyncio.create_task(one.run())
            lines.append(({LABELS.node: "n1"}, time.time_ns(), DMESG_LINE))
            await wait(lambda: any("not tainted: dry_run" in each for each in caplog.messages), task)
            await ended(task)
            assert api.writes() == []
            # One that runs already changes no taint from then on.
            path.write_text("")
            lines.clear()
            two = Controller(settings(api), access=access(api), config=path, audit=lambda _: None)
            task = asyncio.create_task(two.run())
            await wait(lambda: two.metrics.get("health_leader") == 1, task)
            path.write_text("[policy]\ndry_run = true\n")
            await wait(lambda: any("taints no longer change" in each for each in caplog.messages), task)
            lines.append(({LABELS.node: "n1"}, time.time_ns(), DMESG_LINE))
            await wait(lambda: api.condition("n1") == "HeldKillSwitch", task)
            assert api.tainted() == set()
            path.write_text("# all is well\n")
            await wait(lambda: api.tainted() == {"n1"}, task)
            await ended(task)

    with caplog.at_level("INFO", logger="rankfall.controller"):
        tried(story())


def test_health_s29_tenant_and_a_token_that_rotates_are_sent_and_never_told(tmp_path, caplog, capfd):
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    environ = {"RANKFALL_LOKI_TENANT": "team-a", "RANKFALL_LOKI_TOKEN_FILE": str(token)}
    known, sent, audit = ["first-secret"], [], []

    def asked(request):
        sent.append((request.headers.get("X-Scope-OrgID"), request.headers.get("Authorization")))
        if sent[-1] != ("team-a", f"Bearer {known[0]}"):
            # Servers that repeat what they refuse exist.
            return web.Response(status=401, text=f"who is {request.headers.get('Authorization')}?")
        return None

    async def story():
        async with cluster("n1", asked=asked) as (api, lines):
            loki = loki_settings(f"http://127.0.0.1:{api.port}", environ)
            one = Controller(settings(api, loki=loki, watched=()), access=access(api), config=None, audit=audit.append)
            task = asyncio.create_task(one.run())
            await wait(lambda: len(sent) > 2, task)
            assert set(sent) == {("team-a", "Bearer first-secret")}
            # First the file, as whoever rotates tokens does; then the server takes the old one no more.
            token.write_text("second-secret\n")
            known[0] = "second-secret"
            lines.append(({LABELS.node: "n1"}, time.time_ns(), DMESG_LINE))
            await wait(lambda: api.tainted() == {"n1"}, task)
            known[0] = "third-secret"
            await wait(lambda: one.metrics.get("health_source_blind_seconds", source="dmesg-logging.dmesg") > 0, task)
            await ended(task)
            assert one.metrics.get("health_leader") == 0
            kept = json.dumps([each for kind in ("events", "configmaps", "nodes", "leases") for each in api.all(kind)])
            told = "\n".join([kept, one.metrics.text(), caplog.text, *audit, *capfd.readouterr()])
            assert "answered 401" in told or "401" in told
            assert "secret" not in told

    with caplog.at_level("DEBUG"):
        tried(story())


def test_health_s45_a_loki_that_gives_fewer_lines_at_once_than_its_own_default_is_read_whole(caplog):
    limits = []

    def asked(request):
        limits.append(int(request.query.get("limit", "100")))
        if limits[-1] > 40:
            text = f"max entries limit per query exceeded, limit > max_entries_limit ({limits[-1]} > 40)"
            return web.Response(status=400, text=text)
        return None

    async def story():
        async with cluster("n1", "n2", asked=asked) as (api, lines):
            now = time.time_ns()
            for number in range(130):
                text = f"[538441.{number:06d}] NVRM: Xid (PCI:0000:4e:00): 31, pid={number}, name=x, Ch 0"
                lines.append(({LABELS.node: "n2"}, now - (200 - number) * 1_000, text))
            lines.append(({LABELS.node: "n1"}, now, DMESG_LINE))
            one = Controller(settings(api, watched=()), access=access(api), config=None, audit=lambda _: None)
            task = asyncio.create_task(one.run())
            await wait(lambda: api.tainted() == {"n1"}, task)
            source = "dmesg-logging.dmesg"
            await wait(lambda: one.metrics.get("health_source_lines_total", source=source) == 131, task)
            assert one.metrics.get("health_source_errors_total", source=source) == 0
            assert one.metrics.get("health_lines_lost_total", source=source) == 0
            await ended(task)
            # The server's limit is learnt once and kept to.
            assert sum(each > 40 for each in limits) <= 2

    tried(story())


def test_a_server_that_starts_and_denies_what_it_has_not_read_yet_is_waited_for(monkeypatch, caplog):
    monkeypatch.setattr("rankfall.nodes.controller.sources.watches._AGAIN_S", 0.01)

    async def story():
        async with cluster("n1") as (api, _):
            api.refusals["GET", CONFIG_MAPS.plural] = Refusal(403, "not yet ready to handle request")
            denied = {"nodes": 2}

            def fault(request):
                if request.path.endswith("/nodes") and denied["nodes"]:
                    denied["nodes"] -= 1
                    return 403
                return None

            api.fault = fault
            one = Controller(settings(api, loki=None), access=access(api), config=None, audit=lambda _: None)
            task = asyncio.create_task(one.run())
            await wait(lambda: sum("not yet ready" in each for each in caplog.messages) > 1, task)
            api.refusals.clear()
            await wait(lambda: not denied["nodes"] and one._book is not None and one._book.complete, task)
            await ended(task)

    tried(story())


def test_what_the_cluster_refuses_ends_it_with_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr("rankfall.nodes.controller.sources.watches.DENIED_S", 0.0)

    async def story():
        async with cluster("n1") as (api, _):
            for plural, kind in ((CONFIG_MAPS.plural, Forbidden), (NODES.plural, BaseExceptionGroup)):
                if plural == CONFIG_MAPS.plural:
                    api.refusals["GET", plural] = Refusal(403)
                else:
                    api.refusals = {}
                    api.fault = lambda request: 403 if request.path.endswith("/nodes") else None
                one = Controller(settings(api, loki=None), access=access(api), config=None, audit=lambda _: None)
                with pytest.raises(kind) as found:
                    await one.run()
                assert isinstance(_first(found.value), Forbidden)

    path = tmp_path / "health.toml"
    path.write_text("nonsense")
    with pytest.raises(SpecError, match="TOML"):
        Controller(Settings(), access=Access(context="c", cluster="k", user="", namespace="n", endpoint=Endpoint(server="http://x")), config=path, audit=print)  # fmt: skip
    tried(story())


def test_the_command_says_what_it_uses(tmp_path, monkeypatch):
    ran = []

    async def run(self) -> None:
        ran.append(self._settings)

    monkeypatch.setattr("rankfall.nodes.controller.main.Controller.run", run)
    monkeypatch.setattr("rankfall.nodes.controller.main.find_access", lambda **_: None)
    environ = {"LOG_ENDPOINT": "http://localhost:3100", "WATCHED_NAMESPACES": "default", "POD_LOG_TYPE": "skypilot"}
    result = CliRunner().invoke(controller, ["--dry-run", "--stream", "a/b", "--metrics-address", ":0"], env=environ)
    assert result.exception is None, result.output
    (found,) = ran
    assert (found.loki.url, found.watched, found.log_type, found.dry_run) == ("http://localhost:3100", ("default",), "skypilot", True)  # fmt: skip
    assert [(each.namespace, each.daemon_set) for each in found.streams] == [("a", "b")]
    assert found.namespace == "rankfall"
    assert app.VERBS["controller"][0] == "controller"

    async def fail(self) -> None:
        raise ExceptionGroup("tasks", [ExceptionGroup("more", [UsageError("no")])])

    monkeypatch.setattr("rankfall.nodes.controller.main.Controller.run", fail)
    assert isinstance(CliRunner().invoke(controller, [], env=environ).exception, UsageError)


def test_times_of_others_are_moments_or_nothing():
    assert nanoseconds("1970-01-01T00:00:01.5Z") == 1_500_000_000
    assert nanoseconds("2026-11-22T01:00:00+01:00") == nanoseconds("2026-11-22T00:00:00Z")
    for odd in ("", "yesterday", "2026-11-22", "2026-11-22T00:00:00", "2999-01-01T00:00:00Z", "1969-01-01T00:00:00Z"):
        assert nanoseconds(odd) is None
