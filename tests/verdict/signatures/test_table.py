"""A wrong file is refused with the file, the signature and the field."""

from __future__ import annotations

import tomllib

import pytest

from rankfall.model.errors import SpecError
from rankfall.verdict.signatures.catalogue import FAMILIES, MAX_FILE, parse, source

GOOD = {
    "id": '"gpu_oom.mine"',
    "slug": '"gpu_oom"',
    "role": '"primary"',
    "where": '["line"]',
    "specificity": "60",
    "pattern": "'out of cards on (?P<node>\\w+)'",
    "printed_by": '"acme 1"',
}
EXAMPLE = '[[signature.example]]\ntext = "out of cards on n1"\n[[signature.miss]]\ntext = "cards"\n'


def text(**changes: str) -> str:
    fields = GOOD | changes
    return "[[signature]]\n" + "".join(f"{key} = {value}\n" for key, value in fields.items() if value) + EXAMPLE


def test_a_good_file_is_read() -> None:
    (signature,) = parse(text(), origin="mine.toml")
    assert (signature.id, signature.where, signature.example[0].real) == ("gpu_oom.mine", ("line",), False)


def test_a_pattern_has_the_text_of_its_parts_and_other_braces_stay() -> None:
    (signature,) = parse(text(pattern="'out of cards|{{cuda_number}}999|{{two words}}'"), origin="mine.toml")
    parts = tomllib.loads(source("parts"))
    assert signature.pattern == f"out of cards|{parts['cuda_number']}999|{{{{two words}}}}"
    packaged = "".join(map(source, FAMILIES))
    assert [name for name in parts if packaged.count(f"{{{{{name}}}}}") < 2] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slug": '"gpu_ooom"'}, "slug: there is no cause 'gpu_ooom'"),
        ({"slug": '"host_oom"'}, "id: must begin with the slug"),
        ({"id": '"Gpu OOM"'}, "$.id"),
        ({"role": '"main"'}, "$.role"),
        ({"where": "[]"}, "$.where"),
        ({"where": '["console"]'}, "$.where"),
        ({"specificity": "101"}, "$.specificity"),
        ({"pattern": "'(?=x)y'"}, "pattern: RE2 rejects it"),
        ({"pattern": "'a(b'"}, "pattern: RE2 rejects it"),
        ({"pattern": "'(?P<colour>out) of cards on'"}, "pattern: unknown group 'colour'"),
        ({"pattern": "'out of {{colour}}'"}, "pattern: there is no part 'colour'; known: process, exit_words"),
        ({"unless": "'{{colour}}'"}, "unless: there is no part 'colour'"),
        ({"pattern": "'(?:cards)?'"}, "pattern: matches the empty line"),
        ({"pattern": "'cards'"}, "miss[0].text: is matched by the pattern"),
        ({"pattern": "'no cards at all'"}, "example[0].text: is not matched by the pattern"),
        ({"unless": "'n1'"}, "example[0].text: is not matched by the pattern"),
        ({"printed_by": ""}, "printed_by"),
        ({"colour": '"red"'}, "colour"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text(**changes), origin="mine.toml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("mine.toml: signature ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[signature", "not TOML"),
        ("[[pattern]]\nid = 1\n", "unknown key"),
        ("signature = 3\n", "must be a list of tables"),
        ("signature = [3]\n", "must be a list of tables"),
        ("unless = 3\n" + text(), "$.unless"),
        ("#" * (MAX_FILE + 1), "larger than"),
        (text() + text(), "used twice"),
        ('[[signature]]\nslug = "gpu_oom"\n', "number 1"),
    ],
)
def test_a_wrong_file_is_named(content: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(content, origin="mine.toml")
    assert "mine.toml" in str(caught.value)
    assert said in str(caught.value)


def test_what_does_not_count_in_a_file_does_not_count_for_a_signature_without_its_own() -> None:
    own = text(id='"gpu_oom.other"', unless="'n7'")
    shared, other = parse("unless = 'n8'\n" + text() + own, origin="mine.toml")
    assert (shared.unless, other.unless) == ("n8", "(?:n8)|(?:n7)")


def test_an_example_of_two_lines_is_refused() -> None:
    with pytest.raises(SpecError, match="must be one line"):
        parse(text().replace('"cards"', '"cards\\nlost"'), origin="mine.toml")


def test_too_many_signatures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.verdict.signatures.catalogue.MAX_SIGNATURES", 1)
    with pytest.raises(SpecError, match="more than 1"):
        parse(text() + text(id='"gpu_oom.other"'), origin="mine.toml")
