"""Secrets and size of answers for programs: none survives in any output, no answer is larger than asked, and what matters stays."""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import jsonschema
import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfall.cli.commands.why import why
from rankfall.explain import explain_files
from rankfall.model.schemas import schema_of
from rankfall.render.escape import Redactor
from rankfall_inside.redact import redact

Runner = Callable[..., CompletedProcess[str]]

LETTERS = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"


def text(alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=low, max_size=high or low)


def begins(prefix: str, alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return text(alphabet, low, high).map(lambda rest: prefix + rest)


# Forms that are known without a name beside them.
TOKENS = st.one_of(
    begins("AKIA", UPPER, 16),
    begins("ASIA", UPPER, 16),
    begins("ghp_", LETTERS, 36),
    begins("github_pat_", LETTERS, 40, 80),
    begins("glpat-", LETTERS, 20),
    begins("hf_", LETTERS, 34),
    begins("xoxb-", LETTERS, 24, 50),
    begins("xapp-1-", LETTERS, 24),
    begins("AIza", LETTERS + "_-", 35),
    begins("ya29.", LETTERS, 40, 120),
    begins("GOCSPX-", LETTERS, 28),
    begins("sk-", LETTERS, 48),
    begins("sk-ant-api03-", LETTERS + "_-", 60, 95),
    begins("sk-proj-", LETTERS, 40, 150),
    begins("sk_live_", LETTERS, 24),
    begins("wandb_v1_", LETTERS, 40),
    begins("nvapi-", LETTERS, 40),
    begins("npm_", LETTERS, 36),
    begins("pypi-AgEI", LETTERS, 40, 100),
    begins("dckr_pat_", LETTERS, 27),
    begins("dapi", HEX, 32),
    st.tuples(begins("eyJ", LETTERS, 20, 60), text(LETTERS + "_-", 20, 200), text(LETTERS + "_-", 43)).map(".".join),
)
VALUES = text(LETTERS + "+/_-.", 12, 64).filter(lambda one: one.strip("-._") == one)
# How they stand in a text; ``{}`` is any value.
NAMED = (
    "password={}",
    "PASSWORD: {}",
    '{{"api_key": "{}"}}',
    "environ({{'DB_PASSWORD': '{}'}})",
    "AWS_SECRET_ACCESS_KEY={}",
    "DJANGO_SECRET_KEY='{}'",
    "--password {}",
    "--hf-token={}",
    "Authorization: Bearer {}",
    "GET /x?signature={}&a=1",
    "AccountKey={};EndpointSuffix=x",
    "    client-key-data: {}",
    "_authToken={}",
)
BARE = ("token {} used", "'{}'", "({})", "id_{}.x", "https://{}@github.com/x", "https://x-access-token:{}@github.com/x")


@settings(max_examples=300)
@given(TOKENS, st.sampled_from(BARE))
def test_i32_p8_tokens_of_known_forms_are_masked(secret, form):
    assert secret not in redact(f"before {form.format(secret)} after", [])


@settings(max_examples=300)
@given(VALUES, st.sampled_from(NAMED))
def test_i32_p8_values_with_a_secret_name_are_masked(secret, form):
    assert secret not in redact(f"x\n{form.format(secret)}\ny", [])


@settings(max_examples=100)
@given(text(HEX, 40), st.sampled_from(["wandb login {}", "WANDB_API_KEY={}", 'wandb.login(key="{}")']))
def test_i32_p8_a_key_of_wandb_is_masked_beside_its_name_and_a_commit_is_not(secret, form):
    assert secret not in redact(form.format(secret), [])
    assert redact(f"commit {secret}", []) == f"commit {secret}"


@settings(max_examples=100)
@given(st.text(min_size=8, max_size=60).filter(lambda one: one.strip() == one))
def test_i32_p8_values_of_the_environment_are_masked_in_every_form(value):
    redactor = Redactor()
    redactor.learn([value])
    for form in (value, json.dumps(value)[1:-1], base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()):
        assert form not in redactor.text(f"a {form} b")


def pem(body: list[str]) -> list[str]:
    return ["-----BEGIN RSA PRIVATE KEY-----", *body, "-----END RSA PRIVATE KEY-----"]


BODY = st.tuples(st.lists(text(LETTERS + "+/", 64), min_size=1, max_size=20), text(LETTERS + "+/", 12, 40)).map(
    lambda parts: [*parts[0], parts[1]]
)


@settings(max_examples=100)
@given(BODY, st.sampled_from(["", "[rank3]: "]))
def test_i32_p8_no_line_of_a_private_key_survives_in_a_text_or_in_a_stream(body, prefix):
    lines = [prefix + line for line in ["loss 1", *pem(body), "loss 2"]]
    assert not [line for line in body if line in redact("\n".join(lines), [])]
    redactor = Redactor()
    shown = [redactor.line(line, stream=1) for line in lines]
    assert (shown[0], shown[-1], len(shown)) == (lines[0], lines[-1], len(lines))
    assert not [line for line in body if line in "\n".join(shown)]


@settings(max_examples=100)
@given(TOKENS, st.integers(10, 60))
def test_i32_p8_what_a_length_limit_leaves_of_a_secret_is_masked(secret, kept):
    redactor = Redactor()
    redactor.learn([secret])
    part = secret[: min(kept, len(secret) - 1)]
    assert part not in redactor.text(f"error: {part}")


def job(ranks: int, secrets: list[str]) -> str:
    lines = [f"export MY_TOKEN={secrets[0]}", f"got {secrets[1]}", *pem([secrets[2] * 4])]
    for rank in range(ranks):
        said = secrets[rank % len(secrets)]
        lines += [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/w/{secrets[1]}/t.py", line 3, in f',
            f"[rank{rank}]:     x[1]",
            f"[rank{rank}]: {'RuntimeError: [/w/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:12175: Connection reset by peer' if rank else f'KeyError: {said!r}'}",
            f"[rank{rank}]: {said} {said[:-1]}",
        ]
    lines.append(f"srun: error: gpu-17: task 0: Exited with exit code 1 password={secrets[0]}")
    return "\n".join(lines) + "\n"


def answer(*words: str) -> bytes:
    done = CliRunner().invoke(why, list(words), standalone_mode=False)
    assert done.exception is None, done.exception
    return done.stdout_bytes


FORMATS = ([], ["-o", "json"], ["-o", "yaml"])


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(text(LETTERS, 16, 40), min_size=3, max_size=3, unique=True),
    token=TOKENS,
    ranks=st.integers(1, 12),
    limit=st.integers(1 << 10, 1 << 15),
)
def test_i32_p8_no_planted_secret_survives_and_no_answer_is_larger_than_asked(
    tmp_path_factory, values, token, ranks, limit
):
    folder = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        for number, value in enumerate(values):
            patch.setenv(f"SITE_{number}_PASSWORD", value)
        for name in (f"{values[0]}.log", f"run_{token[:80]}.log"):
            (folder / name.replace("/", "_")).write_text(job(ranks, [values[0], token, values[2]]))
        full = explain_files([folder]).verdict
        for form in FORMATS:
            for bound in ([], ["--max-bytes", str(limit)]):
                shown = answer(str(folder), "--redact", *form, *bound)
                assert not [one for one in (*values[:1], values[2], token) if one.encode() in shown]
                assert not bound or len(shown) <= limit
                if not form:
                    assert shown == answer(str(folder), "--redact", *bound)
                    continue
                document = json.loads(shown) if form[1] == "json" else yaml.safe_load(shown)
                jsonschema.validate(document, schema_of("rankfall.verdict-1"))
                kept = [document["cause"]["slug"], document["rank"], document["node"], document["node_action"]]
                assert kept == [full.cause.slug, full.rank, full.node, full.node_action]
                said = document["answer"]
                assert (said["redacted"], said["max_bytes"]) == (True, limit if bound else None)
                rows = ("evidence", "consequences", "alternatives", "missing")
                for row in rows:
                    assert len(document[row]) + said["cut"].get(row, 0) == len(getattr(full, row))


