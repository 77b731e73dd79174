"""``config``: prints settings, completion scripts, JSON schemas, exit codes, causes, commands and cluster rights."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import click

from rankfall.cli import console
from rankfall.cli.app import LIKE, SETTINGS, VERBS, config_path, load
from rankfall.cli.console import Output
from rankfall.cli.options import check_notify_section, defaults_of, output_option, read_config, read_notify
from rankfall.model import InfrastructureError, UsageError, decoding
from rankfall.model.jobspec.job import WITHOUT_PODS
from rankfall.model.jobspec.policies import Notify
from rankfall.model.jobspec.secrets import masked_url, masked_words
from rankfall.render.escape import one_line
from rankfall.rundir import default_home

_SCHEMAS: Final = sorted(
    file.name.removeprefix("rankfall.").removesuffix("-1.json")
    for file in resources.files("rankfall.model.schemas").iterdir()
    if file.name.endswith(".json")
)

_SHELLS: Final = ("bash", "zsh", "fish")
_ESCAPES: Final = str.maketrans({"*": "\\*", "<": "&lt;"})


@click.group("config")
def config() -> None:
    """Show settings and formats: JSON schemas, exit codes, causes, commands, rights in a cluster."""


@config.command("show")
@click.option("-a", "--all", "everything", is_flag=True, help="Also flags that have only their default.")
@output_option()
def show(*, everything: bool, output: Output) -> None:
    """Print each setting with its value and its source."""
    path = config_path()
    rows = [
        ("home", str(default_home()), "RANKFALL_HOME" if os.environ.get("RANKFALL_HOME") else "default"),
        ("config", str(path), "read" if path.exists() else "missing"),
    ]
    data = read_config(path, VERBS)
    known: set[str] = set()
    for verb in VERBS:
        command = load(verb)
        defaults = defaults_of(path, verb, command, verbs=VERBS, like=LIKE.get(verb))
        for name, one, given in _leaves(verb, command, defaults):
            for param in one.params:
                if isinstance(param, click.Option) and param.envvar:
                    known.update(param.envvar)
                    rows += _setting(name, param, given, path, everything=everything)
    retention = data.get("retention", {})
    if retention:
        from rankfall.cli.commands.runs import rules_of  # noqa: PLC0415

        rules_of(retention, of=str(path))
    rows += [(f"retention {key}", str(value), str(path)) for key, value in retention.items()]
    rows += [(f"notify {key}", value, str(path)) for key, value in _notify_rows(read_notify(path, VERBS))]
    if output is Output.TABLE:
        widths = [max(len(row[at]) for row in rows) for at in range(2)]
        for row in rows:
            console.out(f"{row[0]:<{widths[0]}}  {one_line(row[1], width=200):<{widths[1]}}  {row[2]}")
    else:
        document = [{"setting": row[0], "value": row[1], "source": row[2]} for row in rows]
        sys.stdout.write(console.document({"schema": "rankfall.settings/1", "settings": document}, output))
    starts = tuple(f"RANKFALL_{verb.upper()}_" for verb in VERBS)
    for variable in sorted(set(os.environ) - known):
        if variable.startswith(starts):
            console.say(f"rankfall: {variable} belongs to no flag")


def _leaves(
    name: str, command: click.Command, given: dict[str, Any]
) -> Iterator[tuple[str, click.Command, dict[str, Any]]]:
    yield name, command, given
    if isinstance(command, click.Group):
        for key in sorted(command.commands):
            yield from _leaves(f"{name} {key}", command.commands[key], given.get(key, {}))


def _setting(
    verb: str, param: click.Option, given: dict[str, Any], path: Path, *, everything: bool
) -> list[tuple[str, str, str]]:
    flag = max(param.opts, key=len)
    source = next((one for one in param.envvar or () if os.environ.get(one)), None)
    if source is not None:
        value: Any = os.environ[source]
    elif param.name in given:
        value, source = given[param.name or ""], str(path)
    elif everything:
        value, source = param.get_default(click.Context(click.Command(verb)), call=False), "default"
        value = value if isinstance(value, str | int | float | Path | list | tuple) else ""
    else:
        return []
    texts = value if isinstance(value, list | tuple) else [value]
    return [
        (f"{verb} {flag}", " ".join(masked_words([f"{flag}={text}" for text in texts])).replace(f"{flag}=", ""), source)
    ]


def _notify_rows(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields settings of ``[notify]`` with masked secrets."""
    for key in ("events", "link"):
        if key in section:
            yield key, " ".join(section[key]) if key == "events" else masked_url(section[key])
    for number, target in enumerate(section.get("targets", ())):
        for key, value in target.items():
            text = (
                masked_url(value) if key == "webhook" else " ".join(masked_words(value)) if key == "command" else value
            )
            yield f"targets[{number}].{key}", text


