"""Logs as people mail them: in archives, compressed, without a suffix; and files that are no logs."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rankfall.cli.app import run as main
from rankfall.model import JobSpec, UsageError
from rankfall.rundir import RunDir, bundle
from rankfall.rundir.layout import prepare

Runner = Callable[..., subprocess.CompletedProcess[str]]
RAISED = b'step 7\nTraceback (most recent call last):\n  File "train.py", line 3, in load\n    g()\nKeyError: 1\n'
FELLOW = b"step 7\nstep 8\n"


def written(path: Path, members: dict[str, bytes]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, data in members.items():
                zipped.writestr(name, data)
        return
    with tarfile.open(
        path, {"gz": "w:gz", "tbz2": "w:bz2", "xz": "w:xz"}.get(path.name.rpartition(".")[2], "w")
    ) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("name", ["logs.tar", "logs.tar.gz", "logs.tbz2", "logs.tar.xz", "logs.zip"])
def test_an_archive_of_logs_is_read_as_its_folder(rankfall: Runner, tmp_path: Path, name: str) -> None:
    written(tmp_path / name, {"job/rank_0.log": FELLOW, "job/rank_1.log": RAISED})
    (tmp_path / "tmp").mkdir()
    found = rankfall("why", str(tmp_path / name), TMPDIR=str(tmp_path / "tmp"))
    assert found.stdout.startswith("Rank 1 raised KeyError")
    assert f"{name}/job/rank_1.log:5" in found.stdout
    # Details are read from the unpacked file.
    assert "at train.py:3 in load" in found.stdout
    assert not list((tmp_path / "tmp").iterdir())
    report = rankfall("report", str(tmp_path / name), "-o", "-")
    assert "train.py:3 in load" in report.stdout


def test_archives_and_files_are_read_together(rankfall: Runner, tmp_path: Path) -> None:
    for folder, members in (("a", {"rank_0.log": FELLOW}), ("b", {"rank_1.log": RAISED})):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder / "logs.tar.gz", members)
    (tmp_path / "rank_2.log").write_bytes(FELLOW)
    paths = ("a/logs.tar.gz", "b/logs.tar.gz", "rank_2.log")
    found = json.loads(rankfall("why", *(str(tmp_path / path) for path in paths), "-o", "json").stdout)
    assert (found["rank"], found["cause"]["slug"]) == (1, "user_code_exception")


@pytest.mark.parametrize("name", ["logs.tar", "logs.tar.gz", "logs.tbz2", "logs.tar.xz", "old/LOGS.ZIP"])
def test_an_archive_in_a_folder_without_logs_is_read(rankfall: Runner, tmp_path: Path, name: str) -> None:
    job = tmp_path / "job"
    (job / "old").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    (job / "train.py").write_text("raise ValueError\n")
    (job / "model.pt").write_bytes(b"PK\x03\x04")
    path = job / name
    written(path.with_suffix(".zip") if name.endswith("ZIP") else path, {"rank_0.log": FELLOW, "rank_1.log": RAISED})
    if name.endswith("ZIP"):
        path.with_suffix(".zip").rename(path)
    found = rankfall("why", str(job), TMPDIR=str(tmp_path / "tmp"))
    assert found.stdout.startswith("Rank 1 raised KeyError"), found.stderr
    assert f"job/{name}/rank_1.log:5" in found.stdout
    assert "at train.py:3 in load" in found.stdout
    assert not list((tmp_path / "tmp").iterdir())
    assert f"job/{name}/rank_1.log:5" in rankfall("why", f"{job}/old/..").stdout


def test_archives_beside_newer_logs_are_named_and_not_read(rankfall: Runner, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for number in range(5):
        written(job / f"old-{number}.zip", {"rank_0.log": RAISED})
    (job / "rank_0.log").write_bytes(b"Traceback (most recent call last):\nValueError: new\n")
    found = " ".join(rankfall("why", str(job)).stdout.split())
    assert found.startswith("Rank 0 raised ValueError")
    assert f"5 archives in {job} were not read; name them: old-0.zip, old-1.zip, old-2.zip and 2 more" in found
    (job / "rank_0.log").write_bytes(b"")
    assert rankfall("why", str(job)).stdout.count("KeyError") > 0


def test_an_archive_in_a_folder_that_cannot_be_read_is_named(rankfall: Runner, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "a.zip").write_bytes(b"PK\x03\x04 no archive")
    (job / "b.tar.gz").write_bytes(gzip.compress(RAISED))
    done = rankfall("why", str(job))
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "2 archives in job were not read; name them: a.zip, b.tar.gz" in text
    assert "any log file: the folder contains none" in text
    written(job / "c.tar", {"rank_0.log": FELLOW, "rank_1.log": RAISED})
    text = " ".join(rankfall("why", str(job)).stdout.split())
    assert text.startswith("Rank 1 raised KeyError")
    assert "2 archives in job were not read" in text
    # A link leads nowhere, and a damaged part costs no whole one.
    (tmp_path / "elsewhere.zip").write_bytes((job / "a.zip").read_bytes())
    (job / "d.zip").symlink_to(tmp_path / "elsewhere.zip")
    written(job / "e.tar.gz", {f"rank_{number}.log": RAISED * 400 for number in range(3)})
    (job / "e.tar.gz").write_bytes((job / "e.tar.gz").read_bytes()[:600])
    text = " ".join(rankfall("why", str(job)).stdout.split())
    assert text.startswith("Rank 1 raised KeyError")
    assert "3 archives in job were not read; name them: a.zip, b.tar.gz, e.tar.gz" in text


def test_the_archives_of_a_folder_have_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MAX_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(bundle, "_MAX_ARCHIVES", 3)
    names = [f"{name}.zip" for name in "abcd"]
    for name, size in zip(names, (600_000, 600_000, 100_000, 1), strict=True):
        written(tmp_path / name, {"a.log": bytes(size)})
    bundle.unpack_archives([tmp_path / name for name in names], tmp_path, tmp_path / "in")
    assert [(tmp_path / "in" / name).is_dir() for name in names] == [True, False, True, False]


def test_a_strangers_archive_writes_nothing_elsewhere(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        for name in (
            "../outside.log",
            "/tmp/absolute-of-a-test.log",
            "a/../../b.log",
            "rank_1.log",
            "rank_1.log",
            "rank_1.log/x",
        ):
            info = tarfile.TarInfo(name)
            info.size = len(RAISED)
            tar.addfile(info, io.BytesIO(RAISED))
        for kind, name in ((tarfile.SYMTYPE, "link"), (tarfile.LNKTYPE, "hard"), (tarfile.FIFOTYPE, "pipe")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    (tmp_path / "in").mkdir()
    bundle.unpack_logs(tmp_path / "bad.tar.gz", tmp_path / "in")
    assert [path.name for path in (tmp_path / "in").rglob("*")] == ["rank_1.log"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar.gz", "in"]


@pytest.mark.parametrize("name", ["bomb.zip", "bomb.tar.gz"])
def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(bundle, "_MAX_LOG_BYTES", 1 << 20)
    written(tmp_path / name, {"a.log": bytes(900_000), "b.log": bytes(900_000)})
    (tmp_path / "in").mkdir()
    with pytest.raises(UsageError, match="unpacks to more than"):
        bundle.unpack_logs(tmp_path / name, tmp_path / "in")
    assert sum(path.stat().st_size for path in (tmp_path / "in").iterdir()) <= 1 << 20


@pytest.mark.parametrize("name", ["logs.tar.gz", "logs.zip"])
def test_an_archive_that_is_cut_off_is_said(rankfall: Runner, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    written(path, {f"rank_{number}.log": RAISED * 400 for number in range(3)})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    done = rankfall("why", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot unpack {path}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_text_is_read_from_a_pipe_and_under_any_name(
    rankfall: Runner, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    # Two members, as of a log that was compressed twice while it grew.
    data = pack(FELLOW) + pack(RAISED)
    (tmp_path / "train.log.1").write_bytes(data)
    for done in (rankfall("why", "-", stdin=data), rankfall("why", str(tmp_path / "train.log.1"))):
        assert done.stdout.startswith("The job raised KeyError"), done.stderr


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("thirds", [2, 3])
def test_a_pipe_and_a_file_of_the_same_bytes_have_one_answer(
    rankfall: Runner, tmp_path: Path, pack: Callable[[bytes], bytes], thirds: int
) -> None:
    # The traceback is early; the rest hardly packs, so that a cut leaves most of it.
    noise = b"".join(b"step %d %s\n" % (n, hashlib.sha256(b"%d" % n).hexdigest().encode()) for n in range(20_000))
    whole = pack(RAISED + noise)
    data = whole[: len(whole) * thirds // 3]
    path = tmp_path / "train.log"
    path.write_bytes(data)
    file, pipe = rankfall("why", str(path)), rankfall("why", stdin=data)
    assert (file.returncode, pipe.returncode) == (0, 0), file.stderr + pipe.stderr
    renamed = (
        pipe.stdout.replace("standard input", str(path)).replace("-:5", f"{path}:5").replace("  - is", f"  {path} is")
    )
    assert renamed.split() == file.stdout.split()
    # The line before the exception and its frame come from the text itself.
    assert "      g()\n" in pipe.stdout
    assert "at train.py:3 in load" in pipe.stdout
    assert ("is damaged: it is cut off" in pipe.stdout or "Compressed file ended" in pipe.stdout) == (
        thirds < 3 and pack is not bytes
    )


def test_a_damaged_log_without_a_failure_before_its_damage_is_told_as_such(rankfall: Runner, tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b"step %d %d\n" % (n, n * n) for n in range(20_000)) + RAISED)
    path = tmp_path / "train.log.gz"
    path.write_bytes(data[: len(data) * 2 // 3])
    for done in (rankfall("why", str(path)), rankfall("why", stdin=path.read_bytes())):
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("No failure was found in the files.")
        assert "is damaged: it is cut off" in " ".join(done.stdout.split())
    # Of the beginning of a format alone nothing can be read.
    done = rankfall("why", "-", stdin=data[:12])
    assert (done.returncode, done.stdout) == (2, "")
    assert "is damaged: it is cut off" in done.stderr


def test_files_that_are_no_logs_or_empty_are_said(rankfall: Runner, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/core").write_bytes(b"\x7fELF" + bytes(1000) + b"\nRuntimeError: none\n")
    done = rankfall("why", str(tmp_path / "job/core"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "core is a program, not a log" in done.stderr
    # In a folder of logs it is no news.
    (tmp_path / "job/rank_0.log").write_bytes(RAISED)
    assert "core" not in rankfall("why", str(tmp_path / "job")).stdout
    (tmp_path / "empty.log").touch()
    for done in (rankfall("why", str(tmp_path / "empty.log")), rankfall("why", "-", stdin=b"")):
        assert "any text: " in done.stdout
        assert "The job failed" not in done.stdout


def test_several_runs_are_refused_and_listed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: str) -> str:
        assert main(["why", *words]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        return err

    prepare(home)
    monkeypatch.chdir(tmp_path)
    first = RunDir.create(JobSpec(name="first", command=("a",)), home=home)
    for path in (home / "runs", home):
        assert f"{path} holds 1 run, and a verdict is about one run: {first.id}\n" in refused(str(path))
    second = RunDir.create(JobSpec(name="second", command=("a",)), home=home)
    (home / "runs" / "rank_0.log").write_bytes(RAISED)
    said = refused(str(home / "runs"), "-o", "json")
    assert f"holds 2 runs, and a verdict is about one run: {second.id}, {first.id}\n" in said
    assert f"next: name one run: rankfall why {second.id}\n" in said
    # Copies of them under any folder, also as several paths and in an archive, and a name with a space.
    for run in (first, second):
        (run.path / "run.db").touch()
        shutil.copytree(run.path, Path("logs", "of a colleague", run.id))
    said = refused("logs")
    assert f"logs holds 2 runs, and a verdict is about one run: logs/of a colleague/{second.id}, logs/of" in said
    assert f"next: name one run: rankfall why 'logs/of a colleague/{second.id}'\n" in said
    assert "holds 2 runs" in refused(*map(str, Path("logs/of a colleague").iterdir()))
    subprocess.run(["tar", "czf", "mail.tar.gz", "logs"], check=True)
    assert "next: unpack the archive, then name one run: rankfall why 'mail.tar.gz/logs/of" in refused("mail.tar.gz")
    for number in range(20):
        RunDir.create(JobSpec(name=f"more-{number}", command=("a",)), home=home)
    assert "holds 22 runs" in (said := refused(f"{home}/runs/"))
    assert " and 12 more\n" in said
    # One run beside logs, and folders that only resemble runs, are logs.
    shutil.rmtree(Path("logs", "of a colleague", first.id))
    for name in ("spec.json", "meta.json"):
        Path("logs", name).write_text("{}")
    Path("logs", "rank_1.log").write_bytes(RAISED)
    assert main(["why", "logs"]) == 0
    assert capfd.readouterr().out.startswith("Rank 1 raised KeyError")


def test_a_pipe_has_lines_of_evidence_whole_at_any_width(rankfall: Runner, tmp_path: Path) -> None:
    line = b"KeyError: " + b"'long' " * 40 + b"end"
    (tmp_path / "rank_1.log").write_bytes(RAISED.replace(b"KeyError: 1", line))
    found = rankfall("why", str(tmp_path / "rank_1.log"), COLUMNS="60")
    assert f"      {line.decode()}" in found.stdout.splitlines()
