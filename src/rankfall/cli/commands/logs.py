"""``logs``: shows and follows the ranks' output.

``--log-source`` first copies lines from Loki or the log store; on failure stderr has the reason.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec

from rankfall.cli import console
from rankfall.cli.interrupts import Reading, goes_on
from rankfall.cli.options import live_option, max_bytes, redact_option, target_argument
from rankfall.cli.run_output import LineWriter, ended_text, secret_values, spent_text
from rankfall.cli.target import Where, as_it_is, parse_target, resolve_target, slots_on
from rankfall.cli.values import Ranks, parse_ranks, parse_since, parse_slots
from rankfall.model import FINAL_STATES, EvidenceLost, InfrastructureError, LockHeld, NotFound, UsageError, numbers
from rankfall.model.exit_codes import LINES_LOST, SUCCESS
from rankfall.rundir import RunDir
from rankfall.rundir.incomplete import lost_of_run, sentences, waiting
from rankfall.rundir.lines import LineQuery, LineTail, read_blocks
from rankfall.rundir.lines.follow import RANK_WAIT_S

if TYPE_CHECKING:
    from rankfall.cli.live_area import BarView
    from rankfall.cli.session import Recording
    from rankfall.loki.settings import LokiSettings
    from rankfall.render.escape import Redactor
    from rankfall.supervisor.backfill import LokiFollow

Attempt = int | Literal["all"] | None


class BackgroundBackfill:
    """Copies lines from Loki during a view."""

    def __init__(self, follow: LokiFollow) -> None:
        self._follow = follow
        self.over = follow.over
        self.writes = None

    def stop(self) -> None:
        """Stops copying and releases the run's lease; prints an error that ended the copying earlier."""
        _tried("Loki", self._follow.stop)


Backfill = Callable[[RunDir, Attempt], BackgroundBackfill | None]


def backfill_for(source: str, *, loki_url: str | None, follow: bool) -> Backfill | None:
    """Returns the copy function for source ``record`` (None), ``loki`` or ``store``.

    Raises:
        UsageError: Contradictory flags or wrong settings.
    """
    if loki_url is not None and source != "loki":
        raise UsageError("--loki-url has no effect without --log-source loki", hint="give both, or neither")
    if source == "record":
        return None
    if source == "store":
        if follow:
            raise UsageError(
                "--follow and --log-source store contradict each other",
                hint="leave --follow out: a log store is read once; to follow a running job and its log store, use rankfall attach",
            )
        return _backfill_from_store
    from rankfall.loki.settings import loki_settings  # noqa: PLC0415

    settings = loki_settings(loki_url, os.environ)
    return lambda directory, attempt: (_backfill_in_background if follow else _backfill_from_loki)(
        directory, settings, attempt
    )


def _backfill_in_background(directory: RunDir, settings: LokiSettings, attempt: Attempt) -> BackgroundBackfill | None:
    """Copies Loki's lines of a live run in a thread; of an ended run at once, and returns None."""
    from rankfall.supervisor.backfill import LokiFollow  # noqa: PLC0415

    with directory.reader() as reader:
        over = reader.run().state in FINAL_STATES
    if over:
        _backfill_from_loki(directory, settings, attempt)
        return None
    found: list[BackgroundBackfill] = []
    _tried(
        "Loki",
        lambda: found.append(
            BackgroundBackfill(LokiFollow(directory, settings, attempts=_wanted(directory, attempt), say=_say))
        ),
    )
    if not found:
        return None
    _say("lines come from Loki, not from the API server: rankfall attach will not follow these logs later")
    return found[0]


def _backfill_from_loki(directory: RunDir, settings: LokiSettings, attempt: Attempt) -> None:
    from rankfall.supervisor.backfill import backfill_from_loki  # noqa: PLC0415

    _tried("Loki", lambda: backfill_from_loki(directory, settings, attempts=_wanted(directory, attempt), say=_say))


def _backfill_from_store(directory: RunDir, attempt: Attempt) -> None:
    from rankfall.supervisor.backfill import backfill_from_store  # noqa: PLC0415

    _tried("the log store", lambda: backfill_from_store(directory, attempts=_wanted(directory, attempt), say=_say))


def _tried(what: str, take: Callable[[], object]) -> None:
    try:
        take()
    except LockHeld:
        _say(f"skipped {what}: another process records the run now and stores its lines")
    except (EvidenceLost, InfrastructureError) as error:
        _say(f"cannot read everything from {what}; lines may be missing below: {error.message}")


