"""Writes ``docs/api.md`` from signatures and docstrings of the public names: ``make api``; a test compares the page.

Public are ``rankfall.__all__`` and every type that its signatures, fields and values name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import rankfall
from rankfall.model import RankfallError, errors

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# Python API

The names that `import rankfall` offers, and the types that they take and return. After this page you can submit a job, wait for it, and read its
verdict from Python. Examples: [a notebook](../examples/explain.ipynb), [lines of a run](embedding.md), [a strategy](architecture.md#strategies).
`make api` writes this page from the docstrings.

- `Client` is for code with an event loop, also notebooks; `SyncClient` has the same methods for all other code.
- Documents are frozen [msgspec](https://jcristharif.com/msgspec/) structs: `msgspec.json.encode` gives the JSON of the command line, whose schemas
  `rankfall config schema` prints. Names that end in `_s` are seconds. None is unknown.
- Every deliberate error is a [`RankfallError`](#rankfallerror). Text of jobs in fields is not escaped.
"""
# Section of the page: title, and the names with which it begins. Types belong to the first section that names them.
SECTIONS = {
    "Clients": ("Client", "SyncClient"),
    "Runs": ("Run", "SyncRun"),
    "Job spec": ("JobSpec",),
    "Answers": (),
    "Strategies": ("register_strategy",),
    "Errors": (),
}
# Methods of documents that Rankfall itself calls.
OMITTED = frozenset({"Bound.join", "Bound.meet", "Bound.plus", "Cause.of", "Copied.and_"})
# Fields of one meaning in all documents.
COMMON = {
    "at": "Time; None = unknown.",
    "attempt": "Number, from 1.",
    "attempts": "Number of attempts.",
    "backend": "Backend of the job.",
    "because": "Reason, for people.",
    "cause": "Cause of the verdict.",
    "ended": "Time of the end, RFC 3339.",
    "ended_at": "Time of the end, nanoseconds since the epoch, node's clock.",
    "evidence": "Pieces of evidence.",
    "exit": "Exit code, or name of the signal.",
    "exit_code": "Exit code.",
    "gpu": "Name or address of the GPU.",
    "launcher": "Launcher of its ranks.",
    "line": "Text; a job can choose it.",
    "local_rank": "Rank on its node.",
    "name": "Name of the job.",
    "node": "Name of the node.",
    "phase": "Last phase reported.",
    "pid": "Process ID.",
    "pod": "Name of the pod.",
    "rank": "Global rank.",
    "role": "Role.",
    "run": "Id of the run.",
    "schema": "Name and version of the document.",
    "signal": "Number of the signal.",
    "slot": "Number of the slot.",
    "slug": "Cause, a name in [causes.md](causes.md).",
    "source": "Kind of the observation.",
    "started": "Time of the start, RFC 3339.",
    "started_at": "Time of the start, nanoseconds since the epoch, node's clock.",
    "state": "State.",
    "step": "Last training step.",
    "time": "Time of the failure.",
    "trust": "Writer of the observation.",
    "uncertainty_s": "Seconds by which the time may be wrong.",
    "where": "Place of the proof: path, with the line.",
}
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
_ITEM = re.compile(r"^    (\w[\w, ]*): (.*(?:\n     +.*|\n(?=\n     ))*)", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_ESCAPES = str.maketrans({"*": "\\*", "<": "&lt;", "_": "\\_"})


class Text(NamedTuple):
    """A docstring in its parts.

    Attributes:
        body: Paragraphs before the first section.
        items: Name and text of each argument, field and error, by section.
        prose: Text of sections without names.
    """

    body: str
    items: dict[str, dict[str, str]]
    prose: dict[str, str]


def text_of(thing: Any) -> Text:
    """Splits a docstring in Google style."""
    first, *rest = _SECTION.split(inspect.cleandoc(thing.__doc__ or ""))
    items: dict[str, dict[str, str]] = {}
    prose = {}
    for name, content in zip(rest[::2], rest[1::2], strict=True):
        if name in {"Returns", "Yields"}:
            prose[name] = _joined(content)
        else:
            items[name] = {
                each.strip(): _joined(found[2]) for found in _ITEM.finditer(content) for each in found[1].split(",")
            }
    return Text("\n\n".join(_joined(part) for part in first.split("\n\n")).strip(), items, prose)


def _joined(text: str) -> str:
    return " ".join(text.split())


@cache
def _imported(module: str) -> dict[str, tuple[str, str]]:
    """Returns the names that a module imports, also late or for types alone, with their place."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {one.asname or one.name: (node.module or "", one.name) for node in nodes for one in node.names}


def named(annotation: Any, module: str) -> Iterator[tuple[str, Any]]:
    """Yields the types and aliases of Rankfall that an annotation names."""
    if not isinstance(annotation, str):
        for part in (annotation, *typing.get_args(annotation)):
            if isinstance(part, list):
                yield from (found for one in part for found in named(one, module))
            elif inspect.isclass(part) and part.__module__.startswith("rankfall"):
                yield part.__name__, part
            elif part is not annotation and typing.get_args(part):
                yield from named(part, module)
        return
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name):
            space = vars(sys.modules[module])
            found = space.get(node.id)
            if found is None and node.id in _imported(module):
                place, name = _imported(module)[node.id]
                found = getattr(importlib.import_module(place), name)
            if inspect.isclass(found) and found.__module__.startswith("rankfall"):
                yield found.__name__, found
            elif typing.get_origin(found) is not None and node.id not in vars(typing):
                yield node.id, found


def functions(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the public methods of a class; a job spec has none for its users, who only write fields."""
    if _is_written(kind):
        return
    for name, value in vars(kind).items():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(plain) and not name.startswith("_") and f"{kind.__name__}.{name}" not in OMITTED:
            yield name, plain


def properties(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the public properties of a class with their functions; those of a job spec are for backends."""
    if _is_written(kind):
        return
    for name, value in vars(kind).items():
        if isinstance(value, property) and value.fget is not None and not name.startswith("_"):
            yield name, value.fget


def _is_written(kind: type) -> bool:
    return is_struct(kind) and kind.__struct_config__.forbid_unknown_fields  # type: ignore[attr-defined]


def is_struct(kind: Any) -> bool:
    """True for a class with fields."""
    return inspect.isclass(kind) and issubclass(kind, msgspec.Struct)


def neighbors(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields what the signatures, fields or values of a public thing name."""
    if inspect.isfunction(thing):
        for annotation in thing.__annotations__.values():
            yield from named(annotation, thing.__module__)
    elif inspect.isclass(thing):
        parts = [function for _, function in (*functions(thing), *properties(thing))]
        parts += [thing.__init__] if not is_struct(thing) and has_constructor(thing) else []
        for part in parts:
            yield from neighbors(part)
        for annotation in thing.__annotations__.values() if is_struct(thing) else ():
            yield from named(annotation, thing.__module__)
    else:
        yield from named(thing, "typing")


def has_constructor(kind: type) -> bool:
    """True if users make objects of a class without fields: then its docstring has arguments."""
    return "Args" in text_of(kind).items


def reached(thing: Any, name: str, known: dict[str, Any]) -> None:
    """Adds a thing and all that it names to those known."""
    if name not in known:
        known[name] = thing
        for other, found in neighbors(thing):
            reached(found, other, known)


def sections() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Returns the public classes and functions by section, and the aliases."""
    from rankfall.client import SyncRun  # noqa: PLC0415 - not public by itself: clients return it

    public = {name: getattr(rankfall, name) for name in rankfall.__all__ if name != "__version__"} | {
        "SyncRun": SyncRun
    }
    tree = {
        name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, RankfallError)
    }
    known: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    fixed = {name for names in SECTIONS.values() for name in names} | set(tree)
    for title, names in SECTIONS.items():
        if title == "Errors":
            found[title] = tree
            continue
        before = set(known)
        if title in {"Clients", "Runs"}:
            found[title] = {name: public[name] for name in names}
            continue
        for name in names or ("Verdict", "Client", "Run", "SyncRun"):
            reached(public[name], name, known)
        found[title] = {
            name: thing for name, thing in known.items() if name not in before and (name in names or name not in fixed)
        }
    shown = {title: {n: t for n, t in things.items() if not _is_alias(t)} for title, things in found.items()}
    return shown, {name: thing for name, thing in sorted(known.items()) if _is_alias(thing)}


def _is_alias(thing: Any) -> bool:
    return not inspect.isclass(thing) and not inspect.isfunction(thing)


def page() -> str:
    """Returns the whole page."""
    found, aliases = sections()
    links = {name: name for things in found.values() for name in things} | dict.fromkeys(aliases, "Values")
    for things in found.values():
        for name, thing in things.items():
            if inspect.isclass(thing):
                links |= {f"{name}.{method}": f"{name}.{method}" for method, _ in functions(thing)}
    parts = [HEAD]
    for title, things in found.items():
        parts.append(f"## {title}\n")
        if title == "Errors":
            tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
            parts.append(f"With the exit code of the command line:\n\n```text\n{tree}\n```\n")
        for name, thing in things.items():
            parts += _class(name, thing, links) if inspect.isclass(thing) else _function(name, thing, links, level=3)
    parts.append("## Values\n")
    parts.append("\n".join(f"- `{name}`: {_alias(value)}" for name, value in aliases.items()) + "\n")
    parts.append(f"`rankfall.__version__` is the version as text, as `{rankfall.__version__}`.\n")
    return "\n".join(parts)


def _class(name: str, kind: type, links: dict[str, str]) -> Iterator[str]:
    yield f"### {name}\n"
    text = text_of(kind)
    base = kind.__mro__[1]
    if issubclass(base, RankfallError):
        yield f"A {_link(base.__name__, links)}.\n"
    yield f"{_prose(text.body, links)}\n"
    if not is_struct(kind) and "Args" in text.items:
        yield f"```python\n{_signature(name, kind.__init__)}\n```\n"  # type: ignore[misc]
    yield from _lists(text, links)
    if is_struct(kind):
        yield _fields(kind, text, links)
    elif text.items.get("Attributes") or any(properties(kind)):
        rows = [*text.items.get("Attributes", {}).items()]
        rows += [(each, text_of(function).body) for each, function in properties(kind)]
        yield "Attributes:\n\n" + "\n".join(f"- `{each}`: {_prose(words, links)}" for each, words in rows) + "\n"
    for method, function in functions(kind):
        yield from _function(f"{name}.{method}", function, links, level=4)


def _function(name: str, function: Callable[..., Any], links: dict[str, str], *, level: int) -> Iterator[str]:
    text = text_of(function)
    yield f"{'#' * level} {name}\n"
    yield f"```python\n{_signature(name.rpartition('.')[2], function)}\n```\n"
    yield f"{_prose(text.body, links)}\n"
    yield from _lists(text, links)
    types = dict.fromkeys(each for each, _ in neighbors(function) if each in links)
    if types:
        yield f"Types: {', '.join(_link(each, links) for each in types)}.\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    pieces = []
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in pieces:
            pieces.append("*")
        piece = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        pieces.append(f"{piece}{parameter.name}: {parameter.annotation}{default}")
    word = "async def " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else "def "
    end = f" -> {signature.return_annotation}"
    if function.__name__ == "__init__":
        word = end = ""
    line = f"{word}{name}({', '.join(pieces)}){end}"
    limit = 100
    return line if len(line) <= limit else f"{word}{name}(\n    " + ",\n    ".join(pieces) + f",\n){end}"


def _lists(text: Text, links: dict[str, str]) -> Iterator[str]:
    for title in ("Args", "Returns", "Yields", "Raises"):
        words = {"Args": "Arguments"}.get(title, title)
        if title in text.prose:
            yield f"{words}: {_prose(text.prose[title], links)}\n"
        elif title in text.items:
            shown = (
                f"- {_link(name, links) if title == 'Raises' else f'`{name}`'}: {_prose(each, links)}"
                for name, each in text.items[title].items()
            )
            yield f"{words}:\n\n" + "\n".join(shown) + "\n"


def _fields(kind: type, text: Text, links: dict[str, str]) -> str:
    meanings = COMMON | text.items.get("Attributes", {})
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    for field in msgspec.structs.fields(kind):
        cells = (f"`{kind.__annotations__[field.name]}`", _default(field), _prose(meanings.get(field.name, ""), links))
        rows.append(_row(field.name, *cells))
    for name, function in properties(kind):
        words = _prose(text_of(function).body, links).replace("\n\n", " ")
        rows.append(_row(name, f"`{function.__annotations__['return']}`", "computed", words))
    return "\n".join(rows) + "\n"


def _row(name: str, *cells: str) -> str:
    return f"| `{name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.UNSET:
        return "absent"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"`{type(value).__name__}()`" if is_struct(type(value)) else f"`{value!r}`"


def _alias(value: Any) -> str:
    if typing.get_origin(value) is typing.Literal:
        return ", ".join(f"`{one}`" for one in typing.get_args(value))
    if typing.get_origin(value) is typing.Annotated:
        meta = value.__metadata__[0]
        signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
        limits = " and ".join(
            f"{sign} {limit}" for key, sign in signs.items() if (limit := getattr(meta, key)) is not None
        )
        return f"`{value.__origin__.__name__}` {_prose(limits, {})}"
    return f"`{re.sub(r'(?:[a-z_]+[.])+(?=[A-Z])', '', str(value))}`"


def _link(name: str, links: dict[str, str]) -> str:
    anchor = re.sub(r"[^\w-]", "", links[name].lower()) if name in links else ""
    return f"[`{name}`](#{anchor})" if anchor else f"`{name}`"


def _prose(text: str, links: dict[str, str]) -> str:
    """Formats text of a docstring as Markdown."""
    text = _ROLE.sub(
        lambda found: f"\0{found[1].removeprefix('rankfall.client.').removeprefix('rankfall.model.')}\0", text
    )
    parts = re.split(r"``(.+?)``|\0(.+?)\0", text)
    shown = []
    for number, part in enumerate(parts):
        if part is not None:
            shown.append((part.translate(_ESCAPES), f"`{part}`", _link(part, links))[number % 3])
    return "".join(shown)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
