"""``python -m testbed prune`` frees what no table names any more, and nothing while a bed may run it."""

from __future__ import annotations

import pytest

from testbed import __main__ as program
from testbed import bed, builds, components, images
from testbed.layout import Layout


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for module in (builds, images):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(bed, "is_up", lambda layout: False)
    return tmp_path


def test_old_binaries_and_images_go_and_those_in_use_stay(cache, capsys):
    kept = [*(cache / "bin" / one.key for one in components.table().values()), *map(images.folder, images.RECIPES)]
    old = [cache / "bin" / "etcd-v1.0.0-0123456789ab", cache / "images" / "python-0123456789ab"]
    for folder in (*kept, *old):
        folder.mkdir(parents=True)
    assert program.main(["prune"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(path) for path in old]
    assert all(path.is_dir() for path in kept)
    assert not any(path.exists() for path in old)


def test_nothing_goes_while_any_bed_is_up(cache, capsys, monkeypatch):
    old = cache / "bin" / "etcd-v1.0.0-0123456789ab"
    old.mkdir(parents=True)
    monkeypatch.setattr(bed, "is_up", lambda layout: layout == Layout(7))
    assert program.main(["prune"]) == 1
    assert "test bed 7 is up" in capsys.readouterr().err
    assert old.is_dir()
