"""What reading flight-recorder dumps takes: bounded by their bytes for one, and by fixed limits for all of them."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest

from rankfall.evidence.attempt.evidence_set import dump_evidence
from rankfall.evidence.files.log_files import case_of_files
from rankfall.evidence.readers import flight_recorder, plain_pickle
from rankfall.evidence.readers.flight_recorder import read_dump
from rankfall.evidence.readers.plain_pickle import NotPlain, load


def call(number, **more):
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "state": "scheduled",
    } | more


def document(*calls, **more):
    return pickle.dumps({"entries": list(calls), "pg_config": {"0": {"ranks": "[0, 1, 2, 3]"}}} | more, protocol=4)


def shared_members():
    ranks = list(range(60_000))
    return document(call(1), pg_config={str(n): {"ranks": ranks} for n in range(4000)})


def shared_text():
    ranks = str(list(range(60_000)))
    return document(call(1), pg_config={str(n): {"ranks": ranks} for n in range(4000)})


def shared_fields():
    wide = ["x" * 100] * 100
    return document(*[call(n, input_sizes=wide, profiling_name=wide) for n in range(20_000)])


def shared_calls():
    return document(*[call(1)] * 190_000)


@pytest.mark.parametrize("make", [shared_members, shared_text, shared_fields, shared_calls])
def test_i18_p5_what_is_referred_to_again_and_again_takes_its_memory_once(make):
    data = make()
    tracemalloc.start()
    try:
        found = read_dump(data, rank=0, name="d")
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not isinstance(found, str)
    assert peak < 40 << 20
    assert kept < 8 << 20
    assert found.size >= found.count * 12


def test_i18_p5_a_group_of_many_and_many_groups_are_refused(monkeypatch):
    ranks = [list(range(n, n + 30_000)) for n in range(4)]
    many = document(call(1), pg_config={str(n): {"ranks": row} for n, row in enumerate(ranks)})
    assert "more than 100000 members" in read_dump(many, rank=0, name="d")
    monkeypatch.setattr(flight_recorder, "_MAX_GROUPS", 5)
    groups = document(*(call(n, process_group=(f"g{n}", "")) for n in range(6)))
    assert "more than 5 groups" in read_dump(groups, rank=0, name="d")
    monkeypatch.setattr(flight_recorder, "_MAX_KEPT_TEXT", 500)
    kinds = document(*(call(n, profiling_name=f"op {n}") for n in range(100)))
    assert "differ too much" in read_dump(kinds, rank=0, name="d")


@pytest.mark.parametrize("number", [1 << 100, "9" * 5000, "x", float("inf"), [1]])
def test_i18_p5_numbers_of_no_sense_are_refused(number):
    assert isinstance(read_dump(document(call(number)), rank=0, name="d"), str)


def test_i18_p5_numbers_that_are_text_are_read():
    assert list(read_dump(document(call("7")), rank=0, name="d").groups["0"].seqs) == [7]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02(" + b"]" * 300_000 + b"l.",
        b"\x80\x02(" + b"}" * 300_000 + b"l.",
        b"\x80\x02(" + b"}K\x01Ns" * 100_000 + b"l.",
        b"\x80\x02(" + b"]Na" * 200_000 + b"l.",
        b"\x80\x04]" + b"\x94" * 300_000 + b".",
        b"\x80\x02)" + b"\x85" * 300_000 + b".",
        b"\x80\x02(" + b"\x8a\x01\x07" * 600_000 + b"l.",
    ],
)
def test_i18_p5_the_reader_ends_before_its_objects_take_too_much(monkeypatch, data):
    monkeypatch.setattr(plain_pickle, "MAX_MEMORY", 8 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(NotPlain, match="take more than 8 MiB"):
            load(data)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_i18_p5_keys_of_one_hash_are_refused():
    modulus = (1 << 61) - 1
    with pytest.raises(NotPlain, match="60 bits"):
        load(pickle.dumps({n * modulus: 0 for n in range(1, 20)}))


def dumps_of(folder, count, size=3000):
    for rank in range(count):
        data = document(call(1), pad="x" * size)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


def test_i18_p5_the_sum_of_all_dumps_is_bounded_and_what_was_left_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(flight_recorder, "MAX_BYTES", 8000)
    found, problems = dump_evidence([dumps_of(tmp_path, 4)], relative_to=tmp_path, attempt=1)
    # The dumps of ranks 2 and 3 are there: it would be wrong to say that they left none.
    assert found == []
    (problem,) = problems
    assert problem.startswith("2 flight-recorder dumps (0.0 MiB) were not read: of at most 20000 files")
    case = case_of_files([tmp_path])
    assert any(one.startswith("2 flight-recorder dumps") for one in case.missing)


def test_i18_p5_the_number_and_the_content_of_all_dumps_are_bounded(monkeypatch, tmp_path):
    folder = dumps_of(tmp_path, 5)
    monkeypatch.setattr(flight_recorder, "MAX_DUMPS", 3)
    assert dump_evidence([folder], relative_to=tmp_path, attempt=1)[1][0].startswith("2 flight-recorder dumps")
    monkeypatch.setattr(flight_recorder, "MAX_KEPT", 1)
    assert dump_evidence([folder], relative_to=tmp_path, attempt=1)[1][0].startswith("4 flight-recorder dumps")


def test_i18_p5_damaged_dumps_are_named_up_to_a_bound(tmp_path):
    for rank in range(70):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(b"x")
    assert len(dump_evidence([tmp_path], relative_to=tmp_path, attempt=1)[1]) == 64


def test_a_rank_that_left_a_dump_which_was_not_read_is_not_said_to_have_left_none():
    waiting = [read_dump(document(call(1)), rank=rank, name=f"d{rank}") for rank in (0, 1, 3)]
    assert [one.rank for one in flight_recorder.flight_evidence(waiting)] == [2]
    assert flight_recorder.flight_evidence(waiting, unread={2}) == []
