"""The scale of all waits of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import patience
from support.helpers import wait_until, waits_for


@pytest.mark.parametrize(("value", "scale"), [(None, 1), ("", 1), ("0.2", 1), ("2.5", 2.5), ("40", 6)])
def test_the_scale_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch, value: str | None, scale: float) -> None:
    monkeypatch.delenv(patience.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(patience.VARIABLE, value)
    assert scale == patience.SCALE
    assert patience.scaled(20) == 20 * scale
    with pytest.raises(AttributeError, match="scales"):
        _ = patience.scales


def test_a_wait_takes_the_scale_into_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(patience.VARIABLE, "3")
    with pytest.raises(AssertionError, match=r"waited 0\.03 s in vain for the moon"):
        wait_until(lambda: False, timeout=0.01, what="the moon")


@pytest.mark.parametrize(("seconds", "scale"), [((0.1, 0.2, 9.0), 1), ((0.1, 0.64, 9.0), 2), ((9.0, 0.1, 9.0), 6)])
def test_the_median_of_three_rounds_is_compared_with_an_idle_core(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], scale: float
) -> None:
    left = list(seconds)
    monkeypatch.setattr(patience, "_round", left.pop)
    assert patience.measure() == pytest.approx(scale)
    assert left == []


def test_a_round_runs_a_child_process_without_the_packages_of_the_tests() -> None:
    code = "import patience, sys; print(1 <= patience.measure() <= 6, 'pytest' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(Path(patience.__file__).parent)}
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split() == [
        "True",
        "False",
    ]


def test_a_job_waits_for_a_file(tmp_path: Path) -> None:
    job = f"import os, sys, time\nprint('here', flush=True)\n{waits_for(tmp_path / 'go')}\nprint('done')"
    with subprocess.Popen([sys.executable, "-c", job], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        (tmp_path / "go").touch()
        assert process.stdout.read() == "done\n"
    assert process.returncode == 0
