"""Which values are secret, and how a job is stored and shown without them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfall.model import JobSpec, Kubernetes, Role, SpecError, check_spec, spec_from
from rankfall.model.jobspec.job import RoleKubernetes
from rankfall.model.jobspec.secrets import (
    MASK,
    concealed,
    is_masked,
    is_secret_name,
    masked_url,
    masked_value,
    masked_words,
    pointer_of,
    referring,
    replaced,
    secrets_of,
    without_pointer,
)

SHAPES = (
    "hf_abcdefghijABCDEFGHIJ0123456789",
    "sk-proj-abc123def456ghi789jkl012",
    "ghp_abcdefghij0123456789ABCDEFGHIJ",
    "github_pat_11ABCDEFG0abcdefghijkl_xyz",
    "glpat-abcdefghij0123456789",
    "AKIAABCDEFGHIJKLMNOP",
    "xoxb-123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefgh",
    "-----BEGIN RSA PRIVATE KEY-----\nabc",
    "curl -H 'Authorization: Bearer abcdefghijkl' x",
    "host=db password=hunter2",
    "export HF_TOKEN=abcdef; python train.py",
)


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "WANDB_API_KEY", "PGPASSWORD", "MYSQL_PWD", "DB_PASSWD", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "MY_CREDENTIALS",
        "SENTRY_DSN", "BASIC_AUTH", "REDISCLI_AUTH", "PRIVATE_STUFF", "SESSION_COOKIE", "apiKey", "authToken", "--db-password", "AUTHORIZATION",
        "SSH_KEY", "SIGNATURE", "GITHUB_PAT", "SESSION_ID",
    ],
)  # fmt: skip
def test_i18_p9_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert masked_value(name, "abcdefgh") == MASK


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "--max-tokens", "--tokenizer", "--tokens_per_batch", "AUTHOR", "MONKEY", "KEYBOARD", "COMPASS",
        "TOKEN_FILE", "GOOGLE_CREDENTIALS_PATH", "DBUS_SESSION_BUS_ADDRESS", "--key", "PATTERN",
    ],
)  # fmt: skip
def test_i18_p9_names_that_are_none(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("text", SHAPES)
def test_i18_p9_values_of_known_shape_are_secret_under_any_name(text: str) -> None:
    assert masked_value("X", text) == MASK
    # Of NAME=VALUE the name is kept.
    assert masked_words(("python", text))[1] in {MASK, "host=***"}
    assert masked_words(("python", f"--x={text}")) == ("python", f"--x={MASK}")


@pytest.mark.parametrize(
    "text",
    [
        "train.py",
        "sk-learn",
        "/data/sk-learn-experiments-2024/run.py",
        "--lr=0.1",
        "export HF_TOKEN=$HF_TOKEN; x",
        "--num_token=512",
        "eyJ",
        "s3://b/k",
    ],
)
def test_i18_p9_values_that_are_none(text: str) -> None:
    assert masked_words(("python", text)) == ("python", text)


@pytest.mark.parametrize("value", ["", "0", "true", "False", "none", "4096", "0.5"])
def test_i18_p9_a_setting_is_no_secret(value: str) -> None:
    assert masked_value("USE_AUTH_TOKEN", value) == value
    assert masked_words(("x", "--token", value)) == ("x", "--token", value)


def test_i18_p9_a_number_may_be_a_password() -> None:
    assert masked_value("DB_PASSWORD", "123456") == MASK


def job(value: str) -> JobSpec:
    return JobSpec(
        command=("train.py", f"--api-key={value}", "--token", value, "plain"),
        env={"HF_TOKEN": value, "URL": f"s3://me:{value}@host/x", "LR": "0.1", "a/b~TOKEN": value},
        roles=(
            Role(
                name="a",
                command=("b.py", "--secret", value),
                env={"DB_PASSWORD": value},
                kubernetes=RoleKubernetes(pod={"spec": {"containers": [{"name": "c", "args": [f"--token={value}"]}]}}),
            ),
            Role(name="b"),
        ),
        kubernetes=Kubernetes(
            pod={"spec": {"containers": [{"name": "s", "env": [{"name": "S_TOKEN", "value": value}, {"name": "N", "value": "1"}]}]}},
            volumes=({"name": "v", "csi": {"volumeAttributes": {"secretKey": value}}, "secret": {"secretName": "kept"}},),
        ),
    )  # fmt: skip


@given(
    value=st.text(st.characters(whitelist_categories=("Lu", "Ll", "Nd")), min_size=3).map(lambda text: f"S3CR3T{text}")
)
def test_i18_p9_what_is_concealed_comes_back(value: str) -> None:
    spec = job(value)
    stored = concealed(spec)
    text = msgspec.json.encode(stored).decode()
    assert "S3CR3T" not in text
    shown = [
        repr(spec),
        repr(spec.roles),
        repr(secrets_of(spec)),
        *map(str, spec.__rich_repr__()),
        *map(str, spec.roles[0].__rich_repr__()),
    ]
    assert "S3CR3T" not in "".join(shown)
    assert "kept" in text
    assert "0.1" in text
    assert concealed(stored) == stored
    back = msgspec.json.decode(text, type=JobSpec)
    assert replaced(back, {pointer: found.text for pointer, found in secrets_of(spec).items()}) == spec
    assert secrets_of(back).keys() == secrets_of(spec).keys()
    assert all(is_masked(found.text) for found in secrets_of(back).values())
    refers = referring(spec)
    assert refers == referring(back)
    assert without_pointer(refers.env["HF_TOKEN"]) == MASK
    assert secrets_of(spec)[pointer_of(refers.env["a/b~TOKEN"]) or ""].text == value


def test_i18_p9_a_repr_never_fails() -> None:
    odd = JobSpec(command=5, env=None, kubernetes=None, roles=())  # type: ignore[arg-type]
    assert repr(odd).startswith("JobSpec(")
    assert "hunter22" not in repr(Role(name="a", env={"A_TOKEN": "hunter22"}))


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"HF_TOKEN": "***"}},
        {"env": {"ANY": "***"}},
        {"env": {"URL": "s3://me:***@h/x"}},
        {"command": ["t.py", "--api-key=***"]},
        {"command": ["t.py", "--token", "***"]},
    ],
)
def test_i18_p9_a_masked_document_is_refused_as_a_job(fields: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="is masked") as refused:
        spec_from({"command": ["t.py"], **fields})
    assert "--env NAME" in (refused.value.hint or "")
    assert check_spec(JobSpec(command=("t.py", "a***b")))


HOOK = "https://hooks.example.org/services/T0/B0/PATHSECRET"


@pytest.mark.parametrize(
    ("url", "label"),
    [
        (HOOK, "https://hooks.example.org/***"),
        ("https://user:PATHSECRET@h:8443/x?y=z#f", "https://h:8443/***"),
        ("http://[::1]:80?PATHSECRET", "http://[::1]:80/***"),
        ("PATHSECRET", MASK),
    ],
)
def test_of_a_webhook_only_the_host_is_shown(url: str, label: str) -> None:
    assert masked_url(url) == label
    assert masked_url(label) == label
    assert is_masked(label)


def test_webhooks_and_secret_arguments_of_receivers_are_stored_apart() -> None:
    targets = [{"webhook": HOOK}, {"command": ["page", "--token", "PATHSECRET"]}, {"email": "team@example.org"}]
    spec = spec_from({"command": ["t"], "notify": {"targets": targets}})
    hidden = concealed(spec)
    assert b"PATHSECRET" not in msgspec.json.encode(hidden)
    assert "PATHSECRET" not in repr(spec)
    assert hidden.notify.targets[2] == spec.notify.targets[2]
    values = {pointer: found.text for pointer, found in secrets_of(spec).items()}
    assert set(values) == {"/notify/targets/0/webhook", "/notify/targets/1/command/2"}
    assert replaced(hidden, values) == spec
    with pytest.raises(SpecError, match="masked"):
        check_spec(hidden)


@pytest.mark.parametrize("notify", [{"targets": HOOK}, {"targets": [HOOK]}, {"targets": [{"webhook": [HOOK]}]}, HOOK])
def test_a_wrong_form_of_receivers_is_refused_without_its_secret(notify: object) -> None:
    with pytest.raises(SpecError) as caught:
        spec_from({"command": ["t"], "notify": notify})
    assert "PATHSECRET" not in f"{caught.value} {caught.value.hint}"
