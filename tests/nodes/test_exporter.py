"""Metrics of GPUs as a source: what changed is news, what stood there before has no time, and what an exporter says of nodes counts nothing."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from nodes.api_world import SECOND, running, tried
from nodes.cluster import START, Cluster
from rankfall.model.errors import EvidenceLost, SpecError
from rankfall.nodes.config import ConfigFile, parse_config
from rankfall.nodes.controller.sources import exporters
from rankfall.nodes.controller.sources.exporters import ExporterSource, page, pages
from rankfall.nodes.manifests.cluster import cluster_objects
from rankfall.nodes.rules.fault_rules import metric_fields, packaged
from rankfall.nodes.rules.gpu_metrics import ActiveMetric, changed_values, readings
from rankfall.nodes.rules.policy import Budget, Policy

XID, REMAP, DBE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
GPU = "gpu 0000:4e:00"


def line(metric: str, value: object, *, pci: str = "00000000:4E:00.0", more: str = "") -> str:
    return f'{metric}{{gpu="0",UUID="GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52",pci_bus_id="{pci}",modelName="a \\"b\\" }}"{more}}} {value}'


def look(text: str, *, stood=None, before: int | None = None, now: int = START):
    return changed_values(readings(text), node="n1", boot="b1", stood=stood or {}, before=before, now=now)


def test_the_fields_that_mean_anything_are_read_with_their_device():
    text = "\n".join((
        "# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.",
        line(XID, 79), line(XID, 79, more=',GPU_I_ID="3"'), line(REMAP, "0"), line(DBE, "1 1795000000000"),
        line(DBE, 4, pci="0000:CA:00.0"), line("DCGM_FI_DEV_GPU_TEMP", 40),
        line(DBE, 9223372036854775794), line(DBE, 2147483632), line(DBE, "NaN"), line(DBE, "-1"), line(DBE, "x"),
        f'{XID}{{gpu="1"}} 79', f"{XID} 79", f'{XID}{{gpu="1",UUID="GPU-1234"}} 48',
    ))  # fmt: skip
    assert [(each.metric, each.device, each.value) for each in readings(text)] == [
        (XID, GPU, 79), (REMAP, GPU, 0), (DBE, GPU, 1), (DBE, "gpu 0000:ca:00", 4), (XID, "gpu GPU-1234", 48),
    ]  # fmt: skip


def test_a_change_between_two_looks_lies_between_them_and_what_stood_before_has_no_time():
    first, stood = look(line(XID, 79))
    assert [(each.code, each.trust, each.device, each.at) for each in first] == [("xid/79", "exporter", GPU, None)]
    again, stood = look(line(XID, 79), stood=stood, before=START, now=START + 30 * SECOND)
    assert again == []
    (fault,), stood = look(line(XID, 48), stood=stood, before=START + 30 * SECOND, now=START + 60 * SECOND)
    assert (fault.code, fault.at, fault.uncertainty) == ("xid/48", START + 60 * SECOND, 30.0)
    gone, stood = look(line(XID, 0), stood=stood, before=START + 60 * SECOND, now=START + 90 * SECOND)
    assert (gone, stood) == ([], {})
    (fault,), _ = look(line(XID, 48), stood=stood, before=START + 90 * SECOND, now=START + 120 * SECOND)
    assert (fault.code, fault.uncertainty) == ("xid/48", 30.0)


def test_after_a_restart_a_change_lies_since_what_was_kept_and_a_state_that_holds_is_now():
    _, stood = look(f"{line(XID, 31)}\n{line(DBE, 5)}", now=START)
    faults, _ = look(f"{line(XID, 79)}\n{line(DBE, 6)}\n{line(REMAP, 1)}", stood=stood, now=START + 100 * SECOND)
    assert {each.code: (each.at, each.uncertainty) for each in faults} == {
        "xid/79": (START + 100 * SECOND, 100.0),
        "metric/ecc_dbe": (START + 100 * SECOND, 100.0),
        "metric/row_remap_failure": (START + 100 * SECOND, 0.0),
    }
    # A counter that began anew grows from there.
    less, stood = look(line(DBE, 2), stood=stood, before=START, now=START + SECOND)
    assert less == []
    assert len(look(line(DBE, 3), stood=stood, before=START + SECOND, now=START + 2 * SECOND)[0]) == 1


def test_the_rule_is_that_of_the_catalogue_and_one_thing_is_not_counted_twice():
    cluster = Cluster(policy=Policy(budget=Budget(nodes=4, percent=100)))
    of_metrics = {"source": "metrics", "trust": "exporter", "boot": None, "seq": None, "uncertainty": 5.0}
    for code in ("xid/31", "xid/94", "xid/94", "metric/ecc_dbe", "metric/row_remap_pending"):
        cluster.later(60)
        cluster.see(cluster.fault("n1", code, **of_metrics))
    assert cluster.tainted == set()
    assert {each.code for each in cluster.record("n1").causes} == {"metric/ecc_dbe", "metric/row_remap_pending"}
    assert cluster.record("n1").state == "suspect"
    cluster.see(cluster.fault("n2", "xid/79"))
    plan = cluster.see(cluster.fault("n2", "xid/79", **of_metrics))
    assert [outcome for _, outcome in plan.outcomes] == ["seen"]
    assert cluster.record("n2").causes[0].count == 1
    cluster.see(cluster.fault("n3", "xid/48", **of_metrics))
    assert cluster.tainted == {"n2", "n3"}
    plan = cluster.see(cluster.fault("n4", "xid/48", **of_metrics | {"at": None}))
    assert [outcome for _, outcome in plan.outcomes] == ["untimed"]


def test_every_field_has_a_rule():
    for kind, code in metric_fields().values():
        assert kind in {"last", "state", "counter"}
        assert code == "xid" or packaged().find(code) is not None


@given(
    st.text(max_size=300) | st.text(alphabet='DCGM_FI_XRNOW{}",=\\ 0179\n', max_size=300).map(lambda text: XID + text)
)
def test_no_text_breaks_the_reader(text):
    for each in readings(text):
        assert each.metric in metric_fields()
        assert each.device.startswith("gpu ")
        assert 0 <= each.value < 1 << 31


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ('node = "n1"', "either"), ('url = "http://a"', "either"), ('namespace = "g"', "either"), ('node = "n1"\nurl = "file:///etc/passwd"', "url"),
        ('namespace = "g"\npods = "a=b"\nnode = "n1"\nurl = "http://a"', "either"), ('namespace = "g"\npods = "a=b"\nport = 0', "port"),
        ('namespace = "g"\npods = "a=b"\npath = "/m?x"', "path"), ('namespace = "g"\npods = "a=b"\nevery = 3', "every"),
    ],
)  # fmt: skip
def test_a_row_with_any_fault_is_refused_with_its_place(row, word):
    with pytest.raises(SpecError, match=word) as said:
        parse_config(f"[[metrics]]\n{row}\n", origin="health.toml")
    assert "health.toml: metrics 1" in said.value.message


def test_the_controller_may_list_pods_where_exporters_are_and_nowhere_else(tmp_path):
    path = tmp_path / "health.toml"
    path.write_text('[[metrics]]\nnamespace = "gpu-operator"\npods = "app=nvidia-dcgm-exporter"\n')
    objects = cluster_objects(namespace="r", image="i@sha256:0", config=path)
    roles = {
        each["metadata"].get("namespace"): each["rules"]
        for each in objects
        if each["kind"] == "Role" and any("pods" in rule["resources"] for rule in each["rules"])
    }
    assert roles == {"gpu-operator": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}


def put_pod(api, name: str, node: str, *, owner: str = "DaemonSet", address: str = "10.0.0.1", phase: str = "Running"):
    uid = api.get("nodes", "n1")["metadata"]["uid"]  # of anything that is there, for the garbage collector
    meta = {"name": name, "namespace": "gpu-operator", "labels": {"app": "nvidia-dcgm-exporter"}}
    meta["ownerReferences"] = [{"kind": owner, "controller": True, "name": "x", "uid": uid}]
    spec = {"nodeName": node, "containers": []}
    api.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": phase, "podIP": address}})


def rows(tmp_path, text: str) -> ConfigFile:
    path = tmp_path / "health.toml"
    path.write_text(text)
    file = ConfigFile(path)
    assert file.reload()
    return file


PODS = '[[metrics]]\nnamespace = "gpu-operator"\npods = "app=nvidia-dcgm-exporter"\n'


def test_what_changes_in_an_exporter_taints_the_node_of_its_pod_also_after_a_restart(tmp_path):
    file = rows(tmp_path, PODS)
    said: dict[str, str | EvidenceLost] = {}

    async def get(session, url):
        del session
        found = said[url]
        if isinstance(found, EvidenceLost):
            raise found
        return found

    def source(world) -> ExporterSource:
        return ExporterSource(
            world.kube, book=world.book, config=file, state=world.state, give=world.loop.give, metrics=world.metrics, get=get
        )  # fmt: skip

    async def story():
        one, two = "http://10.0.0.1:9400/metrics", "http://[fd00::2]:9400/metrics"
        (row,) = file.config.exporters
        async with running("n1", "n2", config=file) as world:
            api = world.api
            await world.until(lambda: world.book.complete and len(world.book.nodes) == 2)
            put_pod(api, "e1", "n1")
            put_pod(api, "e2", "n2", address="fd00::2")
            # A pod that no DaemonSet made, one of no node here, one that does not run: nobody asks them.
            put_pod(api, "forged", "n2", owner="ReplicaSet", address="10.0.0.9")
            put_pod(api, "far", "n9", address="10.0.0.8")
            put_pod(api, "old", "n2", phase="Failed", address="10.0.0.7")
            said[one] = line(XID, 79, more=',Hostname="n2"')
            said[two] = line(XID, 0)
            looks = source(world)
            await looks.look(None, row)
            assert api.tainted() == set()  # nobody knows when that was
            said[two] = EvidenceLost("it did not answer", hint="x")
            said[one] = line(XID, 48, more=',Hostname="n2"')
            await looks.look(None, row)
            assert api.tainted() == {"n1"}
            assert api.record("n1").causes[0].text.startswith(XID)
            assert world.metrics.get("health_exporters_silent") == 1
            said[two] = line(XID, 0)
            await looks.look(None, row)
            assert world.metrics.get("health_exporters_silent") == 0
            assert world.metrics.get("health_source_errors_total", source="metrics") == 1
        async with running(api=api, config=file) as world:
            await world.until(lambda: world.book.complete)
            assert [each.value for each in world.state.standing.values()] == [48]
            looks = source(world)
            await looks.look(None, row)
            said[one] = line(XID, 64)
            await looks.look(None, row)
            assert {each.code: each.count for each in api.record("n1").causes} == {"xid/48": 1, "xid/64": 1}
            api.objects.pop(("pods", "e1"))
            await looks.look(None, row)
            assert [each.value for each in world.state.standing.values()] == [64]

    tried(story())


def test_an_address_of_a_node_is_asked_again_and_again(tmp_path):
    asked = []
    texts = [line(XID, 0), line(XID, 79)]

    async def answer(request):
        asked.append(request.path)
        return web.Response(text=texts[min(len(asked), 2) - 1])

    async def story():
        app = web.Application()
        app.router.add_get("/m", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        file = rows(tmp_path, f'[[metrics]]\nnode = "n1"\nurl = "http://127.0.0.1:{port}/m"\nevery_s = 1\n')
        try:
            async with running("n1", "n2", config=file) as world:
                await world.until(lambda: world.book.complete)
                source = ExporterSource(
                    world.kube, book=world.book, config=file, state=world.state, give=world.loop.give, metrics=world.metrics, poll_interval_s=0.01
                )  # fmt: skip
                task = asyncio.create_task(source.run())
                await world.until(lambda: world.api.tainted() == {"n1"})
                task.cancel()
        finally:
            await runner.cleanup()

    tried(story())


@pytest.mark.parametrize(("path", "word"), [("/gone", "404"), ("/large", "larger"), ("/away", "302")])
def test_a_page_that_is_none_is_refused(path, word, monkeypatch):
    monkeypatch.setattr("rankfall.nodes.controller.sources.exporters.MAX_PAGE", 1_000)

    async def large(request):
        del request
        return web.Response(text="x" * 2_000)

    async def away(request):
        del request
        raise web.HTTPFound("/large")

    async def story():
        app = web.Application()
        app.router.add_get("/large", large)
        app.router.add_get("/away", away)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        try:
            async with pages() as session:
                with pytest.raises(EvidenceLost, match=word):
                    await page(session, f"http://127.0.0.1:{port}{path}")
        finally:
            await runner.cleanup()
        async with pages() as session:
            with pytest.raises(EvidenceLost, match="cannot be reached"):
                await page(session, f"http://127.0.0.1:{port}/")

    tried(story())


def test_what_stands_is_bounded(caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(exporters, "MAX_ACTIVE_METRICS", 2)
    file = rows(tmp_path, PODS)

    async def story():
        async with running("n1", config=file) as world:
            await world.until(lambda: world.book.complete)
            source = ExporterSource(
                world.kube, book=world.book, config=file, state=world.state, give=world.loop.give, metrics=world.metrics
            )
            await source._keep({f"n1 b g{number} m": ActiveMetric(1, number) for number in range(3)})
            assert sorted(world.state.standing) == ["n1 b g1 m", "n1 b g2 m"]
            assert "only the newest 2" in caplog.text

    tried(story())
