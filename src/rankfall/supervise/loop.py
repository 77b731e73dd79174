"""Where a run's supervision begins: its lease is taken, signals are led, and whoever fits the run brings it to its end.

A run that Rankfall restarts is ``supervised``; one that its platform ends by itself is ``unattended``, and only recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from rankfall.backends.protocol import Backend
from rankfall.backends.registry import backend_for, native_of
from rankfall.model import FINAL_STATES, Outcome, RankfallError
from rankfall.store import RunDir, Writer
from rankfall.supervise.control import Control, signals_to
from rankfall.supervise.events import Event
from rankfall.supervise.left_over import done, left_over
from rankfall.supervise.live_file import live_file
from rankfall.supervise.supervised import Supervised
from rankfall.supervise.tidying import tidy

if TYPE_CHECKING:
    from rankfall.supervise.unattended import Unattended


def supervise(
    run_dir: RunDir,
    *,
    on_event: Callable[[Event], None] | None = None,
    control: Control | None = None,
    backend: Backend | None = None,
    wait: float = 0.0,
    handle_signals: bool = False,
    on_lease: Callable[[], None] | None = None,
    standby: bool = False,
) -> Outcome:
    """Bring a run to its end, from wherever it stands.

    Args:
        run_dir: the run.
        on_event: called in this thread with each piece of news; must be quick.
        control: to cancel, release or hand over from outside.
        backend: by default the one that the run's spec names.
        wait: seconds to wait for another supervisor to let go.
        handle_signals: SIGINT and SIGTERM become ``signal`` events, SIGHUP hands the run over; in the main thread only.
        on_lease: called once when this process holds the run.
        standby: wait for as long as another machine supervises the run, and take over when it is gone.

    Returns:
        The outcome; with state ``running`` when this process let go of the run.

    Raises:
        LockHeld: another process supervises the run.
        HeldElsewhere: another machine does.
        Refused: this version has no such backend.
        StoreError: the run directory cannot be read or written at all.
    """
    chosen = backend or backend_for(run_dir.spec)
    own = control or Control()
    try:
        with signals_to(own) if handle_signals else contextlib.nullcontext():
            with run_dir.lease(wait=wait) as writer, live_file(run_dir):
                run = _of(
                    run_dir,
                    writer=writer,
                    on_event=on_event,
                    control=own,
                    backend=chosen,
                    on_lease=on_lease,
                    standby=standby,
                )
                outcome = run.to_end()
                if outcome.state in FINAL_STATES:
                    if run_dir.foreign is None:
                        # Who looks at a job of another tool waits for no second copy of its lines.
                        tidy(run_dir)
                    done(run_dir)
            if own.wish == "hand_over" and not run_dir.spec.unattended and outcome.state not in FINAL_STATES:
                from rankfall.supervise.detach import spawn_detached  # noqa: PLC0415 - detach starts this very module

                spawn_detached(run_dir)
            return outcome
    finally:
        if control is None:
            own.close()


def finish(run_dir: RunDir) -> None:
    """Do all that is left, as the run's supervisor would have; nothing where nothing is left, or somebody is about it."""
    if left_over(run_dir) is None or run_dir.lease_holder() is not None:
        return
    with run_dir.reader() as reader:
        over = reader.run().state in FINAL_STATES
    if over:
        with contextlib.suppress(RankfallError, OSError):
            supervise(run_dir)


def _of(
    run_dir: RunDir,
    *,
    writer: Writer,
    on_event: Callable[[Event], None] | None,
    control: Control,
    backend: Backend,
    on_lease: Callable[[], None] | None,
    standby: bool,
) -> Supervised | Unattended:
    """Who brings a run to its end; one that its platform ends by itself is only recorded."""
    if not run_dir.spec.unattended:
        return Supervised(
            run_dir,
            writer=writer,
            on_event=on_event,
            control=control,
            backend=backend,
            on_lease=on_lease,
            standby=standby,
        )
    from rankfall.supervise.unattended import Unattended  # noqa: PLC0415 - a supervised run needs none of it

    # Nobody decides about such a run, so any number of machines may record it.
    if on_lease is not None:
        on_lease()
    return Unattended(run_dir, writer=writer, on_event=on_event, control=control, backend=native_of(backend))
