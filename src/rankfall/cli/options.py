"""Click options and arguments of several verbs, and their defaults in the user's ``config.toml``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from rankfall.cli import console
from rankfall.cli.console import Output
from rankfall.cli.target import Where, read_home
from rankfall.cli.values import parse_size
from rankfall.model import FINAL_STATES, RankfallError, SpecError, UsageError, spec_from
from rankfall.model.exit_codes import CANCELLED
from rankfall.model.jobspec.policies import Notify
from rankfall.rundir import RunDir, list_runs

F = TypeVar("F", bound=Callable[..., Any])

_RANKS = "0,8-15|first|last|failed"


def output_option(text: str = "Format.") -> Callable[[F], F]:
    """Adds ``-o table|json|yaml`` as ``output: Output``, and ``--json``."""

    def add(function: F) -> F:
        function = click.option(
            "--json",
            "as_json",
            is_flag=True,
            expose_value=False,
            callback=_as_json,
            help="Short for -o json.",
        )(function)
        return click.option(
            "-o",
            "--output",
            type=click.Choice([form.value for form in Output]),
            default=Output.TABLE.value,
            show_default=True,
            callback=_output,
            help=text,
        )(function)

    return add


def _output(ctx: click.Context, param: click.Parameter, value: str) -> Output:
    given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    return Output.JSON if ctx.meta.get(_JSON) and not given else Output(value)


def _as_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001 - click's signature
    if value:
        ctx.meta[_JSON] = True
        ctx.params["output"] = Output.JSON


_JSON: Final = "rankfall.json"


# Whether these verbs need a run that has ended.
_NEEDS_END: Final = {"rm": True, "cancel": False}


def _run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    """Completes ids of runs that the verb can take, newest first."""
    needed = _NEEDS_END.get(ctx.info_name or "")
    try:
        runs = [run for run in list_runs(read_home()) if run.id.startswith(incomplete)]
        return [CompletionItem(run.id) for run in runs if needed is None or needed is _has_ended(run)]
    except RankfallError:
        return []


def _has_ended(run: RunDir) -> bool:
    with run.reader() as reader:
        return reader.run().state in FINAL_STATES


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001 - click's signature
    """Completes paths, by the shell."""
    return [CompletionItem(incomplete, type="file")]


def runs_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes ids, newest first, and paths where no id begins so."""
    return [*files(ctx, param, incomplete), *_run_ids(ctx, param, incomplete)]


def run_argument(function: F) -> F:
    """Adds the argument ``run``: a run's id or prefix; without it the newest run."""
    return click.argument("run", required=False, metavar="[RUN]", shell_complete=_run_ids)(function)


def runs_argument(function: F) -> F:
    """Adds the argument ``runs``: ids or prefixes."""
    return click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=_run_ids)(function)


