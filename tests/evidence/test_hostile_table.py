"""The table of hostile inputs that tests share: tests/hostile_inputs."""

from __future__ import annotations

import pytest

from support.hostile_inputs import INPUTS, Kind, of_kind
from support.hostile_inputs.dumps import DUMPS
from support.hostile_inputs.error_files import ERROR_FILES
from support.hostile_inputs.texts import TEXTS
from support.hostile_inputs.trees import TREES


def test_i18_there_are_at_least_ninety_of_different_names():
    assert len(INPUTS) == len(TEXTS) + len(ERROR_FILES) + len(DUMPS) + len(TREES) >= 90


@pytest.mark.parametrize("size", [1, 70_001])
def test_a_text_has_as_many_bytes_as_are_asked_for(size):
    wrong = {one.name: found for one in of_kind(Kind.TEXT) if (found := len(one.data(size))) != size}
    # One line between a beginning and an end that stay whole.
    assert all(
        size - found < 16 and name.startswith(("line-giant", "traceback-giant")) for name, found in wrong.items()
    )
