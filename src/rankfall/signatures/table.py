"""What a signature is, and the TOML files that hold them.

A file is data that people write, so everything in it is checked: unknown keys, unknown slugs, patterns RE2 refuses, examples
that do not match and near misses that do. An error names the file, the signature and the field. The packaged files are checked
by the tests and not again at every start; files of users are always checked in full.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from rankfall.model import decoding
from rankfall.model.causes import EvidenceRole, catalogue
from rankfall.model.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signature: tuple[msgspec.Raw, ...] = ()


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
    from rankfall.signatures.engine import PatternError, compile_one  # noqa: PLC0415 - re2 is loaded only where it is used

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
