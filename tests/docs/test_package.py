"""The package as an index and a user get it: built from the checkout, checked, installed into clean environments without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email import message_from_string
from pathlib import Path
from typing import Final

import pytest

from support.patience import scaled

ROOT: Final = Path(__file__).resolve().parents[2]
UV: Final = str(ROOT / "scripts" / "uv")
LOG: Final = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 7, in main
[rank1]: KeyError: 'labels'
"""


def command(*words: str | Path, cwd: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | env,
        timeout=scaled(100),
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of sdist and wheel; the wheel is built from the sdist, as an index does."""
    folder = tmp_path_factory.mktemp("dist")
    command(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert sorted(one.suffix for one in folder.iterdir()) == [".gz", ".whl"]
    return folder


def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.timeout(120)
def test_i24_p1_an_index_accepts_the_package(built: Path) -> None:
    command(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir())
    with zipfile.ZipFile(wheel(built)) as file:
        names = file.namelist()
        (place,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(file.read(place).decode())
    assert (metadata["Name"], metadata["Requires-Python"]) == ("rankfall", ">=3.11")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    # Data and types travel; tests and tools stay here.
    for name in ("rankfall/py.typed", "rankfall/model/causes.csv", "rankfall/render/report.html"):
        assert name in names, name
    assert {name.split("/")[0] for name in names} == {"rankfall", "rankfall_inside", place.split("/")[0]}
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as file:
        inside = {name.split("/")[1] for name in file.getnames() if "/" in name}
    assert inside == {"src", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"}


def interpreters() -> dict[str, str]:
    """Pythons of this machine that the package supports, by version: on PATH, or among pyenv's."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    for minor in range(11, 20):
        version = f"3.{minor}"
        places = [*sorted(root.glob(f"{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
        working = (str(place) for place in places if place and _is(str(place), version))
        if version not in found and (place := next(working, None)) is not None:
            found[version] = place
    return found


def _is(place: str, version: str) -> bool:
    done = subprocess.run([place, "--version"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and f" {version}." in done.stdout


@pytest.mark.timeout(180)
def test_i24_p1_the_wheel_works_in_a_clean_environment_of_each_python(
    built: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pythons = interpreters()
    record_property("note", f"the wheel works with Python {', '.join(pythons)}")
    for version, place in pythons.items():
        venv = tmp_path / version
        command(UV, "venv", "--quiet", "--python", place, venv)
        pip = (UV, "pip", "install", "--quiet", "--python", venv)
        command(*pip, "--require-hashes", "--only-binary", ":all:", "-r", ROOT / "deploy/requirements.txt")
        command(*pip, "--no-deps", "--no-index", wheel(built))
        home, job = tmp_path / f"home-{version}", tmp_path / f"job-{version}"
        job.mkdir()
        (job / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\nraise KeyError('labels')\n")
        (job / "job.log").write_text(LOG)
        program = venv / "bin" / "rankfall"
        env = {"RANKFALL_HOME": str(home), "PYTHONPATH": "", "VIRTUAL_ENV": str(venv)}
        assert "KeyError" in command(program, "why", "job.log", cwd=job, **env)
        run = (program, "run", "--launcher", "plain", "--nproc-per-node", "2", "--max-restarts", "0", "train.py")
        done = subprocess.run(
            run, capture_output=True, text=True, check=False, cwd=job, env=os.environ | env, timeout=scaled(60)
        )
        assert done.returncode == 1, done.stderr
        assert "KeyError" in command(program, "why", cwd=job, **env)
        # Nobody needs torch, or a compiler, to explain a log.
        missing = "import importlib.util as u; assert not u.find_spec('torch')"
        command(venv / "bin" / "python", "-c", missing)
