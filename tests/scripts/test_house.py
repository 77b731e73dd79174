"""``make house`` measures what is there: a small tree whose numbers are known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402 - scripts is no package of the project

TREE = {
    "top/__init__.py": '"""The package."""\n',
    "top/low.py": '"""One.\n\nTwo of the scene.\n"""\n\n# A keeper.\nVALUE = 1\n',
    "top/room/__init__.py": "from top.low import VALUE\n",
    "top/room/a.py": "from . import b\n\n\ndef look() -> int:\n    from ..low import VALUE\n\n    return VALUE\n",
    "top/room/b.py": (
        "from typing import TYPE_CHECKING\n\nfrom top.room import a\n\nif TYPE_CHECKING:\n    from top.room.c import C\n"
    ),
    "top/room/c.py": (
        "class SceneKeeper:\n    def __init__(self, a, b, c, d, e, f, g, *, wish):\n        self.ledger = wish\n"
        "class Seven:\n    def __init__(self, a, b, c, d, e, f, g): ...\n"
    ),
}


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, house.Module]:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return house.modules_of(tmp_path)


def test_lines_are_told_apart(modules):
    low = modules["top.low"]
    assert (low.lines, low.doc, low.comment, low.blank, low.code) == (7, 4, 1, 1, 1)
    assert (low.room, modules["top.room.a"].room) == ("top", "top.room")


def test_imports_are_found_wherever_they_stand_but_not_those_for_types(modules):
    assert modules["top.room.a"].imports == {"top.room.b", "top.low"}
    assert modules["top.room.b"].imports == {"top.room.a"}
    assert house.importers(modules)["top.low"] == {"top.room", "top.room.a"}
    groups = house.cycles(modules)
    assert groups == [("top.room.a", "top.room.b")]
    way = house.chain(modules, groups)
    assert (len(way), way[-1]) == (2, "top.low")


def test_wide_constructors_and_private_words_are_named(modules):
    found = modules["top.room.c"]
    assert found.wide == [("SceneKeeper", 8)]
    assert found.words == {"scene": 1, "keeper": 1, "wish": 1, "ledger": 1}
    assert modules["top.low"].prose == {"scene": 1, "keeper": 1}


def test_the_page_names_what_is_too_large(modules, monkeypatch):
    monkeypatch.setattr(house, "MAX_MODULES", 2)
    monkeypatch.setattr(house, "MAX_LINES", 6)
    text = house.report(modules)
    assert "folders over 2 modules: top.room 3" in text
    assert "modules over 6 lines: top.low 7, top.room.a 7" in text
    assert "modules with one importer: 2" in text
    assert "cycles: top.room.a + top.room.b" in text
    assert "constructors over 7 arguments: 1: top.room.c.SceneKeeper 8" in text


def test_the_sources_keep_the_limits_of_the_page():
    modules = house.modules_of(ROOT / "src")
    lines = house.report(modules).splitlines()
    assert len(modules) <= 420
    assert {f"folders over {house.MAX_MODULES} modules: none", f"modules over {house.MAX_LINES} lines: none"} <= {
        *lines
    }
    assert "private words in names: 0: none" in lines
    assert "private words in prose: 0: none" in lines
    one_importer = next(line for line in lines if line.startswith("modules with one importer: "))
    assert int(one_importer.rpartition(" ")[2]) <= 90
