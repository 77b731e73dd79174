"""A user's own signatures: from the home's folder, or from a file named on the command line."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files
from rankfall.model import NotFound, SpecError
from rankfall.rundir.user_signatures import tolerant_catalogue

OWN = """
[[signature]]
id = "hub_unreachable.our_store"
slug = "hub_unreachable"
role = "primary"
where = ["line"]
specificity = 70
pattern = '''FeatureStore\\[\\w+\\] gave up'''
printed_by = "our feature store 3"
[[signature.example]]
text = "FeatureStore[eu] gave up after 5 tries"
[[signature.miss]]
text = "FeatureStore[eu] ready"
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("step 1\nFeatureStore[eu] gave up after 5 tries\n")
    return path


def slug(*args, **more):
    return explain_files(*args, **more).verdict.cause.slug


def test_a_file_that_is_named_counts(log, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKFALL_HOME", str(tmp_path / "home"))
    assert slug([log]) == "unknown"
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    assert slug([log], signatures=[own]) == "hub_unreachable"


def test_the_folder_of_the_home_always_counts(log, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "signatures").mkdir(parents=True)
    (home / "signatures" / "own.toml").write_text(OWN)
    monkeypatch.setenv("RANKFALL_HOME", str(home))
    assert slug([log]) == "hub_unreachable"


def test_a_damaged_file_is_named_with_its_field(log, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(OWN.replace("FeatureStore[eu] ready", "FeatureStore[eu] gave up"))
    with pytest.raises(SpecError, match=r"own\.toml.*our_store.*miss"):
        explain_files([log], signatures=[own])
    with pytest.raises(NotFound):
        explain_files([log], signatures=[tmp_path / "nothing.toml"])


def test_a_supervisor_goes_on_with_the_packaged_ones_and_says_why(tmp_path):
    (tmp_path / "signatures").mkdir()
    (tmp_path / "signatures" / "own.toml").write_text("[[signature]]\nid = 3\n")
    catalogue, problem = tolerant_catalogue(tmp_path)
    assert len(catalogue.signatures) > 150
    assert "own.toml" in problem