@config.command("notify")
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Job file with the field notify; default: config.toml.",
)
@click.option("--test", is_flag=True, help="Send a test message to each target, once.")
def notify(*, file: Path | None, test: bool) -> None:
    """Print who gets messages about runs; --test sends one now.

    Exits with 69 if a target did not take the message.
    """
    if file is not None:
        from rankfall.cli.job_options import read_job  # noqa: PLC0415

        section, of = read_job(file).get("notify", {}), str(file)
    else:
        section, of = read_notify(config_path(), VERBS), str(config_path())
    found = check_notify_section(section, of=of)
    if not found.targets:
        example = "write its first line as: notify.targets = [{webhook = 'https://HOST/PATH'}]"
        if file is not None:
            example = "as: notify: {targets: [{webhook: https://HOST/PATH}]}"
        raise UsageError(f"{of}: notify has no targets", hint=example)
    from rankfall.notify import label_of  # noqa: PLC0415

    problems = _sent(found) if test else None
    for number, target in enumerate(found.targets):
        answer = "" if problems is None else f": {problems[number] or 'delivered'}"
        console.out(f"{label_of(target)}{answer}")
    if problems is None:
        console.out(f"events: {' '.join(found.events)}")
    elif any(problems):
        raise InfrastructureError(
            f"{sum(map(bool, problems))} of {len(problems)} targets did not take the message",
            hint=f"correct notify in {of}, then repeat this command",
        )


def _sent(found: Notify) -> list[str | None]:
    """Problem of each target with a test message, None without one. The usual process sends it."""
    import subprocess  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    command = [sys.executable, "-P", "-m", "rankfall.notify", "--test"]
    done = subprocess.run(command, input=msgspec.json.encode(found), stdout=subprocess.PIPE, check=False)
    try:
        return decoding.decode(done.stdout, kind=list[str | None])
    except msgspec.MsgspecError:
        raise InfrastructureError(
            f"the process that sends messages ended with {done.returncode}", hint="read its output above"
        ) from None


def _own_shell() -> str | None:
    """Shell of this user; None if its completion is unknown."""
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in _SHELLS else None


@config.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS), default=_own_shell)
def completion(*, shell: str | None) -> None:
    """Print the script that completes commands, flags and runs.

    Default: for $SHELL. In ~/.bashrc or ~/.zshrc: `eval "$(rankfall config completion bash)"`; for fish in ~/.config/fish/completions.
    """
    if shell is None:
        raise UsageError(
            "no shell is named, and $SHELL names none that can complete", hint=f"name one: {', '.join(_SHELLS)}"
        )
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    found = get_completion_class(shell)
    if found is not None:
        console.out(found(click.Group("rankfall"), {}, "rankfall", "_RANKFALL_COMPLETE").source().rstrip("\n"))


@config.command("schema")
@click.argument("name", default="job", metavar=f"[{'|'.join(_SCHEMAS)}]")
def schema(*, name: str) -> None:
    """Print the JSON schema of a document.

    With that of `job`, editors complete and check job.yaml.
    """
    short = name.removeprefix("rankfall.").partition("/")[0]
    if short not in _SCHEMAS:
        raise UsageError(f"there is no document {name[:60]!r}", hint=f"allowed: {', '.join(_SCHEMAS)}")
    text = resources.files("rankfall.model.schemas").joinpath(f"rankfall.{short}-1.json").read_text("utf-8")
    console.out(text.rstrip("\n"))


@config.command("exit-codes")
def exit_codes() -> None:
    """Print exit codes of ranks and their actions, as Markdown."""
    from rankfall.model.exit_codes import page  # noqa: PLC0415

    console.out(page().rstrip("\n"))


@config.command("causes")
def causes() -> None:
    """Print causes, evidence and remedies, as Markdown."""
    from rankfall.render.tables import causes_page  # noqa: PLC0415

    console.out(causes_page().rstrip("\n"))


@config.command("commands")
def commands() -> None:
    """Print all commands with their options, as Markdown."""
    console.out(commands_page().rstrip("\n"))


@config.command("rights")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="job|jobset|trainjob",
    help="Only the rights that this backend needs; repeatable.",
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the jobs.")
def rights(*, backends: tuple[str, ...], namespace: str) -> None:
    """Print the Role for an account in its jobs' namespace, as YAML.

    For kubectl apply -f -; then bind the Role to the account yourself.
    """
    from rankfall.backends.kubernetes.rights import (  # noqa: PLC0415
        BACKENDS,
        manifest,
        role,
    )

    for name in backends:
        if name not in BACKENDS:
            raise UsageError(
                f"backend {name[:60]!r} needs no rights in a cluster"
                if name in WITHOUT_PODS
                else f"there is no backend {name[:60]!r}",
                hint=f"allowed: {', '.join(BACKENDS)}",
            )
    console.out(manifest(role(namespace=namespace, backends=backends or BACKENDS)).rstrip("\n"))


def commands_page() -> str:
    """Returns ``docs/cli.md``; terminal and environment do not change it, and a test compares them."""
    root = click.Context(click.Group("rankfall"), info_name="rankfall", **SETTINGS)
    head = resources.files("rankfall.cli.commands").joinpath("commands_head.md").read_text("utf-8")
    return head + "".join(_section(load(verb), verb, root) for verb in VERBS)


def _section(command: click.Command, name: str, parent: click.Context) -> str:
    """Returns one command and those below it; empty if hidden."""
    if command.hidden:
        return ""
    context = click.Context(command, info_name=command.name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    rows = [_row(param, context) for param in params if isinstance(param, click.Option)]
    arguments = [_argument(param, context) for param in params if isinstance(param, click.Argument)]
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
    """Default as text; empty without one, and for a flag that is only on or off."""
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
    """Value's form; choices without brackets."""
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
