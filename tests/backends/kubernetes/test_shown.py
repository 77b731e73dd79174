"""What people are shown of manifests: secrets masked, the bundle told by size; what is sent is whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kubernetes.made import BACKENDS, BUNDLE, compiled, container, expand, spec

MARK = "S3CR3T"
NAMES = st.sampled_from(["HF_TOKEN", "WANDB_API_KEY", "db_password", "AWS_SECRET_ACCESS_KEY", "MY_CREDENTIALS"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("runtime", [None, "torch-distributed"])
@settings(max_examples=30)
@given(
    names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    option=st.sampled_from(["--token", "--api-key", "--db-password"]),
    value=st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=10).map(
        lambda text: f"{MARK}{text}{MARK}"
    ),
)
def test_secrets_never_show(backend, runtime, names, option, value):
    runtime = runtime if backend == "trainjob" else None
    sidecar = {"name": "proxy", "image": "p", "args": [option, value], "env": [{"name": "PROXY_TOKEN", "value": value}]}
    volume = {"name": "bucket", "csi": {"driver": "d", "volumeAttributes": {"secretKey": value}}}
    section = {"volumes": [volume], "runtime": runtime}
    if runtime is None:
        section["pod"] = {"spec": {"containers": [sidecar]}}
    job = spec(
        backend=backend,
        command=["train.py", option, value, f"{option}={value}", f"https://user:{MARK}@host/x"],
        env={**dict.fromkeys(names, value), "PLAIN": "shown"},
        kubernetes=section,
    )
    made = compiled(job, token=MARK)
    text = json.dumps(made.masked_objects())
    assert MARK not in text
    assert MARK not in json.dumps(made.notes)
    assert "shown" in text
    sent = json.dumps(made.objects, ensure_ascii=False)
    assert MARK in sent


def test_what_is_sent_is_not_touched_by_showing_it():
    made = compiled(spec(env={"HF_TOKEN": "$x", "PLAIN": "$y"}))
    before = json.dumps(made.objects)
    made.masked_objects()
    assert json.dumps(made.objects) == before
    assert expand(container(made)["env"][-1]["value"], {}) == "$y"


def test_the_bundle_is_told_by_size_and_digest():
    (shown,) = [item for item in compiled(spec()).masked_objects() if item["kind"] == "ConfigMap"]
    assert shown["binaryData"]["inside.pyz"].startswith(f"<{len(BUNDLE)} bytes, sha256 ")


def test_references_to_secrets_are_shown():
    section = {
        "env_from": {"HF_TOKEN": {"secret": "hugging-face", "key": "token"}},
        "image_pull_secrets": ["pull"],
        "volumes": [{"name": "certs", "secret": {"secretName": "certificates"}}],
    }
    text = json.dumps(compiled(spec(kubernetes=section)).masked_objects())
    for reference in ("hugging-face", "pull", "certificates"):
        assert reference in text
