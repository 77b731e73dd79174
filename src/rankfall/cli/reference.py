"""Renders ``docs/cli.md`` from the click commands.

``rankfall config commands`` prints the page; a test compares them. Terminal and environment do not change it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from rankfall.cli.app import SETTINGS, VERBS, load

_HEAD: Final = """# Command line

After this page you know each command of `rankfall`, its arguments and its options. `rankfall config commands` generates this page; do not edit it.

Examples: [jobs](local.md), [logs](logs.md), [verdicts](verdicts.md), [node health](node-health.md), [agent](agent.md), [controller](controller.md).

- `RUN` is the beginning of a run's id. Most commands use the newest run without it and print its id on stderr.
- `KIND/NAME` is a [foreign job](logs.md#foreign-jobs). `[...]` is optional; `...` may repeat.
- Flags accept dashes and underscores (`--nproc_per_node`, `--nproc-per-node`). `-h` or `--help` of each command prints its help.
- Data goes to stdout, progress to stderr. `NO_COLOR` disables colors. Exit codes: [local.md](local.md#exit-codes).
- An error is one line, then `next:` with the next step. `RANKFALL_DEBUG=1` shows tracebacks.
"""
_ESCAPES: Final = str.maketrans({"*": "\\*", "<": "&lt;"})


def commands_page() -> str:
    """Returns the page as Markdown."""
    root = click.Context(click.Group("rankfall"), info_name="rankfall", **SETTINGS)
    return _HEAD + "".join(_section(load(verb), verb, root) for verb in VERBS)


def _section(command: click.Command, name: str, parent: click.Context) -> str:
    """Returns one command and those below it; empty if hidden."""
    if command.hidden:
        return ""
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    rows = [_row(param, context) for param in shown if isinstance(param, click.Option)]
    arguments = [_argument(param, context) for param in shown if isinstance(param, click.Argument)]
    parts = [f"## {name}", f"```text\n{usage}\n```", *_paragraphs(command.help or "")]
    if rows:
        parts.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    if arguments:
        parts.append(f"Arguments: {', '.join(arguments)}.")
    below = command.commands if isinstance(command, click.Group) else {}
    nested = "".join(_section(below[key], f"{name} {key}", context) for key in sorted(below))
    return "\n" + "\n\n".join(parts) + "\n" + nested


def _paragraphs(text: str) -> Iterator[str]:
    r"""Joins wrapped lines; a paragraph that begins with ``\b`` is an example."""
    for part in inspect.cleandoc(text).partition("\f")[0].strip().split("\n\n"):
        if part.startswith("\b"):
            yield f"```text\n{inspect.cleandoc(part.removeprefix(chr(8)))}\n```"
        else:
            yield _escaped(" ".join(part.split()))


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" `{_cell(_metavar(option, context))}`"
    text = (option.help or "").strip()
    default = _default(option, context)
    notes = [
        "Required." if option.required else "",
        f"Default: `{default}`." if default and "default" not in text.lower() else "",
        _range(option),
        "Repeatable." if option.multiple and "repeatable" not in text.lower() else "",
    ]
    return f"| {names}{value} | {_cell(' '.join(filter(None, (_escaped(text), *notes))))} |"


def _default(option: click.Option, context: click.Context) -> str:
    """Returns the default as text; empty without one, and for a flag that is only on or off."""
    found = option.get_default(context, call=False)
    if isinstance(found, bool):
        names = option.opts if found else option.secondary_opts
        return names[-1] if option.secondary_opts else ""
    return str(found) if isinstance(found, str | int | float | Path) else ""


def _range(option: click.Option) -> str:
    kind = option.type
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    return f"At least {kind.min}." if kind.max is None else f"From {kind.min} to {kind.max}."


def _metavar(option: click.Option, context: click.Context) -> str:
    """Returns the value's form; choices without brackets."""
    if isinstance(option.type, click.Choice) and not option.metavar:
        return "|".join(map(str, option.type.choices))
    if isinstance(option.type, click.IntRange | click.FloatRange) and not option.metavar:
        return "N"
    return option.make_metavar(context)


def _argument(argument: click.Argument, context: click.Context) -> str:
    return f"`{argument.make_metavar(context)}` ({'required' if argument.required else 'optional'})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    """Escapes characters of Markdown; code in backticks stays."""
    parts = text.split("`")
    return "`".join(part if n % 2 else part.translate(_ESCAPES) for n, part in enumerate(parts))