@pytest.mark.parametrize("limit", [1024, 1500, 2048, 4096, 6000, 8192, 16384])
def test_i32_p8_the_least_important_is_cut_first(tmp_path, limit):
    (tmp_path / "job.log").write_text(job(24, ["abcdefgh", "ijklmnop", "qrstuvwx"]))
    full = json.loads(msgspec.json.encode(explain_files([tmp_path / "job.log"]).verdict))
    cut = json.loads(answer(str(tmp_path / "job.log"), "-o", "json", "--max-bytes", str(limit)))
    assert cut["answer"]["sentence"].startswith("Rank 0 on gpu-17 raised KeyError")
    assert cut["answer"]["redacted"] is False
    roles = {row["id"]: row["role"] for row in full["evidence"]}
    left = [row["role"] for row in cut["evidence"]]
    gone = set(roles) - {row["id"] for row in cut["evidence"]}
    if "context" in left:
        assert {roles[one] for one in gone} <= {"context"}
    if "secondary" in left:
        assert "primary" not in {roles[one] for one in gone}
    if gone & {one for one, role in roles.items() if role == "secondary"}:
        assert not cut["alternatives"]
    if cut["evidence"]:
        assert cut["decisive"] == full["decisive"]
    # Lines of context go before the decisive line.
    shown = answer(str(tmp_path / "job.log"), "--max-bytes", str(limit)).decode()
    assert shown.startswith("Rank 0 on gpu-17 raised KeyError")
    for label in ("rank    0", "node    gpu-17", "cause   ", "action  "):
        assert f"\n{label}" in shown
    if "Traceback" in shown:
        assert "KeyError" in shown.partition("Evidence")[2]