def confirm(question: str, *, hint: str) -> None:
    """Requires a yes at the terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("confirmation required, and there is no terminal: pass -y", hint=hint)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        console.say("rankfall: not confirmed: nothing has changed")
        raise click.exceptions.Exit(CANCELLED)


def target_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the arguments ``run`` and ``where``: a run, or a cluster job not started by Rankfall."""

    @functools.wraps(function)
    def with_where(
        *, namespace: str | None, context: str | None, kubeconfig: str | None, no_exec: bool, **rest: Any
    ) -> Any:
        where = Where(namespace=namespace, context=context, kubeconfig=kubeconfig, no_exec=no_exec)
        return function(where=where, **rest)

    return click.argument("run", required=False, metavar="[RUN | KIND/NAME]", shell_complete=_run_ids)(
        place_options(with_where)
    )


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``-n``, ``--context``, ``--kubeconfig`` and ``--no-exec``, for jobs not started by Rankfall."""
    function = click.option("--no-exec", is_flag=True, help="Of KIND/NAME: run no command in its pods to find ranks.")(
        function
    )
    function = click.option(
        "--kubeconfig", metavar="FILE", help="Kubeconfig for KIND/NAME; default: as kubectl finds it."
    )(function)
    function = click.option("--context", metavar="NAME", help="Context for KIND/NAME; default: the current one.")(
        function
    )
    return click.option(
        "-n", "--namespace", metavar="NAME", help="Namespace of KIND/NAME; default: that of the context."
    )(function)


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--context`` and ``--kubeconfig`` as ``where``."""

    @functools.wraps(function)
    def with_where(*, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        return function(where=Where(context=context, kubeconfig=kubeconfig), **rest)

    made = click.option("--kubeconfig", metavar="FILE", help="Kubeconfig file; default: as kubectl finds it.")(
        with_where
    )
    return click.option("--context", metavar="NAME", help="Context of the kubeconfig; default: the current one.")(made)


def health_config_option(function: F) -> F:
    """Adds ``--config FILE``, policy and rules of node health, as ``config``."""
    return click.option(
        "--config",
        envvar="RANKFALL_HEALTH_CONFIG",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="TOML file with policy and rules of node health; default: $RANKFALL_HEALTH_CONFIG, else the packaged ones.",
    )(function)


def redact_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--redact`` as ``redact: Redactor | None``, which also masks errors."""

    @functools.wraps(function)
    def masked(*, redact: bool, **rest: Any) -> Any:
        from rankfall.render.escape import Redactor  # noqa: PLC0415

        redactor = Redactor() if redact else None
        try:
            return function(redact=redactor, **rest)
        except RankfallError as error:
            if redactor is not None:
                error.message = redactor.text(error.message)
                error.hint = error.hint and redactor.text(error.hint)
            raise

    return click.option("--redact", is_flag=True, help="Mask secrets in the output.")(masked)


def max_bytes(function: F) -> F:
    """Adds ``--max-bytes SIZE``, in bytes."""
    return click.option(
        "--max-bytes",
        metavar="SIZE",
        callback=lambda ctx, param, value: parse_size(value, flag="--max-bytes") if value else None,  # noqa: ARG005 - click's signature
        help="Maximum output to show, as 10M; the run stores all of it.",
    )(function)


def rank_options(function: F) -> F:
    """Adds ``--rank``, ``--all``, ``--max-bytes`` and ``--live``, for verbs that show a live run's lines."""
    function = live_option(max_bytes(function))
    function = click.option("--all", "everything", is_flag=True, help="Show the output of all ranks.")(function)
    return click.option("--rank", multiple=True, metavar=_RANKS, help="Show the output of these ranks.")(function)


def live_option(function: F) -> F:
    """Adds ``--live/--no-live`` as ``live``; None = as the terminal allows."""
    return click.option(
        "--live/--no-live",
        default=None,
        help="Keep a status area below the output; default: on a terminal, without CI.",
    )(function)


SECTIONS: Final = ("retention", "notify")


def read_config(path: Path, verbs: Collection[str]) -> dict[str, Any]:
    """Returns the content of ``config.toml``; empty if missing.

    Raises:
        UsageError: Unreadable, or an unknown section.
    """
    import tomllib  # noqa: PLC0415

    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        hint = "name a TOML file" if path.is_dir() else "make it readable"
        raise UsageError(f"{path}: {error.strerror or error}", hint=hint) from error
    except ValueError as error:
        raise UsageError(f"{path}: no TOML: {error}") from None
    for section in data:
        if section not in verbs and section not in SECTIONS:
            raise _unknown(path, section, [*verbs, *SECTIONS], what="section")
        if not isinstance(data[section], dict):
            raise UsageError(f"{path}{_line(path, section)}: {section!r} is no section", hint=f"as: [{section}]")
    return data


def read_notify(path: Path, verbs: Collection[str]) -> dict[str, Any]:
    """Returns the checked section ``[notify]``; empty if missing.

    Raises:
        UsageError: A field is wrong.
    """
    section: dict[str, Any] = read_config(path, verbs).get("notify", {})
    if section:
        check_notify_section(section, of=str(path))
    return section


def check_notify_section(section: object, *, of: str) -> Notify:
    """Returns ``notify`` of a job file or of ``config.toml``.

    Raises:
        UsageError: A field is wrong; names ``of``.
    """
    try:
        return spec_from({"command": ["true"], "notify": section}).notify
    except SpecError as error:
        text = error.message.removeprefix("$.").replace("$.notify", "notify")
        raise UsageError(f"{of}: {text}", hint=error.hint and error.hint.replace("$.notify", "notify")) from None


def defaults_of(
    path: Path, name: str, command: click.Command, *, verbs: Collection[str], like: str | None
) -> dict[str, Any]:
    """Returns click's ``default_map`` for one verb; it shares the section of verb ``like``.

    Raises:
        UsageError: A key is no flag, or a value has the wrong type.
    """
    data = read_config(path, verbs)
    shared = {key: value for key, value in data.get(like or name, {}).items() if not like or key in _flags(command)}
    return _defaults(path, shared | data.get(name, {}), command, name=name)


def _defaults(path: Path, section: dict[str, Any], command: click.Command, *, name: str) -> dict[str, Any]:
    below = command.commands if isinstance(command, click.Group) else {}
    flags = _flags(command)
    found: dict[str, Any] = {}
    for key, value in section.items():
        if key in below and isinstance(value, dict):
            found[key] = _defaults(path, value, below[key], name=f"{name} {key}")
            continue
        param = flags.get(key.replace("_", "-"))
        if param is None or param.name is None:
            raise _unknown(path, key, [*flags, *below], what="flag")
        if isinstance(value, dict) or (isinstance(value, list) and not param.multiple):
            raise UsageError(f"{path}{_line(path, key)}: {key} needs one value", hint=f'as: {key} = "VALUE"')
        for one in value if isinstance(value, list) else [value]:
            if not _fits(one, param):
                raise UsageError(
                    f"{path}{_line(path, key, one)}: {key} is {str(one)[:60]!r}; allowed: {_allowed(param)}",
                    hint=f"correct it there; what it sets: rankfall {name} --help",
                )
        found[param.name] = [value] if param.multiple and not isinstance(value, list) else value
    return found


def _fits(value: object, param: click.Option) -> bool:
    """True if a value of the file has the type of its flag; click itself rounds numbers and takes any value as text."""
    kind = param.type
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return isinstance(value, bool) and isinstance(kind, click.types.BoolParamType)
    if isinstance(kind, click.types.IntParamType) and isinstance(value, float):
        return False
    if isinstance(kind, click.types.StringParamType | click.Path):
        return isinstance(kind, click.types.StringParamType) or isinstance(value, str)
    try:
        kind.convert(value, param, None)
    except click.UsageError:
        return False
    return True


def _allowed(param: click.Option) -> str:
    kind = param.type
    if isinstance(kind, click.Choice):
        return ", ".join(map(str, kind.choices))
    if isinstance(kind, click.types.BoolParamType):
        return "true, false"
    if isinstance(kind, click.IntRange | click.FloatRange):
        noun = "whole numbers" if isinstance(kind, click.IntRange) else "numbers"
        low = f" from {kind.min}" if kind.min is not None else ""
        return f"{noun}{low}{f' to {kind.max}' if kind.max is not None else ''}"
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return "whole numbers" if isinstance(kind, click.types.IntParamType) else "numbers"
    return "a path in quotation marks" if isinstance(kind, click.Path) else "text in quotation marks, or a number"


def _flags(command: click.Command) -> dict[str, click.Option]:
    return {
        opt[2:]: param
        for param in command.params
        if isinstance(param, click.Option) and not param.is_eager
        for opt in param.opts
        if opt.startswith("--")
    }


def _unknown(path: Path, key: str, known: Collection[str], *, what: str) -> UsageError:
    import difflib  # noqa: PLC0415

    near = difflib.get_close_matches(key[:60], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(known)}"
    return UsageError(f"{path}{_line(path, key)}: {key[:60]!r} is no {what}", hint=hint)


def _line(path: Path, key: str, value: object = "") -> str:
    """Line of a key, of several one that has the value too; empty if not found."""
    lines = enumerate(path.read_text("utf-8", "replace").splitlines(), start=1)
    found = [(number, text) for number, text in lines if text.strip().lstrip("[").startswith((key, f'"{key}"'))]
    found.sort(key=lambda one: str(value).lower() not in one[1].lower())
    return f":{found[0][0]}" if found else ""
