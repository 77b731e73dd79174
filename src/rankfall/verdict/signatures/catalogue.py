"""Signatures, their TOML files, and the catalogue of all active ones.

A user's file is checked completely, examples included. re2 is loaded at the first match.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import msgspec

from rankfall.model import decoding
from rankfall.model.causes import EvidenceRole, Retry, catalogue
from rankfall.model.errors import SpecError
from rankfall.model.patterns import bounded

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from rankfall.verdict.signatures.matcher import Hit, Matcher, Words

#: Kinds of text. ``exception``: "qualified.Type: message". ``launcher``: report lines of a launcher (they are lines
#: too). ``wording``: the displayed line of a log in which no other signature finds a cause.
Where = Literal["line", "exception", "launcher", "kernel", "wording"]

#: Allowed group names, and their content.
GROUPS: Final = {
    "rank": "global rank that the text is about",
    "peer_rank": "the other rank that it names",
    "peers": 'ranks it names as missing or lagging, as text: "1, 3"',
    "host": "host or address of the other side",
    "local_rank": "local rank",
    "process": "number of a process that one program started on its machine; its local rank",
    "pid": "process id",
    "exit": "exit code",
    "signal": "signal number or name",
    "gpu": "GPU index or PCI address",
    "node": "name of a node",
    "seq": "sequence number of a collective",
    "step": "training step",
    "path": "file or folder",
}

#: Maximum characters of a file.
MAX_FILE: Final = 4 << 20
#: Maximum signatures of one catalogue.
MAX_SIGNATURES: Final = 4_000


class Example(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line that a signature must match, or (as a near miss) must not match.

    Attributes:
        text: One line, as printed.
        real: The source in ``by`` printed the text.
        by: Program and version, or thread.
    """

    text: str
    real: bool = False
    by: str = ""


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A recognizer that converts one line to evidence.

    Attributes:
        id: ``<slug>.<variant>``, unique in a catalogue.
        slug: Cause, of ``model/causes.csv``.
        role: Role of its evidence; may differ from the cause's.
        where: Kinds of text to try.
        specificity: 0 to 100: 10 = exit code, 20 = any exception, 40 = a named type, 60 = exact message, 80 = proves
            the cause.
        pattern: RE2 over bytes, unanchored; groups of ``GROUPS``. In a file, a part of ``parts.toml`` replaces ``{{name}}``.
        unless: RE2; a line that also matches is no hit.
        retry: Retry that the text implies, unlike the cause's default.
        printed_by: Program and version.
        example, miss: Lines that must and must not match.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,47}\.[a-z0-9][a-z0-9_]{0,63}$")]
    slug: str
    role: EvidenceRole
    where: Annotated[tuple[Where, ...], msgspec.Meta(min_length=1, max_length=5)]
    specificity: Annotated[int, msgspec.Meta(ge=0, le=100)]
    pattern: Annotated[str, msgspec.Meta(min_length=3, max_length=2_000)]
    unless: Annotated[str, msgspec.Meta(min_length=1, max_length=2_000)] | None = None
    retry: Retry | None = None
    printed_by: Annotated[str, msgspec.Meta(min_length=1)]
    example: tuple[Example, ...] = ()
    miss: tuple[Example, ...] = ()


