"""The catalogue: all signatures that are in force, with the packaged ones as default."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, Self

from rankfall.model.patterns import bounded
from rankfall.signatures.table import Signature, Where, merge, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rankfall.signatures.matcher import Hit, Matcher

#: Files of the package, one a family of causes.
FAMILIES: Final = ("user", "data", "memory", "gpu", "network", "storage", "platform", "control")

# Examples and near misses are most of a file and serve the tests only; leaving them out makes the start several times quicker.
_PROOF: Final = bounded(r"(?m)^\[\[signature\.(?:example|miss)\]\]\n(?:(?!\[\[signature\]\]).*\n)*", limit=1 << 22)


class Catalogue:
    """Signatures and the matchers made from them; matchers are compiled on first use and kept.

    Args:
        signatures: unique ids; the first of two with the same specificity, role and id wins nothing: ids decide.

    Attributes:
        STREAM: what the lines of a stream may be.
    """

    STREAM: Final[tuple[Where, ...]] = ("line", "launcher", "kernel")

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = merge(signatures)
        self._by_id = {each.id: each for each in self.signatures}
        self._matchers: dict[frozenset[Where], Matcher] = {}

    def get(self, id_: str) -> Signature | None:
        """The signature of that id, or None."""
        return self._by_id.get(id_)

    def extended(self, signatures: Iterable[Signature]) -> Self:
        """A new catalogue in which ``signatures`` replace those of the same id and join the others."""
        return type(self)(merge(self.signatures, signatures))

    def scan(self, data: bytes | bytearray | memoryview, where: Where | Iterable[Where] = "line") -> Iterator[Hit]:
        """Yield every hit in a chunk of whole lines, in order of lines.

        Args:
            data: bytes of a stream; the chunk begins at the start of a line and ends at the end of one.
            where: kinds of text that this is; ``line`` includes ``launcher``.
        """
        return self.matcher(where).scan(data if isinstance(data, bytes) else bytes(data))

    def prepare(self, where: Where | Iterable[Where] = "line") -> None:
        """Compile what a first scan for this kind of text would compile: that takes about a tenth of a second."""
        self.matcher(where).prepare()

    def candidates(self, data: bytes, where: Where | Iterable[Where] = "line") -> Iterator[tuple[int, int]]:
        """Yield begin and end of the lines of a chunk that may hold a hit: all others hold none. One look for words, no pattern is tried."""
        return self.matcher(where).candidates(data)

    def match_line(self, line: bytes, where: Where | Iterable[Where] = "line") -> list[Hit]:
        """The hits of one line, in catalogue order; empty when nothing is recognised."""
        return self.matcher(where).match_line(line)

    def matcher(self, where: Where | Iterable[Where] = "line") -> Matcher:
        """What finds the signatures of these kinds of text; made on first use and kept."""
        from rankfall.signatures.matcher import Matcher, kinds  # noqa: PLC0415 - re2 is loaded only where text is matched

        chosen = kinds(where)
        matcher = self._matchers.get(chosen)
        if matcher is None:
            matcher = Matcher([each for each in self.signatures if not chosen.isdisjoint(each.where)])
            self._matchers[chosen] = matcher
        return matcher


@cache
def default_catalogue() -> Catalogue:
    """The packaged signatures; read once, without their examples."""
    return Catalogue(merge(*(parse(_PROOF.sub("", source(each)), origin=each, check=False) for each in FAMILIES)))


def source(family: str) -> str:
    """The TOML text of one packaged family."""
    return resources.files(__package__).joinpath("data", f"{family}.toml").read_text("utf-8")
