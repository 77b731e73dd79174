"""Output files of whole jobs: what comes after the cause, and what only looks like another one."""

from __future__ import annotations

import pytest

from rankfall.evidence.readers.classify import exception_meaning
from rankfall.explain import explain_files
from rankfall.render.summary import first_sentence
from rankfall.verdict.signatures.catalogue import default_catalogue

TRACE = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'


FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 39.49 GiB of which {} is free. "
HELD = "".join(f"Process {pid} has {size} GiB memory in use. " for pid, size in ((41, 5.5), (42, 4.6), (43, 28.9)))
TORCH = "Of the allocated memory 4.40 GiB is allocated by PyTorch.\n"


@pytest.mark.parametrize(
    ("first", "second", "slug", "retry"),
    [
        (HELD, HELD, "gpu_oom", "no"),
        # Their own processes differ: only the foreign one is in both lists.
        (HELD, HELD.replace("41", "51").replace("42", "52"), "gpu_oom_foreign", "elsewhere"),
    ],
)
def test_ranks_that_list_the_same_processes_share_a_gpu(why, first, second, slug, retry):
    """In a container none of them is recognized as the process that ran out."""
    found = why(f"{TRACE}{FULL.format('17.00 MiB')}{first}{TORCH}{TRACE}{FULL.format('7.00 MiB')}{second}{TORCH}")
    assert (found.cause.slug, found.retry) == (slug, retry)


STEP = "slurmstepd-n1: error: *** STEP 4488.0 ON n1 CANCELLED AT 2026-02-24T04:13:06 ***\n"
TASK = "srun: error: n1: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("order", "slug"),
    [
        (("step 3\n", STEP, TRACE, "TimeoutError: Operation timed out\n", TASK), "cancelled"),
        (("step 3\n", TRACE, "KeyError: 'x'\n", STEP, TASK), "user_code_exception"),
    ],
)
def test_what_a_program_raises_after_its_step_was_cancelled_is_no_cause(why, order, slug):
    assert why("".join(order)).cause.slug == slug


WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 0 Rank {0}] Process group watchdog thread terminated with exception: [Rank {0}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=120000) ran for 120092"
    " milliseconds before timing out.\n"
)


def test_a_shell_s_report_of_a_watchdog_s_abort_is_no_cause(why):
    text = WATCHDOG.format(1) + WATCHDOG.format(2)
    found = why(f"{text}./launcher.sh: line 14: 31644 Aborted                 (core dumped) $@\n")
    assert (found.cause.slug, found.rank) == ("collective_timeout", None)


def test_deepspeed_without_a_hostfile_runs_on_one_node(why):
    """It names its last process, which is the only one if it is the first."""
    found = why(
        "[2024-01-19 10:07:12,401] [WARNING] [runner.py:203:fetch_hostfile] Unable to find hostfile, will proceed with"
        " training with local resources only.\n"
        "[2024-01-19 10:14:05,900] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 119\n"
        "[2024-01-19 10:14:05,903] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u', 'main.py', '--local_rank=0']"
        " exits with return code = -9\n"
    )
    assert (found.cause.slug, found.rank) == ("killed_unknown", 0)


@pytest.mark.parametrize(
    ("statement", "slug"),
    [
        ('cfg = json.load(open("config.json"))', "bad_arguments"),
        ("settings = load_config(path)", "bad_arguments"),
        ("record = json.loads(line)", "bad_sample"),
    ],
)
def test_a_configuration_that_is_no_json_is_no_sample(why, statement, slug):
    found = why(
        f'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    {statement}\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
        '    raise JSONDecodeError("Expecting value", s, err.value) from None\n'
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
    )
    assert found.cause.slug == slug


ABORTED = (
    "[E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=701, OpType=BROADCAST,"
    " NumelIn=12, NumelOut=12, Timeout(ms)=1800000) ran for 1800162 milliseconds before timing out.\n"
    "[2024-10-16 13:53:02,071] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -6) local_rank: 1"
    " (pid: 965252) of binary: /opt/bin/python3.10\n"
)
LOST_STORE = (
    "[2024-10-16 13:53:06,832] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'n2_715519_0' has failed"
    " to send a keep-alive heartbeat to the rendezvous '17234' due to an error of type RendezvousConnectionError.\n"
    f"{TRACE}torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."
    " See inner exception for details.\n"
)


