"""Output files of whole jobs: what comes after the cause, and what only looks like another one."""

from __future__ import annotations

import pytest

from rankfall.explain import explain_files

TRACE = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'


@pytest.fixture
def verdict(tmp_path):
    def explain(text):
        file = tmp_path / "job.out"
        file.write_text(text)
        return explain_files([file]).verdict

    return explain


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
def test_ranks_that_list_the_same_processes_share_a_gpu(verdict, first, second, slug, retry):
    """In a container none of them is recognized as the process that ran out."""
    found = verdict(f"{TRACE}{FULL.format('17.00 MiB')}{first}{TORCH}{TRACE}{FULL.format('7.00 MiB')}{second}{TORCH}")
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
def test_what_a_program_raises_after_its_step_was_cancelled_is_no_cause(verdict, order, slug):
    assert verdict("".join(order)).cause.slug == slug


WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 0 Rank {0}] Process group watchdog thread terminated with exception: [Rank {0}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=10, NumelOut=10, Timeout(ms)=120000) ran for 120092"
    " milliseconds before timing out.\n"
)


def test_a_shell_s_report_of_a_watchdog_s_abort_is_no_cause(verdict):
    text = WATCHDOG.format(1) + WATCHDOG.format(2)
    found = verdict(f"{text}./launcher.sh: line 14: 31644 Aborted                 (core dumped) $@\n")
    assert (found.cause.slug, found.rank) == ("collective_timeout", None)


def test_deepspeed_without_a_hostfile_runs_on_one_node(verdict):
    """It names its last process, which is the only one if it is the first."""
    found = verdict(
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
def test_a_configuration_that_is_no_json_is_no_sample(verdict, statement, slug):
    found = verdict(
        f'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    {statement}\n'
        '  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
        '    raise JSONDecodeError("Expecting value", s, err.value) from None\n'
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n"
    )
    assert found.cause.slug == slug
