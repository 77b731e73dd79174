"""What flags and environment say of Loki, and what is refused before anything is asked."""

from __future__ import annotations

import pytest

from rankfall.loki.settings import LABELS, OTLP, loki_settings
from rankfall.model import UsageError

URL = "http://loki:3100"


def test_a_flag_beats_the_environment_and_the_rest_comes_from_there():
    found = loki_settings("https://logs.example.org/team/", {"RANKFALL_LOKI_URL": URL, "RANKFALL_LOKI_TENANT": "a|b"})
    assert (found.url, found.tenant, found.labels) == ("https://logs.example.org/team", "a|b", LABELS)
    assert loki_settings(None, {"RANKFALL_LOKI_URL": f"{URL}/loki/api/v1"}).url == URL
    assert loki_settings(URL, {"RANKFALL_LOKI_LABELS": "otlp"}).labels == OTLP
    assert loki_settings(URL, {"RANKFALL_LOKI_LABELS": "pod=pod_name"}).labels == {**LABELS, "pod": "pod_name"}
    assert loki_settings(URL, {"RANKFALL_LOKI_TOKEN_FILE": "t"}).token_file == "t"  # noqa: S105 - a path


@pytest.mark.parametrize(
    ("url", "environ", "said"),
    [
        (None, {}, "the address of Loki is missing"),
        ("loki:3100", {}, "the URL of Loki is invalid"),
        ("ftp://loki", {}, "the URL of Loki is invalid"),
        ("http://", {}, "the URL of Loki is invalid"),
        ("http://loki:99999", {}, "the URL of Loki is invalid"),
        ("http://[loki", {}, "the URL of Loki is invalid"),
        ("http://loki/?a=1", {}, "the URL of Loki is invalid"),
        ("http://lo ki/", {}, "the URL of Loki is invalid"),
        ("http://me:hunter22@loki", {}, "holds a name or a password"),
        (URL, {"RANKFALL_LOKI_TOKEN_FILE": "a", "RANKFALL_LOKI_BASIC_FILE": "b"}, "contradict"),
        (URL, {"RANKFALL_LOKI_CERT_FILE": "a"}, "need each other"),
        (URL, {"RANKFALL_LOKI_TENANT": "a\nX-Admin: 1"}, "characters that are invalid in a header"),
        (URL, {"RANKFALL_LOKI_LABELS": "node=n"}, "is not a label of Rankfall"),
        (URL, {"RANKFALL_LOKI_LABELS": "pod=a.b"}, "not the name of a label"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_no_password_is_shown(url, environ, said):
    with pytest.raises(UsageError, match=said) as caught:
        loki_settings(url, environ)
    assert "hunter22" not in str(caught.value)
