"""Pasted texts: cut-off tracebacks, races, searches for plug-ins, launchers' reports."""

from __future__ import annotations

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
    assert answer(text + first + agents) == ("user_exit", 4)
    # Each node's launcher has its own first one.
    assert answer(text + first + "Root Cause (first observed failure):\n" + ROW.format(n=1, r=9, p=77)) == (
        "user_exit",
        None,
    )
