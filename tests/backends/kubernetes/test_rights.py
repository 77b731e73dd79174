"""The table of rights, and what is made from it: the Role, the section of the documentation, the command."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cluster import test_launch
from cluster.rights_used import granted
from cluster.run_world import RULES
from rankfall.backends.kubernetes.rights import BACKENDS, RIGHTS, manifest, renewed, role, rules, section
from rankfall.cli.app import command

PAGE = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text("utf-8")


def test_the_section_of_the_page_is_that_of_the_table():
    assert renewed(PAGE) == PAGE
    assert section() in PAGE


def test_the_rights_of_the_page_are_those_of_all_cluster_runs():
    shown = yaml.safe_load(section().partition("```yaml\n")[2].partition("```")[0])
    assert shown == role(namespace="team-a")
    assert shown["rules"] == RULES == rules()


def test_each_verb_of_a_resource_stands_once_for_a_backend():
    counted = Counter(
        (backend, row.on, row.subresource, verb) for row in RIGHTS for verb in row.verbs for backend in row.backends
    )
    assert [key for key, count in counted.items() if count > 1] == []


def test_what_launch_and_removal_are_tried_with_is_among_these_rights():
    assert granted(test_launch.RULES) <= granted(rules())


def test_the_backends_rights_together_are_all_there_are():
    each = [granted(rules([backend])) for backend in BACKENDS]
    assert set().union(*each) == granted(rules())
    assert all(one < granted(rules()) for one in each)
    assert ("batch", "jobs", "create") not in granted(rules(["jobset"]))


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
    | st.sampled_from(["null", "on", "1e3", "0x1", "y"])
)
def test_a_role_is_read_as_it_was_meant_whatever_the_namespace_is_called(namespace):
    made = role(namespace=namespace, backends=["job"])
    assert yaml.safe_load(manifest(made)) == made


def test_the_command_prints_the_role():
    done = CliRunner().invoke(command(), ["config", "rights", "--backend", "job", "-n", "team-b"])
    assert (done.exit_code, yaml.safe_load(done.output)) == (0, role(namespace="team-b", backends=["job"]))
    assert yaml.safe_load(CliRunner().invoke(command(), ["config", "rights"]).output)["rules"] == rules()


@pytest.mark.parametrize(
    ("name", "words"), [("local", "needs no rights"), ("slurm", "needs no rights"), ("lsf", "there is no backend")]
)
def test_a_backend_without_rights_is_refused(name, words):
    done = CliRunner().invoke(command(), ["config", "rights", "--backend", name], standalone_mode=False)
    assert words in str(done.exception)