def _wanted(directory: RunDir, attempt: Attempt) -> frozenset[int] | None:
    if attempt is None:
        with directory.reader() as reader:
            attempt = reader.newest_attempt()
    return frozenset({attempt}) if isinstance(attempt, int) else None


def _say(text: str) -> None:
    console.say(f"rankfall: {text}")


_TICK_S: Final = 0.2
# Seconds that a line waits for its rank, possibly found only inside its pod.
_FOREIGN_RANK_WAIT_S: Final = 20.0
# Above any run's number of attempts.
_MOST_ATTEMPTS: Final = 10**9 - 1
# Polls of thousands of streams cost: spend 1 part in 60 of the time.
_SHARE: Final = 60


@click.command("logs")
@target_argument
@click.option("-f", "--follow", is_flag=True, help="Follow until the run ends.")
@click.option("--rank", multiple=True, metavar="0,8-15|first|last|failed", help="Only these.")
@click.option("--all", "everything", is_flag=True, help="All ranks, and lines that belong to no rank (the default).")
@click.option("--since", metavar="10m|TIME", help="Only lines since this age, or this time as 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="10m|TIME", help="Only lines until this age or time.")
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the last N lines of all ranks combined; of a run also -n N.",
)
@click.option("-p", "--previous", is_flag=True, help="The attempt before the newest.")
@click.option("--attempt", metavar="N|all", help="Number of the attempt, or all; default: the newest.")
@click.option("--grep", metavar="RE2", help="Only lines that match this RE2 pattern.")
@click.option("--level", type=click.Choice(["error"]), help="Only lines of errors, tracebacks whole.")
@click.option("--slot", multiple=True, metavar="0,8-15", help="Only these slots (pods).")
@click.option("--node", multiple=True, metavar="NAME", help="Only the slots on these nodes, of one attempt.")
@click.option(
    "--instance", type=click.IntRange(min=0), metavar="N", help="Only this start of a slot's container, from 0."
)
@click.option("--stream", type=click.Choice(["stdout", "stderr"]), help="Only this stream.")
@click.option("-t", "--timestamps", is_flag=True, help="Print the time of each line (UTC).")
@click.option(
    "--prefix/--no-prefix", default=None, help="Print [rank N] before each line; default: with more than one rank."
)
@max_bytes
@redact_option
@live_option
@click.option(
    "--log-source",
    type=click.Choice(["record", "loki", "store"]),
    default="record",
    show_default=True,
    help="Fetch more lines first: loki, of deleted pods; store, from the job's log store.",
)
@click.option("--loki-url", metavar="URL", help="Address of Loki; default: RANKFALL_LOKI_URL.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: one object per line.",
)
def logs(
    *,
    run: str | None,
    where: Where,
    follow: bool,
    rank: tuple[str, ...],
    everything: bool,
    since: str | None,
    until: str | None,
    tail: int | None,
    previous: bool,
    attempt: str | None,
    grep: str | None,
    level: Literal["error"] | None,
    slot: tuple[str, ...],
    node: tuple[str, ...],
    instance: int | None,
    stream: str | None,
    timestamps: bool,
    prefix: bool | None,
    log_source: str,
    loki_url: str | None,
    max_bytes: int | None,
    redact: Redactor | None,
    live: bool | None,
    output: str,
) -> int:
    """Show what the ranks printed, merged by time.

    KIND/NAME is a cluster job not started by Rankfall: job, jobset, trainjob, pytorchjob, tfjob, mpijob, or one pod.
    A terminal shows control characters escaped; a pipe gets the raw bytes.
    """
    if everything and rank:
        raise UsageError("--all and --rank contradict each other", hint="give one of them")
    if follow and until:
        raise UsageError("--follow and --until contradict each other", hint="give one of them")
    if where.namespace is not None and where.namespace.isdecimal() and (run is None or parse_target(run) is None):
        # head and tail call the number of lines -n.
        number = numbers.clamped(where.namespace, least=0, most=_MOST_ATTEMPTS)
        tail, where = number if tail is None else tail, msgspec.structs.replace(where, namespace=None)
    ranks = parse_ranks(rank)
    take = backfill_for(log_source, loki_url=loki_url, follow=follow)
    directory = resolve_target(run, where=where)
    recorded = follow and directory.foreign is not None
    if not recorded:
        as_it_is(directory)
        _say_whether_ranks_are_known(directory)
    if redact is not None:
        redact.learn(secret_values(directory))
    chosen = chosen_attempt(directory, attempt=attempt, previous=previous)
    slots = parse_slots(slot) or None
    if node:
        found = slots_on(directory, node, attempt=chosen)
        slots = found if slots is None else found & slots
    query = LineQuery(
        ranks=ranks.numbers or None,
        last=ranks.last,
        failed=ranks.failed,
        attempt=chosen,
        streams="all" if stream is None else "out" if stream == "stdout" else "err",
        since=parse_since(since, now=time.time_ns()) if since else None,
        until=parse_since(until, now=time.time_ns(), flag="--until") if until else None,
        tail=tail,
        grep=grep,
        level=level,
        slots=slots,
        instance=instance,
    )
    single = len(ranks.numbers) + ranks.last == 1 and not ranks.failed
    writer = LineWriter(
        prefix=(not single) if prefix is None else prefix,
        timestamps=timestamps,
        as_json=output == "json",
        limit=max_bytes,
        redact=redact,
    )
    recording: Recording | BackgroundBackfill | None = take(directory, chosen) if take is not None else None
    if recorded:
        from rankfall.cli import session as recordings  # noqa: PLC0415

        recording = recordings.Recording(directory)
    if follow or recording is not None:
        reading = Reading()
        # Bars are not masked.
        shows_bars = follow and output == "text" and redact is None and console.wants_area(live=live)
        with reading.until_signal():
            _follow(directory, query, writer, recording, bars=shows_bars)
        if reading.code is not None:
            console.say(f"rankfall: {goes_on(directory)}")
            return reading.code
        if recording is not None:
            _say_whether_ranks_are_known(directory)
            _say_where_ranks_are(directory, ranks, query.attempt)
        if recorded and (text := ended_text(directory)):
            console.say(f"rankfall: {text}")
        return say_lost(directory, writer, attempt=chosen)
    problems: list[str] = []
    anything = writer.write(read_blocks(directory, query, problems=problems))
    for problem in problems:
        console.say(f"rankfall: {redact.text(problem) if redact is not None else problem}")
    if writer.spent:
        console.say(f"rankfall: {spent_text(directory)}")
    elif not anything:
        _say_why_empty(directory, ranks, query.attempt)
    return say_lost(directory, writer, attempt=chosen)


