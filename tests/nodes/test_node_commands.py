"""``rankfall nodes``: what the commands write, what they leave alone, and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from nodes.node_server import NodeServer, node_server
from rankfall.cli.app import run
from rankfall.model.node_health.records import ANNOTATION, NodeHealth, OpenCause, decode_health, encode_health

OURS = {"key": "rankfall.dev/faulty", "value": "true", "effect": "NoSchedule"}
SEEDS = {"key": "trainy.konduktor.ai/faulty", "value": "true", "effect": "NoSchedule"}
FOREIGN = {"key": "maintenance", "value": "x", "effect": "NoExecute"}


@pytest.fixture
def server(tmp_path: Path):
    with node_server(tmp_path) as made:
        yield made


@pytest.fixture
def nodes(server: NodeServer, capsys):
    """The command; its exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        code = run(["nodes", *words, "--kubeconfig", str(server.kubeconfig)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def record(server: NodeServer, name: str) -> NodeHealth:
    return decode_health(server.nodes[name]["metadata"]["annotations"][ANNOTATION])


def test_health_s05_reset_takes_ours_from_the_nodes_that_had_it_and_leaves_all_else(server, nodes):
    for name in ("n1", "n2", "n3"):
        server.add(name, FOREIGN, OURS, unschedulable=True)
    server.add("cpu1", FOREIGN)
    code, out, err = nodes("reset", "-y")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"n{i}: cleared; taint rankfall.dev/faulty is removed" for i in (1, 2, 3)]
    for name in ("n1", "n2", "n3"):
        assert server.taints(name) == ["maintenance"]
        assert server.nodes[name]["spec"]["unschedulable"]
        assert record(server, name).cleared_at
        assert (server.condition(name) or {})["status"] == "True"
    assert "annotations" not in server.nodes["cpu1"]["metadata"]
    code, out, err = nodes("reset", "-y")
    assert (code, out, err) == (0, "", "rankfall: no node has a taint rankfall.dev/faulty\n")


def test_health_s06_reset_of_some_nodes_only_and_a_dry_run_changes_nothing(server, nodes):
    server.add("n1", OURS, labels={"pool": "a"})
    server.add("n2", OURS, labels={"pool": "a"})
    server.add("n3", OURS, labels={"pool": "b"})
    code, out, _ = nodes("reset", "--dry-run")
    assert (code, server.writes) == (0, [])
    assert out.splitlines()[0] == "n1: dry run: cleared; taint rankfall.dev/faulty is removed"
    assert nodes("reset", "--node", "n1")[:2] == (0, "n1: cleared; taint rankfall.dev/faulty is removed\n")
    assert nodes("reset", "-l", "pool=b", "-y")[:2] == (0, "n3: cleared; taint rankfall.dev/faulty is removed\n")
    assert [server.taints(name) for name in ("n1", "n2", "n3")] == [[], ["rankfall.dev/faulty"], []]
    assert nodes("reset", "--node", "n9")[0] == 66
    code, _, err = nodes("reset", "--node", "n1", "-l", "pool=b")
    assert (code, "no node n1 with pool=b" in err) == (66, True)


def test_reset_without_anybody_to_ask_wants_a_yes(server, nodes):
    server.add("n1", OURS)
    code, _, err = nodes("reset")
    assert (code, server.taints("n1")) == (2, ["rankfall.dev/faulty"])
    assert "give -y" in err


def test_reset_knows_the_key_that_is_configured_and_another_only_when_it_is_named(server, nodes, tmp_path):
    server.add("n1", SEEDS, FOREIGN)
    assert "no node has" in nodes("reset", "-y")[2]
    config = tmp_path / "health.toml"
    config.write_text('[policy]\nkey = "trainy.konduktor.ai/faulty"\n')
    assert (
        nodes("reset", "-y", "--config", str(config))[1] == "n1: cleared; taint trainy.konduktor.ai/faulty is removed\n"
    )
    assert nodes("reset", "--node", "n1", "--key", "maintenance")[1] == "n1: taint maintenance is removed\n"
    assert server.taints("n1") == []
    server.add("n2", SEEDS)
    assert (
        nodes("reset", "--key", "trainy.konduktor.ai/faulty", "-y", "--dry-run")[1]
        == "n2: dry run: taint trainy.konduktor.ai/faulty is removed\n"
    )
    config.write_text("[policy]\nkeys = 1\n")
    code, _, err = nodes("reset", "-y", "--config", str(config))
    assert (code, "health.toml: policy" in err) == (2, True)


def test_health_s18_a_node_that_others_change_meanwhile_is_read_again(server, nodes):
    server.add("n1")
    left = [FOREIGN, {**FOREIGN, "key": "second"}]

    def faster(node):
        if left:
            node["spec"].setdefault("taints", []).append(left.pop())
            server.touch(node)

    server.before = faster
    code, out, err = nodes("taint", "n1", "--reason", "smells burnt")
    assert (code, out, err) == (0, "n1: tainted rankfall.dev/faulty=true:NoSchedule\n", "")
    assert server.taints("n1") == ["second", "maintenance", "rankfall.dev/faulty"]
    server.before = server.touch
    for words in (("clear", "n1"), ("reset", "--node", "n1", "--key", "second")):
        code, _, err = nodes(*words)
        assert (code, "changed it 8 times" in err) == (69, True)


@pytest.mark.parametrize("words", [("clear", "n1"), ("reset", "--node", "n1", "--key", "maintenance")])
def test_health_s18_a_taint_that_somebody_else_takes_away_meanwhile_is_no_failure(server, nodes, words):
    server.add("n1", OURS, FOREIGN)

    def faster(node):
        if node["spec"].pop("taints", None):
            server.touch(node)

    server.before = faster
    code, _, err = nodes(*words)
    assert (code, err) == (0, "")
    assert server.taints("n1") == []


def test_a_node_that_is_named_twice_is_ordered_once(server, nodes):
    server.add("n1", OURS, labels={"pool": "a"})
    code, out, err = nodes("clear", "n1", "n1", "-l", "pool=a")
    assert (code, out, err) == (0, "n1: cleared; taint rankfall.dev/faulty is removed\n", "")


def test_health_s19_a_node_that_is_gone_hinders_no_other(server, nodes):
    for name in ("n1", "n2"):
        server.add(name, OURS, FOREIGN)
    server.gone = {"n1"}
    code, out, err = nodes("reset", "-y")
    assert (code, out) == (69, "n2: cleared; taint rankfall.dev/faulty is removed\n")
    assert "n1: failed: " in err
    assert "1 of 2 nodes" in err
    assert "n1: failed: " in nodes("reset", "--key", "maintenance", "--node", "n1")[2]


def test_a_missing_right_on_the_status_is_said_and_the_taint_goes_all_the_same(server, nodes):
    server.add("n1", OURS)
    server.forbid_status = True
    code, out, err = nodes("clear", "n1")
    assert (code, out) == (0, "n1: cleared; taint rankfall.dev/faulty is removed\n")
    assert "its condition was not written" in err


def test_clear_settles_one_cause_or_all_of_the_nodes_with_a_label(server, nodes):
    server.add("n1", OURS, labels={"pool": "a"})
    causes = tuple(OpenCause(code=f"xid/{n}", last_at=5, due_at=5) for n in (79, 74))
    server.nodes["n1"]["metadata"]["annotations"] = {
        ANNOTATION: encode_health(NodeHealth(state="quarantined", tainted=True, causes=causes))
    }
    assert nodes("clear", "n1", "--cause", "xid/79")[1] == "n1: xid/79 is settled; the taint stays for xid/74\n"
    assert "open: xid/74" in nodes("clear", "n1", "--cause", "xid/13")[1]
    assert nodes("clear", "-l", "pool=a")[0] == 2
    assert nodes("clear")[0] == 2
    assert nodes("clear", "-l", "pool=a", "-y")[:2] == (0, "n1: cleared; taint rankfall.dev/faulty is removed\n")


def test_list_and_describe_show_state_causes_and_history_and_escape_what_a_kernel_line_says(server, nodes):
    cause = OpenCause(
        code="xid/79", device="gpu 0000:4e:00", count=3, last_at=10**18, due_at=10**18, text="bad \x1b[2J line"
    )
    settled = OpenCause(code="xid/74", last_at=5, cured_at=9)
    health = NodeHealth(
        state="quarantined", since=10**18, tainted=True, causes=(cause, settled), more=2, quarantines=(10**18,),
        past_boots=("b0",), failed_check="gpu_count", checked_at=10**18, cleared_at=5, probation_until=9 * 10**18, repeat_offender=True, step="reboot",
    )  # fmt: skip
    server.add("n1", OURS, labels={"rankfall.dev/pool": "h100", "rankfall.dev/hands-off": "true"}, unschedulable=True)
    server.nodes["n1"]["metadata"]["annotations"] = {ANNOTATION: encode_health(health)}
    server.add("n2")
    server.nodes["n2"]["metadata"]["annotations"] = {ANNOTATION: "{"}
    server.add("n3")
    held = NodeHealth(state="suspect", held="budget", causes=(cause,))
    server.nodes["n3"]["metadata"]["annotations"] = {ANNOTATION: encode_health(held)}
    code, out, _ = nodes("list")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == [
        "NODE",
        "POOL",
        "STATE",
        "FOR",
        "TAINTED",
        "HELD",
        "BY",
        "READY",
        "QUARANTINES",
        "CAUSE",
    ]
    assert "h100" in lines[1]
    assert lines[1].endswith("ready, cordoned  1            xid/79 gpu 0000:4e:00 and 2 more")
    assert lines[2].endswith("its record is ignored")
    assert "suspect, held: budget" in lines[3]
    code, out, _ = nodes("describe", "n1")
    assert "\x1b" not in out
    for text in (
        "xid/79 gpu 0000:4e:00: requires quarantine; seen 3 times", "bad ", "xid/74: settled", "and 2 more", "quarantined: 2001-09-09T01:46:40Z",
        "failed check: gpu_count", "only a person can clear it", "on probation until", "in remediation: reboot", "not managed", "boots before: b0",
        "taints: rankfall.dev/faulty=true:NoSchedule", "last declared good: 1970-01-01T00:00:00Z", "checks passed in a row: 0",
    ):  # fmt: skip
        assert text in out
    assert "its record is ignored" in nodes("describe", "n2")[1]
    assert "should be quarantined but is not: budget" in nodes("describe", "n3")[1]
    document = json.loads(nodes("describe", "n1", "-o", "json")[1])
    assert (document["schema"], document["nodes"][0]["causes"][0]["wants"]) == ("rankfall.nodes/1", "quarantine")
    assert [each["node"] for each in yaml.safe_load(nodes("list", "-o", "yaml")[1])["nodes"]] == ["n1", "n2", "n3"]
    assert nodes("list", "-l", "pool=none")[1] == "No nodes.\n"


def test_a_person_taints_and_the_reason_is_in_record_and_condition(server, nodes):
    server.add("n1")
    assert (
        nodes("taint", "n1", "--reason", "fan", "--dry-run")[1]
        == "n1: dry run: tainted rankfall.dev/faulty=true:NoSchedule\n"
    )
    assert server.writes == []
    assert nodes("taint", "n1", "--reason", "fan\x1b[2J")[0] == 0
    told = nodes("describe", "n1")[1]
    assert "quarantined: never" not in told
    assert "by a person" in told
    assert record(server, "n1").causes[0].text.endswith(": fan\\x1b[2J")
    assert (server.condition("n1") or {})["reason"] == "Quarantined"
    assert nodes("taint", "n9", "--reason", "x")[0] == 66
    assert nodes("taint", "n1")[0] == 2
