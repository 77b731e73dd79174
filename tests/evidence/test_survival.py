"""What the text of a stream states about the work of its process."""

from __future__ import annotations

import pytest

from rankfall.evidence.readers.survival import Survival


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
