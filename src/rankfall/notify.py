"""``python -m rankfall.notify RUN_DIRECTORY``: the process that sends the messages of a run.

A thread of the supervisor would delay it: nothing interrupts the resolution of a name, and an HTTP client holds the
interpreter's lock while it loads. A thread also ends with its process. This process has its own session, outlives a
killed supervisor, and ends itself after a minute of failures.

The database holds the events, ``notify.jsonl`` the documents and the messages sent. One process of a run sends at a time
(``notify.lock``), and the next one reads both. So a message is repeated only if its process ended between the answer and
the mark, or if the receiver did not answer. A document has what was stored at its event, and is written once, so that
slow targets and repetitions get the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from rankfall.model import FINAL_STATES, Decision, RankfallError, RunState, Verdict, decoding
from rankfall.model.jobspec.policies import Notify, NotifyTarget
from rankfall.model.jobspec.secrets import masked_url, secrets_of
from rankfall.model.run_status import Notification
from rankfall.model.timestamps import rfc3339
from rankfall.render.escape import Redactor, one_line
from rankfall.render.notification import Happening, RunName, body, mail, message
from rankfall.rundir import RunDir
from rankfall.rundir.directory import Reader
from rankfall.rundir.lease import append_to, private
from rankfall.supervisor.run_events import Event, EventLog, read_events

MARKS_NAME: Final = "notify.jsonl"
LOCK_NAME: Final = "notify.lock"
TRY_S: Final = 5.0
TRIES: Final = 3
# Seconds after which a process tries nothing more.
LIMIT_S: Final = 60.0
_BACKOFF_S: Final = 1.0
_POLL_S: Final = 0.25
# Ends a process that hangs nevertheless.
_ALARM_S: Final = 300
_MAX_MARKS: Final = 32 << 20
_NICE: Final = 5
_LABEL: Final = 200
_AGAIN: Final = frozenset({408, 425, 429})
_RETRIES: Final = frozenset({"retry", "retry_elsewhere", "resize"})
# Directories of sendmail that PATH of a user often lacks.
_SBIN: Final = "/usr/sbin:/usr/lib:/sbin"


class Problem(NamedTuple):
    """Reason of a failed try; ``again`` if another may succeed."""

    text: str
    again: bool = True


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of ``notify.jsonl``.

    Attributes:
        key: Event and target, as ``failure-1:0``; of a document only the event.
        result: ``made`` with the document that every target gets.
    """

    key: str
    result: Literal["made", "delivered", "failed"]
    at: int
    note: Notification | None = None


def label_of(target: NotifyTarget) -> str:
    """Returns a target for people, without secrets."""
    if target.webhook:
        return f"webhook {masked_url(target.webhook)}"
    return f"email {target.email}" if target.email else f"command {one_line(target.command[0], width=_LABEL)}"


async def try_once(target: NotifyTarget, note: Notification) -> Problem | None:
    """Sends one message once; returns None if the receiver took it. Messages of libraries could show the URL."""
    if target.webhook:
        # Loading may take seconds. Other targets continue meanwhile, and it is not the receiver's time.
        await asyncio.to_thread(importlib.import_module, "aiohttp")
    try:
        async with asyncio.timeout(TRY_S):
            if target.webhook:
                return await _post(target.webhook, body(note, target.shape))
            if not target.email:
                return await _run(target.command, body(note, "json"))
            program = shutil.which("sendmail", path=f"{os.environ.get('PATH', os.defpath)}:{_SBIN}")
            if program is None:
                return Problem("this machine has no sendmail", again=False)
            return await _run((program, "-i", "--", target.email), mail(note, target.email))
    except TimeoutError:
        return Problem(f"no answer within {TRY_S:g} s")
    except OSError as error:
        return Problem(error.strerror or type(error).__name__)


async def _post(url: str, data: bytes) -> Problem | None:
    import aiohttp  # noqa: PLC0415
    from yarl import URL  # noqa: PLC0415

    headers = {"Content-Type": "application/json", "User-Agent": "rankfall"}
    try:
        async with (
            aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar()) as session,
            # A redirect would send the message to an address that the user did not give.
            session.post(URL(url, encoded=True), data=data, headers=headers, allow_redirects=False) as response,
        ):
            status = response.status
    except aiohttp.ClientSSLError:
        return Problem("TLS failed; is its certificate trusted here?")
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno or 0
        # asyncio's text repeats the address.
        return Problem(f"no connection: {os.strerror(number) if number > 0 else error.os_error.strerror}")
    except (aiohttp.ClientError, ValueError) as error:
        return Problem(f"the request failed: {type(error).__name__}")
    if 200 <= status < 300:  # noqa: PLR2004 - success in HTTP
        return None
    if 300 <= status < 400:  # noqa: PLR2004 - redirection in HTTP
        return Problem(f"it answered {status}, a redirect; give the final URL", again=False)
    return Problem(f"it answered {status}", again=status >= 500 or status in _AGAIN)  # noqa: PLR2004 - server's errors


