"""The rule that text of others is read in one way: what breaks it is found, and nothing in the product does."""

from __future__ import annotations

from support.patience import scaled

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.foreign_text import LAYERS, faults, files_of

ROOT = Path(__file__).resolve().parents[2]
BREAKS = [
    ("import json\njson.loads(text)", 2, "json.loads"),
    ("import json\njson.load(file)", 2, "json.load"),
    ("import msgspec\nmsgspec.json.decode(data)", 2, "decoding.decode"),
    ("import msgspec\nmade = msgspec.json.Decoder(Record)", 2, "decoding.decoder"),
    ("import msgspec\nmsgspec.convert(row, Record)", 2, "decoding.convert"),
    ("from json import loads", 1, "json.loads"),
    ("import re\n_A = re.compile(r'a')", 2, "re.compile"),
    ("import re\nfound = re.search('a', text)", 2, "re.search"),
    ("from re import compile", 1, "re.compile"),
    ("rank = int(match[1])", 1, "numbers"),
    ("rank = int(match.group('rank'))", 1, "numbers"),
    ("rank = int(text)", 1, "numbers"),
    ("rank = int(record.instance)", 1, "numbers"),
    ("rank = int(text[:4])", 1, "numbers"),
    ("rank = int(text, 16)", 1, "numbers"),
    ("share = float(word)", 1, "numbers"),
    ("both = list(map(int, words))", 1, "numbers"),
    ("def f(text: str) -> int:\n    return int(text)", 2, "numbers"),
    ("def f(text: str | int) -> int:\n    return int(text)", 2, "numbers"),
    ("def f(at: float) -> int:\n    return int(at)\n\ndef g(at: str) -> int:\n    return int(at)", 5, "numbers"),
    ("rank = int('9' * 5000)", 1, "numbers"),
    ("import pickle", 1, "pickle"),
    ("from marshal import loads", 1, "marshal"),
    ("eval(text)", 1, "eval"),
]
HOLDS = [
    "at = int(time.time() * 1e9)",
    "def f(at: float | None) -> int:\n    return int(at or 0.0) if at is None else int(at)",
    "def f(at: float) -> int:\n    return int(at)",
    "whole = int(seconds * _NS)",
    "room = float(_EVENTS)",
    "bad = float(problem is not None)",
    "end = int(moment.timestamp())",
    "most = int(min(first, second))",
    "import re\nname = re.escape(text)\nflags = re.IGNORECASE",
    "import json\ntext = json.dumps(data)",
    "port = int(socket.getsockname()[1])  # foreign-text: the number of an own port",
    "# foreign-text: the number of an own port\nport = int(socket.getsockname()[1])",
    "# foreign-text: numbers of the kernel\ndef f(text):\n    a = int(text)\n    return a + int(text)",
    "from decoding import decode\ndecode(data)",
]


@pytest.mark.parametrize(("source", "line", "said"), BREAKS)
def test_i18_a_way_of_its_own_is_found(source: str, line: int, said: str) -> None:
    found = list(faults(source))
    assert [number for number, _ in found] == [line]
    assert said in found[0][1]


@pytest.mark.parametrize("source", HOLDS)
def test_what_cannot_be_text_is_no_fault(source: str) -> None:
    assert list(faults(source)) == []


def test_an_exception_says_why() -> None:
    assert list(faults("rank = int(text)  # foreign-text:"))
    assert list(faults("rank = int(text)  # foreign-text: because"))
    assert list(faults("# foreign-text: the number of a port\n\nrank = int(text)"))


def test_the_wrapper_has_its_own_readers() -> None:
    found = [text for _, text in faults("import json, re\na = json.loads(b)\nc = int(d)\ne = re.compile(f)\nre.sub(g, h, i)", inside=True)]
    assert [text.partition(":")[0] for text in found] == ["json.loads", "int() of what may be text", "re.sub"]
    assert all("rankfall_inside.untrusted" in text for text in found[:2])


def test_i18_the_product_keeps_the_rule() -> None:
    done = subprocess.run(
        (sys.executable, ROOT / "scripts" / "foreign_text.py"), capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_room_is_read_but_those_that_read_nothing_of_others() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "rankfall").glob("*/__init__.py")}
    # Specs and manifests of the user, the readers themselves, and old names without code.
    assert rooms - {layer.rpartition("/")[2] for layer in LAYERS} == {"backends", "model", "supervise"}
    assert all(files_of(layer) for layer in LAYERS)


def test_a_name_that_is_out_of_date_does_not_pass_for_clean() -> None:
    with pytest.raises(ValueError, match="LAYERS names rankfall/observe"):
        files_of("rankfall/observe")
