"""A line that no signature knows gives a suspected cause by words of any program, and never more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.explain import explain_files
from rankfall.model import Verdict
from rankfall.model.causes import catalogue as causes
from rankfall.verdict.signatures.catalogue import parse, source

GENERAL = parse(source("general"), origin="general")


LIBRARY = "/usr/lib/python3/site-packages/meshlib/net.py"


def said(tmp_path: Path, text: str) -> Verdict:
    path = tmp_path / "job.log"
    path.write_text(text, "utf-8")
    return explain_files([path]).verdict


def test_words_of_any_program_are_tried_on_no_other_line_and_never_advise_more_than_one_retry() -> None:
    assert all(each.id == f"{each.slug}.wording" for each in GENERAL)
    assert all(set(each.where) <= {"wording", "exception"} and "wording" in each.where for each in GENERAL)
    assert {
        each.id for each in GENERAL if each.retry != ("no" if causes()[each.slug].retry == "no" else "once")
    } == set()


@pytest.mark.parametrize(
    ("line", "slug", "retry"),
    [
        ("[tileengine] fatal: wafer 3: HBM exhausted, device out of memory after 3 tiles", "gpu_oom", "no"),
        ("E0412 12:00:01.000001 77 spool.cc:91] write to spool failed: disk quota reached", "disk_full", "no"),
        ("batchd: job 81 terminated: rss hard limit of 64 GB reached", "host_oom", "no"),
        ("gridctl: ERROR job 17 removed: run time limit exceeded", "walltime_or_requeue", "once"),
        ("farmd: error: host rack7-n03 was found powered off", "node_lost", "once"),
        ("quantlib: unrecognized argument --tiles", "bad_arguments", "no"),
        ("fatal: solver received SIGSEGV in worker thread", "segfault", "once"),
    ],
)
def test_an_unknown_programs_words_name_a_suspected_cause(tmp_path: Path, line: str, slug: str, retry: str) -> None:
    verdict = said(tmp_path, f"step 1 loss 2.3\nstep 2 loss 2.2\n{line}\n")
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry) == (slug, "suspected", retry)
    assert verdict.node_action == "none"
    assert verdict.decisive is not None
    assert verdict.decisive.line == line


def test_a_librarys_own_exception_is_read_by_the_words_of_its_name(tmp_path: Path) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/opt/job/train.py", line 9, in <module>\n'
        "    mesh.join()\n"
        "meshlib.errors.RemoteWorkerDiedError: shard 4\n"
    )
    verdict = said(tmp_path, text)
    assert (verdict.cause.slug, verdict.cause.confidence) == ("peer_lost", "suspected")


def test_an_exception_without_its_traceback_is_read_by_its_words_with_no_other_advice(tmp_path: Path) -> None:
    error = "meshlib.net.TransferError: https download timed out"
    traced = (
        f'Traceback (most recent call last):\n  File "/opt/job/train.py", line 9, in <module>\n    run()\n{error}\n'
    )
    for text in (f"step 1\n{error}\n", traced):
        verdict = said(tmp_path, text)
        assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry) == ("hub_unreachable", "suspected", "once")


@pytest.mark.parametrize(
    "error",
    ["KeyError: 'connection closed'", "TypeError: device out of memory", "ValueError: node is lost, SIGSEGV"],
)
def test_an_exception_of_the_own_code_stays_one(tmp_path: Path, error: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/opt/job/train.py", line 9, in <module>\n    run()\n{error}\n'
    verdict = said(tmp_path, text)
    assert (verdict.cause.slug, verdict.cause.confidence) == ("user_code_exception", "likely")


def test_a_known_cause_and_a_list_of_possible_ones_leave_no_room_for_words(tmp_path: Path) -> None:
    known = said(tmp_path, "OSError: [Errno 28] No space left on device\nfatal: host rack7 was found powered off\n")
    assert known.cause.slug == "disk_full"
    listed = said(tmp_path, "ERROR agent ended. Possible reasons include: (1) the OOM killer, (2) SIGSEGV\n")
    assert listed.cause.slug == "unknown"


def test_a_job_that_succeeded_has_no_cause_by_its_words(tmp_path: Path) -> None:
    text = "evicted 3 entries\npreempted request 7, rescheduled\nheartbeat lost, found again\ntraining finished\n"
    assert said(tmp_path, text).cause.slug == "unknown"


def test_sure_words_of_any_line_name_a_cause_and_others_are_shown_where_the_last_error_has_none(
    tmp_path: Path,
) -> None:
    last = "failed to read rows of device 3: code 7\n"
    bus = "card 3 has fallen off the bus, see the manual\n"
    sure = said(tmp_path, f"step 1\n{bus}step 2\n{last}")
    assert (sure.cause.slug, sure.cause.confidence, sure.retry) == ("gpu_fallen_off_bus", "suspected", "once")
    assert sure.node_action == "none"
    shown = said(tmp_path, f"step 1\nnode n7 has been drained by the operator\nstep 2\n{last}")
    assert shown.cause.slug == "unknown"
    assert shown.decisive is not None
    assert shown.decisive.line == "node n7 has been drained by the operator"
    assert shown.decisive.where.endswith(":2")
    warned = said(tmp_path, f"step 1\nWARNING: {bus}step 2\n{last}")
    assert warned.cause.slug == "unknown"


OWN, STANDARD = "/opt/job/io.py", "/usr/lib/python3.11/queue.py"


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        ((OWN,), ("user_code_exception", "suspected", "no")),
        ((STANDARD,), ("user_code_exception", "suspected", "no")),
        ((LIBRARY, OWN), ("user_code_exception", "suspected", "no")),
        ((LIBRARY,), ("unknown", "unknown", "once")),
        ((LIBRARY, STANDARD), ("unknown", "unknown", "once")),
    ],
)
def test_an_unrecognized_exception_inside_a_library_has_no_known_cause(
    tmp_path: Path, inner: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    """Its rank and its line are known all the same."""
    files = ("/opt/job/train.py", *inner)
    frames = "".join(f'[rank2]:   File "{file}", line 9, in call\n[rank2]:     call()\n' for file in files)
    line = "[rank2]: meshlib.net.PlanError: plan 7 was dropped"
    verdict = said(tmp_path, f"[rank2]: Traceback (most recent call last):\n{frames}{line}\n")
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry) == expected
    assert verdict.decisive is not None
    assert (verdict.rank, verdict.decisive.line) == (2, line)


def test_the_decisive_line_comes_with_the_other_lines_of_its_message(tmp_path: Path) -> None:
    head = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    detail = "Parameter indices which did not receive grad for rank 0: 4 5 6"
    far = "\n".join(f"note {number}" for number in range(8))
    verdict = said(tmp_path, f"{head}\n{far}\n{head}\n In addition, set a variable.\n{detail}\n")
    assert verdict.decisive is not None
    assert verdict.decisive.line == f"{head}\n{detail}"
    assert verdict.decisive.where.endswith(":12")


def test_examples_that_explain_a_message_are_no_words_of_a_cause(tmp_path: Path) -> None:
    line = "E0101 10:00:00.000001 77 pool.cc:91] The worker is gone. See its log for an error ({}) first"
    assert said(tmp_path, line.format("e.g. preemption, out of memory")).cause.slug not in {"preempted", "host_oom"}
    assert said(tmp_path, line.format("such as disk quota reached")).cause.slug != "disk_full"
    assert said(tmp_path, line.format("disk quota reached")).cause.slug == "disk_full"
