"""Converts an exception into the ``error`` of a record. Hostile exceptions still give their type."""

from __future__ import annotations

import os
import sys
import time

from rankfall_inside import records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_MAX_CHAIN = 32
_MAX_FRAMES = 100
_MAX_TYPE = 256
# Bounds the time of the search for secrets.
_MAX_SEARCHED = 512 * 1024
_YEAR_2000, _YEAR_2100 = 946_684_800, 4_102_444_800
_LIBRARY_PARTS = ("/site-packages/", "/dist-packages/")


def describe(
    error: BaseException, *, thread: str | None, exit_code: int | None, handled: bool
) -> tuple[dict[str, Any], dict[str, bool]]:
    """Returns ``ErrorInfo`` fields and the flags ``truncated`` and ``redacted``.

    ``thread`` None = main. ``handled``: the program caught it and left with ``exit_code``.
    """
    scrub = _Scrub()
    chain = walk(error)
    mark, marked_by = find_retry_mark(chain)
    # A text may be costly: that of a tensor comes from its GPU.
    texts = [text_of(one) for one in chain]
    info: dict[str, Any] = {
        "types": [type_name(type(one)) for one in chain],
        "message": scrub.text(texts[0], records.MAX_MESSAGE),
        "chain": [scrub.text(text, records.MAX_MESSAGE) for text in texts],
        "frames": frames_of(error.__traceback__),
        "traceback": scrub.text(traceback_of(error), records.MAX_TRACEBACK),
        "raised_ns": raised_ns(chain) or time.time_ns(),
        "handled": handled,
    }
    optional = {"mark": mark, "marked_by": marked_by, "exit_code": exit_code}
    info.update({name: value for name, value in optional.items() if value is not None})
    if thread is not None and thread != "MainThread":
        info["thread"] = thread[:128]
    flags = {name: True for name, value in (("truncated", scrub.truncated), ("redacted", scrub.redacted)) if value}
    return info, flags


class _Scrub:
    """Cleans, redacts and shortens texts."""

    def __init__(self) -> None:
        self.truncated = False
        self.redacted = False
        self._secrets: list[str] | None = None

    def text(self, text: str, limit: int) -> str:
        text, first = records.cut(records.clean(text), _MAX_SEARCHED)
        try:
            from rankfall_inside import redact

            if self._secrets is None:
                self._secrets = redact.secrets_of(os.environ)
            safe = redact.redact(text, self._secrets)
        except Exception:
            # Unsearched text may contain secrets.
            safe = "(text withheld: it could not be searched for secrets)"
        self.redacted = self.redacted or safe != text
        safe, second = records.cut(safe, limit)
        self.truncated = self.truncated or first or second
        return safe


def type_name(kind: type) -> str:
    """Returns a type's qualified name as tracebacks print it."""
    module = str(getattr(kind, "__module__", "") or "")
    name = str(getattr(kind, "__qualname__", "") or getattr(kind, "__name__", "?"))
    return records.clean(name if module in ("builtins", "") else f"{module}.{name}")[:_MAX_TYPE]


def text_of(error: BaseException) -> str:
    """Returns ``str(error)``, or a note that it failed."""
    try:
        return str(error)
    except BaseException as second:
        return f"<{type_name(type(error))} without readable text: {type_name(type(second))}>"


def walk(error: BaseException) -> list[BaseException]:
    """Returns the exception, causes, contexts, group members; each once, at most 32."""
    found: list[BaseException] = []
    queue = [error]
    while queue and len(found) < _MAX_CHAIN:
        one = queue.pop(0)
        if any(one is other for other in found):
            continue
        found.append(one)
        following = one.__cause__
        if following is None and not one.__suppress_context__:
            following = one.__context__
        members = getattr(one, "exceptions", None)
        if following is not None:
            queue.insert(0, following)
        if isinstance(members, (tuple, list)):
            queue.extend(member for member in members if isinstance(member, BaseException))
    return found


def find_retry_mark(chain: list[BaseException]) -> tuple[str | None, str | None]:
    """Returns the first retry mark and its source: the type or the job spec's names; None each without a mark."""
    named = {
        mark: {name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()}
        for mark, variable in (("retryable", "RANKFALL_RETRYABLE"), ("final", "RANKFALL_FINAL"))
    }
    for one in chain:
        mark = getattr(type(one), "rankfall_mark", None)
        if mark in ("retryable", "final"):
            return str(mark), type_name(type(one))
        for kind in type(one).__mro__:
            # A name without its module is that of a class in any module.
            known = {f"{kind.__module__}.{kind.__qualname__}", kind.__qualname__, kind.__name__}
            for wanted, names in named.items():
                if known & names:
                    return wanted, type_name(kind)
    return None, None


def raised_ns(chain: list[BaseException]) -> int | None:
    """Returns ``at_ns``, ``raised_at`` or ``timestamp`` of the chain, or None."""
    for one in chain:
        for name in ("at_ns", "raised_at", "timestamp"):
            try:
                found = _nanoseconds(getattr(one, name, None))
            except Exception:
                found = None
            if found is not None:
                return found
    return None


def _nanoseconds(value: Any) -> int | None:
    """Converts a datetime or number (s, ms, us, ns) to nanoseconds since the epoch; None for other values."""
    if hasattr(value, "timestamp") and callable(value.timestamp):
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    for scale in (1, 1_000, 1_000_000, 1_000_000_000):
        if _YEAR_2000 <= value / scale < _YEAR_2100:
            # Float seconds have microseconds at best.
            return value * (1_000_000_000 // scale) if isinstance(value, int) else int(value * (1_000_000_000 // scale))
    return None


def frames_of(trace: TracebackType | None) -> list[dict[str, Any]]:
    """Returns frames, innermost last; of more than 100 the first and last 50."""
    found: list[dict[str, Any]] = []
    library = _library_roots()
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(
            {
                "file": records.clean(code.co_filename)[:1024],
                "line": trace.tb_lineno or 0,
                "func": records.clean(getattr(code, "co_qualname", code.co_name))[:256],
                "user": is_user(code.co_filename, library),
            }
        )
        trace = trace.tb_next
        if len(found) > _MAX_FRAMES:
            del found[_MAX_FRAMES // 2]
    return found


def _library_roots() -> tuple[str, ...]:
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.dirname(os.__file__) + "/", here + "/", "<frozen ", "<rankfall>"


def is_user(file: str, library: tuple[str, ...]) -> bool:
    """Returns True for files outside packages, the standard library and Rankfall."""
    return not file.startswith(library) and not any(part in file for part in _LIBRARY_PARTS)


def traceback_of(error: BaseException) -> str:
    """Returns Python's text for ``error``, as far as possible."""
    import traceback

    try:
        depth = sys.getrecursionlimit()
        # A recursion error could recur here.
        sys.setrecursionlimit(depth + 500)
        try:
            return "".join(traceback.format_exception(type(error), error, error.__traceback__))
        finally:
            sys.setrecursionlimit(depth)
    except BaseException:
        frames = [
            '  File "{file}", line {line}, in {func}\n'.format(**frame) for frame in frames_of(error.__traceback__)
        ]
        return (
            "Traceback (most recent call last):\n" + "".join(frames) + f"{type_name(type(error))}: {text_of(error)}\n"
        )