def say_lost(directory: RunDir, writer: LineWriter, *, attempt: int | Literal["all"] | None) -> int:
    """Prints the number of missing lines of the shown attempts, in JSON as last object; returns the exit code."""
    number = attempt if isinstance(attempt, int) else None
    if attempt is None:
        with directory.reader() as reader:
            number = reader.newest_attempt()
    lost = lost_of_run(directory, attempt=number)
    writer.lost(lost)
    for text in [*sentences(lost), *waiting(directory, state=state_of(directory))]:
        console.say(f"rankfall: {text}")
    return LINES_LOST if any(one.lines or one.bytes or (one.unread and one.why) for one in lost) else SUCCESS


def _follow(
    directory: RunDir,
    query: LineQuery,
    writer: LineWriter,
    recording: Recording | BackgroundBackfill | None,
    *,
    bars: bool,
) -> None:
    """Shows lines to the run's end; always stops the recording."""
    with contextlib.ExitStack() as stack:
        view: BarView | None = None
        if recording is not None:
            stack.callback(recording.stop)
        if bars:
            from rankfall.cli.live_area import BarView  # noqa: PLC0415

            view = BarView()
            stack.callback(view.close)
        follow_lines(directory, query, writer, recording=recording, bars=view)
        # Only the output limit is reached: recording continues to the end.
        while recording is not None and writer.spent and not recording.over():
            time.sleep(_TICK_S)


def follow_lines(
    directory: RunDir,
    query: LineQuery,
    writer: LineWriter,
    *,
    recording: Recording | BackgroundBackfill | None = None,
    bars: BarView | None = None,
) -> None:
    """Writes new lines until the run (or ``recording``) ends, then the remaining ones."""
    over = recording.over if recording is not None else lambda: state_of(directory) in FINAL_STATES
    rank_wait = RANK_WAIT_S if directory.foreign is None else _FOREIGN_RANK_WAIT_S
    tail_lines = LineTail(directory, query, rank_wait=rank_wait, writes=recording.writes if recording else None)
    warned = False
    while True:
        before = time.thread_time()
        ended = over()
        anything = writer.write(tail_lines.blocks())
        if ended or writer.spent:
            break
        if bars is not None:
            bars.refresh(tail_lines)
        if (
            not warned
            and not anything
            and directory.foreign is None
            and directory.lease_holder() is None
            and state_of(directory) != "queued"
        ):
            warned = True
            console.say(
                f"rankfall: {directory.id} has no supervisor now; to supervise it: rankfall attach {directory.id}"
            )
        # Waits also after lines: batches are cheaper.
        time.sleep(_TICK_S if anything else max(_TICK_S, _SHARE * (time.thread_time() - before)))
    if not writer.spent:
        writer.write(tail_lines.blocks(final=True))
    if writer.spent:
        console.say(f"rankfall: {spent_text(directory)}")
    for problem in tail_lines.problems:
        console.say(f"rankfall: {problem}")


