"""Converts a collected line to a node fault. Pure.

The node comes from metadata. ``dmesg`` prints the ring again after a restart, so boot and text identify lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rankfall.loki.cursor import Entry
from rankfall.model import numbers
from rankfall.model.node_health.kernel_reports import LINE_SCHEMA, decode_line
from rankfall.model.node_health.records import NodeFault
from rankfall.model.patterns import anchored
from rankfall.nodes.controller.settings import Labels
from rankfall.nodes.rules import faults
from rankfall.nodes.rules.kernel_lines import Recogniser
from rankfall.verdict.signatures.catalogue import default_catalogue
from rankfall.verdict.signatures.matcher import best
from rankfall.verdict.signatures.patterns import required_words

#: Selects all driver lines; some come in three parts.
_DRIVER: Final = ("NVRM: ", "nvidia-nvswitch", "fallen off the bus")
#: Texts about GPUs; signatures decide a line's meaning.
POD_TEXTS: Final = ("NVRM: Xid", "SXid", "invalid device ordinal", "CUDA error", "NCCL", "uncorrectable")
_CLOCK: Final = anchored(r"(?:<[0-9]{1,4}>)?\[ {0,12}([0-9]{1,12})\.([0-9]{6})\]", limit=128)
_MAX_NODES: Final = 20_000
#: One for each node; a ConfigMap has at most 1 MiB.
MAX_BOOTS: Final = 5_000


def kernel_texts() -> tuple[str, ...]:
    """Returns texts of which each relevant kernel line has one, and the schema name of the agent's lines."""
    words: set[str] = set()
    for signature in default_catalogue().signatures:
        if "kernel" in signature.where and "line" not in signature.where:
            words |= required_words(signature.pattern) or set()
    short = {each for each in words if not any(other != each and other in each for other in words)}
    return (LINE_SCHEMA, *_DRIVER, *sorted(each for each in short if not any(word in each for word in _DRIVER)))


class KernelLines:
    """Reads lines of trusted DaemonSets. ``begun`` grows here; at its limit it drops boots that no Node shows."""

    def __init__(
        self, labels: Labels, *, boot_of: Callable[[str], str | None], begun: dict[str, int] | None = None
    ) -> None:
        self._labels = labels
        self._boot_of = boot_of
        self.begun = {} if begun is None else begun
        self._readers: dict[str, Recogniser] = {}
        self.nameless = 0

    def read(self, entry: Entry) -> NodeFault | None:
        """Returns the fault in a line; None also if the node is unknown."""
        node = entry.labels.get(self._labels.node, "")
        if not node:
            self.nameless += 1
            return None
        if LINE_SCHEMA in entry.text:
            line = decode_line(entry.text)
            return None if line is None else faults.of_agent_line(line, node=node)
        boot = self._boot_of(node) or ""
        at, identity = entry.at, entry.id.hex()
        clock = _CLOCK.match(entry.text)
        since = -1 if clock is None else numbers.matched(clock[1]) * 1_000_000_000 + numbers.matched(clock[2]) * 1_000
        # Text older than the epoch only resembles a clock.
        if 0 <= since <= entry.at:
            key = f"{node} {boot}"
            at, identity = self._began(key, entry.at - since) + since, f"{key} {entry.text}"
        return faults.of_line(
            entry.text.encode("utf-8", "surrogatepass"),
            node=node,
            source="loki",
            trust="collector",
            reader=self._reader(f"{node} {boot}"),
            identity=identity,
            at=at,
            uncertainty=faults.STAMP_UNCERTAINTY_S,
        )

    def _began(self, key: str, at: int) -> int:
        """Latest possible start of this boot, from this and earlier lines."""
        known = self.begun.get(key)
        if known is None and len(self.begun) >= MAX_BOOTS:
            for each in list(self.begun):
                node, _, boot = each.rpartition(" ")
                if self._boot_of(node) != boot:
                    del self.begun[each]
        begun = at if known is None else min(known, at)
        if known is not None or len(self.begun) < MAX_BOOTS:
            self.begun[key] = begun
        return begun

    def _reader(self, key: str) -> Recogniser:
        if key not in self._readers:
            if len(self._readers) >= _MAX_NODES:
                self._readers.clear()
            self._readers[key] = Recogniser(prefixed=True)
        return self._readers[key]


class PodLines:
    """Reads output of pods: a hint unless an operator names the code."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.nameless = 0

    def read(self, entry: Entry) -> NodeFault | None:
        """Returns the unproven fault in a line, or None."""
        node = entry.labels.get(self._labels.node, "")
        if not node:
            self.nameless += 1
            return None
        data = entry.text.encode("utf-8", "surrogatepass")
        job = "/".join(entry.labels.get(name, "") for name in (self._labels.namespace, self._labels.pod))[:128]
        found = faults.of_line(
            data,
            node=node,
            source="pod_log",
            trust="pod_text",
            reader=Recogniser(),
            identity=entry.id.hex(),
            at=entry.at,
            uncertainty=faults.STAMP_UNCERTAINTY_S,
            job=job,
        )
        if found is not None:
            return found
        hit = best(default_catalogue().match_line(data.split(b"\n", 1)[0], where="line"))
        if hit is None:
            return None
        return faults.of_pod_text(
            data, node=node, signature=hit.signature.id, slug=hit.signature.slug, identity=entry.id.hex(), at=entry.at, job=job
        )  # fmt: skip
