"""``run``, ``submit`` and ``retry``: start a job from flags, a file or a run; refuse impossible jobs before creating anything."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import Any, Final

import click
import msgspec

from rankfall.backends.plan import Plan
from rankfall.backends.registry import first_plan
from rankfall.backends.slurm import allocation
from rankfall.cli import console
from rankfall.cli.app import VERBS, config_path
from rankfall.cli.console import Output
from rankfall.cli.job_options import FORMAT, HELP, Flags, in_file, job_options, make_spec
from rankfall.cli.options import live_option, output_option, rank_options, read_notify, run_argument
from rankfall.cli.session import Session
from rankfall.cli.target import one_run
from rankfall.cli.values import Ranks, parse_env, parse_ranks
from rankfall.cli.viewer import Viewer
from rankfall.client import complete, create_run
from rankfall.model import FINAL_STATES, JobSpec, RankfallError, UsageError, decoding
from rankfall.render.escape import one_line
from rankfall.rundir import RunDir, default_home, home
from rankfall.rundir.removal import Rules
from rankfall.supervisor import LOG_NAME, spawn_detached
from rankfall.supervisor.requests import refuse_foreign

# The first other word ends the flags.
_SETTINGS: Final[dict[str, Any]] = {"allow_interspersed_args": False}
_MANY_SLOTS: Final = 8
# Seconds.
_RETAIN_S: Final = 1.0


@click.command("run", help=HELP["run"], context_settings=_SETTINGS)
@job_options
@click.option("-d", "--detach", is_flag=True, help="Run in the background, as submit does.")
@rank_options
def run(
    *,
    detach: bool,
    rank: tuple[str, ...],
    everything: bool,
    max_bytes: int | None,
    live: bool | None,
    dry_run: bool,
    output: Output,
    quiet: bool,
    **job: Any,
) -> int:
    """Creates the run, then stays or detaches; returns the exit code."""
    if everything and rank:
        raise UsageError("--all and --rank contradict each other", hint="give one of them")
    selection = parse_ranks(rank)
    viewing = {"ranks": selection, "everything": everything, "limit": max_bytes}
    # A job file may name another backend, but such jobs do not start below srun.
    below_srun = not dry_run and job["backend"] in {None, "slurm"}
    if below_srun and allocation.is_other_task(os.environ):
        allocation.wait_for_task_0(os.environ, home=default_home())
        return 0
    with allocation.other_tasks_waiting(os.environ if below_srun else {}, home=default_home()):
        directory = _made(job, dry_run=dry_run, output=output)
        return _stay(directory, detach=detach, output=output, quiet=quiet, live=live, **viewing)


def _stay(
    directory: RunDir | None,
    *,
    detach: bool,
    output: Output,
    quiet: bool,
    live: bool | None,
    **viewing: Any,
) -> int:
    if directory is None:
        return 0
    if detach:
        _start_in_background(directory, output, quiet=quiet)
        return 0
    console.say(f"rankfall: run {directory.id}", quiet=quiet)
    if output is not Output.TABLE and not quiet:
        console.say(f"rankfall: -o {output.value} is for --dry-run, -d and -q; this run shows text")
    viewer = Viewer(directory, quiet=quiet, **viewing)
    viewer.keep_area(live=live)
    session = Session(directory, viewer, own=True)
    outcome = session.stay()
    if outcome is not None and quiet and output is not Output.TABLE:
        sys.stdout.write(console.document(outcome, output))
    return session.exit_code(outcome)


@click.command("retry", help=HELP["retry"])
@run_argument
@click.option(
    "-e",
    "--env",
    multiple=True,
    metavar="K=V",
    help="Variable for the job, over the run's; K alone passes the current value.",
)
@click.option("--log-dir", metavar="DIR", help="Folder of readable logs; needed if the run has one.")
@click.option("--dry-run", is_flag=True, help="Print what would be started, without secrets; create nothing.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background, as submit does.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the outcome.")
@live_option
@output_option(FORMAT)
def retry(
    *,
    run: str | None,
    env: tuple[str, ...],
    log_dir: str | None,
    dry_run: bool,
    detach: bool,
    quiet: bool,
    live: bool | None,
    output: Output,
) -> int:
    """Starts the spec of an ended run."""
    old = one_run(run)
    refuse_foreign(old, "retry")
    with old.reader() as reader:
        state = reader.run().state
    if state not in FINAL_STATES:
        raise UsageError(f"{old.id} has not ended: {state}", hint=f"stop it first: rankfall cancel {old.id}")
    spec = old.whole_spec()
    if env:
        spec = msgspec.structs.replace(spec, env={**spec.env, **parse_env(env, environ=os.environ)})
    if log_dir is not None:
        spec = msgspec.structs.replace(spec, log_dir=log_dir)
    made = _create(spec, dry_run=dry_run, output=output)
    return _stay(made, detach=detach, output=output, quiet=quiet, live=live, ranks=Ranks())


@click.command("submit", help=HELP["submit"], context_settings=_SETTINGS)
@job_options
def submit(*, dry_run: bool, output: Output, quiet: bool, **job: Any) -> int:
    """Works as ``run -d``."""
    directory = _made(job, dry_run=dry_run, output=output)
    if directory is not None:
        _start_in_background(directory, output, quiet=quiet)
    return 0


def _made(job: dict[str, Any], *, dry_run: bool, output: Output) -> RunDir | None:
    """Returns a new run directory, or the earlier one of the token; None after a dry run."""
    token, replace = job.pop("request_token"), job.pop("replace")
    notify = read_notify(config_path(), VERBS) if config_path().exists() else {}
    spec = make_spec(Flags(**job), notify=notify)
    if notify and spec.unattended:
        console.say("rankfall: unattended: no process here watches the run, so [notify] of config.toml sends nothing")
    if replace and (token is None or spec.writes_run_dir):
        raise UsageError(
            "--replace is only for a run in a cluster with a --request-token: only such a run can replace an earlier one",
            hint="leave --replace out: without a token each run has unique names",
        )
    with in_file(job["file"], decoding.decode(msgspec.json.encode(spec))):
        return _create(spec, dry_run=dry_run, output=output, token=token, replace=replace)


def _create(
    spec: JobSpec, *, dry_run: bool, output: Output, token: str | None = None, replace: bool = False
) -> RunDir | None:
    rules = _retention()
    plan = first_plan(spec, home=default_home(), elsewhere=True)
    if dry_run:
        _print_plan(plan, spec, output)
        return None
    _retain(rules)
    # Fixes folder and Python: a later supervisor may start elsewhere.
    return create_run(complete(spec), home=home(), request_token=token, replace=replace)


def _retention() -> Rules | None:
    """Returns the rules of ``[retention]``; None without one."""
    if not config_path().exists():
        return None
    from rankfall.cli.commands import runs  # noqa: PLC0415
    from rankfall.cli.options import read_config  # noqa: PLC0415

    rules = runs.rules_of(read_config(config_path(), VERBS).get("retention", {}), of=str(config_path()))
    return None if rules.empty else rules


def _retain(rules: Rules | None) -> None:
    """Deletes runs by ``rules``; problems never prevent a run."""
    if rules is None:
        return
    from rankfall.cli.commands import runs  # noqa: PLC0415
    from rankfall.rundir import removal  # noqa: PLC0415

    go_on = removal.time_limit(_RETAIN_S)
    removed = 0
    try:
        found, staying = runs.candidates(default_home(), go_on=go_on)
        others = [one.run for one in staying]
        for one in removal.chosen(rules, found, others=others, now=time.time_ns(), go_on=go_on):
            if not go_on():
                break
            with contextlib.suppress(removal.Kept):
                removal.remove(one.run)
                removed += 1
    except RankfallError as error:
        console.say(f"rankfall: retention: {error.in_one_line}")
    if removed:
        console.say(f"rankfall: retention: removed {removed} old runs")
    if not go_on():
        console.say("rankfall: retention needs more time: rankfall prune")


def _start_in_background(directory: RunDir, output: Output, *, quiet: bool) -> None:
    """Starts a detached supervisor, or launches an unattended run."""
    document: dict[str, Any] = {"run": directory.id, "path": str(directory.path), "supervisor": None}
    if directory.spec.unattended:
        from rankfall.supervisor.unattended.driver import launch  # noqa: PLC0415

        launch(directory)
        console.say(
            "rankfall: unattended: Kubernetes alone restarts this run; nothing is recorded until rankfall attach",
            quiet=quiet,
        )
    else:
        # A repeated request has a living supervisor.
        held = directory.lease_holder()
        pid, host = (held.pid, held.host) if held else (spawn_detached(directory), socket.gethostname())
        document["supervisor"] = {"pid": pid, "host": host}
        console.say(
            f"rankfall: supervised by process {pid} on {host}; its messages: {directory.path / LOG_NAME}", quiet=quiet
        )
    if output is Output.TABLE:
        console.out(directory.id)
    else:
        sys.stdout.write(console.document(document, output))
    console.say(f"rankfall: watch it with: rankfall attach {directory.id}", quiet=quiet)


def _print_plan(plan: Plan, spec: JobSpec, output: Output) -> None:
    document = plan.document()
    if output is not Output.TABLE:
        sys.stdout.write(console.document(document, output))
        return
    if plan.objects:
        _print_manifests(plan, spec)
        return
    import shlex  # noqa: PLC0415

    console.out(f"{spec.name}: {plan.size_text(spec)}, launcher {plan.launcher}")
    for note in plan.notes:
        console.out(f"  {note}")
    slots: list[dict[str, Any]] = document["slots"]
    for slot in slots[:_MANY_SLOTS]:
        console.out(f"\nslot {slot['slot']} on {slot['node']}, in {slot['cwd']}")
        console.out(f"  {shlex.join(slot['argv'])}")
        for key, value in {**slot["env"], **document["env"], **document["role_env"].get(slot["role"], {})}.items():
            console.out(f"    {key}={value}")
    if len(slots) > _MANY_SLOTS:
        console.out(f"\nand {len(slots) - _MANY_SLOTS} more slots; -o json lists all")
    console.say("nothing was started")


def _print_manifests(plan: Plan, spec: JobSpec) -> None:
    """Prints objects in order of creation as YAML, notes as comments."""
    console.out(f"# {spec.name}: {plan.size_text(spec)}")
    for note in plan.notes:
        console.out(f"# {one_line(note, width=400)}")
    for item in plan.objects:
        sys.stdout.write("---\n" + console.document(item, Output.YAML))
    console.say("nothing was created")
