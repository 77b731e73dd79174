"""Names: valid whatever is given, unique, and short enough up to the last index of the largest job."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankfall.backends.kubernetes.manifests.names import Names, check_names, kubernetes_base, names_for
from rankfall.backends.kubernetes.manifests.request import pod_role
from rankfall.model import JobSpec, Refused

LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
LAST = 99_999


@given(st.text(max_size=250))
@example("Big_Model/Train")
@example("x" * 200)
@example("---///___")
@example("7b")
@example("")
@example("Größe")
@example("a" * 25 + "-b")
def test_launch_s04_any_text_gives_a_valid_beginning_of_a_name(text):
    base = kubernetes_base(text)
    assert LABEL.fullmatch(base)
    assert len(base) <= 26
    assert "--" not in base
    assert kubernetes_base(base) == base


def of_one_role(*, run, attempt, backend, role, count=1):
    """The names of a job of one role."""
    part = pod_role(JobSpec(backend=backend, role=role, command=("train.py",)), role)
    return names_for(run=run, attempt=attempt, backend=backend, roles=[part], counts=[count])[0]


@pytest.mark.parametrize("backend", ["job", "jobset", "trainjob"])
@given(
    name=st.text(st.sampled_from("abcxyz019-"), min_size=1, max_size=40),
    digits=st.text(st.sampled_from("0123456789abcdef"), min_size=6, max_size=6),
    attempt=st.integers(1, 9999),
    role=st.text(st.sampled_from("abc9"), min_size=1, max_size=20),
)
def test_launch_s04_every_derived_name_is_valid_up_to_the_last_index(backend, name, digits, attempt, role):
    names = of_one_role(run=f"{name}-{digits}", attempt=attempt, backend=backend, role=role, count=LAST + 1)
    for derived in (names.object, names.host(0), names.host(LAST), names.longest_pod(LAST + 1)):
        assert LABEL.fullmatch(derived)
    assert digits in names.object
    assert all(len(value) <= 63 for value in names.labels.values())
    assert names.address(3, namespace="team") == f"{names.host(3)}.{names.object}.team.svc"


def test_launch_s37_a_name_is_the_runs_id_and_its_attempt_where_it_fits():
    assert of_one_role(run="bert-0a1b2c", attempt=2, backend="job", role="worker").object == "bert-0a1b2c-a2"
    long = of_one_role(run=f"{'m' * 40}-0a1b2c", attempt=2, backend="jobset", role="worker")
    assert re.fullmatch(r"m+-0a1b2c-a2", long.object)
    assert long.labels["rankfall.dev/run"] == f"{'m' * 40}-0a1b2c"


def test_two_long_runs_of_one_name_stay_apart():
    first, second = (
        of_one_role(run=f"{'m' * 40}-{hex_}", attempt=1, backend="jobset", role="r" * 20).object
        for hex_ in ("000000", "000001")
    )
    assert first != second


def test_jobapi_s27_refusal_09_a_longest_pod_name_of_more_than_63_characters():
    names = Names(run="x-000000", attempt=1, object="x" * 42, role="evaluation")
    with pytest.raises(Refused, match=r"\$\.name.*backend jobset.*pod of the last index.*64 characters") as caught:
        check_names(names, count=100, backend="jobset")
    assert "shorter name" in (caught.value.hint or "")
    check_names(names, count=10, backend="jobset")
