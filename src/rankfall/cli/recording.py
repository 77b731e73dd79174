"""Records a run that nobody else records, while this process shows it. Whoever comes second only reads; who is left takes over."""

from __future__ import annotations

from typing import Final

from rankfall.cli import emit
from rankfall.cli.session import Supervision
from rankfall.model import FINAL_STATES
from rankfall.report.escape import one_line
from rankfall.store import RunDir
from rankfall.supervise.events import Event

_TEXT: Final = 400


class Recording:
    """The recorder beside a view.

    Args:
        directory: of a run that its platform ends by itself.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._own: Supervision | None = None

    def over(self) -> bool:
        """Whether the run has ended and all of it is stored; keeps the recorder going until then.

        Raises:
            RankfallError: what ended the recorder.
        """
        if self._own is not None:
            if not self._own.over:
                return False
            own, self._own = self._own, None
            own.result()
        with self._directory.reader() as reader:
            ended = reader.run().state in FINAL_STATES
        if self._directory.lease_holder() is not None:
            # Somebody else records it; that one writes its last words still.
            return False
        if not ended:
            self._own = Supervision(self._directory, on_event=_tell)
            self._own.begin()
        return ended

    def stop(self) -> None:
        """Let go of the run, which goes on."""
        own, self._own = self._own, None
        if own is not None:
            own.control.release()
            own.result()


def ended_text(directory: RunDir) -> str:
    """How a job that Rankfall did not start ended, with the command that says more; empty while it goes on."""
    foreign = directory.foreign
    with directory.reader() as reader:
        row = reader.run()
    if foreign is None or row.state not in FINAL_STATES:
        return ""
    reason = f": {row.reason}" if row.reason else ""
    why = "" if row.state == "succeeded" else f"; rankfall why {directory.id}"
    return one_line(f"{foreign.target.shown} {row.state}{reason}{why}", width=_TEXT)


def _tell(event: Event) -> None:
    """Show what happens to the job itself: lines do not say that they are those of another gang."""
    later = event.kind == "attempt" and event.data.get("attempt") != 1
    if later or event.kind in {"gap", "decision", "suspended"}:
        emit.say(f"rankfall: {one_line(event.text, width=_TEXT)}")