async def _run(argv: Sequence[str], data: bytes) -> Problem | None:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        return Problem(f"it cannot start: {error.strerror or type(error).__name__}", again=False)
    try:
        await process.communicate(data)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return Problem(f"it ended with {process.returncode}") if process.returncode else None


class Sender:
    """Sends all messages of one run that are due.

    ``done``: marks that an earlier process could not store.

    Raises:
        RankfallError: The job spec or its secrets cannot be read.
    """

    def __init__(self, run_dir: RunDir, *, done: Collection[str] = ()) -> None:
        self.unstored: list[str] = []
        self._run_dir = run_dir
        self._spec = run_dir.whole_spec()
        self._redactor = Redactor()
        self._redactor.learn(found.text for found in secrets_of(self._spec).values())
        marks, self._notes = _stored(run_dir.path)
        self._done = {*done, *marks}
        self._tries = [TRIES] * len(self._spec.notify.targets)
        self._until = time.monotonic() + LIMIT_S
        self._offset = 0
        self._hangs: list[Event] = []

    async def send(self) -> None:
        """Sends until nothing is due at any target; a slow target delays no other."""
        targets = self._spec.notify.targets
        serving: dict[int, asyncio.Task[None]] = {}
        while True:
            self._freeze()
            for number, target in enumerate(targets):
                due = self._due(number)
                if due and number not in serving:
                    serving[number] = asyncio.create_task(self._serve(number, target, due))
            if not serving:
                return
            await asyncio.wait(serving.values(), timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            for number in [number for number, task in serving.items() if task.done()]:
                serving.pop(number).result()

    def _due(self, number: int) -> dict[str, Notification]:
        return {key: note for key, note in self._notes.items() if f"{key}:{number}" not in self._done}

    def _freeze(self) -> None:
        """Makes and stores the document of each new event."""
        about = RunName(run=self._run_dir.id, name=self._spec.name)
        with self._run_dir.reader() as reader:
            for one in self._happened(reader):
                note = message(about, one, redactor=self._redactor, link=self._spec.notify.link)
                self._notes[one.key] = note
                # Without room, a later process makes it again.
                self._append(Mark(key=one.key, result="made", at=time.time_ns(), note=note))

    async def _serve(self, number: int, target: NotifyTarget, due: dict[str, Notification]) -> None:
        """Sends to one target in order."""
        for key, note in due.items():
            problem = await self._try(target, note, self._tries[number])
            self._mark(f"{key}:{number}", "failed" if problem else "delivered")
            if problem is not None:
                # After a failure the receiver gets one try for each message.
                self._tries[number] = 1
                self._report(key, number, label_of(target), problem)

    async def _try(self, target: NotifyTarget, note: Notification, tries: int) -> Problem | None:
        problem = Problem("earlier messages took too long", again=False)
        for number in range(tries):
            if time.monotonic() > self._until and (number or tries < TRIES):
                return problem
            if number:
                await asyncio.sleep(_BACKOFF_S * 2 ** (number - 1))
            found = await try_once(target, note)
            if found is None or not found.again:
                return found
            problem = found
        return problem

    def _happened(self, reader: Reader) -> Iterator[Happening]:
        """Yields new events that the job wants, oldest attempt first."""
        run, wanted = reader.run(), self._spec.notify.events
        events, self._offset = read_events(self._run_dir.path, offset=self._offset)
        self._hangs += [event for event in events if event.kind == "hang"]
        over = run.state in FINAL_STATES
        for row in reader.attempts():
            number = row.attempt
            key = f"restart-{number}"
            if "restart" in wanted and number > 1 and key not in self._notes:
                found = Happening(key=key, event="restart", attempt=number, at=_at(row.started), state="starting")
                yield _judged(reader, found, of=number - 1)
            key = f"hang-{number}"
            hang = next((event for event in self._hangs if event.data.get("attempt") == number), None)
            if "hang" in wanted and hang is not None and key not in self._notes:
                at = _at(hang.at)
                yield Happening(key=key, event="hang", attempt=number, at=at, state="running", reason=hang.text)
            if "failure" not in wanted:
                continue
            for fall in (one.fall for one in reader.falls(number) if one.fall.again):
                key = f"failure-{number}-slot-{fall.slot}-{fall.instance}"
                if key not in self._notes:
                    verdict = msgspec.structs.replace(fall.diagnosis.verdict, decision=fall.only_decision)
                    found = Happening(
                        key=key, event="failure", attempt=number, at=fall.at or _at(None), state="running",
                        verdict=verdict, step=fall.step,
                    )  # fmt: skip
                    yield found
            key = f"failure-{number}"
            made = [one.decision for one in reader.decisions(number)]
            if row.state == "failed" and (over or made) and key not in self._notes:
                # The end of the run revokes the decision about an attempt that never began.
                decision = next((one for one in reversed(made) if one.rule != "not_begun"), None)
                at = decision.at if decision is not None and decision.at else _at(row.ended)
                state: RunState = "restarting" if decision is not None and decision.action in _RETRIES else "failed"
                found = Happening(key=key, event="failure", attempt=number, at=at, state=state)
                yield _judged(reader, found, of=number, decision=decision)
        if "end" in wanted and over and "end" not in self._notes:
            newest = reader.newest_attempt()
            found = Happening(key="end", event="end", attempt=newest, at=_at(run.ended), state=run.state)
            found = _judged(reader, found, of=newest if run.state == "failed" else None)
            yield found._replace(reason=run.reason)

    def _mark(self, key: str, result: Literal["delivered", "failed"]) -> None:
        self._done.add(key)
        if not self._append(Mark(key=key, result=result, at=time.time_ns())):
            self.unstored.append(key)

    def _append(self, line: Mark) -> bool:
        """Stores one whole line and returns True, or nothing and returns False."""
        try:
            with append_to(self._run_dir.path / MARKS_NAME) as file:
                size = file.tell()
                try:
                    file.write(msgspec.json.encode(line) + b"\n")
                    file.flush()
                except OSError:
                    os.ftruncate(file.fileno(), size)
                    raise
        except OSError:
            return False
        return True

    def _report(self, key: str, number: int, label: str, problem: Problem) -> None:
        text = (
            f"{label} did not get the message {key}: {problem.text}; "
            "next: rankfall config notify --test (-f JOB.yaml, if the job file has notify)"
        )
        events = EventLog(self._run_dir.path, None)
        events.say("notify", text, at=time.time_ns(), key=key, target=number, delivered=False)


def _at(time_ns: int | None) -> str:
    return rfc3339(time_ns) or rfc3339(time.time_ns()) or ""


def _judged(reader: Reader, found: Happening, *, of: int | None, decision: Decision | None = None) -> Happening:
    """Event with the verdict of the attempt ``of``, and with this decision instead of its newest."""
    diagnosis = reader.diagnosis(of) if of else None
    if diagnosis is None:
        return found._replace(reason="no verdict was reached")
    verdict: Verdict = diagnosis.verdict
    if decision is not None:
        verdict = msgspec.structs.replace(verdict, decision=decision)
    return found._replace(verdict=verdict, step=reader.failed_step(of or 0, verdict.rank))


def _stored(folder: Path) -> tuple[set[str], dict[str, Notification]]:
    """Keys of all messages sent or given up, and the documents of all events."""
    try:
        with (folder / MARKS_NAME).open("rb") as file:
            lines = file.read(_MAX_MARKS).split(b"\n")
    except OSError:
        return set(), {}
    marks: set[str] = set()
    notes: dict[str, Notification] = {}
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError):
            found = decoding.decode(line, kind=Mark)
            if found.note is None:
                marks.add(found.key)
            else:
                notes.setdefault(found.key, found.note)
    return marks, notes


