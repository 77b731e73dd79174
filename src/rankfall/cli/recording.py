"""Records a run that nobody else records, while this process shows it. Whoever comes second only reads; who is left takes over."""

from __future__ import annotations

from rankfall.cli import emit
from rankfall.cli.session import Supervision
from rankfall.model import FINAL_STATES
from rankfall.store import RunDir
from rankfall.supervise.events import Event


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
        return ended

    def stop(self) -> None:
        """Let go of the run, which goes on."""
        own, self._own = self._own, None
        if own is not None:
            own.control.release()
            own.result()


def _tell(event: Event) -> None:
    if event.kind == "gap":
        emit.say(f"rankfall: {event.text}")