def test_an_agent_that_loses_its_store_after_a_rank_s_end_is_no_cause(why):
    assert why(ABORTED + LOST_STORE).cause.slug == "collective_timeout"
    assert why(LOST_STORE).cause.slug == "rdzv_unreachable"


def test_a_loss_that_is_no_number_is_no_cause_before_another_failure(why):
    metric = "1/1 - 3s - loss: nan\n"
    assert why(f"{metric}{TRACE}KeyError: 'x'\n").cause.slug == "user_code_exception"
    found = why(metric)
    assert (found.cause.slug, found.cause.confidence, found.retry) == ("nan_loss", "suspected", "no")


OFFLINE = (
    "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files in the disk cache and outgoing traffic has"
    " been disabled.\n"
)
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
UNREACHED = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\n"


@pytest.mark.parametrize(
    ("text", "line", "retry"),
    [
        (f"{TRACE}{OFFLINE}{CAUSED}{TRACE}{UNREACHED}", OFFLINE, "no"),
        (f"{TRACE}{UNREACHED}", UNREACHED, "yes"),
        (f"{TRACE}{OFFLINE}", OFFLINE, "no"),
    ],
)
def test_an_exception_for_any_reason_gives_way_to_the_one_it_follows_from(why, text, line, retry):
    found = why(text)
    assert (found.cause.slug, found.retry) == ("hub_unreachable", retry)
    assert line.strip() in found.decisive.line


def test_a_message_that_repeats_the_inner_one_shows_the_inner_exception(why):
    symbol = "/opt/lib/flash_attn_2_cuda.so: undefined symbol: _ZNK3c1011StorageImpl"
    head = "RuntimeError: Failed to import x because of the following error (look up to see its traceback):\n"
    found = why(f"{TRACE}ImportError: {symbol}\n{CAUSED}{TRACE}{head}{symbol}\n")
    assert (found.cause.slug, found.decisive.line) == ("import_error", f"ImportError: {symbol}")


def test_a_named_rank_that_names_another_one_is_not_missing(why):
    text = (
        "[rank0]: RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 60000 ms\n"
        "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from"
        " rank 0. Please check rank 0 logs for faulty rank.\n"
    )
    assert why(text).rank == 2


SUCCEEDED = (
    "E1130 03:10:03.2 4011 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 4101) of"
    " binary: /usr/bin/python3\n"
    "I1130 03:10:03.3 4011 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group FAILED. 2/3 attempts left; will"
    " restart worker group\n"
    "[rank0]: step 1000/1000 loss 0.4\n"
)
END = "I1130 04:10:03.3 4011 torch/distributed/elastic/agent/server/api.py:917] Local worker group finished (WorkerState.SUCCEEDED).\n"


def test_a_job_whose_launcher_states_its_success_did_not_fail(why):
    assert first_sentence(why(SUCCEEDED + END)) == NOTHING
    assert why(SUCCEEDED).cause.slug == "killed_unknown"
    assert why(f"{SUCCEEDED}{END}{TRACE}KeyError: 'x'\n").cause.slug == "user_code_exception"


NOTHING = "No failure was found in the files; the shown lines ended nothing."


RETRIED = (
    "[rank2]: WARNING: CUDA out of memory. Tried to allocate 2.00 GiB. Reducing batch size to 4 and retrying\n"
    "[rank0]: step 2 loss 3.1\n[rank0]: step 3 loss 3\n[rank0]: Training finished. Best val loss 1.02\n"
)
LOGGER = (
    'Traceback (most recent call last):\n  File "/usr/lib/python3.10/logging/__init__.py", line 1100, in emit\n'
    "    msg = self.format(record)\nTypeError: not all arguments converted during string formatting\nCall stack:\n"
)


@pytest.mark.parametrize("text", [RETRIED, LOGGER])
def test_a_warning_before_complete_work_and_an_error_of_logging_end_nothing(why, text):
    assert first_sentence(why(f"[rank0]: step 1 loss 3.2\n{text}")) == NOTHING


@pytest.mark.parametrize(
    "line",
    [
        "JobState=COMPLETED Reason=None ExitCode=0:0",
        "\t(1) Normal termination (return value 0)",
        "word error rate (WER): 12.1",
        "errors: 0, failed samples: 0",
        "step 500 loss 1",
    ],
)
def test_a_line_of_success_or_of_a_metric_is_no_error(why, line):
    found = why(f"step 1\nstep 2\n{line}\n")
    assert (found.cause.slug, found.decisive) == ("unknown", None)


