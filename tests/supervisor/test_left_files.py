"""Workers that end with 0 although they failed, as Flyte's do: the error file that they leave is their word, and no exit code outweighs it."""

from __future__ import annotations

import base64
import time

import pytest

from support.flyte_errors import document

from .conftest import Bench

LEAVES = """
import base64, pathlib
if rank == {rank}:
    folder = pathlib.Path(os.environ["{variable}"], "errors")
    folder.mkdir(exist_ok=True)
    (folder / "{name}").write_bytes(base64.b64decode("{data}"))
"""


def leaves(bench: Bench, *, rank: int, variable: str, name: str = "error.pb", at: int | None = None) -> str:
    data = base64.b64encode(document("ValueError: bad shard", at=at)).decode()
    return LEAVES.format(rank=rank, variable=variable, name=name, data=data)


@pytest.mark.parametrize("nnodes", [1, 2])
@pytest.mark.parametrize("variable", ["RANKFALL_SLOT_DIR", "RANKFALL_RECORD_DIR"])
def test_an_error_file_beats_exit_codes_of_0(bench: Bench, nnodes: int, variable: str) -> None:
    code = leaves(bench, rank=nnodes - 1, variable=variable)
    _, outcome = bench.run(code, nnodes=nnodes, nproc_per_node=1, policies={"max_restarts": 0})
    assert (outcome.state, outcome.exit_origin) == ("failed", "rankfall")
    assert outcome.code != 0
    assert outcome.verdict is not None
    assert outcome.verdict.cause.slug == "user_code_exception"
    assert outcome.verdict.decisive is not None
    assert "bad shard" in outcome.verdict.decisive.line
    if variable == "RANKFALL_SLOT_DIR":
        assert (outcome.verdict.rank, outcome.verdict.slot) == (nnodes - 1, nnodes - 1)


def test_one_of_many_files_is_as_good_as_the_single_one(bench: Bench) -> None:
    code = leaves(bench, rank=1, variable="RANKFALL_SLOT_DIR", name="error-5f0c.pb")
    _, outcome = bench.run(code, nnodes=2, nproc_per_node=1, policies={"max_restarts": 0})
    assert outcome.state == "failed"
    assert outcome.verdict is not None
    assert outcome.verdict.rank == 1


def test_a_file_from_before_the_attempt_denies_nothing(bench: Bench) -> None:
    code = leaves(bench, rank=0, variable="RANKFALL_SLOT_DIR", at=time.time_ns() - 3600 * 10**9)
    _, outcome = bench.run(code, nnodes=1, nproc_per_node=1)
    assert outcome.state == "succeeded"
