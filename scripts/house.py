"""Measures how the sources are built: ``make house`` prints sizes, imports, wide constructors and private words, room by room.

Reads the text of the modules and imports none of them. Nothing here passes or fails: the numbers show where a change makes the sources larger or more
entangled. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import prose

ROOT = Path(__file__).resolve().parents[1]
MAX_ARGUMENTS = 7
MAX_MODULES = 16
MAX_LINES = 460
# Words of our own in names, for which the field has one; ``prose`` has those of docstrings and comments.
# fmt: off
PRIVATE_WORDS = frozenset({
    "scene", "sheets", "roll", "keeper", "keeping", "ledger", "news", "telling", "told", "wish", "wishes", "turn",
    "holding", "ending", "closing", "leaving", "tidying", "beginning", "prelude", "blame", "felled", "calm", "pulse",
    "beat", "silence", "company", "portal", "flow", "feed", "follower", "looks", "carry", "mover", "around", "desk",
    "care", "storm", "lemon", "victims", "accused", "mute", "together", "causeless", "shown", "lone", "gathered",
    "incoming", "endable",
})
# fmt: on


@dataclass
class Module:
    """One file.

    Attributes:
        name: dotted.
        package: it is the ``__init__`` of a package.
        lines: all of them.
        doc: lines of docstrings.
        comment: lines that hold a comment alone.
        blank: empty lines outside of docstrings.
        imports: modules of ours that it imports, late imports too; not those for types alone.
        wide: constructors with more than ``MAX_ARGUMENTS``: class and number.
        words: private words in its names.
        prose: private words in its docstrings and comments.
    """

    name: str
    package: bool
    lines: int
    doc: int = 0
    comment: int = 0
    blank: int = 0
    imports: set[str] = field(default_factory=set)
    wide: list[tuple[str, int]] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)
    prose: Counter[str] = field(default_factory=Counter)

    @property
    def code(self) -> int:
        """Lines that are neither docstring, comment nor empty."""
        return self.lines - self.doc - self.comment - self.blank

    @property
    def room(self) -> str:
        """The package below the root, or the root for its own modules."""
        parts = self.name.split(".")
        return ".".join(parts[:2]) if len(parts) > 2 else parts[0]  # noqa: PLR2004 - root, room, module


def modules_of(source: Path) -> dict[str, Module]:
    """All modules below a folder of packages, by name.

    Args:
        source: a folder such as ``src``.
    """
    paths = {_name(path, source): path for path in sorted(source.rglob("*.py"))}
    return {name: _read(name, path, known=paths.keys()) for name, path in paths.items()}


def _name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, path: Path, *, known: Iterable[str]) -> Module:
    text = path.read_text()
    tree = ast.parse(text)
    made = Module(name=name, package=path.name == "__init__.py", lines=text.count("\n"))
    nodes = list(ast.walk(tree))
    docs = list(_docstrings(nodes))
    inside = {line for node in docs for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    made.doc = len(inside)
    for number, line in enumerate(text.splitlines(), start=1):
        if number not in inside:
            made.comment += line.lstrip().startswith("#")
            made.blank += not line.strip()
    made.imports = set(_imports(tree, name, is_package=made.package, known=frozenset(known))) - {name}
    made.wide = list(_wide(nodes))
    made.words = Counter(word for one in _names(nodes, path.stem) for word in _parts(one) if word in PRIVATE_WORDS)
    made.prose = Counter(word for one in prose.texts(text, nodes) for word in prose.private_words(one.text))
    return made


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    for node in nodes:
        body = getattr(node, "body", None)
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not body:
            continue
        first = body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            yield first.value


def _imports(tree: ast.Module, name: str, *, is_package: bool, known: frozenset[str]) -> Iterator[str]:
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                # A module of the package, or a name that the package's module holds.
                whole = f"{base}.{alias.name}"
                if whole in known:
                    yield whole
                elif base in known:
                    yield base


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _running(node)


def _wide(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for made in node.body:
            if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                given = made.args
                count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
                if count > MAX_ARGUMENTS:
                    yield node.name, count


def _names(nodes: Iterable[ast.AST], stem: str) -> Iterator[str]:
    yield stem
    for node in nodes:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _parts(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def importers(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Who imports each module; packages that only pass a name on count too."""
    found: dict[str, set[str]] = {name: set() for name in modules}
    for module in modules.values():
        for name in module.imports:
            found[name].add(module.name)
    return found


