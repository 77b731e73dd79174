from __future__ import annotations

import msgspec
import pytest

from rankfall.model import Cause, Consequence, Decisive, Source, Verdict
from rankfall.model.verdict import AFTER_ROOT
from rankfall.render.summary import advice_text, first_sentence
from rankfall.render.verdict import Details, render_verdict


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
        ("\ud800> ValueError: an unpaired surrogate", "ValueError"),
    ],
)
def test_the_type_of_an_exception_is_found_behind_the_prefix_of_its_line(line: str, name: str) -> None:
    assert first_sentence(found("user_code_exception", line)) == f"Rank 1 raised {name}."


def test_words_without_a_type_name_no_exception() -> None:
    assert first_sentence(found("user_code_exception", "> it failed")) == "Rank 1 raised an exception."


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("SystemExit: ERROR: dataset /data/c4 is empty", 'exited with code 1 and the message "ERROR: dataset /data/c4 is empty".'),
        ("SystemExit: the tool ended with exit code 3", 'exited with code 1 and the message "the tool ended with exit code 3".'),
        ("SystemExit: 7", "exited with code 7."),
        ("SystemExit", "exited with an error code of its own program."),
    ],
)  # fmt: skip
def test_a_message_of_sys_exit_stands_beside_its_code(line: str, words: str) -> None:
    assert first_sentence(found("user_exit", line, source="record")) == f"Rank 1 {words}"


WAITED = (
    Consequence(rank=0, slug="collective_timeout", because="timed out"),
    Consequence(rank=1, slug="peer_teardown", because="stopped"),
)


def test_ranks_are_other_ones_only_beside_a_named_rank() -> None:
    named = found("collective_timeout", "timed out", consequences=WAITED)
    unknown = msgspec.structs.replace(named, rank=None, scope=None)
    of_the_job = msgspec.structs.replace(named, rank=None, scope="external")
    assert first_sentence(named).endswith("; 2 other ranks failed or were stopped because of it.")
    assert first_sentence(unknown) == "An unknown rank timed out in a collective; 2 ranks failed or were stopped."
    assert first_sentence(of_the_job).endswith("; 2 ranks failed or were stopped because of it.")
    assert "\n2 other ranks failed or stopped as a consequence: 0, 1 (" in render_verdict(named)
    assert "\n2 ranks failed or stopped as a consequence: 0, 1 (" in render_verdict(unknown)


def test_a_consequence_by_its_time_alone_is_not_because_of_the_root() -> None:
    later = Consequence(rank=2, slug="peer_lost", because=AFTER_ROOT)
    alone = found("user_code_exception", "KeyError: 1", consequences=(later,))
    assert first_sentence(alone).endswith("; 1 other rank failed after it.")
    assert "\n1 other rank failed or stopped afterwards, perhaps as a consequence: 2 (peer_lost)" in render_verdict(
        alone
    )
    mixed = found("user_code_exception", "KeyError: 1", consequences=(*WAITED, later))
    assert first_sentence(mixed).endswith("; 3 other ranks failed or were stopped after it.")


def test_nothing_follows_from_a_failure_that_is_not_known() -> None:
    one = (Consequence(rank=0, slug="unknown", because="RuntimeError: NCCL error"),)
    unknown = found("unknown", "[rank0]: RuntimeError: NCCL error", rank=None, scope=None, consequences=one)
    files = msgspec.structs.replace(unknown, run=None, attempt=None)
    assert first_sentence(files) == "No known failure was found in the files; the shown line may belong to one."
    assert first_sentence(unknown) == "The job failed; no recorded evidence explains it; 1 rank failed."
    assert "\n1 rank failed or stopped without a known cause: 0 (unknown)" in render_verdict(files)
    nameless = msgspec.structs.replace(files, consequences=(Consequence(rank=None, slug="peer_lost", because=""),))
    assert "\nRanks failed without a known cause (peer_lost)" in render_verdict(nameless)


@pytest.mark.parametrize(
    ("source", "line", "sentence", "advice"),
    [
        ("record", "SyntaxError: invalid syntax (train.py, line 7)", "raised SyntaxError in train.py:7", "syntax at train.py:7"),
        ("record", "TabError: inconsistent use of tabs (a b.py, line 3)", "raised TabError in a b.py:3", "syntax at a b.py:3"),
        ("record", "SyntaxError: invalid syntax (<string>, line 1)", "raised SyntaxError", "syntax of the code that the message"),
        ("record", "SyntaxError: bad input", "raised SyntaxError", "syntax of the code that the message"),
        ("log", '  File "/app/train.py", line 7\n    def f(:\n          ^\nSyntaxError: invalid syntax',
         "raised SyntaxError in train.py:7", "syntax at /app/train.py:7"),
        ("log", '[rank1]:   File "/app/train.py", line 7\n[rank1]:     x\n[rank1]: IndentationError: unexpected indent',
         "raised IndentationError in train.py:7", "syntax at /app/train.py:7"),
        ("record", "ImportError: cannot import name 'nothing' from 'os' (/usr/lib/python3.11/os.py)",
         "could not import a name that the module does not have", "Fix the import: correct the name"),
        ("record", "ImportError: cannot import name 'b' from partially initialized module 'a' (most likely due to a circular import)",
         "could not import a name: two modules import each other", "Fix the import: move one"),
        ("record", "ModuleNotFoundError: No module named 'x'", "could not import a module or a native library", "Install or repair"),
    ],
)  # fmt: skip
def test_code_that_cannot_be_loaded_is_distinct_from_a_missing_module(
    source: Source, line: str, sentence: str, advice: str
) -> None:
    verdict = found("import_error", line, source=source)
    assert first_sentence(verdict) == f"Rank 1 {sentence}."
    assert advice in advice_text(verdict)
    assert "{" not in advice_text(verdict)


def test_the_place_of_a_syntax_error_may_be_its_innermost_frame() -> None:
    verdict = found("import_error", "SyntaxError: invalid syntax")
    assert "syntax at /app/train.py:7, or" in advice_text(verdict, frames=("/app/train.py:7 in ?",))
    assert "syntax of the code" in advice_text(verdict, frames=("<string>:1 in ?",))
    assert "syntax at /app/train.py:7, or" in render_verdict(verdict, details=Details(frames=("/app/train.py:7 in ?",)))


@pytest.mark.parametrize(
    ("line", "sentence", "advice"),
    [
        ("rank 1 (pid 9) ended: signal 13, sender not known", "was ended by SIGPIPE after a write", "own write causes SIGPIPE"),
        ("Signal 13 (SIGPIPE) received by PID 9", "was ended by SIGPIPE after a write", "own write causes SIGPIPE"),
        ("failed (exitcode: -14) local_rank: 0 (pid: 9)", "was ended by SIGALRM after a timer", "setitimer"),
        ("rank 1 (pid 9) ended: signal 14, sender not known", "was ended by SIGALRM after a timer", "setitimer"),
        ("rank 1 (pid 9) ended: signal 15, sender not known", "was stopped by a signal from outside", "check the scheduler"),
        ("rank 1 (pid 13) ended: signal 1, sender not known", "was stopped by a signal from outside", "check the scheduler"),
    ],
)  # fmt: skip
def test_a_signal_of_the_programs_own_write_or_timer_sends_nobody_to_the_scheduler(
    line: str, sentence: str, advice: str
) -> None:
    verdict = found("external_signal", line, source="exit")
    assert sentence in first_sentence(verdict)
    assert advice in advice_text(verdict)
    everywhere = msgspec.structs.replace(verdict, rank=None, scope="all")
    assert first_sentence(everywhere).startswith("All ranks were ")
