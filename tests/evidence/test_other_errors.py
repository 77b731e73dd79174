"""Connections that are not of the process group, exceptions that a program handled, and groups of exceptions."""

from __future__ import annotations

import pytest

from rankfall.evidence.builders import of_error
from rankfall.evidence.readers.tracebacks import find_tracebacks
from rankfall.model.record import ErrorInfo, Frame, Record
from rankfall.verdict.signatures.catalogue import default_catalogue

HEAD = "Traceback (most recent call last):"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
PIPE = "BrokenPipeError: [Errno 32] Broken pipe"
GLOO = "RuntimeError: [/w/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.2]:34013. This is typically caused by a remote worker crashing."


def raised(rank, last, *frames):
    """A traceback of one rank; ``frames``: ``FILE FUNCTION`` below that of the program."""
    rows = [HEAD, '  File "/w/train.py", line 9, in <module>', "    main()"]
    for file, _, function in (frame.partition(" ") for frame in frames):
        rows += [f'  File "{file}", line 3, in {function}', "    run()"]
    return "".join(f"[rank{rank}]: {row}\n" for row in (*rows, last))


def lost(rank):
    return raised(rank, GLOO, "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py all_reduce")


HTTP = ("/w/data.py fetch", "/usr/lib/python3.11/http/client.py getresponse", "/usr/lib/python3.11/socket.py readinto")


def test_a_server_that_resets_a_connection_is_no_peer_of_the_job(why):
    verdict = why(raised(1, RESET, *HTTP) + lost(0) + lost(2))
    assert (verdict.cause.slug, verdict.rank, verdict.retry) == ("hub_unreachable", 1, "yes")
    # Also where an exception of the program follows from it.
    chained = (
        raised(1, RESET, *HTTP)
        + "[rank1]: \n[rank1]: The above exception was the direct cause of the following exception:\n[rank1]: \n"
    )
    verdict = why(chained + raised(1, "RuntimeError: no shard 4", "/w/data.py load") + lost(0))
    assert (verdict.cause.slug, verdict.rank) == ("hub_unreachable", 1)
    # The group's own message is about a peer, whatever was fetched before.
    verdict = why(chained + raised(1, GLOO, "/w/data.py load") + lost(0))
    assert verdict.cause.slug != "user_code_exception"


def test_a_recorded_exception_is_read_with_its_frames():
    def slug(*frames):
        text = raised(1, RESET, *frames).replace("[rank1]: ", "")
        error = ErrorInfo(
            types=("ConnectionResetError",), message="[Errno 104] Connection reset by peer", traceback=text
        )
        record = Record(id="1", kind="error", error=error)
        return of_error(record, name="r", catalogue=default_catalogue(), rank=1).slug

    assert slug(*HTTP) == "hub_unreachable"
    assert slug("/w/peers.py receive") == "peer_lost"


@pytest.mark.parametrize(
    ("file", "function", "slug"),
    [
        ("/usr/lib/python3.11/subprocess.py", "Popen._execute_child", "command_not_found"),
        ("/usr/lib/python3.11/os.py", "_execvpe", "command_not_found"),
        ("/w/mine.py", "_execute_child", "dataset_missing"),
    ],
)
def test_recorded_frames_count_without_the_text_of_the_traceback(file, function, slug):
    message = "[Errno 2] No such file or directory: 'solver'"
    error = ErrorInfo(types=("FileNotFoundError",), message=message, frames=(Frame(file=file, func=function),))
    record = Record(id="1", kind="error", error=error)
    assert of_error(record, name="r", catalogue=default_catalogue(), rank=1).slug == slug


def test_a_rank_whose_pipe_broke_is_the_first_where_the_others_lost_a_peer_of_their_group(why):
    verdict = why(raised(1, PIPE, "/w/video.py encode") + lost(0) + lost(2))
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.rank) == ("peer_lost", "suspected", 1)
    assert "outside the job" in " ".join(verdict.missing)
    # Two such ranks, or one that speaks of its group as well, show none.
    assert why(raised(1, PIPE, "/w/video.py encode") + lost(0) + raised(2, PIPE, "/w/video.py encode")).rank is None
    assert why(raised(1, PIPE, "/w/video.py encode") + lost(0) + lost(1) + lost(2)).rank is None
    # Alone it is the only complaint of a text that may lack other ranks.
    assert why(raised(1, PIPE, "/w/video.py encode")).cause.slug == "peer_lost"


CAUGHT = f"""{HEAD}
  File "/w/data.py", line 3, in open_index
    file = open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/cache/index.bin'
WARNING: no index, building it
"""


@pytest.mark.parametrize(
    "last", ["MemoryError", "IndexError: list index out of range", "OSError: [Errno 28] No space left on device"]
)
def test_an_exception_that_a_rank_handled_is_not_the_one_that_ended_it(why, last):
    handled = "".join(f"[rank1]: {line}\n" for line in CAUGHT.splitlines())
    verdict = why(handled + raised(1, last, "/w/data.py build") + lost(0))
    assert (verdict.rank, verdict.decisive.line) == (1, f"[rank1]: {last}")
    # The last one is what counts, also if the program printed it itself.
    verdict = why(handled + lost(0))
    assert (verdict.cause.slug, verdict.rank) == ("file_race", 1)