def parse(text: str, *, origin: str, check: bool = True) -> tuple[Signature, ...]:
    """Reads a TOML file of signatures; ``check`` also tries patterns on the examples.

    ``unless`` above the signatures applies to each of them, beside its own.

    Raises:
        SpecError: Names file, signature and field.
    """
    if len(text) > MAX_FILE:
        raise SpecError(origin, f"file of signatures is larger than {MAX_FILE} characters")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(origin, f"not TOML: {error}") from None
    extra = sorted(set(data) - {"signature", "unless"})
    if extra:
        raise SpecError(f"{origin}: {extra[0]}", "unknown key; allowed: unless, [[signature]]")
    rows = data.get("signature", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SpecError(f"{origin}: signature", "must be a list of tables: [[signature]]")
    found: dict[str, Signature] = {}
    for number, row in enumerate(rows, start=1):
        name = row["id"] if isinstance(row.get("id"), str) else f"number {number}"
        place = f"{origin}: signature {name[:120]!r}"
        patterns = {"pattern": row.get("pattern"), "unless": _either(data.get("unless"), row.get("unless"))}
        whole = {
            field: _with_parts(text, place=f"{place}: {field}") for field, text in patterns.items() if text is not None
        }
        try:
            signature = decoding.convert(row | whole, Signature)
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


def _either(shared: Any, own: Any) -> Any:
    """Pattern that matches where one of two does; another value than text stays for the check."""
    both = isinstance(shared, str) and isinstance(own, str)
    return f"(?:{shared})|(?:{own})" if both else shared if own is None else own


_PART: Final = bounded(r"\{\{(\w{1,64})\}\}", limit=2_000)


@cache
def _parts() -> dict[str, str]:
    return tomllib.loads(source("parts"))


def _with_parts(pattern: Any, *, place: str) -> Any:
    """Pattern with the text of each ``{{part}}``; another value than text stays for the check.

    Raises:
        SpecError: There is no such part.
    """

    def text(match: re.Match[str]) -> str:
        if match[1] not in _parts():
            raise SpecError(place, f"there is no part {match[1]!r}; known: {', '.join(_parts())}")
        return _parts()[match[1]]

    return _PART.sub(text, pattern) if isinstance(pattern, str) else pattern


def load_user(text: str, origin: str) -> tuple[Signature, ...]:
    """Reads a user's file, which may replace packaged signatures.

    Raises:
        SpecError: Names file, signature and field.
    """
    return parse(text, origin=origin)


def check_signature(signature: Signature, *, place: str) -> None:
    """Checks what types cannot: slug, ID, patterns, groups, examples.

    Raises:
        SpecError: Names the field, after ``place``.
    """
    from rankfall.verdict.signatures.patterns import PatternError, compile_one  # noqa: PLC0415

    if signature.slug not in catalogue():
        raise SpecError(
            f"{place}: slug", f"there is no cause {signature.slug!r}", hint="use a cause of `rankfall config causes`"
        )
    if signature.id.partition(".")[0] != signature.slug:
        raise SpecError(f"{place}: id", f"must begin with the slug: {signature.slug}.<variant>")
    compiled = {}
    for field, pattern in (("pattern", signature.pattern), ("unless", signature.unless)):
        if pattern is None:
            continue
        try:
            compiled[field] = compile_one(pattern)
        except PatternError as error:
            raise SpecError(f"{place}: {field}", f"RE2 rejects it: {error}") from None
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
    """Merges tables: later ones replace the same ID; order of first appearance."""

    def rows() -> Iterator[Signature]:
        for table in tables:
            yield from table

    return tuple({signature.id: signature for signature in rows()}.values())


#: Files of the package: the families of causes, and the words that any program uses.
FAMILIES: Final = ("user", "data", "memory", "gpu", "network", "storage", "platform", "control", "general")

#: File of the packaged signatures as the program reads them, written by ``scripts/signatures.py``.
PACKED: Final = "packed.jsonl"


class Packed(msgspec.Struct, frozen=True):
    """Line of ``PACKED``: a signature without examples, and the words of which each match has one; none = unknown."""

    signature: Signature
    words: tuple[str, ...] = ()


class Catalogue:
    """Signatures and their matchers, compiled on first use.

    Of hits with the same specificity and role, the ID decides.
    """

    STREAM: Final[tuple[Where, ...]] = ("line", "launcher", "kernel")

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures = merge(signatures)
        self._by_id = {each.id: each for each in self.signatures}
        self._matchers: dict[frozenset[Where], Matcher] = {}
        self._words: Words | None = None

    def get(self, id_: str) -> Signature | None:
        """Returns the signature with that ID, or None."""
        return self._by_id.get(id_)

    def extended(self, signatures: Iterable[Signature]) -> Self:
        """Returns a catalogue with ``signatures`` added, replacing the same ID."""
        return type(self)(merge(self.signatures, signatures))

    def scan(self, data: bytes | bytearray | memoryview, where: Where | Iterable[Where] = "line") -> Iterator[Hit]:
        """Yields every hit in whole lines, in order.

        ``where`` kinds: ``line`` includes ``launcher``.
        """
        return self.matcher(where).scan(data if isinstance(data, bytes) else bytes(data))

    def prepare(self, where: Where | Iterable[Where] = "line") -> None:
        """Compiles in advance, which otherwise delays the first scan."""
        self.matcher(where).prepare()

    def candidates(self, data: bytes, where: Where | Iterable[Where] = "line") -> Iterator[tuple[int, int]]:
        """Yields begin and end of lines that may contain a hit, without patterns."""
        return self.matcher(where).candidates(data)

    def match_line(self, line: bytes, where: Where | Iterable[Where] = "line") -> list[Hit]:
        """Returns the hits of one line, in catalogue order."""
        return self.matcher(where).match_line(line)

    def matcher(self, where: Where | Iterable[Where] = "line") -> Matcher:
        """Returns the cached matcher for these kinds."""
        from rankfall.verdict.signatures.matcher import Matcher, Words, kinds  # noqa: PLC0415

        chosen = kinds(where)
        matcher = self._matchers.get(chosen)
        if matcher is None:
            self._words = self._words or Words(self.signatures)
            matcher = Matcher([each for each in self.signatures if not chosen.isdisjoint(each.where)], self._words)
            self._matchers[chosen] = matcher
        return matcher


@cache
def default_catalogue() -> Catalogue:
    """Returns the packaged signatures, without examples; cached.

    Reading TOML and searching patterns for words would take longer than everything else of a small log.
    """
    from rankfall.verdict.signatures.patterns import remember_words  # noqa: PLC0415

    rows = [decoding.decode(line, kind=Packed) for line in _data(PACKED).splitlines()]
    remember_words({row.signature.pattern: row.words for row in rows})
    return Catalogue(row.signature for row in rows)


def pack() -> str:
    """Returns the content of ``PACKED``, made from the TOML files."""
    from rankfall.verdict.signatures.patterns import find_words  # noqa: PLC0415

    rows = merge(*(parse(source(each), origin=each, check=False) for each in FAMILIES))
    packed = (
        Packed(msgspec.structs.replace(row, example=(), miss=()), tuple(sorted(find_words(row.pattern) or ())))
        for row in rows
    )
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in packed)


def source(family: str) -> str:
    """Returns the TOML text of the packaged signatures of one family of causes, or of their ``parts``."""
    return _data(f"{family}.toml")


def _data(name: str) -> str:
    return resources.files(__package__).joinpath("data", name).read_text("utf-8")
