"""What is installed, built and shipped is what the lock says: versions, hashes, a base by digest, a list of what is in it."""

from __future__ import annotations

from support.patience import scaled

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("constraints.txt", "deploy/requirements.txt", "deploy/build-requirements.txt")
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!_-]+)(?: ; [a-z_0-9.'<>=!() A-Z]+)?")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def pins(name: str) -> dict[str, str]:
    """Name -> version of a locked file; every line of it is a pin, or a hash of the pin above."""
    found: dict[str, str] = {}
    open_pin = False
    for line in (ROOT / name).read_text().splitlines():
        pin = PIN.fullmatch(line.removesuffix(" \\"))
        if pin:
            assert not open_pin, f"{name}: the pin before {line!r} has no hash"
            assert pin[1] not in found, f"{name}: {pin[1]} stands there twice"
            found[pin[1]] = pin[2]
            assert line.endswith(" \\"), f"{name}: {line!r} has no hash"
            open_pin = True
            continue
        hashed = HASH.fullmatch(line)
        assert hashed, f"{name}: {line!r}"
        open_pin = bool(hashed[1])
    assert not open_pin, name
    return found


def test_i18_p10_every_locked_version_has_hashes_and_all_locks_agree() -> None:
    everything = pins(LOCKS[0])
    for name in LOCKS[1:]:
        found = pins(name)
        assert found
        assert found.items() <= everything.items(), name


def test_i18_p10_build_tools_are_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["requires"] == project["dependency-groups"]["build"]
    (hatchling,) = project["dependency-groups"]["build"]
    assert hatchling == f"hatchling=={pins(LOCKS[2])['hatchling']}"
    assert f"uv=={pins(LOCKS[0])['uv']}" in project["dependency-groups"]["setup"]


@pytest.mark.parametrize("name", ["scripts/setup", "scripts/uv", "scripts/sbom.py", "deploy/Dockerfile"])
def test_i18_p10_nothing_is_installed_without_hashes(name: str) -> None:
    """What has no hash is the checkout, or was built from it just before, and brings nothing with it."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    text = re.sub(r'", "', " ", text)
    installs = [
        line for part in text.splitlines() for line in part.split("&&") if re.search(r"pip (install|sync)", line)
    ]
    assert installs
    for line in installs:
        local = "--no-deps" in line and ("--no-index" in line or "--no-build-isolation" in line)
        hashed = "--require-hashes" in line and "--only-binary :all:" in line
        assert hashed or local, line


def test_i18_p10_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    uv = str(ROOT / "scripts" / "uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "v")], check=True, timeout=scaled(50))
    pin = re.search(r"^idna==.*?[^\\]\n", (ROOT / LOCKS[0]).read_text(), re.MULTILINE | re.DOTALL)
    assert pin
    lock = tmp_path / "lock.txt"
    sync = [uv, "pip", "sync", "--offline", "--python", str(tmp_path / "v"), "--require-hashes", str(lock)]
    lock.write_text(re.sub("sha256:[0-9a-f]{4}", "sha256:0000", pin[0]))
    done = subprocess.run(sync, capture_output=True, text=True, timeout=scaled(50), check=False)
    assert done.returncode != 0
    assert "hash" in done.stderr.lower(), done.stderr
    lock.write_text(pin[0].partition(" \\")[0])
    done = subprocess.run(sync, capture_output=True, text=True, timeout=scaled(50), check=False)
    assert done.returncode != 0
    assert "must have a hash" in done.stderr, done.stderr
    lock.write_text(pin[0])
    assert subprocess.run(sync, capture_output=True, timeout=scaled(50), check=False).returncode == 0


def test_i18_p10_the_image_is_refused_without_a_base_by_digest() -> None:
    text = DOCKERFILE.read_text()
    # No default: a builder refuses an empty name.
    assert re.findall(r"^ARG BASE.*$", text, re.MULTILINE) == ["ARG BASE", "ARG BASE"]
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    check = re.search(r"^RUN (case .*)$", text, re.MULTILINE)
    assert check
    assert check.start() < text.index("COPY")
    for base, code in (("python:3.12-slim", 1), ("", 1), (f"python:3.12-slim@sha256:{'0' * 64}", 0)):
        done = subprocess.run(["sh", "-c", check[1]], env={"BASE": base}, capture_output=True, timeout=scaled(20), check=False)
        assert done.returncode == code, base


def test_i18_p10_a_build_is_given_what_the_recipe_copies_and_nothing_else() -> None:
    copied = {
        word
        for words in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
        for word in words.split()
    }
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied | {"deploy"}
    assert ignore.index("deploy/*") > ignore.index("!deploy")


@pytest.mark.full
@pytest.mark.timeout(150)
def test_i18_p10_the_sbom_names_every_dependency_with_version_and_licence_and_is_the_same_again(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        into = tmp_path / name
        command = [sys.executable, str(ROOT / "scripts" / "sbom.py"), "--offline", "--into", str(into)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(55), check=False)
        assert done.returncode == 0, done.stderr
        texts.append([(into / file).read_bytes() for file in ("sbom.cdx.json", "licences.md")])
        shutil.rmtree(into / "sbom-environment")
    assert texts[0] == texts[1]
    assert str(tmp_path).encode() not in texts[0][0]
    document = json.loads(texts[0][0])
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "rankfall"
    # Of the lock's packages those that this Python needs; the two below have a marker.
    shipped = {one["name"].lower().replace("_", "-").replace(".", "-"): one for one in document["components"]}
    wanted = pins(LOCKS[1])
    assert wanted.keys() - shipped.keys() <= {"backports-zstd", "typing-extensions"}
    assert {name: one["version"] for name, one in shipped.items()}.items() <= wanted.items()
    assert all(one["licenses"] for one in shipped.values())
    rows = texts[0][1].decode().splitlines()[2:]
    assert len(rows) == len(shipped)
    assert all(re.fullmatch(r"\| [\w.-]+ \| [\w.]+ \| [^|]{2,} \|", row) for row in rows), rows


def test_i18_p10_a_wheel_holds_the_two_packages_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, timeout=scaled(50), check=True)
    (wheel,) = tmp_path.iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"rankfall", "rankfall_inside"}
    suffixes = {Path(name).suffix for name in names if ".dist-info/" not in name}
    assert suffixes <= {".py", ".typed", ".json", ".csv", ".jsonl", ".toml", ".script", ".html", ".md"}
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest|bench|testbed)\b", name)]


def test_i18_p10_go_modules_of_the_test_bed_have_sums() -> None:
    for module in (ROOT / "testbed" / "go").glob("*/go.mod"):
        if "require" in module.read_text():
            assert (module.parent / "go.sum").read_text().strip(), module
