"""Mutated lines of the catalogue give no wrong code, as far as some thousand show; ``make fuzz`` reads ten million."""

from __future__ import annotations

import re

import pytest

from nodes.fuzz_lines import examples, oracle, run
from nodes.lines import HARMLESS, LINES
from rankfall.nodes.rules.fault_rules import packaged
from rankfall.nodes.rules.kernel_lines import Recogniser
from rankfall.verdict.signatures.catalogue import FAMILIES, parse, source


def test_the_second_reader_knows_the_lines_that_people_know():
    assert [oracle(line.encode()) for line, *_ in LINES] == [code for _, code, *_ in LINES]
    assert [oracle(line.encode()) for line in HARMLESS] == [None] * len(HARMLESS)
    assert oracle(b"NVRM: Xid (PCI:0000:4e:00) 79") == "xid/unreadable"


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_lines_give_no_wrong_code(seed):
    outcome = run(seed, 4_000)
    assert outcome.wrong == []
    assert set(outcome.kinds) == {"none", "xid", "sxid", "kernel"}


def test_lines_of_a_seed_are_always_the_same():
    assert run(7, 300) == run(7, 300)
    assert len(examples()) > 100


def test_every_form_of_the_catalogue_has_a_line_that_gives_its_code():
    """Xids and SXids by their table in each form that drivers print; all others by an example of their signature."""
    reader = Recogniser()
    numbers = sorted({rule.code.split("/")[1] for rule in packaged() if rule.code.startswith("xid/")}, key=int)
    for number in numbers:
        for head in ("PCI:0000:01:00", "0000:01:00", "PCI:0000:01:00 GPU-I:05", "PCI:0000:01:00 GPU-I:01 GPU-CI:00"):
            for rest in ("", ", text", ", pid=7, name=a:b c, text", ", pid='<unknown>', name=<unknown>, text"):
                told = reader.fresh().read(f"NVRM: Xid ({head}): {number}{rest}".encode())
                assert told is not None
                assert (told.code, told.device) == (f"xid/{number}", "gpu 0000:01:00")
    for number in {rule.code.split("/")[1] for rule in packaged() if rule.code.startswith("sxid/")}:
        for word, code in (("Fatal", "/fatal"), ("Non-fatal", "/nonfatal"), ("Link 30", "")):
            told = reader.fresh().read(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {number}, {word}, Link 1".encode())
            assert told is not None
            assert told.code == f"sxid/{number}{code}"
    for sign in (each for family in FAMILIES for each in parse(source(family), origin=family)):
        if "kernel" in sign.where and "line" not in sign.where:
            # As journals and dmesg print them: "Dec  2 10:41:07 worker4 kernel: [240166.104411] text".
            texts = [re.sub(r"^(?:.*? kernel: )?(?:\[[^]]*\] ?)?", "", each.text, count=1) for each in sign.example]
            told = [reader.fresh().read(text.encode()) for text in (*texts, *(each.text for each in sign.example))]
            assert f"kernel/{sign.id}" in {each.code for each in told if each is not None}, (sign.id, texts)
