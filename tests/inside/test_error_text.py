from __future__ import annotations

import datetime as dt
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rankfall.inside
from rankfall.model import Record
from rankfall_inside import records, redact
from rankfall_inside.hook import error_record


class OwnError(ValueError):
    pass


class BadError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def caught(function) -> BaseException:
    try:
        function()
    except (Exception, GeneratorExit) as error:  # noqa: BLE001 - the test wants it whatever it is
        return error
    raise AssertionError


def describe(error: BaseException, **more) -> tuple[Record, dict]:
    info, flags = error_record.describe(error, **({"thread": None, "exit_code": None, "handled": False} | more))
    return msgspec.json.decode(
        records.encode(records.new("error", writer="hook", fields={"error": info, **flags})), type=Record
    ), info


def test_the_chain_is_kept_from_the_raised_one_to_the_first() -> None:
    def fail() -> None:
        try:
            {}["first"]
        except KeyError as first:
            try:
                os.stat("/nonexistent/second")  # noqa: PTH116 - any failing call
            except OSError:
                raise OwnError("third") from first

    record, _ = describe(caught(fail))
    assert record.error.types == (f"{__name__}.OwnError", "KeyError")
    assert record.error.message == "third"
    assert record.error.chain == ("third", "'first'")
    assert record.error.frames[-1].func.endswith("fail")
    assert record.error.frames[-1].user
    assert "The above exception was the direct cause" in record.error.traceback


def test_a_ring_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert len(error_record.walk(first)) == 2


def test_members_of_a_group_belong_to_the_chain_and_their_mark_counts() -> None:
    group = ExceptionGroup("all", [ValueError("v"), rankfall.inside.Final("f")])
    record, _ = describe(group)
    assert record.error.types == ("ExceptionGroup", "ValueError", "rankfall_inside.api.Final")
    assert record.error.mark == "final"


def test_errors_s20_a_failing_str_keeps_the_type() -> None:
    record, _ = describe(caught(lambda: (_ for _ in ()).throw(BadError())))
    assert record.error.types == (f"{__name__}.BadError",)
    assert "RuntimeError" in record.error.message


def test_errors_s20_lone_surrogates_are_stored() -> None:
    record, _ = describe(ValueError("bad \udc80 text"))
    assert record.error.message == r"bad \udc80 text"


def test_errors_s12_an_exception_may_carry_its_own_time() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    for name, value, expected in (
        ("timestamp", at, 1767323045678901000),
        ("raised_at", 1767323045.5, 1767323045500000000),
        ("timestamp", 1767323045500, 1767323045500000000),
        ("at_ns", 1767323045123456789, 1767323045123456789),
    ):
        error = ValueError("x")
        setattr(error, name, value)
        assert abs(describe(error)[0].error.raised_ns - expected) < 1000


@pytest.mark.parametrize("value", [0, 0.0, None, "1767323045", -1, True, float("nan"), 10**40])
def test_errors_s13_a_time_that_is_none_is_not_taken(value) -> None:
    error = ValueError("x")
    error.timestamp = value
    assert error_record.raised_ns([error]) is None


def test_marks_are_found_through_wrappers_and_by_listed_names(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = rankfall.inside.Retryable(OSError("disk"))
    outer = caught(lambda: _raise_from(RuntimeError("outer"), wrapped))
    record, _ = describe(outer)
    assert (record.error.mark, record.error.marked_by) == ("retryable", "rankfall_inside.api.Retryable")
    assert record.error.types[-1] == "OSError"
    monkeypatch.setenv("RANKFALL_FINAL", f"some.Other, {__name__}.OwnError")
    assert describe(OwnError("x"))[0].error.mark == "final"
    # As a person writes it: without the module, which is __main__ in a script.
    monkeypatch.setenv("RANKFALL_FINAL", "other.OwnError,  OwnError")
    assert describe(OwnError("x"))[0].error.mark == "final"
    monkeypatch.setenv("RANKFALL_FINAL", "other.OwnError")
    assert describe(OwnError("x"))[0].error.mark is None
    monkeypatch.setenv("RANKFALL_RETRYABLE", "OSError")
    record, _ = describe(FileNotFoundError("x"))
    assert (record.error.mark, record.error.marked_by) == ("retryable", "OSError")
    assert describe(TypeError("x"))[0].error.mark is None


def _raise_from(error: BaseException, cause: BaseException) -> None:
    raise error from cause


def test_deep_recursion_is_bounded() -> None:
    def deep() -> None:
        deep()

    record, _ = describe(caught(deep))
    assert record.error.types == ("RecursionError",)
    assert len(record.error.frames) <= 101


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:hunter22@host/path", "hunter22"),
        ("postgres://u:p%40ss-word@db:5432/x", "p%40ss-word"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("headers={'authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
        ("key AKIAIOSFODNN7EXAMPLE used", "AKIAIOSFODNN7EXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
        ("environ({'WANDB_API_KEY': '0123456789abcdef', 'HOME': '/home/u'})", "0123456789abcdef"),
        ("?X-Amz-Signature=fe5f80f77d5fa3beca038a248ff027&x=1", "fe5f80f77d5fa3beca038a248ff027"),
        ("token hf_abcdefghijklmnopqrstuvwx rejected", "hf_abcdefghijklmnopqrstuvwx"),
        ("login(password='hunter22')", "hunter22"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", "MIIE"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-def", "eyJzdWIiOiIxIn0"),
    ],
)
def test_errors_s36_secrets_are_masked(text: str, secret: str) -> None:
    assert secret not in redact.redact(text, [])


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'tokens'",
        "expected 3 tokens, got 4",
        "max_tokens=2048",
        "file://host/path",
        "rank 3: loss=0.5",
        "signal: 9",
    ],
)
def test_plain_text_is_left_alone(text: str) -> None:
    assert redact.redact(text, []) == text


def test_errors_s36_values_of_secret_variables_are_masked_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "s3cr3t-value-1")
    record, _ = describe(ValueError("got s3cr3t-value-1 back"))
    assert record.error.message == "got *** back"
    assert record.redacted


@given(st.text(alphabet="=:'\"{}[]@/ tokenpaswrd-_AKIAeyJ.\n", max_size=3000))
def test_redaction_ends_for_any_text(text: str) -> None:
    redact.redact(text, [])
