"""Signatures, the TOML files that hold them, and the catalogue of all that are in force.

Everything in a user's file is checked: unknown keys and slugs, patterns that RE2 refuses, examples that do
not match and near misses that do; errors name file, signature and field. Packaged files are checked by tests,
not at every start, and are read without their examples. re2 is loaded at the first match.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

import msgspec

from rankfall.model import decoding
from rankfall.model.causes import EvidenceRole, catalogue
from rankfall.model.errors import SpecError
from rankfall.model.patterns import bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rankfall.verdict.signatures.matcher import Hit, Matcher

#: ``line``: any line of a stream; ``exception``: "qualified.Type: message" of an exception; ``launcher``: report lines of a
#: launcher or batch system (they are lines too); ``kernel``: lines of the kernel log.
Where = Literal["line", "exception", "launcher", "kernel"]

#: The names a pattern may give to its groups, and what they hold.
GROUPS: Final = {
    "rank": "global rank that the text speaks of",
    "peer_rank": "the other rank that it names",
    "peers": 'ranks it names as missing or lagging, as text: "1, 3"',
    "host": "host or address of the other side",
    "local_rank": "local rank",
    "pid": "process id",
    "exit": "exit code",
    "signal": "signal number or name",
    "gpu": "GPU index or PCI address",
    "node": "name of a node",
    "seq": "sequence number of a collective",
    "step": "training step",
    "path": "file or folder",
}

#: Largest file of signatures that is read, in characters.
MAX_FILE: Final = 4 << 20
#: Most signatures that one catalogue may hold.
MAX_SIGNATURES: Final = 4_000


class Example(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that a signature must match, or (as a near miss) must not match.

    Attributes:
        text: one line, as printed.
        real: the text was printed by the program of ``by`` or stands in the thread it names.
        by: program and version, or thread.
    """

    text: str
    real: bool = False
    by: str = ""


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recogniser that turns one line into evidence.

    Attributes:
        id: ``<slug>.<variant>``, unique in a catalogue.
        slug: the cause it speaks for, of ``model/causes.csv``.
        role: what its evidence is; may differ from the cause's default.
        where: the kinds of text it is tried on.
        specificity: 0 to 100. About 10 = a bare exit code, 20 = any exception, 40 = a named type, 60 = a library's exact
            words, 80 = words that prove the cause.
        pattern: RE2 syntax over bytes, unanchored, within one line; group names of ``GROUPS``.
        unless: RE2 syntax; a line that also matches this is not meant.
        printed_by: program and version whose words these are.
        example, miss: lines that must and must not match.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,47}\.[a-z0-9][a-z0-9_]{0,63}$")]
    slug: str
    role: EvidenceRole
    where: Annotated[tuple[Where, ...], msgspec.Meta(min_length=1, max_length=4)]
    specificity: Annotated[int, msgspec.Meta(ge=0, le=100)]
    pattern: Annotated[str, msgspec.Meta(min_length=3, max_length=2_000)]
    unless: Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)] | None = None
    printed_by: Annotated[str, msgspec.Meta(min_length=1)]
    example: tuple[Example, ...] = ()
    miss: tuple[Example, ...] = ()


def parse(text: str, *, origin: str, check: bool = True) -> tuple[Signature, ...]:
    """Read a file of signatures.

    Args:
        text: TOML.
        origin: name of the file, for messages.
        check: also compile every pattern and try it on its examples and near misses.

    Raises:
        SpecError: names file, signature and field.
    """
    if len(text) > MAX_FILE:
        raise SpecError(origin, f"file of signatures is larger than {MAX_FILE} characters")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(origin, f"not TOML: {error}") from None
    extra = sorted(set(data) - {"signature"})
    if extra:
        raise SpecError(f"{origin}: {extra[0]}", "unknown key; allowed: [[signature]]")
    rows = data.get("signature", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError(f"{origin}: signature", "must be a list of tables: [[signature]]")
    found: dict[str, Signature] = {}
    for number, row in enumerate(rows, start=1):
        name = row["id"] if isinstance(row.get("id"), str) else f"number {number}"
        place = f"{origin}: signature {name[:120]!r}"
        try:
            signature = decoding.convert(row, Signature)
        except msgspec.ValidationError as error:
            raise SpecError(place, str(error)) from None
        if signature.id in found:
            raise SpecError(f"{place}: id", "used twice in this file")
        found[signature.id] = signature
        if check:
            check_signature(signature, place=place)
    if len(found) > MAX_SIGNATURES:
        raise SpecError(origin, f"more than {MAX_SIGNATURES} signatures")
    return tuple(found.values())


def load_user(text: str, origin: str) -> tuple[Signature, ...]:
    """Read a user's own file; ids of the packaged catalogue may be used again to replace them.

    Raises:
        SpecError: names file, signature and field.
    """
    return parse(text, origin=origin)


def check_signature(signature: Signature, *, place: str) -> None:
    """Check what the types cannot say: slug, id, patterns, groups, examples, near misses.

    Raises:
        SpecError: names the field, after ``place``.
    """
    from rankfall.verdict.signatures.patterns import PatternError, compile_one  # noqa: PLC0415 - re2 is loaded only where it is used

    if signature.slug not in catalogue():
        raise SpecError(f"{place}: slug", f"no cause is named {signature.slug!r}", hint="causes: rankfall.model.causes")
    if signature.id.partition(".")[0] != signature.slug:
        raise SpecError(f"{place}: id", f"must begin with the slug: {signature.slug}.<variant>")
    compiled = {}
    for field, pattern in (("pattern", signature.pattern), ("unless", signature.unless)):
        if pattern is None:
            continue
        try:
            compiled[field] = compile_one(pattern)
        except PatternError as error:
            raise SpecError(f"{place}: {field}", f"RE2 refuses it: {error}") from None
        if compiled[field].search(b""):
            raise SpecError(f"{place}: {field}", "matches the empty line, so it would match every line")
    groups = {name.decode() for name in compiled["pattern"].groupindex}
    if unknown := sorted(groups - GROUPS.keys()):
        raise SpecError(f"{place}: pattern", f"unknown group {unknown[0]!r}; allowed: {', '.join(GROUPS)}")

    def matches(text: str) -> bool:
        line = text.encode("utf-8", "surrogateescape")
        return bool(compiled["pattern"].search(line)) and not ("unless" in compiled and compiled["unless"].search(line))

    for field, examples, wanted in (("example", signature.example, True), ("miss", signature.miss, False)):
        for index, each in enumerate(examples):
            if "\n" in each.text:
                raise SpecError(f"{place}: {field}[{index}].text", "must be one line")
            if matches(each.text) is not wanted:
                word = "is not matched by" if wanted else "is matched by"
                raise SpecError(f"{place}: {field}[{index}].text", f"{word} the pattern: {each.text[:200]!r}")


def merge(*tables: Iterable[Signature]) -> tuple[Signature, ...]:
    """Later tables replace signatures of the same id and add the rest; order is by first appearance."""

    def rows() -> Iterator[Signature]:
        for table in tables:
            yield from table

    return tuple({signature.id: signature for signature in rows()}.values())


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
        from rankfall.verdict.signatures.matcher import Matcher, kinds  # noqa: PLC0415 - re2 is loaded only where text is matched

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