STEPS = "".join(f"step {number} loss 2.0\n" for number in range(2, 80))


@pytest.mark.parametrize(
    ("end", "slug"),
    [
        (
            "slurmstepd: error: *** JOB 99112 ON gpu-01 CANCELLED AT 2026-11-30T03:12:44 DUE TO TIME LIMIT ***\n",
            "walltime_or_requeue",
        ),
        ("slurm_script: line 12: 40233 Killed                  python train.py\n", "killed_unknown"),
        # The rest of a buffer looks the same.
        ("", "user_code_exception"),
    ],
)
def test_many_steps_after_a_traceback_show_that_something_else_ended_the_job(why, end, slug):
    assert why(f"step 1 loss 2.1\n{TRACE}ValueError: eval failed\n{STEPS}{end}").cause.slug == slug


def test_an_exception_after_a_time_limit_is_its_consequence(why):
    limit = "slurmstepd: error: *** JOB 99112 ON gpu-01 CANCELLED AT 2026-11-30T03:12:44 DUE TO TIME LIMIT ***\n"
    found = why(f"0: step 900\n{limit}{TRACE}KeyError: 'opt'\n")
    assert (found.cause.slug, found.cause.confidence, found.retry) == ("walltime_or_requeue", "likely", "yes")


def test_times_without_a_zone_order_failures_but_are_no_times_of_the_verdict(why):
    late = "".join(f"2026-11-30 03:12:50,001 [rank2]: {line}\n" for line in f"{TRACE}ValueError: x".splitlines())
    early = "".join(f"2026-11-30 03:12:41,001 [rank5]: {line}\n" for line in f"{TRACE}KeyError: 'x'".splitlines())
    found = why(late + early)
    assert (found.rank, found.cause.confidence, found.time.at) == (5, "likely", None)
    assert {proof.at for proof in found.evidence} == {None}


def test_the_times_of_lines_order_failures_in_all_files(tmp_path):
    def traced(second, error):
        return "".join(f"2026-11-30T03:12:{second}.001234567Z {line}\n" for line in f"{TRACE}{error}".splitlines())

    (tmp_path / "train-0.log").write_text("2026-11-30T03:12:40.001234567Z step 1\n")
    (tmp_path / "train-1.log").write_text(traced(50, "ValueError: gather failed"))
    (tmp_path / "train-2.log").write_text(traced(41, "ZeroDivisionError: division by zero"))
    found = explain_files([tmp_path]).verdict
    assert (found.rank, found.cause.confidence) == (2, "likely")
    assert found.time.at == "2026-11-30T03:12:41.500000000Z"
    # A clock without a zone does not compare with others.
    (tmp_path / "train-2.log").write_text(traced(41, "ZeroDivisionError: division by zero").replace("Z ", " "))
    assert explain_files([tmp_path]).verdict.cause.confidence == "suspected"


@pytest.mark.parametrize(
    ("text", "slug", "retry"),
    [
        ("W1130 03:12:40.1 4011 torch/x.py:719] Received Signals.SIGINT death signal, shutting down workers\n[rank0]: KeyboardInterrupt\n", "cancelled", "no"),
        (f"step 1\n^C{TRACE}KeyboardInterrupt\n", "cancelled", "no"),
        (f"{TRACE}RuntimeError: dictionary changed size during iteration\n", "user_code_exception", "no"),
        (f"{TRACE}OSError: Tunnel connection failed: 407 Proxy Authentication Required\n", "credentials_rejected", "no"),
        (f"{TRACE}ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate\n", "hub_unreachable", "no"),
    ],
)  # fmt: skip
def test_what_fails_again_is_not_tried_again(why, text, slug, retry):
    found = why(text)
    assert (found.cause.slug, found.retry) == (slug, retry)


def test_a_gpu_that_does_not_exist_is_no_fault_of_the_node(why):
    found = why(f"{TRACE}RuntimeError: CUDA error: invalid device ordinal\n")
    assert (found.cause.slug, found.retry, found.node_action) == ("no_gpu_visible", "no", "none")