MEMBERS = f"""  + Exception Group {HEAD}
  |   File "/w/train.py", line 9, in main
  |     run()
  | ExceptionGroup: shards failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: bad sample 7
    +---------------- 2 ----------------
    | OSError: [Errno 28] No space left on device: '/ckpt/a'
    +------------------------------------
"""


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(RayTrainWorker pid=7) "])
def test_exceptions_of_a_group_without_tracebacks_are_members_of_it(why, prefix):
    text = "".join(f"{prefix}{line}\n" for line in MEMBERS.splitlines()) + "step 4 loss 0.5\n"
    (found,) = find_tracebacks(text.encode())
    assert found.chain == (
        ("ExceptionGroup", "shards failed (2 sub-exceptions)"),
        ("ValueError", "bad sample 7"),
        ("OSError", "[Errno 28] No space left on device: '/ckpt/a'"),
    )
    assert [last.number for last in found.finals] == [4, 6, 8]
    assert why(text).cause.slug == "disk_full"


def test_a_worker_whose_parent_ended_names_no_missing_file(why):
    frames = (
        "/usr/lib/python3.11/multiprocessing/spawn.py _main",
        "/usr/lib/python3.11/multiprocessing/synchronize.py __setstate__",
    )
    own = raised(0, "AttributeError: 'SpawnProcess' object has no attribute '_closed'", "/w/data.py step")
    assert (
        why(own + raised(0, "FileNotFoundError: [Errno 2] No such file or directory", *frames)).cause.slug
        == "user_code_exception"
    )


@pytest.mark.parametrize(
    ("last", "frames", "slug"),
    [
        # A call without a path is about the current folder, and a program that is run needs no data.
        ("FileNotFoundError: [Errno 2] No such file or directory", ("/w/data.py here",), "user_code_exception"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", ("/w/data.py here",), "dataset_missing"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'solver'",
            ("/usr/lib/python3.11/os.py _execvpe",),
            "command_not_found",
        ),
        # Nobody listens: no peer went away, but for the queue of another process.
        ("ConnectionRefusedError: [Errno 111] Connection refused", ("/w/store.py features",), "hub_unreachable"),
        (
            "ConnectionRefusedError: [Errno 111] Connection refused",
            ("/usr/lib/python3.11/multiprocessing/connection.py SocketClient",),
            "peer_lost",
        ),
        # Of a model's own sizes, no ranks.
        (
            "ValueError: hidden_size must be divisible by num_heads (got 768 and 11)",
            ("/w/model.py build",),
            "user_code_exception",
        ),
        (
            "ValueError: batch_size 100 must be divisible by gradient_accumulation_steps 3",
            ("/w/model.py build",),
            "user_code_exception",
        ),
        (
            "ValueError: num_attention_heads (32) must be divisible by tensor_parallel_size (3)",
            ("/w/model.py build",),
            "bad_parallel_config",
        ),
        ("mpi4py.MPI.Exception: MPI_ERR_RANK: invalid rank", ("/w/halo.py send",), "user_code_exception"),
        (
            "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.",
            ("/w/data.py tokenize",),
            "dataloader_died",
        ),
    ],
)
def test_an_exception_means_what_raised_it(why, last, frames, slug):
    assert why(raised(1, last, *frames)).cause.slug == slug


def test_one_fault_with_several_messages_on_each_rank_has_no_first_rank(why):
    def broke(rank, index):
        return raised(rank, f"AssertionError: bad index {index} in worker", "/w/pool.py work")

    # Each rank's processes print in any order, and lines of one may be torn.
    for text in (broke(0, 3) + broke(0, 4) + broke(1, 4) + broke(1, 3), broke(0, 4) + broke(1, 3) + broke(1, 4)):
        verdict = why(text)
        assert (verdict.cause.slug, verdict.rank, list(verdict.alternatives)) == ("user_code_exception", None, [])
    # At another place it is another fault.
    assert why(broke(0, 4) + raised(1, "AssertionError: bad index 3 in worker", "/w/model.py work")).alternatives


KILLED_ROW = (
    "=" * 80
    + "\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 3 PID 226541 RUNNING AT node01\n=   KILLED BY SIGNAL: {}\n"
    + "=" * 80
    + "\n"
)


@pytest.mark.parametrize("signal", ["6 (Aborted)", "9 (Killed)"])
def test_the_error_that_a_program_printed_before_its_abort_is_shown(why, signal):
    said = " ERROR in subspace rotation PSSYEVX: not enough eigenvalues found         618\n"
    found = why(said + "\n\n" + KILLED_ROW.format(signal))
    assert found.rank == 3
    assert ("eigenvalues" in found.decisive.line) == (signal == "6 (Aborted)")
    # What is printed behind it has other reasons.
    assert "eigenvalues" not in why(KILLED_ROW.format(signal) + said).decisive.line


def test_the_line_behind_a_word_alone_is_the_error(why):
    found = why(
        "*** ERROR ***\nSystems::load(): Previously stored elements/nodes differ\n\n"
        "Abort(1) on node 32 (rank 32 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 32\n"
    )
    assert found.rank == 32
    assert found.decisive.line.endswith("Previously stored elements/nodes differ")
