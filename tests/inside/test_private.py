"""Modes of what runs in a slot makes: for the user alone on this machine, as the umask says in a pod."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rankfall_inside import private_files, redact


@pytest.mark.parametrize(("pod", "folder", "file"), [(None, 0o700, 0o600), ("train-0", 0o777, 0o644)])
def test_i18_p9_modes_of_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod: str | None, folder: int, file: int
) -> None:
    monkeypatch.delenv("RANKFALL_POD", raising=False)
    if pod:
        monkeypatch.setenv("RANKFALL_POD", pod)
    before = os.umask(0)
    try:
        private_files.make_folders(str(tmp_path / "a" / "b"))
        private_files.make_folders(str(tmp_path / "a" / "b"))
        os.close(private_files.open_file(str(tmp_path / "a" / "x"), os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/x")]
    assert modes == [folder, folder, file]


def test_i18_p9_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(OSError, match="File exists"):
        private_files.make_folders(str(tmp_path / "a"))
    with pytest.raises(OSError, match=r"exists|ot a directory"):
        private_files.make_folders(str(tmp_path / "a" / "b"))


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "SENTRY_DSN", "BASIC_AUTH", "SESSION_COOKIE", "PGPASSWORD", "RANKFALL_SECRET_3"]
)
def test_i18_p9_values_of_secret_variables_are_masked_in_records(name: str) -> None:
    assert redact.redact("it was abcdefgh-1", redact.secrets_of({name: "abcdefgh-1"})) == "it was ***"


def test_a_shells_working_folder_is_no_password():
    found = redact.secrets_of({"PWD": "/work/train-folder", "OLDPWD": "/work/train-before", "DB_PWD": "abcdefgh-1"})
    assert "abcdefgh-1" in found
    assert not any("train" in value for value in found)
