"""A whole run whose records are in a shared directory too: what the run's own folder loses comes back from there."""

from __future__ import annotations

import shutil

from rankfall.explain import explain_run

from .conftest import Bench


def test_errors_s35_records_that_the_run_lost_come_back_from_the_store_once(bench: Bench) -> None:
    url = f"file://{bench.folder}/shared"
    run, outcome = bench.run("if rank == 1: raise ValueError('bad sample')\ntime.sleep(600)", record_store=url)
    assert outcome.verdict is not None
    assert (outcome.verdict.rank, outcome.verdict.cause.slug) == (1, "user_code_exception")
    kept = {path.name for path in run.records_dir.glob("error-*.json")}
    copies = bench.folder / "shared" / run.id / "errors"
    assert kept <= {path.name for path in copies.iterdir()}
    shutil.rmtree(run.records_dir)
    found = explain_run(run, fresh=True).verdict
    assert (found.rank, found.cause.slug) == (1, "user_code_exception")
    assert sum(1 for proof in found.evidence if proof.source == "record") == len(kept)
    assert {path.name for path in run.records_dir.glob("error-*.json")} == kept
