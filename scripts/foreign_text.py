"""Finds code that reads text of others in a way of its own: JSON, numbers, patterns, pickles. Part of ``make lint``; standard library only.

What a job, a log, a platform or a file of a run directory holds is hostile. There is one decoder of JSON (rankfall.model.decoding), one reader of
numbers (rankfall.model.numbers) and one way to patterns (rankfall.model.patterns); rankfall_inside, which has the standard library alone,
has rankfall_inside.untrusted and patterns of its own with bounded repeats. Elsewhere in the layers that read these are errors:

* ``json.load``, ``json.loads``, ``msgspec.json.decode``, ``msgspec.json.Decoder``, ``msgspec.convert``;
* ``int(x)`` and ``float(x)``, unless the code itself shows that ``x`` is a number: a constant, a sum or product, a comparison, a call that
  gives a number, an argument that is annotated as a number;
* ``re.compile``, ``re.match`` and all other calls of ``re`` but ``re.escape`` (in rankfall_inside: all but ``re.compile``);
* ``pickle``, ``marshal``, ``shelve``, ``eval`` and ``exec``.

A line that has to be an exception says why: ``# foreign-text: REASON``, at its end or on the line above; above a function it speaks for all of it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    "rankfall/cli",
    "rankfall/client",
    "rankfall/collect",
    "rankfall/evidence",
    "rankfall/kernellog",
    "rankfall/kube",
    "rankfall/loki",
    "rankfall/nodes",
    "rankfall/render",
    "rankfall/rundir",
    "rankfall/supervisor",
    "rankfall/verdict",
    "rankfall/explain.py",
    "rankfall_inside",
)
# The readers themselves.
READERS = frozenset({"rankfall_inside/untrusted.py"})
MARKER = re.compile(r"# foreign-text: \S+ \S+")
DECODERS = {
    "json.load": "rankfall.model.decoding.decode",
    "json.loads": "rankfall.model.decoding.decode",
    "msgspec.json.decode": "rankfall.model.decoding.decode",
    "msgspec.json.Decoder": "rankfall.model.decoding.decoder",
    "msgspec.convert": "rankfall.model.decoding.convert",
}
REFUSED_MODULES = frozenset({"pickle", "marshal", "shelve"})
REFUSED_CALLS = frozenset({"eval", "exec"})
# Calls whose result is a number, by the last part of their name.
GIVES_NUMBER = frozenset(
    {
        "abs",
        "ceil",
        "fileno",
        "float",
        "floor",
        "hash",
        "int",
        "len",
        "max",
        "min",
        "monotonic",
        "pow",
        "prctl",
        "round",
        "sum",
    }
    | {"syscall", "time", "time_ns", "timestamp", "total_seconds", "whole", "real", "matched"}
)
NUMBERS = frozenset({"bool", "float", "int", "signal.Signals"})


def faults(source: str, *, inside: bool = False) -> Iterator[tuple[int, str]]:
    """Lines of a module that break the rule, and how.

    Args:
        source: of the module.
        inside: of rankfall_inside.
    """
    tree = ast.parse(source)
    marked = {number for number, line in enumerate(source.splitlines(), start=1) if MARKER.search(line)}
    marked |= {number + 1 for number in marked}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno in marked:
            marked.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, text in _Finder(inside=inside).of(tree):
        if number not in marked:
            yield number, text


class _Finder:
    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._patterns = {"re.escape", "re.compile"} if inside else {"re.escape"}

    def of(self, tree: ast.AST) -> Iterator[tuple[int, str]]:
        yield from self._below(tree, frozenset())

    def _below(self, node: ast.AST, known: frozenset[str]) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            more = known
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                more = known | _annotated(child)
            yield from self._own(child, known)
            yield from self._below(child, more)

    def _own(self, node: ast.AST, known: frozenset[str]) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            for name in names:
                if name.partition(".")[0] in REFUSED_MODULES:
                    yield node.lineno, f"{name} runs what others wrote"
            if isinstance(node, ast.ImportFrom) and node.module in {"json", "re", "msgspec"}:
                for each in node.names:
                    yield from self._named(f"{node.module}.{each.name}", node.lineno)
        elif isinstance(node, ast.Attribute):
            yield from self._named(_dotted(node), node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in REFUSED_CALLS:
                yield node.lineno, f"{node.func.id} runs what others wrote"
            elif node.func.id in {"int", "float"} and node.args and not _is_number(node.args[0], known):
                yield node.lineno, f"{node.func.id}() of what may be text: {self._number()}"
            elif node.func.id == "map" and node.args and _dotted(node.args[0]) in {"int", "float"}:
                yield node.lineno, f"map({_dotted(node.args[0])}, ...) of what may be text: {self._number()}"

    def _named(self, name: str, line: int) -> Iterator[tuple[int, str]]:
        if name in DECODERS:
            yield line, f"{name}: use {'rankfall_inside.untrusted.loads' if self._inside else DECODERS[name]}"
        elif name.startswith("re.") and name[3:4].islower() and name not in self._patterns:
            yield line, f"{name}: compile it once" if self._inside else f"{name}: use rankfall.model.patterns"

    def _number(self) -> str:
        return "use rankfall_inside.untrusted" if self._inside else "use rankfall.model.numbers"


def _annotated(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Names of arguments that the annotations say are numbers."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return frozenset(
        each.arg
        for each in every
        if each.annotation is not None
        and {part.strip() for part in ast.unparse(each.annotation).strip("'").split("|")} - {"None"} <= NUMBERS
    )


def _is_number(node: ast.expr, known: frozenset[str]) -> bool:
    """Whether the code itself shows that an expression is a number."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str | bytes)
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) or _is_number(node.operand, known)
    if isinstance(node, ast.BinOp):
        if any(
            isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side, known)
            for side in (node.left, node.right)
        ):
            return False
        return not isinstance(node.op, ast.Mod) and (_is_number(node.left, known) or _is_number(node.right, known))
    if isinstance(node, ast.BoolOp):
        return all(_is_number(each, known) for each in node.values)
    if isinstance(node, ast.IfExp):
        return _is_number(node.body, known) and _is_number(node.orelse, known)
    if isinstance(node, ast.Call):
        return _dotted(node.func).rpartition(".")[2] in GIVES_NUMBER
    if isinstance(node, ast.Name):
        # A constant of the module.
        return node.id in known or node.id.lstrip("_").isupper()
    return isinstance(node, ast.Attribute) and _dotted(node).startswith(("signal.SIG", "policies."))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else f"?.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def files_of(layer: str) -> list[Path]:
    """Returns the modules of a layer: a folder, or one module.

    Raises:
        ValueError: There are none: a name that is out of date would pass for clean.
    """
    place = ROOT / "src" / layer
    found = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not found:
        raise ValueError(f"LAYERS names {layer}, which has no module")
    return found


def main() -> int:
    """Print every fault; 1 where there is one."""
    bad = 0
    for layer in LAYERS:
        for path in files_of(layer):
            if path.relative_to(ROOT / "src").as_posix() in READERS:
                continue
            for number, text in faults(path.read_text(encoding="utf-8"), inside=layer == "rankfall_inside"):
                print(f"{path.relative_to(ROOT)}:{number}: {text}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
