"""Checks the language of docstrings, comments and messages, and prints how plain it is.

Private words, first words of docstrings, vague passives and long sentences are findings. Text in backticks is exempt:
it names code. Standard library only.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_WORDS = 30

FIRST_WORDS = frozenset({"as", "how", "of", "that", "what", "when", "where", "whether", "which", "who", "whose", "why"})
# Words of our own, and words that leave open who does what. The list only grows.
PRIVATE = re.compile(
    r"""\b(?:
    accused | anew | ask(?:s|ed|ing)? | beat | blame[ds]? | calm | care | carry | causeless | company | desk | endable | everybody
    | anybody | somebody | someone | nobody | fell | felled | fall(?:s|en|ing)?(?!\ back|ing\ back) | feed | flow | follower | gathered | goes\ on | go\ on
    | going\ on | gone\ on | went\ on | holding | incoming | keeper | keeping | leaving | ledger | lemon | lone | look(?:s|ed|ing)?
    | mover | mute | news | of\ (?:its|their|his|our|one's|a\ rank's)\ own | own\ words? | portal | prelude | pulse | roll | said | say(?:s|ing)?
    | scene | sheets | stands? | stood | storm | tell(?:s|ing)? | tidying | together | told | turn | turns | victims | whoever
    | wish(?:es|ed|ing)?
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
VAGUE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)\s+(?:(?:not|never|only|also|still|then)\s+)?"
    r"(?:asked|begun|believed|done|given|gone|had|held|kept|known|left|let|looked|made|meant|put|said|seen|shown|taken"
    r"|thought|told|waited|wanted|wished)\b",
    re.IGNORECASE,
)

# Strings that are no message: parts of shell and Python programs, SQL, the usage of a program, and words of a driver.
PROGRAM = re.compile(
    r"""\$\(|;\ do\b|\b(?:done|esac|fi)\n|;;\n|\bsay\ "|\A\s*(?:import|from)\ \w|\nimport\ |\nwith\ open\(
    |\bCREATE\ TABLE\b|\Ausage:\ |fallen\ off\ the\ bus""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Text:
    """One docstring, comment or message.

    Attributes:
        kind: ``docstring``, ``comment`` or ``message``.
        line: number of its first line in the file.
        text: its content, without quotes and hash signs.
    """

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule.

    Attributes:
        path: the file.
        text: the docstring, comment or message.
        rule: ``first``, ``private``, ``vague`` or ``long``.
        detail: the words in question.
    """

    path: Path
    text: Text
    rule: str
    detail: str


def texts(source: str, nodes: Sequence[ast.AST] = ()) -> list[Text]:
    """Returns all prose of one Python file, comments in a block joined.

    Args:
        source: content of the file.
        nodes: all nodes of its tree; without them the source is parsed.
    """
    nodes = nodes or list(ast.walk(ast.parse(source)))
    found: list[Text] = []
    docstrings: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.add(id(node.value))
            found.append(Text("docstring", node.value.lineno, node.value.value))
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in docstrings:
            continue
        # Three words in a row: shorter strings are names, units and formats.
        if re.search(r"[A-Za-z]+ [A-Za-z]+ [A-Za-z]+", node.value) and not PROGRAM.search(node.value):
            # Pages in Markdown contain examples of job files.
            prose = re.sub(r"(?ms)^```.*?^```$", "", node.value)
            found.append(Text("message", node.lineno, prose))
    found += _comments(source)
    return found


def _comments(source: str) -> Iterator[Text]:
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(?:fmt:|type:|!)", token.string):
            continue
        content = re.sub(r"^#\s?(?:noqa(?::\s*[A-Z0-9, ]+)?(?:\s-)?)?", "", token.string)
        if block and token.start[0] == last + 1 and not token.line[: token.start[1]].strip():
            block.append(content)
        else:
            if block:
                yield Text("comment", begin, "\n".join(block))
            block, begin = [content], token.start[0]
        last = token.start[0]
    if block:
        yield Text("comment", begin, "\n".join(block))


def sentences(text: str) -> Iterator[str]:
    """Splits prose into sentences; list items and the entries of ``Args`` end one too.

    Args:
        text: a docstring or comment.
    """
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|>]|\d+\.|\*{0,2}\w+(?: \([^)]*\))?:\s))", _plain(text))
    for part in parts:
        entry = re.sub(r"^\s*\*{0,2}\w+(?: \([^)]*\))?:\s", "", part)
        yield from re.split(r"(?<=[.!?])\s+", entry.strip())


