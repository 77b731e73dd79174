"""Lets one rank of the example fall, so that the demo has something to explain. Nothing here is known to Rankfall.

``DEMO_FAULT=rank=2,step=60,kind=sigkill`` kills rank 2 in step 60 of the first attempt. Kinds: ``sigkill`` (as a machine's operator or the kernel
would), ``exception`` (a bug in the training code), ``retryable`` (an exception that the code declares worth a retry), ``hang`` (the rank
stops working without a word).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

KINDS = ("sigkill", "exception", "retryable", "hang")


def parse(text: str) -> tuple[int, int, int, str]:
    """Rank, step, attempt and kind of ``rank=R,step=S[,attempt=A],kind=K``.

    Raises:
        ValueError: a field is unknown, missing or no number, or the kind is none of ``KINDS``.
    """
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if set(fields) - {"rank", "step", "attempt", "kind"} or not {"rank", "step", "kind"} <= set(fields):
        raise ValueError(f"DEMO_FAULT={text!r}: give rank=R,step=S,kind=K and, when it is not the first, attempt=A")
    if fields["kind"] not in KINDS:
        raise ValueError(f"DEMO_FAULT={text!r}: kind is one of {', '.join(KINDS)}")
    return int(fields["rank"]), int(fields["step"]), int(fields.get("attempt", "1")), fields["kind"]


def maybe_fall(*, rank: int, step: int) -> None:
    """Fall here when ``DEMO_FAULT`` says so; otherwise nothing."""
    text = os.environ.get("DEMO_FAULT")
    if not text:
        return
    at_rank, at_step, at_attempt, kind = parse(text)
    if (rank, step, int(os.environ.get("RANKFALL_ATTEMPT", "1"))) == (at_rank, at_step, at_attempt):
        fall(kind)


def fall(kind: str) -> NoReturn:
    """End, or stop working, as ``kind`` says."""
    sys.stdout.flush()
    if kind == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "retryable":
        from rankfall_inside import Retryable  # noqa: PLC0415 - the example also runs where Rankfall is not

        raise Retryable("the feature store did not answer")
    if kind == "exception":
        raise KeyError("temperature")
    while True:
        signal.pause()
