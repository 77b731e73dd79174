"""What can go wrong with a test bed; each message says what, and what to do next."""

from __future__ import annotations


class TestbedError(Exception):
    """Base of all errors of the test bed.

    Args:
        message: what happened, to what.
        hint: the next step.
    """

    __test__ = False  # pytest must not collect it

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.hint = hint


class UnsupportedError(TestbedError):
    """This machine cannot run a test bed: no root, another system, no way to make a namespace."""


class BuildError(TestbedError):
    """A binary or an image could not be made."""


class StartError(TestbedError):
    """A component did not become ready."""
