"""From a collected line to a node fault: which node, when, and how far it is trusted. Pure.

The node comes from the collector's metadata, never from the text. ``dmesg`` prints the whole ring again after
a restart, so a kernel line is identified by node, boot and text, and its time is the kernel's clock counted
from the earliest start of that boot that any line allows. Lines of pods are a hint unless an operator names
the code.
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

#: Of the driver's lines all are wanted: their grammar decides, and some come in three parts.
_DRIVER: Final = ("NVRM: ", "nvidia-nvswitch", "fallen off the bus")
#: What pods print of GPUs; the signatures decide what a line means.
POD_TEXTS: Final = ("NVRM: Xid", "SXid", "invalid device ordinal", "CUDA error", "NCCL", "uncorrectable")
_CLOCK: Final = anchored(r"(?:<[0-9]{1,4}>)?\[ {0,12}([0-9]{1,12})\.([0-9]{6})\]", limit=128)
_MAX_NODES: Final = 20_000
#: Boots whose beginning is remembered: one for each node of the largest cluster that Kubernetes is made for. They are kept in a ConfigMap, which has room for 1 MiB.
MAX_BOOTS: Final = 5_000


def kernel_texts() -> tuple[str, ...]:
    """Texts of which every line of the kernel that means anything holds one; also the schema of our own agent's lines."""
    words: set[str] = set()
    for signature in default_catalogue().signatures:
        if "kernel" in signature.where and "line" not in signature.where:
            words |= required_words(signature.pattern) or set()
    short = {each for each in words if not any(other != each and other in each for other in words)}
    return (LINE_SCHEMA, *_DRIVER, *sorted(each for each in short if not any(word in each for word in _DRIVER)))


class KernelLines:
    """Reads lines of DaemonSets that are believed.

    Args:
        labels: names of the collector.
        boot_of: the boot id that a Node shows now; None = none.
        begun: earliest beginning of each boot, by ``node boot``, in nanoseconds since the epoch; grows here, and past its limit loses boots that no Node shows.
    """

    def __init__(
        self, labels: Labels, *, boot_of: Callable[[str], str | None], begun: dict[str, int] | None = None
    ) -> None:
        self._labels = labels
        self._boot_of = boot_of
        self.begun = {} if begun is None else begun
        self._readers: dict[str, Recogniser] = {}
        self.nameless = 0

    def read(self, entry: Entry) -> NodeFault | None:
        """What the line says; None = nothing, or nobody says of which node."""
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
        # A kernel that is older than the epoch is none: the text only looks like a clock.
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
        """When this boot began at the latest, as this line and those before it tell."""
        known = self.begun.get(key)
        if known is None and len(self.begun) >= MAX_BOOTS:
            # Of a boot that is over no line is read as its own any more.
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
    """Reads what pods print themselves: worth a hint, and no more unless an operator names the code.

    Args:
        labels: names of the collector.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self.nameless = 0

    def read(self, entry: Entry) -> NodeFault | None:
        """What the line would say, were it true; None = nothing."""
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
