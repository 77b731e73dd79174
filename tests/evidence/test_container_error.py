"""Flyte's error files: one of old, many of distributed tasks; against the protobuf library, and against what went wrong there."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.evidence.readers import flyte_errors
from rankfall.evidence.readers.flyte_errors import container_error_evidence, is_container_error, read_container_error
from rankfall.explain import explain_files
from rankfall.model import Evidence
from rankfall.verdict.signatures.catalogue import default_catalogue
from support.cases import T0
from support.flyte_errors import document

FLYTEKIT = """Traceback (most recent call last):

      File "/usr/local/lib/python3.11/site-packages/flytekit/exceptions/scopes.py", line 206, in user_entry_point
        return wrapped(*args, **kwargs)
      File "/root/train.py", line 40, in train
        raise KeyError("vocab")

Message:

    KeyError: 'vocab'

User error."""
PEER = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:22188"


def evidence(data: bytes) -> Evidence:
    found = container_error_evidence(data, name="error.pb", catalogue=default_catalogue())
    assert isinstance(found, Evidence), found
    return found


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


ERRORS = st.fixed_dictionaries(
    {
        "message": TEXTS,
        "code": TEXTS,
        "recoverable": st.booleans(),
        "origin": st.sampled_from([0, 1, 2]),
        "at": st.none() | st.integers(1_000_000_000, (1 << 33) * 10**9 - 1),
        "worker": TEXTS,
    }
)


@given(ERRORS)
def test_what_the_protobuf_library_writes_is_read_as_it_was_meant(error):
    written = document(**error)
    if not error["code"] and not error["message"]:
        with pytest.raises(flyte_errors.Malformed):
            read_container_error(written)
        return
    found = read_container_error(written)
    origin = ("unknown", "user", "system")[error["origin"]]
    assert msgspec.structs.asdict(found) == error | {"origin": origin}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_named_and_nothing_else_happens(data):
    found = container_error_evidence(data, name="error.pb", catalogue=default_catalogue())
    assert isinstance(found, Evidence) or "error.pb" in found


@given(st.integers(0, 200))
def test_errors_s14_a_file_that_is_cut_anywhere_is_named_or_still_whole_in_what_counts(length):
    whole = document("ValueError: bad thing", at=T0, worker="w-3")
    try:
        found = read_container_error(whole[:length])
    except flyte_errors.Malformed:
        assert length < len(whole)
    else:
        assert found.message == "ValueError: bad thing"


def test_errors_s3_a_record_says_who_what_when_and_of_which_kind():
    found = evidence(document(FLYTEKIT, at=T0 + 123_456_789, worker="train-n0-0-worker-2"))
    assert (found.slug, found.source, found.trust, found.role) == ("user_code_exception", "record", "job", "primary")
    assert (found.at, found.pod, found.rank) == (T0 + 123_456_789, "train-n0-0-worker-2", None)
    assert found.line == "KeyError: 'vocab'"


@pytest.mark.parametrize(
    ("recoverable", "origin", "mark"), [(True, 1, "retryable"), (True, 2, None), (True, 0, None), (False, 1, None)]
)
def test_only_the_users_own_recoverable_is_a_word_about_retry(recoverable, origin, mark):
    assert evidence(document(recoverable=recoverable, origin=origin)).mark == mark


@pytest.mark.parametrize(
    ("message", "code", "line"),
    [
        ("ValueError: bad thing", "USER:Unknown", "ValueError: bad thing"),
        ("no type here", "USER:OSError", "OSError: no type here"),
        ("no type here", "SYSTEM:!", "Exception: no type here"),
        ("", "SYSTEM:Unknown", "Unknown"),
    ],
)
def test_without_a_traceback_its_own_words_tell_the_type(message, code, line):
    assert evidence(document(message, code=code)).line == line


@pytest.mark.parametrize("at", [None, 0, 999, -5_000_000_000])
def test_errors_s13_one_without_a_time_or_of_1970_has_none_and_is_never_earliest(at, tmp_path):
    assert evidence(document(at=at)).at is None
    (tmp_path / "error-0.pb").write_bytes(document(PEER, at=at, worker="w-0"))
    (tmp_path / "error-1.pb").write_bytes(document(FLYTEKIT, at=T0, worker="w-1"))
    assert explain_files([tmp_path], strategy="earliest").verdict.pod == "w-1"


def test_errors_s1_many_files_give_the_first_fault_and_its_worker(tmp_path: Path):
    for number in range(4):
        text, seconds = (FLYTEKIT, 9) if number == 2 else (PEER, 3)
        (tmp_path / f"error-{number:032x}.pb").write_bytes(
            document(text, at=T0 + seconds * 10**9, worker=f"worker-{number}")
        )
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.cause.slug, verdict.pod, verdict.rank) == ("user_code_exception", "worker-2", None)
    assert sum(1 for proof in verdict.evidence if proof.source == "record") == 4


def test_errors_s16_equal_times_and_shuffled_names_give_one_answer(tmp_path: Path):
    rng = random.Random(7)
    answers = set()
    for trial in range(10):
        folder = tmp_path / str(trial)
        folder.mkdir()
        names = [f"error-{rng.getrandbits(128):032x}.pb" for _ in range(3)]
        for number, name in enumerate(names):
            text = ("ValueError: a", "KeyError: b", PEER)[number]
            (folder / name).write_bytes(document(text, at=T0, worker=f"w-{number}"))
        verdict = explain_files([folder]).verdict
        answers.add((verdict.cause.slug, verdict.pod, verdict.decisive.line if verdict.decisive else None))
    assert len(answers) == 1


def test_errors_s8_the_one_file_of_old_is_read(tmp_path: Path):
    (tmp_path / "error.pb").write_bytes(document(FLYTEKIT))
    verdict = explain_files([tmp_path / "error.pb"]).verdict
    assert (verdict.cause.slug, verdict.pod, verdict.time.at) == ("user_code_exception", None, None)


def test_errors_s14_s15_damaged_and_huge_ones_are_named_and_the_rest_is_used(tmp_path: Path):
    (tmp_path / "error-a.pb").write_bytes(document(FLYTEKIT, at=T0, worker="w-1"))
    (tmp_path / "error-b.pb").write_bytes(b"")
    (tmp_path / "error-c.pb").write_bytes(b"\x0a\xff")
    (tmp_path / "error-e.pb").write_bytes(b"")
    with (tmp_path / "error-d.pb").open("wb") as file:
        file.truncate(200 << 20)
    verdict = explain_files([tmp_path]).verdict
    assert (verdict.pod, verdict.cause.slug) == ("w-1", "user_code_exception")
    for letter in "bcde":
        assert any(f"error-{letter}.pb" in text for text in verdict.missing)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0b",  # a group
        b"\x00\x01",  # field 0
        b"\x0a" + b"\xff" * 11,  # an endless number
        b"\x0a\x7f",  # a text longer than the file
        b"\x08\x01",  # the error is a number
        b"\x0a\x02\x08\x01",  # its code is a number
        b"\x0a\x03\x1a\x01x",  # its kind is a text
        b"",
    ],
)
def test_what_is_no_document_is_refused(data):
    with pytest.raises(flyte_errors.Malformed):
        read_container_error(data)


def test_errors_s8_fields_of_newer_writers_are_passed_over():
    extra = b"\x92\x3e\x03abc" + b"\x99\x3e12345678" + b"\x9d\x3e1234" + b"\x98\x3e\x05"
    whole = document("ValueError: x")
    inner = whole[2:] + extra
    assert read_container_error(b"\x0a" + bytes([len(inner)]) + inner + extra).message == "ValueError: x"


def test_its_files_are_known_by_their_names():
    assert all(map(is_container_error, ("error.pb", "error-0a1b.pb", "error-worker-3.pb")))
    assert not any(map(is_container_error, ("outputs.pb", "error.json", "my-error.pb", "errors.pb.tmp")))


@pytest.mark.parametrize(
    "message",
    [
        "\n" * 1_000_000,
        " \n" * 500_000 + "x",
        "ValueError: x\n" + "\n" * 500_000 + "y" * 10,
        "\t" * 1_000_000 + "Message:",
        "Traceback (most recent call last):\n" * 30_000,
        "a." * 500_000,
    ],
)
def test_i18_p4_a_message_of_white_space_costs_no_more_than_any_other(message):
    # Before, 60 KB of newlines took more than a minute: this does not end within the time of a test.
    assert container_error_evidence(document(message), name="error.pb", catalogue=default_catalogue())


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("KeyError: x\n\nUser error.\n", "KeyError: x"),
        ("KeyError: x\n  SYSTEM ERROR! Contact them  \n\n", "KeyError: x"),
        ("Trace\n\n  Message:\n\n    KeyError: y\n\nsystem error.", "KeyError: y"),
        ("KeyError: User error.", "KeyError: User error."),
    ],
)
def test_what_flytekit_writes_around_a_message_is_left_out(message, line):
    assert evidence(document(message)).line == line
