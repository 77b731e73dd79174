from __future__ import annotations

import msgspec
import pytest

from rankfall.model import Cause, Decisive, Source, Verdict
from rankfall.render.summary import first_sentence


def found(slug: str, line: str, *, source: Source = "log", **fields: object) -> Verdict:
    cause = Cause.of(slug, confidence="proven")
    decisive = Decisive(source=source, where="x", line=line)
    made = Verdict(run="job-1", attempt=1, state="failed", cause=cause, scope="rank", rank=1, decisive=decisive)
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize(
    ("source", "line", "name"),
    [
        ("record", "ValueError: Invalid config:\n  lr: must be > 0\nDone", "ValueError"),
        ("record", "RuntimeError: one\n\nValueError: quoted\nKilled", "RuntimeError"),
        ("record", "KeyError", "KeyError"),
        ("record", "Ошибка: дата", "Ошибка"),
        ("record", "app.run.<locals>.Lost: x", "Lost"),
        ("record", "ExceptionGroup: workers (2 sub-exceptions)\nKeyError: 'labels'", "KeyError"),
        ("record", "ExceptionGroup: nothing known", "ExceptionGroup"),
        ("record", "RuntimeError: Caught KeyError in DataLoader worker process 0.\nKeyError: 3", "KeyError"),
        ("log", 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: bad\nAborted', "ValueError"),
        ("log", 'KeyError: 3\nTraceback (most recent call last):\n  File "a.py", line 1\nValueError: bad', "ValueError"),
    ],
)  # fmt: skip
def test_the_type_of_an_exception_comes_before_its_message(source: Source, line: str, name: str) -> None:
    assert first_sentence(found("user_code_exception", line, source=source)) == f"Rank 1 raised {name}."


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("> [rank1]: KeyError: 'input_ids'", "KeyError"),
        (">> KeyError: 'input_ids'", "KeyError"),
        ("train-worker-1 pytorch KeyError: 'input_ids'", "KeyError"),
        ("trainer-1  | KeyError: 'input_ids'", "KeyError"),
        ("trainer-1  | app.Lost: it", "Lost"),
        ("[1,mpirank:3,algo-2]<stderr>:KeyError: 'input_ids'", "KeyError"),
        ("3: app.Lost: it", "Lost"),
        ("  | KeyError: 'labels'", "KeyError"),
        ('  "textPayload": "KeyError: \'input_ids\'",', "KeyError"),
        ("Ошибка: дата", "Ошибка"),
        ("[rank1]: модуль.Ошибка", "Ошибка"),
        ("train.log:108:KeyError: 'input_ids'", "KeyError"),
        ("\ud800> ValueError: a lone surrogate", "ValueError"),
    ],
)
def test_the_type_of_an_exception_is_found_behind_the_prefix_of_its_line(line: str, name: str) -> None:
    assert first_sentence(found("user_code_exception", line)) == f"Rank 1 raised {name}."


def test_words_without_a_type_name_no_exception() -> None:
    assert first_sentence(found("user_code_exception", "> it failed")) == "Rank 1 raised an exception."
