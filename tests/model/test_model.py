from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import (
    JobSpec,
    Record,
    RunsDocument,
    RunSummary,
    SpecError,
    catalogue,
    cause_info,
    schemas,
    spec_from,
)
from rankfall.model.exit_codes import CAUSE_CODES, CODE_TABLE, exit_class, shell_code
from rankfall.model.timestamps import rfc3339
from rankfall.verdict.diagnose import diagnose
from support.cases import case, left, piece

FOLDER = Path(schemas.__file__).parent


@pytest.mark.parametrize("name", sorted(schemas.DOCUMENTS))
def test_committed_schemas_are_those_of_the_structs(name):
    assert json.loads((FOLDER / f"{name}.json").read_text()) == schemas.schema_of(name)


def test_a_verdict_fits_its_schema_and_leaves_no_field_out():
    verdict = diagnose(case([left(0, 1), left(1, 1)], [piece("host_oom", 0)])).verdict
    document = json.loads(msgspec.json.encode(verdict))
    schema = json.loads((FOLDER / "rankfall.verdict-1.json").read_text())
    jsonschema.validate(document, schema)
    for field in list(document):
        without = {k: v for k, v in document.items() if k != field}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(without, schema)
    assert list(document) == [
        "schema", "version", "run", "attempt", "state", "exit_origin", "cause", "scope", "rank", "local_rank", "role", "slot",
        "pod", "node", "gpu", "time", "decisive", "evidence", "consequences", "alternatives", "missing", "retry", "node_action",
        "decision",
    ]  # fmt: skip


def test_ps_fits_its_schema():
    document = RunsDocument(runs=(RunSummary(run="job-000000", name="job", backend="local", state="failed"),))
    schema = json.loads((FOLDER / "rankfall.runs-1.json").read_text())
    jsonschema.validate(json.loads(msgspec.json.encode(document)), schema)


def test_a_record_of_a_newer_writer_is_still_read():
    record = msgspec.json.decode(b'{"id": "x", "kind": "start", "rank": 3, "new_field": {"a": 1}}', type=Record)
    assert (record.rank, record.at_ns) == (3, None)


@pytest.mark.parametrize(
    ("data", "path", "word"),
    [
        ({}, "$.command", "empty"),
        ([], "$", "mapping"),
        ({"command": []}, "$.command", "empty"),
        ({"command": ["t"], "nodes": 2}, "$.nodes", "nnodes"),
        ({"command": ["t"], "nnodes": 0}, "$.nnodes", ">= 1"),
        ({"command": ["t"], "nnodes": "2"}, "$.nnodes", "int"),
        ({"command": ["t"], "backend": "lsf"}, "$.backend", "local"),
        ({"command": ["t"], "launcher": "mpi"}, "$.launcher", "torchrun"),
        ({"command": ["t"], "name": "Bad_Name"}, "$.name", "lower-case"),
        ({"command": ["t"], "nnodes": 4, "nnodes_max": 2}, "$.nnodes_max", "less"),
        ({"command": ["t"], "nnodes": 1, "nnodes_max": 2, "rdzv": "static"}, "$.rdzv", "c10d"),
        ({"command": ["t"], "env": {"RANKFALL_RUN": "x"}}, "$.env.RANKFALL_RUN", "Rankfall"),
        ({"command": ["t"], "policies": {"max_restart": 1}}, "$.policies.max_restart", "max_restarts"),
        ({"command": ["t"], "policies": {"settle_quiet_s": 9, "settle_max_s": 1}}, "$.policies.settle_max_s", "less"),
        ({"command": ["t"], "policies": {"retryable": ["A"], "final": ["A"]}}, "$.policies.retryable", "both"),
        ({"command": ["t"], "policies": {"final": ["A", "b."]}}, "$.policies.final", "name"),
        ({"command": ["t", "\udcff"]}, "$.command", "UTF-8"),
        ({"command": ["t\0"]}, "$.command", "NUL"),
        ({"command": ["t"], "policies": {"start_timeout_s": 5}}, "$.policies.start_timeout_s", "deadlines.startup_s"),
    ],
)
def test_a_bad_spec_names_the_field_and_the_allowed_values(data, path, word):
    with pytest.raises(SpecError) as caught:
        spec_from(data)
    assert caught.value.path == path
    assert word in str(caught.value) or word == "both"


def test_a_spec_survives_its_own_json():
    spec = spec_from({"command": ["train.py", "--lr", "1"], "nnodes": 2, "policies": {"budgets": {"network": 5}}})
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


def test_every_exit_code_is_in_exactly_one_class():
    rows = [row for row in CODE_TABLE for _ in range(row.first, row.last + 1)]
    assert [code for row in CODE_TABLE for code in range(row.first, row.last + 1)] == list(range(256))
    classes = {code: exit_class(code) for code in range(256)}
    assert [rows[code].kind for code in classes] == list(classes.values())
    causes = set(CAUSE_CODES.values())
    assert [c for c in classes if classes[c] == "retryable" and c not in causes] == [130, 137, 143]
    assert [c for c in classes if classes[c] == "user_retryable"] == [138, CAUSE_CODES["user_retryable"]]
    assert all(classes[code] == "permanent" for code in (1, 2, 126, 127, 128, 139))
    with pytest.raises(ValueError, match="256"):
        exit_class(256)


def test_cause_codes_are_the_published_range():
    assert sorted(CAUSE_CODES.values()) == list(range(200, 220))


def test_shell_codes():
    assert (shell_code(code=3, signal=None), shell_code(code=None, signal=9)) == (3, 137)
    assert shell_code(code=None, signal=None) is None


def test_an_unknown_slug_reads_as_unknown():
    assert cause_info("from_the_future").slug == "unknown"
    assert len(catalogue()) >= 80


@given(st.integers(0, 253402300799 * 10**9))
def test_times_are_rfc3339_with_nanoseconds(at):
    text = rfc3339(at)
    assert text is not None
    assert text.endswith("Z")
    assert len(text) == 30
    assert int(text[20:29]) == at % 10**9


@given(st.integers())
def test_any_time_is_text_or_nothing(at):
    assert rfc3339(at) is None or rfc3339(at).endswith("Z")
