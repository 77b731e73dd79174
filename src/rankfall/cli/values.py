"""Parses flag values and places in job files. Pure; a UsageError names allowed values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from rankfall.model import UsageError, catalogue, numbers
from rankfall.model.patterns import anchored, bounded

MAX_NODES: Final = 100_000
PROCESS_WORDS: Final = ("gpu", "cpu", "auto")
_MAX_PROCESSES: Final = 100_000
_NS: Final = 1_000_000_000
_MAX_RANKS: Final = 1_000_000
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPANS: Final = "90, 90s, 10m, 1h30m, 7d, 500ms"
_AGES: Final = "90s, 10m, 12h, 1d12h, 30d"
_NODES: Final = anchored(r"([0-9]{1,6})(?::([0-9]{1,6}))?", limit=16)
_RANGE: Final = anchored(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", limit=32)
_SHARE: Final = anchored(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)(%?)", limit=16)
_PART: Final = bounded(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", limit=256)
_SIZE: Final = anchored(r"(\d{1,12}(?:\.\d{1,6})?)\s?(?:([kmg])i?)?b?", limit=256, flags=re.IGNORECASE)
_INDEX: Final = anchored(r"\[(\d{1,9})\]", limit=4_096)
_NUMBER: Final = anchored(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", limit=256)


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """Chosen ranks; ``last`` and ``failed`` depend on the run. All empty = every rank."""

    numbers: frozenset[int] = frozenset()
    last: bool = False
    failed: bool = False

    @property
    def everything(self) -> bool:
        """True without any choice."""
        return not (self.numbers or self.last or self.failed)


def parse_nnodes(text: str) -> tuple[int, int | None]:
    """Parses ``N`` (second result None) or ``MIN:MAX``."""
    match = _NODES.fullmatch(text)
    low, high = (numbers.matched(match[1]), numbers.whole(match[2])) if match else (0, None)
    if not 1 <= low <= (high or low) <= MAX_NODES:
        raise UsageError(
            f"--nnodes {text[:60]!r} is no number of nodes",
            hint=f"allowed: N, or MIN:MAX with 1 <= MIN <= MAX <= {MAX_NODES}; as --nnodes 2 or --nnodes 2:4",
        )
    return low, high


def parse_processes(text: str) -> int | str:
    """Parses ``--nproc-per-node``."""
    number = numbers.whole(text, digits=6) if text.isdecimal() else None
    if text in PROCESS_WORDS:
        return text
    if number is None or not 1 <= number <= _MAX_PROCESSES:
        raise UsageError(
            f"--nproc-per-node {text[:60]!r} is no number of ranks",
            hint=f"allowed: 1-{_MAX_PROCESSES}, {', '.join(PROCESS_WORDS)}",
        )
    return number


def parse_ranks(texts: Iterable[str]) -> Ranks:
    """Parses ``0,8-15``, ``first``, ``last``, ``failed``, mixed."""
    chosen: set[int] = set()
    words: set[str] = set()
    for part in (part.strip() for text in texts for part in text.split(",")):
        if part in {"first", "last", "failed"}:
            words.add(part)
        elif (found := _range(part)) is not None:
            chosen.update(found)
        else:
            raise UsageError(
                f"--rank {part[:60]!r} is no rank",
                hint="allowed: numbers, ranges, first, last, failed; as --rank 0,8-15",
            )
    if "first" in words:
        chosen.add(0)
    return Ranks(numbers=frozenset(chosen), last="last" in words, failed="failed" in words)


def parse_slots(texts: Iterable[str]) -> frozenset[int]:
    """Parses ``0,8-15``."""
    chosen: set[int] = set()
    for part in (part.strip() for text in texts for part in text.split(",")):
        found = _range(part)
        if found is None:
            raise UsageError(f"--slot {part[:60]!r} is no slot", hint="allowed: numbers and ranges; as --slot 0,8-15")
        chosen.update(found)
    return frozenset(chosen)


def _range(text: str) -> range | None:
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    first, last = numbers.matched(match[1]), numbers.matched(match[2] or match[1])
    return range(first, last + 1) if first <= last < first + _MAX_RANKS else None


def parse_span(text: str, *, flag: str, unit_needed: bool = False) -> float:
    """Parses seconds from ``90``, ``90s``, ``10m``, ``1h30m``, ``7d``, ``500ms``; ``unit_needed`` refuses ``90``."""
    if _NUMBER.fullmatch(text):
        if unit_needed:
            raise UsageError(f"{flag} {text} has no unit", hint=f"for days: {text}d; allowed: {_AGES}")
        return numbers.real(text) or 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{flag} {text[:60]!r} is no duration", hint=f"allowed: {_AGES if unit_needed else _SPANS}")
    return sum((numbers.real(number) or 0.0) * _UNITS[unit] for number, unit in parts)


def parse_size(text: str, *, flag: str, unit_needed: bool = False) -> int:
    """Parses bytes from ``4096``, ``64K``, ``10M``, ``1.5G``, ``KiB``, ``kb``, ``4096B``; powers of 1,024."""
    if unit_needed and _NUMBER.fullmatch(text):
        raise UsageError(f"{flag} {text} has no unit", hint=f"for gigabytes: {text}G; for bytes: {text}B")
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{flag} {text[:60]!r} is no size", hint="allowed: 4096, 64K, 10M, 1.5G")
    return int((numbers.real(found[1]) or 0.0) * (1 << (10 * " kmg".index((found[2] or " ").lower()))))


def parse_span_or_never(text: str, *, flag: str) -> float | None:
    """Parses a duration above zero; None for ``never``."""
    if text == "never":
        return None
    seconds = parse_span(text, flag=flag)
    if seconds <= 0:
        raise UsageError(f"{flag} {text[:60]!r} must be more than zero", hint=f"{flag} never switches it off")
    return seconds


def parse_since(text: str, *, now: int, flag: str = "--since") -> int:
    """Returns nanoseconds since the epoch from an age (``10m``) or time."""
    try:
        at = datetime.fromisoformat(text) if "T" in text or " " in text or text.count("-") > 1 else None
    except ValueError:
        at = None
    if at is not None:
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1e6) * 1000
    try:
        return now - int(parse_span(text, flag=flag) * _NS)
    except UsageError:
        raise UsageError(
            f"{flag} {text[:60]!r} is no time",
            hint="allowed: an age as 10m or 1h30m, or a time as 2026-01-31T12:00:00Z (UTC when it names no zone)",
        ) from None


def parse_env(texts: Iterable[str], *, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables by name from ``--env`` texts: ``K=V``, or ``K`` with the value in ``environ``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key:
            raise UsageError("--env: the name before the = is missing", hint="allowed: --env NAME=VALUE, or --env NAME")
        if not equals and key not in environ:
            raise UsageError(
                f"--env {key[:60]}: there is no such variable here", hint=f"give a value: --env {key[:60]}=VALUE"
            )
        found[key] = value if equals else environ[key]
    return found


def parse_success(text: str) -> dict[str, str | float]:
    """Returns ``$.success`` fields from ``all``, ``rank0``, ``0.8`` or ``80%``."""
    if text in {"all", "rank0"}:
        return {"policy": text}
    match = _SHARE.fullmatch(text)
    share = (numbers.real(match[1]) or 0.0) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share <= 1:
        raise UsageError(
            f"--success {text[:60]!r} is no success policy",
            hint="allowed: all, rank0, or the part of the slots that must end with 0, as 0.8 or 80%",
        )
    return {"policy": "fraction", "fraction": share}


def parse_budgets(texts: Iterable[str], *, also: Collection[str] = ()) -> dict[str, int]:
    """Parses budgets ``SLUG=N`` of causes, families and ``also``."""
    found = {}
    families = sorted({info.family for info in catalogue().values()})
    for text in texts:
        name, _, number = text.partition("=")
        tries = numbers.whole(number, digits=6)
        if tries is None or not number.isdigit():
            raise UsageError(f"--budget {text[:60]!r} is no budget", hint="allowed: SLUG=N, as --budget network=5")
        if name not in catalogue() and name not in families and name not in also:
            raise UsageError(
                f"--budget {name[:60]!r}: there is no such cause or family",
                hint=f"allowed: a cause that `rankfall why` names, or a family: {', '.join(families)}{_near(name)}",
            )
        found[name] = tries
    return found


def _near(name: str) -> str:
    import difflib  # noqa: PLC0415

    near = difflib.get_close_matches(name[:60], catalogue(), n=3, cutoff=0.6)
    return f"; near it: {', '.join(near)}" if near else ""


def line_of(field: str, raw: bytes, data: Any) -> int | None:
    """Returns a field's line in YAML, unless ``data`` has another value."""
    import yaml  # noqa: PLC0415

    node = yaml.compose(raw, Loader=yaml.SafeLoader)
    value, rest, line = yaml.safe_load(raw), field.removeprefix("$"), None
    while rest:
        found: tuple[str, Any, Any] | None = None
        if isinstance(node, yaml.MappingNode):
            # Keys may hold dots.
            for key, inner in sorted(node.value, key=lambda pair: -len(str(pair[0].value))):
                if (rest + ".").replace("[", ".").startswith(f".{str(key.value).replace('[', '.')}."):
                    found = f".{key.value}", yaml.SafeLoader("").construct_object(key), inner
                    line = key.start_mark.line + 1
                    break
        elif isinstance(node, yaml.SequenceNode) and (number := _INDEX.match(rest)) is not None:
            index = numbers.matched(number[1])
            if index < len(node.value):
                found, line = (number[0], index, node.value[index]), node.value[index].start_mark.line + 1
        if found is None:
            break
        text, key, node = found
        try:
            value, data = value[key], data[key]
        except (KeyError, IndexError, TypeError):
            return None
        rest = rest[len(text) :]
    try:
        return line if isinstance(value, dict) or value == data else None
    except RecursionError:
        # An alias inside its own anchor.
        return line


class Repeated(NamedTuple):
    """A key that a mapping has twice, of which YAML would drop the first."""

    key: str
    first: int
    line: int


def repeated_key(raw: bytes) -> Repeated | None:
    """Returns the first repeated key of a YAML document; None without one. ``<<`` may be repeated."""
    import yaml  # noqa: PLC0415

    waiting, seen = [yaml.compose(raw, Loader=yaml.SafeLoader)], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            lines: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                line, name = key.start_mark.line + 1, (key.tag, str(key.value))
                if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge") and name in lines:
                    return Repeated(key.value, lines[name], line)
                lines[name] = line
            waiting += reversed([value for _, value in node.value])
    return None


def yaml_problem(error: Exception) -> str:
    """Describes a fault in YAML."""
    mark = getattr(error, "problem_mark", None)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    begun = getattr(error, "context_mark", None)
    context = f", {getattr(error, 'context', '')} that begins in line {begun.line + 1}" if begun is not None else ""
    return (getattr(error, "problem", None) or str(error).partition("\n")[0])[:200] + where + context
