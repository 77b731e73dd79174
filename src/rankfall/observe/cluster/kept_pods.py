"""The pods of one attempt as a session knows them: the newest look at each, with its place, written into the journal, now or when it can be.

Whatever an earlier session or process saw is taken up from the journal.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rankfall.observe.cluster.followed import Followed
from rankfall.observe.cluster.journal import JournalWriter, journal_path
from rankfall.observe.cluster.podfacts import PodFact, later
from rankfall.observe.cluster.source import PodSource
from rankfall.observe.cluster.troubles import Troubles
from rankfall.store import RunDir


class KeptPods:
    """Pods of one attempt.

    Args:
        run_dir: where the journal lies.
        attempt: counted from 1.
        source: which pods.
        troubles: takes difficulties.
        stir: called when a pod has changed.

    Attributes:
        by_uid: all that were seen, those that are gone too.

    Raises:
        OSError: the journal cannot be opened.
    """

    def __init__(
        self, run_dir: RunDir, *, attempt: int, source: PodSource, troubles: Troubles, stir: Callable[[], None]
    ) -> None:
        self._marks = source.marks
        self._troubles = troubles
        self._stir = stir
        self._journal = JournalWriter(journal_path(run_dir.path, attempt))
        self._unwritten: set[str] = set()
        self.by_uid = {uid: Followed(fact) for uid, fact in self._journal.pods.items()}

    def facts(self) -> list[PodFact]:
        """The newest look at each."""
        return [pod.fact for pod in self.by_uid.values()]

    def there(self) -> set[str]:
        """UIDs of those that were there when somebody looked last."""
        return {uid for uid, pod in self.by_uid.items() if not pod.fact.gone}

    def take(self, fact: PodFact) -> Followed:
        """Take one look at a pod; it is not written yet."""
        pod = self.by_uid.get(fact.uid)
        if pod is not None:
            pod.fact = later(pod.fact, fact)
            return pod
        pod = self.by_uid[fact.uid] = Followed(self._placed(fact))
        if self._marks is not None and pod.fact.slot is None:
            self._troubles.say(
                f"place of {fact.uid}", f"{fact.name} does not say which pod of its job it is: its log is not read"
            )
        return pod

    def write(self, pod: Followed) -> None:
        """Write a pod down as it is; where that cannot be done, :meth:`write_left` does it later."""
        try:
            self._add(pod)
        except OSError as error:
            self._unwritten.add(pod.fact.uid)
            self._troubles.full(error)
        else:
            self._stir()

    def write_left(self) -> bool:
        """Write what could not be written before; whether there was any.

        Raises:
            OSError: it still cannot be written.
        """
        left = tuple(self._unwritten)
        for uid in left:
            self._add(self.by_uid[uid])
            self._unwritten.discard(uid)
        return bool(left)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _add(self, pod: Followed) -> None:
        self._journal.add(msgspec.structs.replace(pod.fact, log=pod.log_state))

    def _placed(self, fact: PodFact) -> PodFact:
        """A pod that bears no place gets one that none has had, else that of one that has ended; written down with it, so it stays."""
        marks = self._marks
        if marks is None or marks.index or fact.slot is not None:
            return fact
        there: dict[int, bool] = {}
        for pod in self.by_uid.values():
            if pod.fact.slot is not None:
                there[pod.fact.slot] = there.get(pod.fact.slot, False) or not pod.fact.over
        slots = range(sum(marks.sizes.values()))
        free = [slot for slot in slots if slot not in there] or [slot for slot in slots if not there[slot]] or [*slots]
        return msgspec.structs.replace(fact, slot=free[0])
