"""Runs the cells of the fault matrix on the bed, several at once, but for those that befall a node or the whole cluster: these run alone."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from cluster.fault_injectors import prepare
from cluster.fault_stage import INDEX, LABEL, Stage
from cluster.pair_injectors import Play
from faults.channels import said_less
from faults.cluster_table import Cell
from faults.lines import Lines, kept_of, lines_of
from faults.pairs_table import Pair
from faults.run import Ours, read, still_running, write_plan
from rankfall.backends.kubernetes.manifests.names import LABEL_ATTEMPT
from rankfall.rundir import list_runs
from support.helpers import wait_until
from testbed.bed import Bed
from testbed.client import Kubectl

AT_ONCE = 3
_RUN_S = 420
# One of each kind: the verdict of these is made again with one channel of evidence after the other cut.
CUT = frozenset(
    {
        "job-container-killed",
        "job-evicted",
        "job-exception-key",
        "job-exit-3",
        "job-null-pointer",
        "job-oom-of-a-ranks-child",
        "job-signal-outside-kill",
        "trainjob-exception-key-torchrun",
    }
)


@dataclass(frozen=True)
class Seen:
    """What came of a cell.

    Attributes:
        ours: what the run's directory holds; None where no run was made.
        stderr, code: of ``rankfall run``.
        nodes: slot -> node of its pod, None where it never got one; as the API said.
        errors: of what was done from outside.
        left: processes of the job that outlived it.
        less: what is wrong in verdicts that are made once more with a channel of evidence cut; of some cells only.
        places: ``nodes`` of every attempt.
        lines: of ranks of attempt 1 that count their lines aloud.
        excuse: what the product says of lines that may be missing.
    """

    ours: Ours | None
    stderr: str
    code: int
    nodes: dict[int, str | None]
    errors: tuple[Exception, ...]
    left: tuple[str, ...]
    less: tuple[str, ...] = ()
    places: dict[int, dict[int, str | None]] = field(default_factory=dict)
    lines: tuple[Lines, ...] = ()
    excuse: str = ""


class Nodes:
    """Which node each pod of a case is on, by a watch of the administrator's: independent of the product under test.

    Of a job that was started again the pods of each attempt are kept apart: a slot may come to another node.
    """

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        labels = [f":metadata.labels.{name.replace('.', chr(92) + '.')}" for name in (LABEL, LABEL_ATTEMPT, INDEX)]
        columns = f"custom-columns={','.join(labels)},:spec.nodeName"
        self._known: dict[tuple[str, int], dict[int, str | None]] = {}
        self._watch = subprocess.Popen(
            kubectl.command("get", "pods", "-n", namespace, "--watch", "--no-headers", "-o", columns),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def of(self, case: str, *, attempt: int) -> dict[int, str | None]:
        """By slot."""
        return dict(self._known.get((case, attempt), {}))

    def close(self) -> None:
        """End the watch."""
        self._watch.terminate()
        self._watch.wait()
        self._thread.join(10)
        if self._watch.stdout:
            self._watch.stdout.close()

    def _read(self) -> None:
        for line in self._watch.stdout or ():
            words = line.split()
            if len(words) == 4 and words[1].isdigit() and words[2].isdigit():
                case, attempt, slot, node = words
                places = self._known.setdefault((case, int(attempt)), {})
                places[int(slot)] = places.get(int(slot)) if node == "<none>" else node


class Gate:
    """Many may be inside together, or one alone."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside = 0
        self._alone = False
        self._wish = 0

    @contextmanager
    def enter(self, *, alone: bool) -> Iterator[None]:
        """Wait for one's turn."""
        with self._change:
            self._wish += alone
            # Who wants to be alone is not kept waiting by those that come later.
            self._change.wait_for(lambda: not self._alone and (self._inside == 0 if alone else not self._wish))
            self._wish -= alone
            self._alone = alone
            self._inside += 1
        try:
            yield
        finally:
            with self._change:
                self._inside -= 1
                self._alone = False
                self._change.notify_all()