def _plain(text: str) -> str:
    return re.sub(r"``[^`]*``|`[^`]*`|\{[^{}]*\}", "X", text)


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case; text in backticks counts as one word."""
    return re.findall(r"[a-z][a-z'-]*", _plain(text).lower())


def _prose(text: str) -> str:
    """Returns the text without names: those in backticks, and those of parameters before their entries."""
    return re.sub(r"(?m)^\s*\*{0,2}\w+(?:, \w+)*(?: \([^)]*\))?:\s", "", _plain(text))


def private_words(text: str) -> list[str]:
    """Returns the private words of a text in lower case; names are exempt."""
    return [found.group().lower() for found in PRIVATE.finditer(_prose(text))]


def check(path: Path, text: Text) -> Iterator[Finding]:
    """Yields the findings in one text."""
    first = words(text.text)[:1]
    if text.kind == "docstring" and first and first[0] in FIRST_WORDS:
        yield Finding(path, text, "first", first[0])
    for word in private_words(text.text):
        yield Finding(path, text, "private", word)
    for found in VAGUE.finditer(_prose(text.text)):
        yield Finding(path, text, "vague", " ".join(found.group().lower().split()))
    for sentence in sentences(text.text):
        count = len(words(sentence))
        if count > MAX_WORDS:
            yield Finding(path, text, "long", f"{count} words: {' '.join(sentence.split())[:60]}…")


def report(found: dict[Path, list[Text]], findings: Sequence[Finding]) -> str:
    """Returns the table: words and rates for each kind of text.

    Args:
        found: the prose of each file.
        findings: all of them.
    """
    kinds = ("docstring", "comment", "message")
    count = Counter[str]()
    for texts_of in found.values():
        for text in texts_of:
            count[text.kind] += len(words(text.text))
    rules = Counter((one.text.kind, one.rule) for one in findings)
    docstrings = sum(text.kind == "docstring" for texts_of in found.values() for text in texts_of)
    lines = [f"{'':<12}{'words':>9}{'private/1000':>14}{'vague/1000':>12}{'over 30 words':>15}"]
    lines += [_row(kind, count[kind], *(rules[kind, rule] for rule in ("private", "vague", "long"))) for kind in kinds]
    sums = (sum(rules[kind, rule] for kind in kinds) for rule in ("private", "vague", "long"))
    lines.append(_row("all", count.total(), *sums))
    share = 100 * rules["docstring", "first"] / max(1, docstrings)
    lines.append(f"docstrings: {docstrings}, {share:.1f} % begin with {', '.join(sorted(FIRST_WORDS))}")
    return "\n".join(lines)


def _row(name: str, count: int, private: int, vague: int, long: int) -> str:
    size = max(1, count) / 1000
    return f"{name:<12}{count:>9}{private / size:>14.1f}{vague / size:>12.1f}{long:>15}"


def main() -> int:
    """Reads the command line; returns 1 if there is a finding."""
    parser = argparse.ArgumentParser(
        prog="prose.py", description="Checks the language of docstrings, comments and messages."
    )
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "src"], help="files or folders")
    parser.add_argument("--table", action="store_true", help="print only the table")
    given = parser.parse_args()
    files = [file for path in given.paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    found = {file: texts(file.read_text()) for file in files}
    findings = [one for file, texts_of in found.items() for text in texts_of for one in check(file, text)]
    if not given.table:
        for one in findings:
            print(f"{one.path}:{one.text.line}: {one.text.kind}: {one.rule}: {one.detail}")
    print(report(found, findings))
    return bool(findings) and not given.table


if __name__ == "__main__":
    sys.exit(main())
