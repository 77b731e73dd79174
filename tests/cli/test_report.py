"""``report`` on real runs: one file in three formats, and an archive that a colleague explains elsewhere."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from rankfall.model.schemas import schema_of

Runner = Callable[..., subprocess.CompletedProcess[str]]
GANG = ("--nproc-per-node", "3", "--launcher", "plain")


def run_of(home: Path) -> str:
    (path,) = home.glob("runs/*/spec.json")
    return path.parent.name


def test_i24_p3_a_report_in_each_format(rankfall: Runner, home: Path, tmp_path: Path) -> None:
    assert rankfall("run", *GANG, "train.py", "fail").returncode != 0
    run = run_of(home)
    why = json.loads(rankfall("why", run, "-o", "json").stdout)
    for suffix in ("html", "md", "json"):
        done = rankfall("report", run, "-o", str(tmp_path / f"r.{suffix}"))
        assert (done.returncode, done.stdout) == (0, "")
        assert f"wrote {tmp_path / f'r.{suffix}'}" in done.stderr
    data = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(data, schema_of("rankfall.report-1"))
    assert data["attempts"][-1]["verdict"] == why
    assert why["decisive"]["line"] in data["attempts"][-1]["output"]
    outcomes = {one["rank"]: one["outcome"] for one in data["attempts"][-1]["ranks"]}
    assert outcomes[why["rank"]] == "root"
    assert set(outcomes.values()) <= {"root", "stopped", "consequence", "completed"}
    page = (tmp_path / "r.html").read_text()
    assert data["attempts"][-1]["summary"].partition(";")[0] in page
    assert "http" not in page.replace("http-equiv", "")
    assert (tmp_path / "r.md").read_text().startswith(f"# Rankfall report of `{run}`")
    assert rankfall("report", run, "-o", "-").stdout.startswith("# Rankfall report")


@pytest.mark.parametrize("name", ["r.txt", "r.tar.gz"])
def test_i24_p3_another_format_is_refused(rankfall: Runner, name: str) -> None:
    rankfall("run", *GANG, "train.py")
    done = rankfall("report", "-o", name)
    assert done.returncode == 2
    assert ".html, .md, .json" in done.stderr
    assert ("--bundle" if name.endswith(".gz") else "-o report.html") in done.stderr


def test_i24_p3_log_files_have_a_report_but_no_archive(rankfall: Runner, tmp_path: Path) -> None:
    log = tmp_path / "rank-1.log"
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nKeyError: 1\n')
    assert rankfall("report", str(log), "-o", str(tmp_path / "r.html")).returncode == 0
    assert "KeyError: 1" in (tmp_path / "r.html").read_text()
    assert rankfall("report", str(log), "--bundle").returncode == 2


def test_i24_p3_a_mailed_archive_is_explained_as_its_run(rankfall: Runner, home: Path, tmp_path: Path) -> None:
    secret = "hf_SECRETsecret0123456789abcdefghijk"  # noqa: S105 - looks like one
    assert rankfall("run", "--env", f"HF_TOKEN={secret}", *GANG, "train.py", "fail").returncode != 0
    run = run_of(home)
    (home / "runs" / run / "link").symlink_to("/etc/passwd")
    archive = tmp_path / "mail.tar.gz"
    # Only the archive's owner reads it, whatever stood there and whatever the umask is.
    archive.write_bytes(b"")
    archive.chmod(0o644)
    made = rankfall("report", run, "--bundle", "-o", str(archive))
    assert made.returncode == 0, made.stderr
    assert archive.stat().st_mode & 0o777 == 0o600
    assert "lines as they are" in made.stderr + made.stdout
    assert "--redact" in made.stderr + made.stdout
    with tarfile.open(archive) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
        assert all(member.isreg() and (member.uid, member.uname) == (0, "") for member in found)
        assert all(secret.encode() not in found.extractfile(member).read() for member in found)  # type: ignore[union-attr]
    assert {"spec.json", "run.db", "meta.json", "report.html"} <= names
    assert not {"secrets.json", "link"} & names
    there = rankfall("why", str(archive), "-o", "json", RANKFALL_HOME=str(tmp_path / "other"))
    assert json.loads(there.stdout) == json.loads(rankfall("why", run, "-o", "json").stdout)
    again = rankfall("report", str(archive), "-o", str(tmp_path / "r.md"), RANKFALL_HOME=str(tmp_path / "other"))
    assert again.returncode == 0
    assert f"`{run}`" in (tmp_path / "r.md").read_text()


def test_i24_p3_no_secret_survives_in_a_redacted_report_and_none_is_promised_of_an_archive(
    rankfall: Runner, tmp_path: Path
) -> None:
    value, token = "correct-horse-battery", "hf_" + "a1B2" * 8 + "cd"
    (tmp_path / "leak.py").write_text(
        "import os\n"
        f"print('loading with {token}', flush=True)\n"
        f"raise RuntimeError('login as ' + os.environ['SITE_PASSWORD'] + ' failed: {token}')\n"
    )
    done = rankfall("run", "--env", f"SITE_PASSWORD={value}", *GANG, "--max-restarts", "0", str(tmp_path / "leak.py"))
    assert done.returncode == 1
    for suffix in ("html", "md", "json"):
        for flags in ((), ("--redact",)):
            file = tmp_path / f"{len(flags)}.{suffix}"
            assert rankfall("report", *flags, "-o", str(file)).returncode == 0
            text = file.read_text()
            assert "RuntimeError" in text
            shown = {secret for secret in (value, token) if secret in text}
            # Without the flag the log's own lines stand in the evidence.
            assert shown == (set() if flags or suffix == "md" else {value, token}), file.name
    refused = rankfall("report", "--redact", "--bundle")
    assert refused.returncode == 2
    assert "-o FILE.html --redact" in refused.stderr


def test_i24_p3_a_strangers_archive_writes_nothing_elsewhere(rankfall: Runner, home: Path, tmp_path: Path) -> None:
    rankfall("run", *GANG, "train.py", "fail")
    run = run_of(home)
    good = tmp_path / "good.tar.gz"
    rankfall("report", run, "--bundle", "-o", str(good))
    for number, (name, kind) in enumerate([
        ("../../evil", tarfile.REGTYPE), (f"{tmp_path}/evil", tarfile.REGTYPE), (f"{run}/link", tarfile.SYMTYPE), ("other/file", tarfile.REGTYPE),
    ]):  # fmt: skip
        bad = tmp_path / f"bad{number}.tar.gz"
        with tarfile.open(good) as source, tarfile.open(bad, "w:gz") as made:
            for member in source:
                made.addfile(member, source.extractfile(member))
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            made.addfile(info, io.BytesIO())
        done = rankfall("why", str(bad))
        assert done.returncode == 2, (name, done.stdout)
        assert "Traceback" not in done.stderr
    (tmp_path / "cut.tar.gz").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    assert rankfall("why", str(tmp_path / "cut.tar.gz")).returncode in {0, 2}
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path.parent / "evil").exists()


def test_the_commands_below_the_verdict_of_an_archive_work_where_its_run_is_unknown(
    rankfall: Runner, home: Path, tmp_path: Path
) -> None:
    assert rankfall("run", *GANG, "train.py", "fail").returncode != 0
    run = run_of(home)
    archive = tmp_path / "a mail.tar.gz"
    assert rankfall("report", run, "--bundle", "-o", str(archive)).returncode == 0
    there = {"RANKFALL_HOME": str(tmp_path / "other")}
    shown = rankfall("why", str(archive), **there).stdout
    commands = [line.strip().removeprefix("$ ") for line in shown.splitlines() if line.startswith("  $ rankfall ")]
    assert len(commands) > 1
    for command in commands:
        done = rankfall(*shlex.split(command)[1:], **there)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Traceback" in done.stdout or "rankfall.verdict/1" in done.stdout
    status = rankfall("status", str(archive), **there)
    assert f"Run {run} failed" in status.stdout
    # A verb that changes a run takes no copy.
    for verb in ("rm", "cancel", "retry"):
        assert rankfall(verb, str(archive), **there).returncode == 66
    assert not (tmp_path / "other").exists()


def test_a_run_and_a_file_are_not_explained_together(rankfall: Runner, home: Path, tmp_path: Path) -> None:
    rankfall("run", *GANG, "train.py")
    run = run_of(home)
    for verb in ("why", "report"):
        done = rankfall(verb, run, str(tmp_path / "missing.log"))
        assert done.returncode == 2
        assert f"{run} is a run" in done.stderr
    log = tmp_path / "plain.log"
    log.write_text("step 1\n")
    done = rankfall("logs", str(log))
    assert done.returncode == 66
    assert f"rankfall why {log}" in done.stderr