def state_of(directory: RunDir) -> str:
    """Recorded state."""
    with directory.reader() as reader:
        return reader.run().state


def chosen_attempt(directory: RunDir, *, attempt: str | None, previous: bool) -> int | Literal["all"] | None:
    """Returns the attempt of ``--attempt`` and ``--previous``; None = the newest.

    Raises:
        UsageError: No number, or both flags.
        NotFound: No such attempt.
    """
    if attempt is None and not previous:
        return None
    if attempt is not None and previous:
        raise UsageError("--attempt and --previous contradict each other", hint="give one of them")
    if attempt == "all":
        return "all"
    asked = None if attempt is None else numbers.clamped(attempt, least=1, most=_MOST_ATTEMPTS)
    if attempt is not None and asked is None:
        raise UsageError(f"--attempt {attempt[:60]!r} is no attempt", hint="allowed: a number from 1, or all")
    with directory.reader() as reader:
        newest = reader.newest_attempt() or 0
    number = asked if asked is not None else newest - 1
    if not 1 <= number <= newest:
        known = f"it has attempts 1-{newest}" if newest > 1 else "it has one attempt" if newest else "it has none yet"
        wanted = f"attempt {number}" if attempt is not None else "previous attempt"
        raise NotFound(f"run {directory.id} has no {wanted}", hint=known)
    return number


def _say_whether_ranks_are_known(directory: RunDir) -> None:
    """Warns about a foreign job's unknown ranks, because pod numbers resemble ranks."""
    if directory.foreign is None:
        return
    with directory.reader() as reader:
        attempt = reader.newest_attempt()
        if attempt is not None and attempt > 1:
            again = f"its gang was started again: attempt {attempt} is the newest start"
            console.say(f"rankfall: {again}; rankfall logs {directory.id} --attempt all shows all attempts")
        known = attempt is not None and any(row.rank is not None for row in reader.streams(attempt))
    if not known:
        console.say(
            f"rankfall: cannot match the ranks of {directory.foreign.target.label} to its pods: lines are listed by slot (one slot per pod) "
            f"(rankfall logs {directory.id} --slot N); torchrun marks each line with its rank if it is started with --tee 3"
        )


def _say_where_ranks_are(directory: RunDir, ranks: Ranks, attempt: int | str | None) -> bool:
    """Prints slots with chosen ranks' lines, named by a verdict or report; True if any."""
    if ranks.everything or attempt == "all":
        return False
    with directory.reader() as reader:
        number = attempt if isinstance(attempt, int) else reader.newest_attempt()
        if number is None:
            return False
        apart = {row.slot for row in reader.streams(number) if row.rank is not None}
        held = [one for one in reader.ranks(number) if one.rank in ranks.numbers or (ranks.failed and one.exit_code)]
        found = reader.diagnosis(number)
    named = {one.slot for one in held}
    if found is not None and (ranks.failed or found.verdict.rank in ranks.numbers):
        named.add(found.verdict.slot)
    slots = sorted(slot for slot in named - apart if slot is not None)
    if slots:
        numbers = ",".join(map(str, slots))
        console.say(
            f"rankfall: cannot match lines to these ranks; for all lines of their pods: rankfall logs {directory.id} --attempt {number} --slot {numbers}"
        )
    return bool(slots)


def _say_why_empty(directory: RunDir, ranks: Ranks, attempt: int | str | None) -> None:
    if _say_where_ranks_are(directory, ranks, attempt):
        return
    what = "no line matches" if not ranks.everything else "no line so far"
    if ranks.failed and not ranks.numbers:
        console.say(
            f"rankfall: no failed rank is recorded; for the last lines of all: rankfall logs {directory.id} --tail 20"
        )
        return
    where = f"rankfall status {directory.id} shows which ranks there are"
    if directory.foreign is not None and not ranks.everything:
        where = f"rankfall logs {directory.id} --slot N shows the lines of one pod"
    console.say(f"rankfall: {what}; {where}")
