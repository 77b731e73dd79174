"""Values and words reach the process byte for byte, whatever dollar signs they hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backends.kubernetes.made import compiled, container, expand, spec, started
from rankfall.backends.kubernetes.manifests.request import escape
from rankfall.model import SpecError
from rankfall.model.jobspec.secrets import is_masked

TEXT = st.text(
    st.one_of(st.sampled_from("$$$(()) \"'\\\n\tAé😀{}RANKFALL_SLOT"), st.characters(blacklist_categories=("Cs",))),
    max_size=30,
).filter(lambda text: "\0" not in text)
# A word that hides a value is refused (tests/model).
WORDS = st.lists(TEXT.filter(lambda text: not is_masked(text)), max_size=3)
HARD = "a b'\"$(HOME)$$(X)$${Y}`$\\\n$é$("


@given(TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
@example(HARD, {"HOME": "/root"})
@example("$$$", {})
@example("$", {})
def test_escaped_text_expands_to_itself(text, variables):
    assert expand(escape(text), variables) == text


def test_the_reader_follows_kubernetes_and_would_find_an_unescaped_text():
    assert expand("$(A)-$$(A)-$(B)-$A-$(-$", {"A": "1"}) == "1-$(A)-$(B)-$A-$(-$"
    assert expand("$$", {}) == "$"
    assert expand("$é", {}) != "$é"


@given(words=WORDS, value=TEXT)
@example([HARD], HARD)
def test_launch_s07_words_and_values_reach_the_process_as_they_are(words, value):
    job = spec(command=["train.py", *words], env={"VALUE": value}, nnodes=2)
    command, variables = started(compiled(job), slot=1)
    assert command[command.index("--") + 1 :] == ["python3", "train.py", *words]
    assert variables["VALUE"] == value
    torchrun = json.loads(variables["RANKFALL_TORCHRUN"])
    assert torchrun[len(torchrun) - len(words) - 1 :] == ["train.py", *words]
    assert torchrun[torchrun.index("--node-rank") + 1] == "1"


@given(words=WORDS)
def test_a_given_torchrun_keeps_its_words_too(words):
    job = spec(command=["torchrun", "--nnodes=2", "train.py", *words], nnodes=2)
    command, _ = started(compiled(job), slot=1)
    assert command[len(command) - len(words) - 2 :] == ["--nnodes=2", "train.py", *words]
    assert command[command.index("--node-rank") + 1] == "1"


def test_the_slots_number_stands_before_all_that_refer_to_it():
    env = container(compiled(spec(nnodes=2)))["env"]
    assert env[0]["name"] == "RANKFALL_SLOT"


def test_bytes_that_a_manifest_cannot_carry_are_refused():
    with pytest.raises(SpecError, match=r"\$\.command.*UTF-8"):
        compiled(spec(command=["train.py", "\udcff"]))


@pytest.mark.parametrize("env", [{"A B": "1"}, {"1": "1"}, {"A": "\udcff"}])
def test_variables_that_a_pod_cannot_have_are_refused(env):
    with pytest.raises(SpecError, match=r"\$\.env\."):
        compiled(spec(env=env))
