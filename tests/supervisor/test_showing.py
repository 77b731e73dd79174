"""When a verdict is shown on the object of its job: where the job wants it, when an attempt fell, by a backend that can."""

from __future__ import annotations

import pytest

from rankfall.backends.foreign.backend import ForeignBackend
from rankfall.backends.local.backend import LocalBackend
from rankfall.backends.plan import Plan
from rankfall.model import Verdict
from supervisor.native_stories import DONE, FELL, GOING, Bench, Cluster


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Verdict]]:
    found: list[tuple[int, Verdict]] = []

    def show(self: Cluster, plan: Plan, verdict: Verdict) -> str | None:
        found.append((plan.attempt, verdict))
        return "the verdict could not be put there: no right"

    monkeypatch.setattr(Cluster, "show", show)
    return found


@pytest.mark.parametrize(("annotate", "code"), [(True, 3), (False, 3), (True, 0)])
def test_only_a_fall_is_shown_and_only_where_that_is_wished(tmp_path, shown, annotate, code):
    bench = Bench(tmp_path, GOING, kubernetes={"annotate": annotate})

    def look():
        for slot in range(2):
            bench.pod(slot, code=code)
        return FELL if code else DONE

    bench.workload.looks.append(look)
    bench.record()
    if annotate and code:
        ((attempt, verdict),) = shown
        assert (attempt, verdict.state, verdict.version) == (1, "failed", 1)
        assert any("no right" in text for text in bench.texts("gap"))
    else:
        assert shown == []


def test_of_what_rankfall_did_not_start_nothing_can_be_written():
    assert not hasattr(ForeignBackend, "show")
    assert not hasattr(LocalBackend, "show")
