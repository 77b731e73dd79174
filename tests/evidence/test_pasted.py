"""Pasted texts: cut-off tracebacks, races, searches for plug-ins, launchers' reports."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files
from rankfall.render.summary import advice_text, first_sentence

HEAD = "Traceback (most recent call last):\n"


def test_a_line_without_a_rank_belongs_to_the_only_ranks_traceback_that_the_text_does_not_finish(answer):
    frames = f'[rank7]: {HEAD}[rank7]:   File "/w/t.py", line 3, in f\n[rank7]:     f()\n'
    said = "HTTP Error 429 thrown while requesting GET https://hub.example/api\n"
    assert answer(said + frames) == ("hub_rate_limit", 7)
    # Another rank speaks too.
    other = f'[rank1]: {HEAD}[rank1]:   File "/w/t.py", line 3, in f\n[rank1]:     f()\n[rank1]: KeyError: 1\n'
    assert answer(said + other + frames)[1] != 7


def test_a_file_that_another_process_removed_first_is_a_race(answer):
    trace = f'{HEAD}  File "/w/t.py", line 3, in f\n    os.remove(signal_file)\n'
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'signal_file'\n"
    assert answer(trace + error) == ("file_race", None)
    opened = f'{trace}  File "/w/io.py", line 9, in read\n    return open(path)\n'
    assert answer(opened + error) == ("dataset_missing", None)


@pytest.mark.parametrize(
    "statement",
    [
        'with open(os.path.join(out, "metrics.json"), "w") as file:',
        "log = open(f'{out}/rank-{rank}.log', mode='ab')",
        'logging.basicConfig(handlers=[logging.FileHandler("logs/a.log")])',
    ],
)
def test_a_file_that_the_code_creates_in_a_missing_folder_is_no_missing_data(answer, statement):
    error = "FileNotFoundError: [Errno 2] No such file or directory: 'out/metrics.json'\n"
    trace = f'{HEAD}  File "/w/t.py", line 3, in f\n    {statement}\n'
    assert answer(trace + error) == ("user_code_exception", None)
    read = f'{trace}  File "/w/io.py", line 9, in read\n    return open(path)\n'
    assert answer(read + error) == ("dataset_missing", None)


@pytest.mark.parametrize("lines", [7, 60])
def test_a_notice_of_mpirun_inside_a_traceback_does_not_end_it(answer, lines):
    rule = 74 * "-" + "\n"
    notice = f"{rule}MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"
    notice += lines * "You may or may not see output.\n" + rule
    trace = f'{HEAD}  File "/w/t.py", line 3, in f\n    solve()\n'
    found = answer(f"{trace}{notice}solver.exceptions.DivergedError: after 100 iterations\n")
    # A longer text is no notice.
    assert found == (("user_code_exception", 3) if lines == 7 else ("unknown", 3))
    assert answer(f"{trace}{rule}epoch 3\n")[0] == "unknown"


def test_a_worker_whose_parent_ended_is_no_damaged_checkpoint(answer):
    trace = (
        f'{HEAD}  File "<string>", line 1, in <module>\n  File "/usr/lib/python3.11/multiprocessing/spawn.py", line 131, in _main\n'
        "    self = reduction.pickle.load(from_parent)\n"
    )
    assert answer(f"{trace}_pickle.UnpicklingError: pickle data was truncated\n")[0] != "checkpoint_corrupt"


def test_nccls_search_for_a_plug_in_is_no_failed_import(answer):
    tried = "n1:712:715 [3] NCCL INFO TUNER/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory\n"
    assert answer(tried) == ("unknown", None)
    assert answer(f'{tried}{HEAD}  File "/w/t.py", line 3, in f\n    f()\nKeyError: 1\n')[0] == "user_code_exception"


def test_a_data_workers_number_is_no_rank(answer):
    assert answer(
        f'{HEAD}  File "/w/t.py", line 3, in f\n    f()\nKeyError: Caught KeyError in DataLoader worker process 8.\n'
    ) == (
        "user_code_exception",
        None,
    )


ROW = "[{n}]:\n  time      : 2024-04-03_08:42:11\n  host      : cn02\n  rank      : {r} (local_rank: {n})\n  exitcode  : 1 (pid: {p})\n  error_file: <N/A>\n"


def test_of_equal_ends_without_a_message_the_launchers_first_one_is_named_with_doubt(answer):
    text = "Failures:\n" + ROW.format(n=2, r=6, p=71) + ROW.format(n=3, r=7, p=72)
    first = "Root Cause (first observed failure):\n" + ROW.format(n=0, r=4, p=70)
    agents = "srun: error: cn01: task 0: Exited with exit code 1\nsrun: error: cn04: task 3: Exited with exit code 1\n"
    assert answer(text + first + agents) == ("unknown", 4)
    # Each node's launcher has its own first one.
    assert answer(text + first + "Root Cause (first observed failure):\n" + ROW.format(n=1, r=9, p=77)) == (
        "unknown",
        None,
    )


BAR = "Tokenizing (num_proc=64):  92%|█████████▏| 328986/359152 [{elapsed}<12:05, 41.59 examples/s]"
WAITED = "[rank{r}]:[E ProcessGroupNCCL.cpp:616] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800572 milliseconds before timing out.\n"


def test_a_rank_that_prepared_data_until_the_others_time_was_over_is_the_slow_one(answer):
    waits = WAITED.format(r=1) + WAITED.format(r=3)
    assert answer(BAR.format(elapsed="29:58") + waits) == ("slow_rank_timeout", None)
    assert answer(BAR.format(elapsed="30:02") + "\n" + waits) == ("slow_rank_timeout", None)
    # It ended long before, is another kind of work, or had an error of its own.
    assert answer(BAR.format(elapsed="05:58") + waits)[0] == "collective_timeout"
    assert answer(BAR.format(elapsed="29:58").replace("examples", "it").replace("Tokenizing", "Epoch 1") + waits)[
        0
    ] == ("collective_timeout")
    own = f'[rank0]: {HEAD}[rank0]:   File "/w/t.py", line 3, in f\n[rank0]:     f()\n[rank0]: KeyError: 1\n'
    assert answer(own + BAR.format(elapsed="29:58") + waits) == ("user_code_exception", 0)


def test_a_key_that_a_terminal_shows_is_a_cancellation_by_its_user(answer):
    trace = f'{HEAD}  File "/w/t.py", line 3, in f\n    f()\nKeyboardInterrupt\n'
    assert answer(f"step 1\n^C{trace}") == ("cancelled", None)
    assert answer(f"step 1\n{trace}") == ("external_signal", None)
    failed = f'{HEAD}  File "/w/t.py", line 3, in f\n    f()\nKeyError: 1\n'
    assert answer(f"{failed}^C{trace}")[0] == "user_code_exception"


def test_an_interrupt_of_an_unknown_sender_is_worth_one_retry(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(f'{HEAD}  File "/w/t.py", line 3, in f\n    f()\nKeyboardInterrupt\n')
    verdict = explain_files([path]).verdict
    assert (verdict.cause.slug, verdict.retry) == ("external_signal", "once")


def test_tasks_that_jax_lists_below_its_message_are_the_suspects(answer):
    head = "absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): \n"
    task = "/job:jax_worker/replica:0/task:{}\n"
    assert answer(head + task.format(3)) == ("peer_lost", 3)
    assert answer(head + task.format(3) + task.format(5)) == ("peer_lost", None)
    barrier = "DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: sync0. Timed out task names:\n"
    assert answer(barrier + task.format(3)) == ("collective_timeout", 3)


def test_a_launcher_of_an_older_python_names_its_signal(answer):
    death = "WARNING:torch.distributed.elastic.agent.server.api:Received Signals.SIGHUP death signal, shutting down workers\n"
    forced = "WARNING:torch.distributed.elastic.multiprocessing.api:Unable to shutdown process 40386 via Signals.SIGHUP, forcefully exiting via Signals.SIGKILL\n"
    cut = f'{HEAD}  File "/w/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    assert answer(f"step 5 loss 1.2\n{death}step 6 loss 1.1\n{forced}{cut}") == ("external_signal", None)


def test_the_line_behind_an_accelerators_error_says_whose_it_is(answer):
    trace = f'{HEAD}  File "/w/t.py", line 3, in f\n    f()\nRuntimeError: f:build/compiler_depend.ts:1 NPU function error: aclInit, error code is 500001\n'
    said = "[ERROR] 2025-03-01-10:00:11 (PID:991, Device:3, RankID:{r}) ERR00100 PTA call acl api failed\n"
    assert answer(trace + said.format(r=11))[1] == 11
    # -1: it is no rank yet.
    assert answer(trace + said.format(r=-1))[1] is None


def test_a_statement_that_the_end_of_a_text_leaves_says_what_it_asserts(answer):
    cut = 'egatron/training/arguments.py", line 561, in validate_args\n[rank14]:     {0}\n[rank14]:\n'
    sizes = "assert num_layers % args.transformer_pipeline_model_parallel_size == 0, \\"
    assert answer(cut.format(sizes)) == ("bad_parallel_config", 14)
    assert answer(cut.format("assert step % log_every == 0")) == ("user_code_exception", 14)
    assert answer(cut.format("step(batch)"))[0] == "unknown"
    raised = 'raise ValueError("Need either a dataset name or a training/validation file.")'
    assert answer(cut.format(raised)) == ("bad_arguments", 14)
    exact = 'assert stage < 2, "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"'
    assert answer(cut.format(exact)) == ("bad_parallel_config", 14)


def test_an_exception_is_shown_before_the_warnings_that_led_to_it(tmp_path):
    warning = "[W socket.cpp:663] [c10d] The client socket has failed to connect to 192.168.7.219:23456 (errno: 110 - Connection timed out).\n"
    error = "RuntimeError: The client socket has failed to connect to any network address of (192.168.7.219, 23456).\n"
    (tmp_path / "a.log").write_text(warning * 2 + error)
    assert explain_files([tmp_path / "a.log"]).verdict.decisive.line == error.strip()


def test_a_launchers_own_trouble_with_a_folder_is_the_cause_and_its_report_is_not(answer):
    frames = (
        f'{HEAD}  File "/w/t.py", line 3, in <module>\n    mp.spawn(main, nprocs=2)\n'
        '  File "/opt/site-packages/torch/multiprocessing/spawn.py", line 150, in join\n    raise ProcessRaisedException(msg, error_index, failed_process.pid)\n'
    )
    assert answer(f"{frames}PermissionError: [Errno 13] Permission denied: '/data'\n") == ("permission_denied", None)
    report = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 3\n"
    assert answer(frames + report)[0] == "user_exit"


FLAT = """Traceback (most recent call last):
File "", line 1, in
File "/w/train.py", line 25, in main
model.fit(
File "/w/lib.py", line 51, in fit
    ^^^^^^
ImportError: Extension a.b has not been built
"""


def test_a_traceback_that_lost_its_indents_is_whole(why):
    verdict = why(f"{FLAT}done: 3 files\n")
    assert (verdict.cause.slug, verdict.cause.confidence, verdict.retry) == ("import_error", "likely", "no")
    assert verdict.decisive is not None
    assert verdict.decisive.line == "ImportError: Extension a.b has not been built"


def test_numbered_and_dated_lines_are_read_as_the_text_itself(why):
    trace = f'{HEAD}  File "/w/t.py", line 3, in main\n    raise ValueError("bad")\nKeyError: no shard\n'
    numbered = "".join(f"{at:3}. {line}\n" for at, line in enumerate(["begins", *trace.splitlines(), ""], 1))
    dated = "".join(f"2022-11-15 15:16:0{at}\n{line}\n" for at, line in enumerate(["begins", *trace.splitlines()]))
    for text in (numbered, dated):
        verdict = why(text)
        assert (verdict.cause.slug, verdict.cause.confidence) == ("user_code_exception", "likely")
        assert verdict.decisive is not None
        assert verdict.decisive.line == "KeyError: no shard"


def test_a_bar_without_its_blocks_names_the_rank_that_prepared_data(answer):
    waited = "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600100 milliseconds before timing out.\n"
    bar = "Rank 0, running tokenizer on train (num_proc=16):  30% | 48000/157712 [07:55<02:22, 772.28 examples/s]\n"
    assert answer(bar + waited) == ("slow_rank_timeout", 0)
    assert answer(bar.replace("07:55", "02:55") + waited)[0] == "collective_timeout"


@pytest.mark.parametrize(
    ("text", "sentence", "advice"),
    [
        (
            "Root Cause (first observed failure):\n" + ROW.format(n=0, r=4, p=70),
            "Rank 4 on cn02 exited with code 1 for an unknown reason.",
            "traceback in the output of this rank",
        ),
        (
            f'{HEAD}  File "/w/t.py", line 3, in f\n    f()\n  File "/v/site-packages/acme/a.py", line 3, in g\n    g()\nacme.GateError: bent\n',
            "The job raised GateError for an unknown reason.",
            "no signature recognizes it",
        ),
        (
            "/w/x.sh: fatal: acme is bent\n",
            "No known failure was found in the files; the shown line may belong to one.",
            "last lines of every rank",
        ),
    ],
)
def test_a_failure_without_a_cause_is_described_by_its_line(why, text, sentence, advice):
    verdict = why(f"step 1\n{text}")
    assert verdict.cause.slug == "unknown"
    assert first_sentence(verdict) == sentence
    assert advice in advice_text(verdict)


CUT = (
    '  File "/opt/lib/python3.11/site-packages/transformers/trainer.py", line 2480, in save\n    os.remove(name)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'checkpoint-100/model.safetensors'\n"
)


@pytest.mark.parametrize(
    "above", ["", "...\n", "    model.save_pretrained(folder)\n", '  File "/w/t.py", line 3, in f\n    f()\n']
)
def test_a_text_that_begins_inside_a_traceback_holds_its_exception(answer, above):
    assert answer(above + CUT) == ("file_race", None)
    marked = "".join(f"[rank3]: {line}" for line in (above + CUT).splitlines(keepends=True))
    assert answer(marked) == ("file_race", 3)


def test_only_the_first_lines_of_a_text_continue_a_traceback(answer):
    assert answer("epoch 1\nepoch 2\nepoch 3\n" + CUT)[0] == "dataset_missing"


@pytest.mark.parametrize("last", ["Node: 'HorovodAllreduce_grads_0'\n", "", "step 3 loss 2.5\n"])
def test_frames_above_a_line_that_names_no_exception_are_ordinary_lines(answer, last):
    lost = "Horovod has been shut down. This was caused by an exception on one of the ranks.\n"
    frame = '    File "/opt/lib/python3.8/dist-packages/horovod/tensorflow/mpi_ops.py", line 123, in _allreduce\n      return MPI_LIB(tensor)\n'
    assert answer(frame + last + lost) == ("peer_lost", None)


WATCH = "[rank{rank}]:[E513 13:21:07.714781669 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        (((2, 41, "BROADCAST"), (1, 41, "BROADCAST"), (3, 41, "BROADCAST")), 2),
        (((0, 43, "_ALLGATHER_BASE"), (1, 41, "BROADCAST"), (3, 43, "_ALLGATHER_BASE")), 1),
    ],
)
def test_of_several_watchdogs_the_earliest_collective_is_shown_then_the_first_line(why, calls, shown):
    text = "".join(WATCH.format(rank=rank, number=number, kind=kind) for rank, number, kind in calls)
    verdict = why(text)
    assert verdict.decisive is not None
    assert f"[Rank {shown}]" in verdict.decisive.line


UNIQUE_ID = "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error"


@pytest.mark.parametrize("reason", ["", ": Socket Timeout"])
def test_a_bar_is_compared_with_the_usual_waits_where_a_time_out_states_none(answer, reason):
    trace = f'{HEAD}  File "/w/t.py", line 3, in f\n    dist.barrier()\n{UNIQUE_ID}{reason}\n'
    assert answer(BAR.format(elapsed="30:11") + trace)[0] == "slow_rank_timeout"
    assert answer(BAR.format(elapsed="10:02") + trace)[0] == "slow_rank_timeout"
    assert answer(BAR.format(elapsed="15:02") + trace)[0] != "slow_rank_timeout"


def test_ranks_that_wait_until_the_first_one_has_done_its_work_make_it_the_slow_one(answer):
    frames = '  File "/w/t.py", line 3, in f\n    with args.main_process_first():\n  File "/v/site-packages/transformers/training_args.py", line 1891, in main_process_first\n    torch.distributed.barrier()\n'
    late = f"{HEAD}{frames}{UNIQUE_ID}: Socket Timeout\n"
    assert answer(late)[0] == "slow_rank_timeout"
    assert answer(late.replace("main_process_first", "setup"))[0] == "rank_stuck"
    # It failed at its work.
    own = f'[rank0]: {HEAD}[rank0]:   File "/w/t.py", line 3, in f\n[rank0]:     f()\n[rank0]: KeyError: 1\n'
    assert answer(own + late) == ("user_code_exception", 0)


def test_a_users_folder_that_is_named_after_a_library_holds_own_code(answer):
    text = HEAD + '  File "/home/u/horovod/test/test.py", line 11, in <module>\n    f()\nRuntimeError: no\n'
    assert answer(text)[0] == "user_code_exception"
    assert answer(text.replace("horovod/test", "horovod/torch"))[0] == "unknown"


def _of_worker(kind: str, message: str, *, speaker: str = "") -> str:
    """The text of an exception that torch raises for a data worker, and lines of another rank if the speaker is named."""
    lines = (
        f'{HEAD}  File "/w/t.py", line 3, in f\n    for batch in loader:\n'
        f'  File "/usr/lib/python3/torch/_utils.py", line 543, in reraise\n    raise exception\n'
        f"{kind}: Caught {kind} in DataLoader worker process 0.\n"
        f'Original {HEAD}  File "/usr/lib/python3/torch/utils/data/_utils/fetch.py", line 58, in fetch\n'
        '    data = [self.dataset[i] for i in batch]\n  File "/w/data.py", line 8, in __getitem__\n    raise bad\n'
        f"{kind}: {message}\n"
    )
    other = "[rank5]: step 7 loss 2.1\n" if speaker else ""
    return other.join(f"{speaker}{line}\n" for line in lines.splitlines())


@pytest.mark.parametrize("speaker", ["", "[rank2]: "])
def test_the_message_of_a_data_workers_exception_is_shown(why, speaker):
    verdict = why(_of_worker("ValueError", "no other utterance", speaker=speaker))
    assert verdict.cause.slug == "user_code_exception"
    assert verdict.rank == (2 if speaker else None)
    assert verdict.decisive.line.splitlines()[-1].endswith("ValueError: no other utterance")
    assert "Caught ValueError in DataLoader worker process 0." in verdict.decisive.line
    # The worker's own exception gives the cause.
    assert why(_of_worker("OSError", "[Errno 28] No space left on device")).cause.slug == "disk_full"


def test_a_message_whose_lines_end_with_colons_is_shown_to_its_end(why):
    text = (
        f'{HEAD}  File "/w/t.py", line 3, in f\n    pipe.run()\nRuntimeError: Critical error in pipeline:\n'
        "Error when executing operator Crop encountered:\nError in thread 4: no such crop\nStacktrace (7 entries):\n"
    )
    line = why(text).decisive.line
    assert line.splitlines() == [
        "RuntimeError: Critical error in pipeline:",
        "Error when executing operator Crop encountered:",
        "Error in thread 4: no such crop",
    ]
