"""The loop that every program shares: prints a line for each step, and strikes in one rank."""

import os
import sys
from collections.abc import Callable

from faults import strike

STEPS = 6
STRIKES_AT = 3


def step_of(rank: int, step: int) -> None:
    """Begin a step; the rank and the fault that strikes in it come from the environment ZOO_RANK and ZOO_FAULT."""
    if step == STRIKES_AT and rank == int(os.environ["ZOO_RANK"]):
        sys.stdout.flush()
        strike(os.environ["ZOO_FAULT"])


def train(rank: int, reduce: Callable[[], object]) -> None:
    """Run all steps."""
    for step in range(STEPS):
        step_of(rank, step)
        reduce()
        print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)