def test_a_restart_is_no_sure_help_beside_a_cause_that_stays(why):
    used = "RuntimeError: The server socket has failed to listen on any local network address. port: 6000 (errno: 98 - Address already in use).\n"
    missing = "/opt/conda/bin/python: can't open file 'pretrain.py': [Errno 2] No such file or directory\n"
    text = "".join(f"0: {line}\n" for line in f"{TRACE}{used}".splitlines())
    assert why(text).retry == "yes"
    found = why(f"{text}1: {missing}")
    assert (found.cause.confidence, found.retry) == ("suspected", "once")


def test_an_exception_without_a_type_has_a_meaning():
    meaning = exception_meaning(default_catalogue(), [])
    assert (meaning.slug, meaning.role) == ("user_code_exception", "primary")


BUILT = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/w/t.py\", line 9, in <module>\n[rank1]: RuntimeError: Error building extension 'cpu_adam'\n"
ABSENT = (
    '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/t.py", line 9, in <module>\n'
    "[rank0]: ImportError: /home/u/.cache/torch_extensions/cpu_adam.so: cannot open shared object file: No such file or directory\n"
)


def test_of_one_cause_in_one_text_the_first_failure_is_named(why):
    """Not that with the more specific message."""
    found = why(BUILT + ABSENT)
    assert (found.cause.slug, found.rank) == ("import_error", 1)


def test_a_report_of_an_abort_without_a_reason_gives_way_to_one_with_it(why):
    report = "{0}: Program received signal SIGABRT: Process abort signal.\n"
    found = why(f"{report.format(88)}33: double free or corruption (!prev)\n{report.format(33)}")
    assert "double free" in found.decisive.line


def test_a_kill_after_another_rank_s_own_abort_is_no_cause(why):
    found = why(
        "Rank 320 [Mon Jun  5 15:40:06 2023] [c1-2c0s8n3] application called MPI_Abort(MPI_COMM_WORLD, 60) - process 320\n"
        "ATP Stack walkback for Rank 320 starting:\n"
        "_pmiu_daemon(SIGCHLD): [NID 01768] [c1-2c0s12n0] [Mon Jun  5 15:41:51 2023] PE RANK 342 exit signal Killed\n"
    )
    assert (found.cause.slug, found.rank) == ("user_exit", 320)


def test_a_peer_that_refuses_nccl_in_vain_is_not_reached(why):
    found = why(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/t.py", line 34, in main\n[rank1]:     dist.barrier()\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: torch/csrc/distributed/c10d/NCCLUtils.cpp:77, remote process"
        " exited or there was a network error, NCCL version 2.26.2\n"
        "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "[rank1]: Last error:\n"
        "[rank1]: socketPollConnect: connect returned Connection refused, exceeded error retry count (35)\n"
        "srun: error: n15: task 1: Exited with exit code 1\nsrun: error: n13: task 0: Terminated\n"
    )
    assert found.cause.slug == "nccl_network_unreachable"


def test_a_crash_that_srun_names_ended_the_step(why):
    """UCX's error about a CUDA context is no fault of InfiniBand; old versions of srun write `job step`."""
    found = why(
        "0: [1579244748.838971] [n7:41877:2]    cuda_ipc_md.c:62   UCX  ERROR cuCtxGetDevice(&cu_device) is failed. ret:invalid device context\n"
        "0: [n7:41877:2:41930] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)\n"
        "srun: error: n7: task 0: Segmentation fault\nsrun: Terminating job step 405737.0\n"
        "0: slurmstepd: error: *** STEP 405737.0 ON n7 CANCELLED AT 2020-01-16T23:05:49 ***\n"
        "srun: error: n7: task 1: Terminated\nsrun: Force Terminated job step 405737.0\n"
    )
    assert (found.cause.slug, found.rank) == ("segfault", 0)


LAYER = '  File "/v/lib/python3.10/site-packages/{}", line 7, in call\n    return f(x)\n'


@pytest.mark.parametrize(
    ("file", "slug"),
    [
        ("torch/nn/modules/linear.py", "user_code_exception"),
        ("transformers/modeling_flash_attention_utils.py", "user_code_exception"),
        ("pandas/core/frame.py", "user_code_exception"),
        ("torch/nn/parallel/distributed.py", "unknown"),
        ("deepspeed/runtime/engine.py", "unknown"),
    ],
)
def test_what_a_library_computes_in_vain_is_the_code_s_fault(why, file, slug):
    """Of other libraries the exception may have any reason."""
    found = why(TRACE + LAYER.format(file) + "RuntimeError: no kernel of this kind can be chosen here\n")
    assert found.cause.slug == slug


