"""A document of a cloud's log service is read as the text of its records, the oldest first."""

from __future__ import annotations

import json

import pytest

from rankfall.evidence.files.json_records import lines_of_document, may_be_document
from rankfall.evidence.files.unwrap import Unwrapper
from rankfall.explain import explain_files

TRACE = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 3, in <module>',
    "    main()",
    "KeyError: 'labels'",
)
LINES = ("step 41 loss 2.5", *TRACE)
POD = {"pod_name": "train-worker-1", "container_name": "main"}


def stamp(number):
    return f"2026-01-01T10:00:0{number}Z"


DOCUMENTS = {
    "Google Cloud, newest first": [
        {"severity": "ERROR", "textPayload": line, "timestamp": stamp(n), "resource": {"labels": POD}}
        for n, line in enumerate(LINES)
    ][::-1],
    "Google Cloud, payload of JSON": [
        {"jsonPayload": {"message": line}, "timestamp": stamp(n), "resource": {"labels": POD}}
        for n, line in enumerate(("step 41", "\n".join(TRACE)))
    ],
    "CloudWatch": {
        "events": [
            {"logStreamName": "s", "timestamp": 1_700_000_000_000 + n, "message": f"[pod/train-worker-1/main] {line}"}
            for n, line in enumerate(LINES)
        ],
        "searchedLogStreams": [],
    },
    "Elasticsearch, newest first": {
        "took": 3,
        "hits": {
            "total": {"value": 5},
            "hits": [
                {"_index": "l", "_source": {"@timestamp": stamp(n), "message": line, "kubernetes": POD}}
                for n, line in enumerate(LINES)
            ][::-1],
        },
    },
    "Loki, newest first": {
        "status": "success",
        "data": {
            "result": [
                {
                    "stream": {"pod": "train-worker-1", "container": "main"},
                    "values": [[str(10**18 + n), line] for n, line in enumerate(LINES)][::-1],
                }
            ]
        },
    },
}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_records_of_a_document_are_its_text(name, indent, tmp_path):
    file = tmp_path / "export.json"
    file.write_text(json.dumps(DOCUMENTS[name], indent=indent))
    verdict = explain_files([file]).verdict
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.pod) == (
        "user_code_exception",
        "likely",
        "train-worker-1",
    )
    assert verdict.decisive.line.endswith("KeyError: 'labels'")


def test_a_rank_in_a_record_is_that_of_its_lines(tmp_path):
    file = tmp_path / "export.json"
    rows = [{"timestamp": 5, "jsonPayload": {"rank": 3, "message": "\n".join(TRACE)}}, {"timestamp": 6, "message": "x"}]
    file.write_text(json.dumps(rows))
    assert explain_files([file]).verdict.rank == 3


def test_a_line_of_a_document_has_the_number_of_its_record_s_text():
    text = json.dumps(DOCUMENTS["Google Cloud, newest first"], indent=1)
    reader = Unwrapper()
    assert reader.push(text.encode()) == b""
    *lines, rest = reader.push(b"", final=True).decode().split("\n")
    assert [line.partition("] ")[2] for line in lines] == list(LINES)
    assert not rest
    rows = text.split("\n")
    for number, line in enumerate(LINES, 1):
        assert json.dumps(line) in rows[reader.number(number) - 1]


@pytest.mark.parametrize(
    "text",
    [
        '{"lr": 0.1}\n{"lr": 0.2}\n',
        '[rank0]: {"lr": 0.1}',
        "{'lr': 0.1}",
        "[2026-01-01 10:00:00] start",
    ],
)
def test_other_text_begins_no_document(text):
    assert not may_be_document(text.encode())


@pytest.mark.parametrize(
    "data",
    [
        b'{"lr": 0.1, "text": "x"}',
        b'[{"lr": 0.1}]',
        b'[["a", 1], ["b"]]',
        b'{\n "lr": 0.1\n}\nstart\n',
        b'{"apiVersion": "v1", "items": [{"message": "x"}]}',
        b"[" * 4_000,
        b"[" * 4_000 + b"]" * 4_000,
        b'[{"message": "\xff"}]',
    ],
)
def test_another_document_stays_as_it_is(data):
    assert lines_of_document(data) is None
    reader = Unwrapper()
    assert reader.push(data) + reader.push(b"", final=True) == data


def test_a_configuration_before_a_log_costs_no_line(tmp_path):
    file = tmp_path / "log.txt"
    file.write_text("\n".join(('{"lr": 0.1,', '"text": "x"}', *LINES, "")))
    verdict = explain_files([file]).verdict
    assert (verdict.cause.slug, verdict.decisive.where.endswith(":7")) == ("user_code_exception", True)
