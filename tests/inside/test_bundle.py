from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from rankfall.backends import payload
from rankfall_inside.wrapper import options


def test_zip_is_small_repeatable_and_hides_no_installed_package() -> None:
    data = payload.build_zip()
    assert data == payload.build_zip()
    assert len(data) < 128 * 1024
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {
        "__main__.py",
        "sitecustomize.py",
        "rankfall_inside/__init__.py",
        "rankfall_inside/wrapper/wrapper.py",
    } <= set(names)
    assert not [name for name in names if name.split("/")[0] == "rankfall" or name == "rankfall.py"]
    assert all(name.endswith(".py") for name in names)


def test_unpack_makes_one_directory_and_uses_it_again(tmp_path: Path) -> None:
    first = payload.unpack(tmp_path)
    mark = first / "mark"
    mark.touch()
    assert payload.unpack(tmp_path) == first
    assert mark.exists()
    assert first.parent == tmp_path / "inside"
    assert len(first.name) == 12
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_what_python_compiled_of_the_package_is_not_compiled_again_in_each_home(tmp_path: Path) -> None:
    """By each slot of a first run: a tenth of a second of processor time."""
    home = payload.unpack(tmp_path)
    caches = home / "rankfall_inside" / "wrapper" / "__pycache__"
    own = caches / Path(options.__cached__).name
    before = own.stat().st_mtime_ns
    subprocess.run([sys.executable, "-I", "-S", str(home), "wrap", "--help"], check=False, capture_output=True)
    # Python writes anew what it does not accept.
    assert own.stat().st_mtime_ns == before
    assert own.read_bytes() == Path(options.__cached__).read_bytes()


def test_the_zip_itself_is_runnable_and_unpacked_once_for_the_hook(slot) -> None:
    archive = slot.base / "inside.pyz"
    archive.write_bytes(payload.build_zip())
    slot.home = archive
    assert slot.rank("raise ValueError('x')").returncode == 1
    assert slot.one("error").error.types == ("ValueError",)
    assert (slot.dir / "inside" / "sitecustomize.py").exists()
    assert list((slot.dir / "inside" / "rankfall_inside" / "__pycache__").glob(f"*{sys.implementation.cache_tag}*"))
