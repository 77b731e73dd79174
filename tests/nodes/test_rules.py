"""The tables of codes: complete, and of one mind with the tables of signatures and causes; an operator's file changes them."""

from __future__ import annotations

import pytest

from rankfall.model.errors import SpecError
from rankfall.nodes.config import ConfigFile, load_config, parse_config
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.verdict.signatures.catalogue import default_catalogue

RULES = packaged()
# Taint at once (node-health facts, 2.1); 154 only by its new value, 94 by its second job.
AT_ONCE = {
    46,
    48,
    54,
    62,
    64,
    74,
    79,
    95,
    109,
    110,
    119,
    120,
    136,
    140,
    143,
    151,
    155,
    156,
    158,
    166,
    167,
    169,
    171,
    172,
    173,
}


def test_every_xid_of_the_catalogue_has_a_rule_and_those_that_act_at_once_are_the_listed_ones():
    assert all(RULES.find(f"xid/{number}") is not None for number in range(1, 177))
    acting = {n for n in range(1, 177) if (rule := RULES.find(f"xid/{n}")) and rule.action == "quarantine"}
    assert acting == AT_ONCE | {94}


def test_each_rule_is_whole():
    for rule in RULES:
        assert rule.count == 1 or rule.window_s > 0, rule.code
        assert rule.recovers is None or (rule.action == "none" and RULES.find(rule.recovers) is not None), rule.code


def test_every_signature_of_kernel_lines_has_a_rule_and_every_rule_its_signature():
    kernel = {each.id for each in default_catalogue().signatures if "kernel" in each.where and "line" not in each.where}
    assert {rule.code.partition("/")[2] for rule in RULES if rule.code.startswith("kernel/")} == kernel


def test_health_s33_an_unknown_number_has_no_rule_until_an_operator_gives_it_one():
    for code in ("xid/999", "sxid/99999/fatal", "kernel/none.such", "verdict/none_such"):
        assert RULES.find(code) is None
        assert RULES.action(code) == "none"
    rules = parse_config('[[rule]]\ncode = "xid/999"\naction = "quarantine"\n', origin="own").rules
    assert rules.action("xid/999") == "quarantine"


def test_health_s04_s03_the_word_of_the_line_counts_more_than_the_table():
    assert RULES.action("sxid/20034/fatal") == "quarantine"
    assert RULES.action("sxid/20034/nonfatal") == "watch"
    assert RULES.action("sxid/19049/nonfatal") == "none"
    assert RULES.action("sxid/22003") == "quarantine"


def test_causes_of_verdicts_have_the_rule_of_the_causes():
    assert [RULES.action(f"verdict/{slug}") for slug in ("gpu_ecc", "nccl_ib_error", "unknown", "host_oom")] == [
        "quarantine",
        "suspect",
        "none",
        "none",
    ]


