"""Frames of exec: what one side packs the other unpacks; statuses as real servers write them; everything else is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankfall.kube.exec.protocol import (
    CLOSE,
    STATUS,
    STDERR,
    STDIN,
    STDOUT,
    BadFrame,
    Ended,
    NotRun,
    close_message,
    data_message,
    read_status,
    split,
)


@given(channel=st.sampled_from([STDOUT, STDERR, STATUS, CLOSE]), data=st.binary())
def test_a_message_is_its_channel_and_its_data(channel, data):
    assert split(data_message(channel, data)) == (channel, data)
    assert split(data_message(channel, memoryview(data))) == (channel, data)


@given(message=st.binary(max_size=3))
def test_what_no_server_writes_is_refused(message):
    if message and message[0] in {STDOUT, STDERR, STATUS, CLOSE}:
        assert split(message) == (message[0], message[1:])
    else:
        with pytest.raises(BadFrame):
            split(message)


def test_the_end_of_stdin_is_two_bytes():
    assert close_message(STDIN) == b"\xff\x00"


def non_zero(code: object, **more: object) -> bytes:
    status = {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "Other", "message": "x"}, {"reason": "ExitCode", "message": str(code)}]},
    }
    return json.dumps(status | more).encode()


@given(code=st.integers(1, 255))
def test_every_exit_code_is_read(code):
    assert read_status(non_zero(code)) == Ended(code=code)


def test_success_is_code_0():
    assert read_status(b'{"metadata":{},"status":"Success"}') == Ended(code=0)


def test_a_command_that_did_not_run_says_why():
    message = 'Internal error occurred: unable to upgrade connection: container not found ("main")'
    status = {
        "status": "Failure",
        "message": message,
        "reason": "InternalError",
        "details": {"causes": [{}]},
        "code": 500,
    }
    assert read_status(json.dumps(status).encode()) == NotRun(reason="InternalError", message=message, status=500)


@pytest.mark.parametrize("code", ["256", "-1", "1.5", "", "²", "9" * 5000, "000000000255", None])
def test_an_exit_code_that_is_none_is_refused(code):
    with pytest.raises(BadFrame, match="exit code"):
        read_status(non_zero(code))


@pytest.mark.parametrize("details", [None, [], {}, {"causes": None}, {"causes": [1, {"reason": "Other"}]}])
def test_a_failure_without_its_exit_code_is_refused(details):
    with pytest.raises(BadFrame, match="without its exit code"):
        read_status(non_zero(3, details=details))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "reason", "message", "details", "causes", "code"]), inner, max_size=6
        )
    ),
    max_leaves=12,
)


@given(document=anything)
def test_an_odd_status_is_an_answer_or_refused_and_nothing_else(document):
    try:
        found = read_status(msgspec.json.encode(document))
    except BadFrame:
        return
    assert isinstance(found, Ended | NotRun)


@given(data=st.binary())
@example(data=b'"\xc3"')
def test_bytes_that_are_no_status_are_refused(data):
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        with pytest.raises(BadFrame, match="not JSON"):
            read_status(data)
