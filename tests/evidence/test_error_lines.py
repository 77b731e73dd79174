"""What a text without a signature shows: its most informative line, with the detail that it announces, its rank and its node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankfall.evidence.readers.prefixes import parse_prefix
from rankfall.model import Verdict
from rankfall.render.summary import advice_text

Explain = Callable[[str], Verdict]
HEAD = 'Traceback (most recent call last):\n  File "/job/fit.py", line 9, in fit\n    step()\n'
AGENT = "E0101 10:00:00.123000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {}) local_rank: 1 (pid: 412) of binary: /usr/bin/python3\n"
STOPPED = "W0101 10:00:00.120000 77 torch/distributed/elastic/multiprocessing/api.py:898] Sending process 411 closing signal SIGTERM\n"


def line_of(verdict: Verdict) -> str | None:
    return verdict.decisive.line if verdict.decisive is not None else None


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("code", [1, 2, 7])
def test_the_error_before_a_launchers_bare_code_is_shown_beside_warnings(why: Explain, code: int) -> None:
    text = f"WARNING: cannot find libfast, using slow path\nwidgetd: could not open lattice.bin: bad widget\n{STOPPED}{AGENT.format(code)}"
    found = why(text)
    assert line_of(found) == "widgetd: could not open lattice.bin: bad widget"
    assert found.cause.slug == {1: "unknown", 2: "bad_arguments", 7: "user_exit"}[code]


@pytest.mark.parametrize(
    "noise",
    [
        '[n1:47] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
        "[n1:47] 3 more processes have sent help message help-mpi-api.txt / mpi-abort",
        "system msg for write_line failure : Bad file descriptor",
        "[0]PETSC ERROR: or try http://valgrind.org on GNU/linux to find memory corruption errors",
        "[warn] Epoll MOD(1) on fd 23 failed. Old events were 6: Bad file descriptor",
    ],
)
def test_the_error_before_an_abort_is_shown_not_the_advice_behind_it(why: Explain, noise: str) -> None:
    text = f"widgetd: could not open lattice.bin: bad widget\napplication called MPI_Abort(MPI_COMM_WORLD, 1) - process 3\n{noise}\n"
    found = why(text)
    assert line_of(found) == "widgetd: could not open lattice.bin: bad widget"
    assert (found.cause.slug, found.rank) == ("user_exit", 3)


def test_a_word_error_before_a_message_is_no_type_of_an_exception(why: Explain) -> None:
    text = " Invalid position of the source\n Error: one source has x above xmax\n Error detected, aborting MPI... proc 3\n"
    found = why(f"{text}application called MPI_Abort(MPI_COMM_WORLD, 30) - process 3\n")
    assert (found.cause.slug, found.rank) == ("user_exit", 3)
    assert (line_of(found) or "").strip() == "Error: one source has x above xmax"


def test_the_error_before_a_code_that_is_no_signal_is_shown(why: Explain) -> None:
    end = "The first process to do so was:\n\n  Process name: [[50427,1],0]\n  Exit code:    255\n"
    found = why(
        f"matrix.cpp:175\nPAIRWISE MATRIX LOGICAL ERROR\nmpiexec detected that one or more processes exited with non-zero status\n{end}"
    )
    assert (found.cause.slug, found.rank) == ("user_exit", 0)
    assert line_of(found) == "PAIRWISE MATRIX LOGICAL ERROR"


def test_a_signal_is_not_explained_by_an_error_before_it(why: Explain) -> None:
    found = why(f"widgetd: could not open lattice.bin: bad widget\n{AGENT.format(-11)}")
    assert (found.cause.slug, "exitcode: -11" in (line_of(found) or "")) == ("segfault", True)


def test_what_a_launcher_stops_hides_no_error(why: Explain) -> None:
    found = why(f"step 3\nengine gate failed: bad widget 77\n{STOPPED}")
    assert (found.cause.slug, line_of(found)) == ("unknown", "engine gate failed: bad widget 77")


def test_only_a_launchers_own_words_are_shown_as_such(why: Explain) -> None:
    found = why(f"step 3\n{STOPPED}")
    assert found.cause.slug == "unknown"
    assert "closing signal" in (line_of(found) or "")
    assert found.missing[0].startswith("a message of the part that failed first")


def test_of_lines_that_differ_in_numbers_the_first_is_shown(why: Explain) -> None:
    lines = "".join(f"gate 0x{n:x}f0 of shard {n} failed: denied\n" for n in (4, 2, 9))
    assert line_of(why(f"step 1\n{lines}bye\n")) == "gate 0x4f0 of shard 4 failed: denied"


def test_a_reason_in_a_line_without_the_word_error_precedes_a_general_error(why: Explain) -> None:
    text = "INFO lattice is missing, will be made\nlattice width 12 exceeds the limit of 8\nThe launcher failed, see above\n"
    assert line_of(why(text)) == "lattice width 12 exceeds the limit of 8"


def test_a_text_of_work_shows_no_line(why: Explain) -> None:
    text = "INFO timeout=1800 heartbeat 10\nWARNING: retrying after time-out\nstep 3 loss 2\nTraining finished, shutting down\n"
    found = why(text)
    assert (line_of(found), found.state) == (None, "unknown")
    assert why("step 1\nstep 2\nlattice queue is stuck, waiting for the store\n").state == "unknown"


@pytest.mark.parametrize(
    ("head", "detail"),
    [
        ("terminate called after throwing an instance of 'lattice::GateError'", "  what():  gate 7 is bent"),
        ("RuntimeError: widget engine failed:", "gate 7 is bent"),
    ],
)
def test_a_header_is_shown_with_what_it_announces(why: Explain, head: str, detail: str) -> None:
    assert line_of(why(f"step 1\n{head}\n{detail}\nbye\n")) == f"{head}\n{detail.strip()}"
    # Of another speaker it is no detail.
    other = line_of(why(f"step 1\n[rank1]: {head}\n[rank2]: {detail}\nbye\n")) or ""
    assert "bent" not in other or head not in other


def test_the_last_error_of_a_library_is_shown_with_its_exception(why: Explain) -> None:
    block = "torch.distributed.DistBackendError: NCCL error in: x.cpp:9, unhandled system error\nncclSystemError: a call failed\nLast error:\ngate 7 is bent\n"
    text = prefixed("[rank1]: ", HEAD + block) + prefixed("[rank0]: ", HEAD)
    assert (line_of(why(text)) or "").splitlines()[1:] == ["[rank1]: gate 7 is bent"]


def test_a_message_that_begins_on_the_next_line_is_read(why: Explain) -> None:
    found = why(
        prefixed("[rank2]: ", f"{HEAD}AssertionError: \n\nThe NVIDIA driver on your system is too old (found 900).\n")
    )
    assert (found.cause.slug, found.rank) == ("driver_too_old", 2)
    assert "too old (found 900)" in (line_of(found) or "")
    mine = why(f"{HEAD}ValueError:\nwidth 7 is odd\n{STOPPED}")
    assert (mine.cause.slug, line_of(mine)) == ("user_code_exception", "ValueError:\nwidth 7 is odd")


def test_a_message_that_ends_with_a_colon_continues_on_the_next_line(why: Explain) -> None:
    gloo = "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.16.30.11]:33483"
    head = (
        "RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running collective: ALLREDUCE. Error:"
    )
    found = why(prefixed("[rank2]: ", f"{HEAD}{head}\n{gloo}\n"))
    assert (found.cause.slug, line_of(found)) == ("peer_lost", f"[rank2]: {head}\n{gloo}")
    # Only one line: what follows is no message any more, nor is a line of another speaker.
    mine = why(f"{HEAD}ValueError: widths:\n7 is odd\nbad rows:\n{STOPPED}")
    assert (mine.cause.slug, line_of(mine)) == ("user_code_exception", "ValueError: widths:\n7 is odd")
    other = why(prefixed("[rank2]: ", f"{HEAD}ValueError: widths:\n") + prefixed("[rank1]: ", f"{gloo}\n"))
    assert (other.cause.slug, other.rank) == ("user_code_exception", 2)


def test_a_report_behind_a_colon_is_no_message(why: Explain) -> None:
    text = f"{HEAD}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n============\nfit.py FAILED\n{AGENT.format(3)}"
    assert why(text).cause.slug == "user_exit"


@pytest.mark.parametrize(
    ("prefix", "node", "pod"),
    [
        ("n042: ", "n042", None),
        ("10.0.7.4: ", "10.0.7.4", None),
        ("gpu-node-12: ", "gpu-node-12", None),
        ("(Trainer pid=31, ip=10.0.7.4) ", "10.0.7.4", None),
        ("[pod/fit-1-abcde/main] ", None, "fit-1-abcde"),
        ("n042: [rank3]: ", "n042", None),
    ],
)
def test_a_prefix_names_the_node_or_pod_beside_another_ones_lost_peer(
    why: Explain, prefix: str, node: str | None, pod: str | None
) -> None:
    lost = prefixed(
        prefix.replace("4", "5").replace("12", "13"),
        f"{HEAD}ConnectionResetError: [Errno 104] Connection reset by peer\n",
    )
    found = why(prefixed(prefix, f"{HEAD}KeyError: 'lr'\n") + lost)
    assert (found.cause.slug, found.node, found.pod) == ("user_code_exception", node, pod)


def test_an_exception_on_several_nodes_names_none(why: Explain) -> None:
    text = "".join(prefixed(f"n04{n}: [rank{n}]: ", f"{HEAD}KeyError: 'lr'\n") for n in range(2))
    found = why(text)
    assert (found.cause.slug, found.rank, found.node) == ("user_code_exception", None, None)


def test_hosts_in_prefixes_are_several_nodes_whose_local_ranks_are_no_ranks(why: Explain) -> None:
    text = f"n041: [default1]:step 3\n{prefixed('n042: ', AGENT.format(3))}n041: error: gate failed\n{prefixed('n041: ', HEAD + 'KeyError: 1')}"
    assert why(text).rank is None


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        # Rank 0 alone logs in many programs.
        ("[rank5] lattice: fatal: no shard 7\nbye\n", 5),
        ("[rank4] step 3\n[rank5] lattice: fatal: no shard 7\nbye\n", 5),
        ("RuntimeError: gate of rank 2 failed on rank 3\n", 3),
        ("RuntimeError: the peer expects a tensor on rank 3\n", None),
        ("RuntimeError: Rank 2 crashed while it opened gate 7\n", 2),
        ("RuntimeError: gate failed on rank 3\n", 3),
        ("error: connecting to rank 1 failed\n", None),
        ("error: rank 1 failed\nerror: rank 2 failed\n", None),
        ("[rank0] error: peer 3 is missing\n", None),
    ],
)
def test_the_rank_that_an_error_names(why: Explain, text: str, rank: int | None) -> None:
    assert why(f"step 1\n{text}").rank == rank


@pytest.mark.parametrize(
    "before", ["E0101 10:00:01.000000 42 fit.py:7] ", "fit-7d9f6c-x2v4k main ", "10:00:01 | ERROR | fit:run:42 - "]
)
def test_the_tag_of_torch_is_read_behind_words_of_any_collector(why: Explain, before: str) -> None:
    # The last traceback is another rank's, and cut off.
    text = f"[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.63 GiB.\n{prefixed('[rank2]: ', HEAD)}"
    found = why(prefixed(before, text))
    assert (found.cause.slug, found.rank) == ("gpu_oom", 5)


def test_a_tag_in_quotation_marks_is_no_prefix() -> None:
    assert parse_prefix(b"KeyError: 'peer [rank5]: gone'").rank is None


@pytest.mark.parametrize("before", ["E0101 10:00:01.000000 42 fit.py:7] ", "10:00:01 | ERROR | fit:run:42 - "])
def test_a_last_exception_is_read_behind_words_of_a_logger(why: Explain, before: str) -> None:
    found = why(f"{before}step 1\n{before}  return step()\n{before}acme.GateError: gate 7 is bent\n")
    assert (found.cause.slug, line_of(found)) == ("unknown", f"{before}acme.GateError: gate 7 is bent")
    assert why(f"{before}step 1\nno GateError: all is well\n").cause.slug == "unknown"


HUB = "https://huggingface.co"


@pytest.mark.parametrize(
    ("error", "slug", "retry", "words"),
    [
        (
            f"OSError: acme/tie is not a local folder and is not a valid model identifier listed on '{HUB}/models'",
            "hub_unreachable",
            "no",
            "spelling",
        ),
        ("huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.", "hub_unreachable", "no", "spelling"),
        (
            f"requests.exceptions.HTTPError: 404 Client Error: Not Found for url: {HUB}/a",
            "hub_unreachable",
            "no",
            "spelling",
        ),
        (
            f"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: {HUB}/a",
            "credentials_rejected",
            "no",
            "access",
        ),
        ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "credentials_rejected", "no", "access"),
        (f"OSError: We couldn't connect to '{HUB}' to load this file", "hub_unreachable", "yes", "network and proxy"),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError: Got: ConnectError",
            "hub_unreachable",
            "yes",
            "network and proxy",
        ),
    ],
)
def test_a_hub_that_answered_is_told_from_one_that_cannot_be_reached(
    why: Explain, error: str, slug: str, retry: str, words: str
) -> None:
    found = why(f"{STOPPED}{HEAD}{error}\n{AGENT.format(1)}")
    assert (found.cause.slug, found.retry) == (slug, retry)
    assert words in advice_text(found)


ASSERTED = HEAD + '  File "/w/t.py", line 3, in f\n    assert heads % size == 0\n           ^^^^^^^^^^^^^^^^^\n'


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("AssertionError\n", "[rank2]: AssertionError\nassert heads % size == 0"),
        ("AssertionError: odd\n", "[rank2]: AssertionError: odd"),
        (
            "AssertionError\n\nDuring handling of the above exception, another exception occurred:\n\n"
            + HEAD
            + '  File "/w/t.py", line 9, in g\n    raise Stop\nmod.Stop\n',
            "[rank2]: mod.Stop",
        ),
    ],
)
def test_i23_p3_an_assertion_without_words_is_shown_with_its_statement(why, end, line):
    verdict = why(prefixed("[rank2]: ", ASSERTED + end))
    assert verdict.decisive is not None
    assert (verdict.rank, verdict.decisive.line) == (2, line)


LOGGED = "(VllmWorker rank=2 pid=104) {level} 09-09 02:24:28 [multiproc_executor.py:522] ValueError: output tensor size must be equal"


def test_an_exception_behind_the_words_of_a_logger_is_read(answer):
    frames = '(VllmWorker rank={rank} pid=1) ERROR 09-09 02:24:28 [multiproc_executor.py:522]   File "/v/torch/nn/modules/module.py", line 17, in _call_impl\n'
    text = frames.format(rank=1) + LOGGED.format(level="ERROR") + "\n" + frames.format(rank=0)
    assert answer(text) == ("user_code_exception", 2)
    # A warning is no failure.
    assert answer(LOGGED.format(level="WARNING") + "\n")[0] == "unknown"


@pytest.mark.parametrize(
    "head",
    [
        "E0101 10:00:00.000000 4242 train.py:42] ",
        "2025-01-01 10:00:00,123 - trainer - ERROR - ",
        "2025-01-01 10:00:00.123 | ERROR    | trainer:run:42 - ",
        "1735725600.123 ",
        "[2025-01-01 10:00:00,123][trainer][ERROR] - ",
    ],
)
def test_the_words_of_any_logger_are_no_part_of_the_exception(answer, head):
    assert answer(f"{head}ValueError: output tensor size must be equal\n")[0] == "user_code_exception"


def test_the_death_of_a_ray_worker_without_its_number_is_that_of_the_rank_that_timed_out(answer):
    died = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
    timed_out = "(Actor pid=744, ip=10.1.59.27) [rank9]:[E416 13:21:26.967375581 ProcessGroupNCCL.cpp:616] [Rank 9] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=BROADCAST, Timeout(ms)=600000) ran for 600089 milliseconds before timing out.\n"
    assert answer(died)[0] == "killed_unknown"
    assert answer(died + timed_out)[0] == "collective_timeout"


@pytest.mark.parametrize(
    "statement",
    [
        "num_heads % parallel_state.get_tensor_model_parallel_world_size() == 0",
        "batch % data_parallel == 0",
        "experts % n_expert_ranks == 0",
    ],
)
def test_an_asserted_division_of_ranks_is_a_size_that_does_not_fit(why: Explain, statement: str) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "/w/t.py", line 3, in f\n    assert {statement}\nAssertionError: '
    )
    assert why(f"{text}{statement}\n").cause.slug == "bad_parallel_config"
    assert why(f"{text}step % log_every == 0\n").cause.slug != "bad_parallel_config"


ENGINE = "(Engine_0 pid=9) ERROR 03-11 18:41:23 [pool.py:83] "


def test_the_body_of_a_traceback_that_is_cut_off_is_no_error_line(why: Explain) -> None:
    body = '  File "/opt/serve/pool.py", line 54, in start\n    worker = Worker(*args)\n'
    head = "Traceback (most recent call last):\n"
    text = "step 1\n" + prefixed(ENGINE, f"worker failed to start.\n{head}{body}")
    assert line_of(why(text)) == f"{ENGINE}worker failed to start."
    # Words of a statement, as `timeout` here, are no hint; of a cut traceback the last statement counts.
    waits = (
        f'{head}{body}  File "/opt/serve/pool.py", line 71, in get\n    return self.objects(refs, timeout=timeout)\n'
    )
    assert line_of(why(f"{waits}           ^^^^^^^^^^^^^^^^^^^^\n")) == "    return self.objects(refs, timeout=timeout)"
    # A report of a failure is better than a frame.
    failed = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
    assert line_of(why("step 1\n" + prefixed(ENGINE, f"{failed}\n{head}{body}"))) == ENGINE + failed