def cycles(modules: dict[str, Module]) -> list[tuple[str, ...]]:
    """Groups of modules that import each other, late imports included."""
    reached = {name: _reached(name, modules) for name in modules}
    groups = {tuple(sorted(one for one in found if name in reached[one])) for name, found in reached.items()}
    return sorted(group for group in groups if group)


def _reached(name: str, modules: dict[str, Module]) -> set[str]:
    """All that a module imports, and what that imports; itself only when it stands in a cycle."""
    found: set[str] = set()
    left = [name]
    while left:
        new = modules[left.pop()].imports - found
        found |= new
        left += new
    return found


def chain(modules: dict[str, Module], groups: Iterable[tuple[str, ...]]) -> list[str]:
    """The longest way down along imports; the members of one of ``groups``, which are the cycles, count as one."""
    group = {name: members for members in groups for name in members}
    below: dict[str, list[str]] = {}

    def longest(name: str) -> list[str]:
        key = group.get(name, (name,))[0]
        if key not in below:
            below[key] = []
            inner = group.get(name, (name,))
            down = {one for member in inner for one in modules[member].imports if one not in inner}
            below[key] = [name, *max((longest(one) for one in sorted(down)), key=len, default=[])]
        return below[key]

    return max((longest(name) for name in modules), key=len, default=[])


def report(modules: dict[str, Module]) -> str:
    """The page in plain text."""
    rooms: dict[str, list[Module]] = defaultdict(list)
    folders: Counter[str] = Counter()
    for module in modules.values():
        rooms[module.room].append(module)
        folders[module.name.rpartition(".")[0]] += not module.package
    lines = [f"{'room':<28}{'files':>6}{'lines':>8}{'code':>8}{'doc':>7}{'comment':>8}{'median':>8}{'largest':>8}"]
    lines += [_row(room, found) for room, found in sorted(rooms.items())]
    lines.append(_row("all", list(modules.values())))
    single = sum(len(by) == 1 for name, by in importers(modules).items() if not modules[name].package)
    groups = cycles(modules)
    way = chain(modules, groups)
    largest = sorted(modules.values(), key=lambda one: -one.lines)
    wide = sorted(((count, one.name, cls) for one in modules.values() for cls, count in one.wide), reverse=True)
    lines += [
        "",
        f"folders over {MAX_MODULES} modules: {_listed(f'{name} {count}' for name, count in folders.most_common() if count > MAX_MODULES)}",
        f"modules over {MAX_LINES} lines: {_listed(f'{one.name} {one.lines}' for one in largest if one.lines > MAX_LINES)}",
        f"modules with one importer: {single}",
        f"longest import chain: {len(way)}: {' > '.join(way)}",
        f"cycles: {_listed(' + '.join(group) for group in groups)}",
        f"constructors over {MAX_ARGUMENTS} arguments: {len(wide)}: {_listed(f'{name}.{cls} {count}' for count, name, cls in wide)}",
        f"private words in names: {_counted(one.words for one in modules.values())}",
        f"private words in prose: {_counted(one.prose for one in modules.values())}",
    ]
    return "\n".join(lines)


def _row(name: str, found: Sequence[Module]) -> str:
    sizes = [one.lines for one in found]
    sums = (
        sum(sizes),
        sum(one.code for one in found),
        sum(one.doc for one in found),
        sum(one.comment for one in found),
    )
    return (
        f"{name:<28}{len(found):>6}{sums[0]:>8}{sums[1]:>8}{sums[2]:>7}{sums[3]:>8}"
        f"{statistics.median(sizes):>8.0f}{max(sizes):>8}"
    )


def _listed(found: Iterable[str]) -> str:
    return ", ".join(found) or "none"


def _counted(found: Iterable[Counter[str]]) -> str:
    total: Counter[str] = sum(found, Counter())
    return f"{total.total()}: {_listed(f'{word} {count}' for word, count in total.most_common())}"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="house.py", description="Measures how the sources are built.")
    parser.add_argument("source", nargs="?", type=Path, default=ROOT / "src", help="a folder of packages")
    given = parser.parse_args()
    print(report(modules_of(given.source)))


if __name__ == "__main__":
    main()
