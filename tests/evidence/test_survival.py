"""What the text of a stream states about the work of its process."""

from __future__ import annotations

import pytest

from rankfall.evidence.readers.survival import Survival
from rankfall.render.summary import first_sentence


@pytest.mark.parametrize(
    ("line", "done"),
    [
        (b"job finished with 137", False),
        (b"Job ended with exit code 1.", False),
        (b"training finished, status=139", False),
        (b"run completed (rc: -9)", False),
        # A number that is no code, and the code of a success.
        (b"training finished with loss 0.31", True),
        (b"job finished with 0", True),
        (b"Training finished in 137 s", True),
    ],
)
def test_a_script_that_states_the_code_of_its_failed_command_did_not_complete_its_work(line, done):
    """Steps before it, and what the script prints after it, change nothing."""
    survival = Survival(watched=True)
    text = b"step 4 loss 0.2\nstep 5 loss 0.1\n" + line + b"\nremoving scratch\n"
    survival.push(text, at=0, found=())
    assert survival.finished is done


CAUGHT = """Traceback (most recent call last):
  File "/app/data.py", line 20, in read
    return np.load(p)
ValueError: bad header
"""
UNCAUGHT = """Traceback (most recent call last):
  File "/app/train.py", line 88, in <module>
    main()
KeyError: 'input_ids'
"""
STEPS = "".join(f"step {step} loss {3 - step / 30:.2f}\n" for step in range(1, 60))
DATED = "".join(f"2026-11-01 1{hour}:10:00,000 INFO train: step {hour}00\n" for hour in range(3))


@pytest.mark.parametrize("work", [STEPS, DATED])
@pytest.mark.parametrize(
    ("end", "slug"),
    [
        ("srun: error: Node failure on gpu-17\n", "node_lost"),
        (
            "slurmstepd: error: *** JOB 99 ON gpu-11 CANCELLED AT 2026-11-01T11:30:00 DUE TO TIME LIMIT ***\n",
            "walltime_or_requeue",
        ),
        (
            "slurmstepd: error: *** STEP 99.0 ON gpu-11 CANCELLED AT 2026-11-01T11:30:00 DUE TO PREEMPTION ***\n",
            "preempted",
        ),
        ("srun: error: gpu-17: task 6: Killed\n", "killed_unknown"),
        ("slurm_script: line 12: 40233 Killed                  python train.py\n", "killed_unknown"),
        (UNCAUGHT, "user_code_exception"),
    ],
)
def test_a_job_that_worked_on_after_a_caught_exception_ended_for_another_reason(why, work, end, slug):
    verdict = why(f"2026-11-01 10:00:00,000 ERROR train: could not read shard 17\n{CAUGHT}{work}{end}")
    assert verdict.cause.slug == slug
    assert "bad header" not in verdict.decisive.line
    # A rank that hangs after another one's exception is ended as well: few lines may have been buffered.
    few = "step 1 loss 3.0\nstep 2 loss 2.9\n"
    if slug != "user_code_exception":
        assert why(f"{UNCAUGHT}{few}{end}").cause.slug == "user_code_exception"


@pytest.mark.parametrize(
    "between", ["attempt 2\n", "train.sh: attempt 1 failed (exit 1), restarting\n", "Retrying (2/3)...\n"]
)
def test_a_job_that_completed_its_work_after_another_try_did_not_fail(why, between):
    text = f"step 1 loss 3.0\n{UNCAUGHT}{between}step 1 loss 3\nstep 2 loss 2\n"
    completed = why(f"{text}Training finished\n")
    assert first_sentence(completed) == "No failure was found in the files; the shown lines ended nothing."
    assert [proof.role for proof in completed.evidence] == ["context"]
    # It is one where the other try failed, too.
    assert why(f"{text}Training finished\n{UNCAUGHT}").cause.confidence == "likely"
    assert why(text).cause.confidence == "likely"


def test_of_several_runs_in_one_text_the_last_one_is_explained(why):
    def run(day, last, hour=9):
        begins = f"2026-11-0{day} 0{hour}:00:00,000 INFO train: begins\n"
        return begins + UNCAUGHT.replace("KeyError: 'input_ids'", last)

    assert why(run(1, "KeyError: 'a'") + run(2, "IndexError: b")).decisive.line == "IndexError: b"
    assert why(run(1, "KeyError: 'a'") + run(1, "IndexError: b", hour=8)).decisive.line == "KeyError: 'a'"
    # Within one run the first exception counts, whatever follows from it minutes later.
    later = run(1, "IndexError: b").replace("09:00:00", "09:31:00")
    assert why(run(1, "KeyError: 'a'") + later).decisive.line == "KeyError: 'a'"
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.0.0.3]:22188"
    assert why(run(1, "KeyError: 'a'") + run(2, lost)).decisive.line == "KeyError: 'a'"