def test_an_override_changes_the_fields_it_names_and_all_words_of_a_number():
    text = '[[rule]]\ncode = "sxid/20034"\naction = "watch"\n[[rule]]\ncode = "xid/31"\ncount = 9\n'
    rules = parse_config(text, origin="own").rules
    assert rules.action("sxid/20034/fatal") == "watch"
    before, after = RULES.find("xid/31"), rules.find("xid/31")
    assert before is not None
    assert after is not None
    assert (after.count, after.action, after.window_s, after.name) == (9, before.action, before.window_s, before.name)
    word = parse_config(text + '[[rule]]\ncode = "sxid/20034/fatal"\naction = "suspect"\n', origin="own").rules
    assert (word.action("sxid/20034/fatal"), word.action("sxid/20034/nonfatal")) == ("suspect", "watch")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[[rule", "not TOML"),
        ("rules = []", "no such section"),
        ("rule = 3", "list of tables"),
        ("[[rule]]\naction = 'none'", "code"),
        ("[[rule]]\ncode = 'Xid 79'\naction = 'none'", "code"),
        ("[[rule]]\ncode = 'xid/seventynine'\naction = 'none'", "nothing has the code xid/seventynine"),
        ("[[rule]]\ncode = 'sxid/fatal'\naction = 'none'", "nothing has the code"),
        ("[[rule]]\ncode = 'verdict/gpu_broken/suspect'\naction = 'none'", "nothing has the code"),
        ("[[rule]]\ncode = 'xid/79'\naction = 'explode'", "action"),
        ("[[rule]]\ncode = 'xid/999'", "action"),
        ("[[rule]]\ncode = 'xid/79'\ncount = 0", "count"),
        ("[[rule]]\ncode = 'xid/79'\ncount = 4", "window_s"),
        ("[[rule]]\ncode = 'xid/79'\ntaint = true", "taint"),
        ("[[rule]]\ncode = 'xid/79'\n[[rule]]\ncode = 'xid/79'", "already"),
        ("[[rule]]\ncode = 'xid/162'\naction = 'quarantine'", "action is none"),
        ("#" * (1 << 20) + "##", "larger"),
        ("policy = 3", "must be a table"),
        ("[policy]\nrate_node = 3", "rate_node"),
        ("[policy.budget]\npercent = 0", "percent"),
        ("[policy]\nkey = 'two words'", r"policy.key: is no key of a taint, as example.com/faulty"),
        ("[policy]\nvalue = 'two words'", r"policy.value: is no value of a taint"),
        ("[policy]\npool_label = '/'", r"policy.pool_label: is no key of a label"),
        (
            "[policy.pools.h100]\nnodes = 2\n[policy.pools.a100]\nnodes = 0",
            r"policy.pools.a100.nodes: Expected `int` >= 1",
        ),
        ("[policy]\nprobation_s = 1000000000000", "probation_s"),
        ("[policy]\nrate_s = " + "1" * 5_000, "not TOML"),
        ("[[metrics]]\nnode = 'n1'\nurl = 'http://[x'", "url"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text, word):
    with pytest.raises(SpecError, match=word):
        parse_config(text, origin="own.toml")


def test_a_rule_of_any_code_that_a_record_can_have_is_accepted():
    codes = ("xid/31", "xid/144/fatal", "xid/unreadable", "sxid/20034/fatal", "kernel/own.signature", "condition/Own")
    codes += ("metric/own", "pod/no_gpu_visible.cuda", "verdict/gpu_ecc", "verdict/gpu_ecc/suspect")
    for code in codes:
        rules = parse_config(f'[[rule]]\ncode = "{code}"\naction = "none"\n', origin="own").rules
        assert rules.find(code) is not None


def test_a_wrong_policy_names_the_fields():
    with pytest.raises(SpecError) as caught:
        parse_config("[policy]\nrate_node = 3", origin="own.toml")
    assert "rate_nodes" in (caught.value.hint or "")
    with pytest.raises(SpecError) as caught:
        parse_config("[policy]\npool_label = ' '", origin="own.toml")
    assert "leave it out for its default" in (caught.value.hint or "")


def test_health_s34_a_file_is_used_without_restart_and_a_bad_one_keeps_the_old_rules(tmp_path):
    path = tmp_path / "rules.toml"
    file = ConfigFile(path)
    assert not file.reload()
    assert "No such file" in (file.problem or "")
    path.write_text('[[rule]]\ncode = "xid/109"\naction = "none"\n')
    assert file.reload()
    assert (file.config.rules.action("xid/109"), file.problem) == ("none", None)
    assert not file.reload()
    for bad in (b"[[rule]]\ncode = 109", b"\xff\xfe"):
        path.write_bytes(bad)
        assert not file.reload()
        assert file.config.rules.action("xid/109") == "none"
        assert "previous settings remain active" in (file.problem or "")
    path.write_text('[[rule]]\ncode = "xid/109"\naction = "none"\n')
    file.reload()
    assert file.problem is None
    assert not ConfigFile(None).reload()


def test_one_file_holds_policy_and_rules(tmp_path):
    path = tmp_path / "health.toml"
    path.write_text(
        '[policy]\nkey = "trainy.konduktor.ai/faulty"\n[policy.pools.h100]\npercent = 25\n[[rule]]\ncode = "xid/109"\naction = "none"\n'
    )
    config = load_config(path)
    assert (config.policy.key, config.policy.pools["h100"].percent) == ("trainy.konduktor.ai/faulty", 25)
    assert config.rules.action("xid/109") == "none"
    assert load_config(None).policy.key == "rankfall.dev/faulty"
    with pytest.raises(SpecError, match="cannot be read"):
        load_config(tmp_path / "none.toml")