class Runs:
    """The cells that a session asks for, each run once.

    Args:
        bed, kubectl, namespace: of the cluster.
        kubeconfig: of the product's account.
        folder: for all of them; pods see what is in it.
        keep: takes each result when it is there, so that an interrupted session loses nothing.
    """

    def __init__(
        self,
        *,
        bed: Bed,
        kubectl: Kubectl,
        namespace: str,
        kubeconfig: Path,
        folder: Path,
        keep: Callable[[Cell, Seen], None],
    ) -> None:
        self._bed = bed
        self._kubectl = kubectl
        self._namespace = namespace
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._keep = keep
        self._nodes = Nodes(kubectl, namespace)
        self._gate = Gate()
        self._reading = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._seen: dict[str, Future[Seen]] = {}

    def begin(self, cells: Iterable[Cell]) -> None:
        """Start what is not started yet."""
        for cell in cells:
            if cell.id not in self._seen:
                self._seen[cell.id] = self._pool.submit(self._run, cell)

    def seen(self, cell: Cell) -> Seen:
        """What came of a cell; waits for it."""
        self.begin([cell])
        return self._seen[cell.id].result()

    def close(self) -> None:
        """No more are begun."""
        self._pool.shutdown(cancel_futures=True)
        self._nodes.close()

    def _run(self, cell: Cell) -> Seen:
        with self._gate.enter(alone=cell.alone):
            seen = self._play(cell)
        self._keep(cell, seen)
        return seen

    def _play(self, cell: Cell) -> Seen:
        folder = self._folder / cell.id
        (folder / "home").mkdir(parents=True)
        plan = write_plan(cell.fault, folder, progress=cell.fault.fields.get("inside") != "off", torch=cell.torch)
        stage = Stage(
            cell,
            folder=folder,
            plan=plan,
            bed=self._bed,
            kubectl=self._kubectl,
            namespace=self._namespace,
            kubeconfig=self._kubeconfig,
            # A name that tells nothing, as the plan's.
            case=f"c{plan.stem}",
        )
        try:
            if isinstance(cell, Pair):
                Play(stage, cell).prepare()
            else:
                prepare(stage)
            file = folder / "job.yaml"
            file.write_text(yaml.safe_dump(stage.job))
            done = stage.supervised.run(file, timeout=_RUN_S)
        finally:
            stage.close()
        try:
            try:
                left: tuple[str, ...] = ()
                wait_until(lambda: not still_running(plan), timeout=60, what=f"the end of {cell.id}")
            except AssertionError:
                # What it is, and the verdict beside it, say more than that it never came.
                left = still_running(plan)
            # msgspec makes its reader of a type at first use, and two threads that do so at once have crashed it.
            with self._reading:
                runs = list_runs(stage.home)
                ours = read(runs[0], done, ()) if runs else None
            # That of the newest verdict, which is the one that is judged.
            told = [number for number, one in enumerate(ours.verdicts, 1) if one is not None] if ours else []
            pair = isinstance(cell, Pair) and runs
            lines = tuple(lines_of(plan, kept_of(runs[0].path))) if pair else ()
            excuse = stage.cli("status", runs[0].id).stdout if pair else ""
            self._kubectl.run(
                "delete", cell.backend, "-n", self._namespace, "-l", f"{LABEL}={stage.case}", "--wait=false"
            )
            attempts = range(1, 1 + (len(ours.verdicts) if ours else 0))
            seen = Seen(
                ours=ours,
                stderr=done.stderr,
                code=done.returncode,
                nodes=self._nodes.of(stage.case, attempt=max(told, default=1)),
                errors=tuple(stage.errors),
                left=left,
                less=tuple(said_less(cell.fault, runs[0], folder / "cut", slot=1)) if cell.id in CUT else (),
                places={number: self._nodes.of(stage.case, attempt=number) for number in attempts},
                lines=lines,
                excuse=excuse,
            )
        finally:
            stage.kept.close()
        return seen