def test_i32_p8_text_of_the_job_is_marked_and_the_complete_document_is_unchanged(tmp_path):
    (tmp_path / "job.log").write_text(job(3, ["abcdefgh", "ijklmnop", "qrstuvwx"]))
    plain = json.loads(answer(str(tmp_path / "job.log"), "-o", "json"))
    assert "answer" not in plain
    marked = json.loads(answer(str(tmp_path / "job.log"), "-o", "json", "--redact"))
    untrusted = marked["answer"]["untrusted"]
    for path in ("/answer/sentence", "/decisive/line", "/decisive/where", "/evidence/*/line", "/node"):
        assert path in untrusted

    def texts(value: object, path: str) -> list[tuple[str, str]]:
        if isinstance(value, dict):
            return [one for key, part in value.items() for one in texts(part, f"{path}/{key}")]
        if isinstance(value, list):
            return [one for part in value for one in texts(part, f"{path}/*")]
        return [(path, value)] if isinstance(value, str) else []

    found = {path for path, value in texts(marked, "") if any(word in value for word in ("gpu-17", "KeyError", "/w/"))}
    assert found <= set(untrusted)


@pytest.mark.parametrize("size", ["0", "1", "1023", "x"])
def test_i32_p8_a_limit_below_1k_is_refused(tmp_path, size):
    done = CliRunner().invoke(why, [str(tmp_path), "--max-bytes", size])
    assert done.exception is not None


def test_i32_p8_a_refusal_has_no_secret_either(tmp_path, monkeypatch):
    monkeypatch.setenv("SITE_PASSWORD", "hunter2hunter2")
    done = CliRunner().invoke(why, [str(tmp_path / "hunter2hunter2.log"), "--redact"], standalone_mode=False)
    assert "hunter2hunter2" not in str(done.exception)
    assert "***.log" in str(done.exception)


PRINTS = """
import sys
print("token", "hf_" + "Ab1" * 12)
print("value", "6terces-eht-si-siht"[::-1])
for line in ("-----BEGIN OPENSSH PRIVATE KEY-----", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU" * 2, "c2hvcnQ=", "-----END OPENSSH PRIVATE KEY-----"):
    print(line, flush=True)
raise SystemExit("password=" + "hunter2" * 2)
"""


def test_i32_p8_logs_status_and_why_of_a_run_have_no_secret(rankfall: Runner, folder: Path) -> None:
    (folder / "prints.py").write_text(PRINTS)
    done = rankfall("run", "--launcher", "plain", "--max-restarts", "0", "--", "prints.py")
    assert done.returncode, done.stderr
    secrets = ["hf_Ab1Ab1", "this-is-the-secret6", "b3BlbnNzaC1rZXktdjE", "c2hvcnQ=", "hunter2hunter2"]
    env = {"SITE_TOKEN": "this-is-the-secret6"}
    assert all(one in rankfall("logs").stdout for one in secrets)
    for words in (
        ["logs"],
        ["logs", "-o", "json"],
        ["status"],
        ["status", "-o", "json"],
        ["why"],
        ["why", "-o", "json"],
    ):
        shown = rankfall(*words, "--redact", **env)
        assert shown.returncode == 0, shown.stderr
        assert not [one for one in secrets if one in shown.stdout + shown.stderr]
    lines = [json.loads(line) for line in rankfall("logs", "-o", "json", "--redact", **env).stdout.splitlines()]
    plain = [json.loads(line) for line in rankfall("logs", "-o", "json").stdout.splitlines()]
    assert [(line["offset"], line["stream"]) for line in lines] == [(line["offset"], line["stream"]) for line in plain]