def test_a_missing_configuration_is_no_missing_data(why):
    opened = "FileNotFoundError: [Errno 2] No such file or directory: '{}'\n"
    assert why(TRACE + opened.format("/w/config/your_config.yaml")).cause.slug == "bad_arguments"
    assert why(TRACE + opened.format("/data/instances_train.json")).cause.slug == "dataset_missing"


def test_an_interrupted_exit_hides_no_exception(why):
    """A person ended a process that hung at its exit, after it had raised."""
    found = why(
        f"{TRACE}ValueError: Value out of range: 14447548154334085120\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/usr/lib/python3.7/multiprocessing/process.py", line 300, in _bootstrap\n'
        '    util._exit_function()\n  File "/usr/lib/python3.7/multiprocessing/util.py", line 357, in _exit_function\n'
        "    p.join()\nKeyboardInterrupt\n"
    )
    assert (found.cause.slug, found.retry) == ("user_code_exception", "no")
    assert "out of range" in found.decisive.line


def test_the_only_rank_of_lightning_is_rank_0(why):
    raised = f"{TRACE}KeyError: 'x'\n"
    assert why(f"initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/1\n{raised}").rank == 0
    assert why(f"initializing ddp: GLOBAL_RANK: 0, MEMBER: 1/2\n{raised}").rank is None


def test_a_deadlock_that_a_checker_found_is_the_cause_of_its_kills(why):
    box = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK {} PID 3267{} RUNNING AT n20\n=   KILLED BY SIGNAL: 9 (Killed)\n"
    found = why("[0] ERROR: GLOBAL:DEADLOCK:HARD: fatal error\n" + box.format(0, 0) + box.format(1, 1))
    assert (found.cause.slug, found.retry) == ("rank_stuck", "no")


def test_storage_of_a_tensor_is_no_disk(why):
    text = "[rank0]: RuntimeError: setStorage: sizes [320, 1280] requiring a storage size of 831360 are out of bounds for storage of size 0\n"
    assert why(text).cause.slug != "disk_full"


def test_what_a_script_raised_before_its_ranks_began_is_no_cause(why):
    script = f"{TRACE}ModuleNotFoundError: No module named 'dataclasses'\n"
    ranks = "".join(f"{n}: FutureWarning: The pynvml package is deprecated.\n" for n in range(4))
    found = why(f"{script}{ranks}2: [rank2]: AssertionError: no data left\n")
    assert (found.cause.slug, found.rank) == ("user_code_exception", 2)
    # torchrun's reports alone show no begin of the ranks.
    rows = "[1]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 11)\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 10)\n"
    assert why(script + rows).cause.slug == "import_error"


def test_the_exception_that_a_replica_quotes_gives_the_cause(why):
    found = why(
        f"{TRACE}torch.OutOfMemoryError: Caught OutOfMemoryError in replica 0 on device 0.\nOriginal {TRACE}"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 MiB. GPU 0 has a total capacity of 44.53 GiB of which"
        " 29.50 MiB is free. Process 417194 has 43.11 GiB memory in use. Including non-PyTorch memory, this process has 1.38 GiB"
        " memory in use. Of the allocated memory 770.48 MiB is allocated by PyTorch.\n"
    )
    assert (found.cause.slug, found.retry) == ("gpu_oom_foreign", "elsewhere")


def test_a_backend_that_jax_does_not_find_is_no_cause(why):
    missed = "{}Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory\n"
    found = why(
        missed.format("02:02:14.969 [I] ")
        + "slurmstepd: error: *** JOB 259950 ON dgx-07 CANCELLED AT 2026-01-06T04:52:18 ***\n"
    )
    assert found.cause.slug == "cancelled"
    assert why(TRACE + missed.format("RuntimeError: ")).cause.slug == "import_error"


def test_what_waits_for_a_process_without_a_port_is_its_consequence(why):
    """The process went on alone; the others, in the same text, did not reach it."""
    found = why(
        "[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.\n"
        "INFO:root:Running... (rank: 0/1)\n"
        f"{TRACE}torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\n"
        "socketStartConnect: Connect to 10.39.117.136<41317> failed : Software caused connection abort\n"
    )
    assert (found.cause.slug, found.retry) == ("address_in_use", "yes")