async def _test(notify: Notify) -> list[Problem | None]:
    note = Notification(
        id="test/test",
        event=None,
        at=rfc3339(time.time_ns()) or "",
        run="test",
        name="test",
        state="running",
        text="This is a test message of Rankfall.",
        command="rankfall why RUN",
    )
    return await asyncio.gather(*(try_once(target, note) for target in notify.targets))


def main(argv: Sequence[str]) -> int:
    """Sends what is due and prints marks that could not be stored, or sends test messages to targets from stdin."""
    signal.alarm(_ALARM_S)
    loop = asyncio.new_event_loop()
    if argv[:1] == ["--test"]:
        notify = decoding.decode(sys.stdin.buffer.read(), kind=Notify)
        problems = loop.run_until_complete(_test(notify))
        sys.stdout.write(msgspec.json.encode([problem and problem.text for problem in problems]).decode())
        return 0
    run_dir = RunDir(Path(argv[0]))
    # The next attempt starts at the same time.
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        fcntl.flock(private(run_dir.path / LOCK_NAME, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
    try:
        sender = Sender(run_dir, done=argv[1:])
        loop.run_until_complete(sender.send())
    except RankfallError as error:
        text = f"messages cannot be sent: {error.in_one_line}"
        EventLog(run_dir.path, None).say("notify", text, at=time.time_ns(), delivered=False)
        return 0
    sys.stdout.write("\n".join(sender.unstored))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    if threading.active_count() > 1:
        # One still resolves a name; nothing waits for it.
        os._exit(code)
    sys.exit(code)
