"""Pods whose ranks number their lines, and the recorder that is to have each number once, whatever breaks between them.

The pods bear only what a container's log has: the prefix of the wrapper on the lines of ranks. So nothing but the log itself tells the recorder
what was said, and nothing but the numbers tells the test what is missing.
"""

from __future__ import annotations

import base64
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cluster import recorder
from cluster.programs import pod
from rankfall.backends.payload import build_zip
from rankfall.kube.object_fields import COMPLETION_INDEX
from rankfall.model import JobSpec, Record
from rankfall.rundir import RunDir
from rankfall.rundir.cluster.journal import JournalReader, journal_path
from rankfall.rundir.cluster.pod_facts import PodFact
from rankfall.rundir.streams.content import content_size, read_bytes
from support.helpers import wait_until
from testbed import accounts
from testbed.bed import Bed
from testbed.client import Kubectl, Object
from testbed.proxy import Proxy, before

APP = {"app": "numbers"}
SELECTOR = "app=numbers"
RULES: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
]
# Two ranks a pod, each says its numbers at so many lines a second; the last line comes 50 ms before the end, after a silence.
COUNT = """
import os, sys, time

slot, lines, rate, code = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
began = time.monotonic()
for number in range(lines):
    if number == lines - 1:
        time.sleep(1.0)
    for rank in (2 * slot, 2 * slot + 1):
        os.write(1, b"[rank %d] number %06d\\n" % (rank, number))
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
time.sleep(0.05)
sys.exit(code)
"""


def counting(
    slot: int, namespace: str, *, lines: int, rate: float = 200.0, code: int = 0, program: str = COUNT, **spec: Any
) -> Object:
    """A pod of two ranks that count."""
    words = ("python3", "-u", "-c", program, str(slot), str(lines), str(rate), str(code))
    return marked(slot, pod(f"numbers-{slot}", namespace, *words, **spec))


# The same, which goes on after these numbers until it is told to end; how many it said then is its container's last word.
COUNT_ON = """
import os, sys, time

slot, lines, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
began, number, over = time.monotonic(), 0, False
while not over:
    if number >= lines - 1 and os.path.exists("/tmp/over"):
        over = True
        time.sleep(1.0)
    for rank in (2 * slot, 2 * slot + 1):
        os.write(1, b"[rank %d] number %06d\\n" % (rank, number))
    number += 1
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
open("/dev/termination-log", "w").write(str(number))
time.sleep(0.05)
"""


# One rank of them, as the command of a wrapper: who it is it hears from that.
COUNT_ALONE = """
import os, sys, time

lines, rate = int(sys.argv[1]), float(sys.argv[2])
began = time.monotonic()
for number in range(lines):
    os.write(1, b"number %06d\\n" % number)
    time.sleep(max(0.0, began + number / rate - time.monotonic()))
"""


def wrapped(slot: int, namespace: str, run: str, *, slots: int, lines: int, rate: float, **spec: Any) -> list[Object]:
    """The same pod under Rankfall's own wrapper, as a run has it, and what that is mounted from."""
    words = ("wrap", "--console", "--launcher", "plain", "--nproc", "2", "--")
    program = ("python3", "-u", "-c", COUNT_ALONE, str(lines), str(rate))
    bundle = {"name": "bundle", "configMap": {"name": "bundle"}}
    made = counting(slot, namespace, lines=lines, volumes=[bundle, {"name": "slot", "emptyDir": {}}], **spec)
    values = {
        "RANKFALL_RUN": run,
        "RANKFALL_ATTEMPT": "1",
        "RANKFALL_ROLE": "worker",
        "RANKFALL_SLOT": str(slot),
        "RANKFALL_SLOT_DIR": "/rankfall-run",
        "RANKFALL_RECORD_DIR": "/rankfall-run/records",
        "RANKFALL_TOKEN": recorder.CHANNEL,
        "RANKFALL_PLAIN_NNODES": str(slots),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    made["spec"]["containers"][0] |= {
        "command": ["python3", "-I", "-S", "/rankfall/inside.pyz", *words, *program],
        "env": [{"name": name, "value": value} for name, value in values.items()],
        "volumeMounts": [{"name": "bundle", "mountPath": "/rankfall"}, {"name": "slot", "mountPath": "/rankfall-run"}],
    }
    zipped = {"inside.pyz": base64.b64encode(build_zip()).decode()}
    meta = {"name": "bundle", "namespace": namespace}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": zipped}, made]


def marked(slot: int, made: Object) -> Object:
    """The same pod as one of the recorded ones."""
    made["metadata"]["labels"] = APP | {COMPLETION_INDEX: str(slot)}
    return made


class Recording:
    """One run directory, and the process that records into it.

    Args:
        home: of the run.
        kubectl: of the administrator.
        proxy: that all requests of the recorder go through.
        namespace: of the pods.
        slots: how many.
    """

    def __init__(self, home: Path, *, kubectl: Kubectl, proxy: Proxy, namespace: str, slots: int) -> None:
        self.run = RunDir.create(JobSpec(name="numbers", command=("train.py",), nnodes=slots), home=home)
        self.kubectl, self.proxy, self.namespace = kubectl, proxy, namespace
        self.kubeconfig = home / "kubeconfig"
        self._logins = 0
        self._errors = home / "recorder.stderr"
        self._journal = JournalReader(journal_path(self.run.path, 1))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the recorder."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Record from now on."""
        words = (str(self.run.path), str(self.kubeconfig), self.namespace, SELECTOR)
        command = (sys.executable, recorder.__file__, *words)
        with self._errors.open("ab") as file:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file)

    def kill(self) -> None:
        """SIGKILL: it can say and finish nothing."""
        self._end(signal.SIGKILL)

    def stop(self) -> str:
        """End it in order; its troubles, in words."""
        self._end(None)
        return self._errors.read_text()

    def log_in(self) -> None:
        """Put another token into the recorder's kubeconfig, and end the one before: it was bound to a Secret that is deleted."""
        space, old = ("--namespace", self.namespace), f"login-{self._logins}"
        self._logins += 1
        new = f"login-{self._logins}"
        self.kubectl("create", "secret", "generic", new, *space)
        bound = ("--bound-object-kind", "Secret", "--bound-object-name", new)
        token = self.kubectl("create", "token", recorder.ACCOUNT, *space, *bound).strip()
        document = yaml.safe_load(self.kubeconfig.read_text())
        (user,) = document["users"]
        user["user"]["token"] = token
        fresh = self.kubeconfig.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(document))
        fresh.replace(self.kubeconfig)
        self.kubectl("delete", "secret", old, "--ignore-not-found", *space)

    def _end(self, how: signal.Signals | None) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if how is not None:
            process.send_signal(how)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(60)

    # -- what there is of it

    def text(self, slot: int, stream: str, *, instance: int = 0) -> bytes:
        """The bytes of one stream."""
        path = self.run.stream_dir(1, "worker", slot, instance) / f"{stream}.out.log"
        try:
            return read_bytes(path, 0, content_size(path))
        except FileNotFoundError:
            return b""

    def numbers(self, slot: int, rank: int, *, instance: int = 0) -> list[int]:
        """The numbers of a rank, as they are stored."""
        lines = self.text(slot, f"r{rank}", instance=instance).split(b"\n")
        assert lines.pop() == b""
        return [int(line.removeprefix(b"number ")) for line in lines]

    def fact(self, slot: int) -> PodFact | None:
        """What the journal has of the slot's pod."""
        self._journal.poll()
        return self._journal.by_slot().get(slot)

    def hears(self, slot: int, number: int, *, instance: int = 0, timeout: float = 90) -> None:
        """Wait until the first rank of a slot has said this number."""
        said = b"number %06d\n" % number
        wait_until(
            lambda: said in self.text(slot, f"r{2 * slot}", instance=instance),
            timeout=timeout,
            what=f"{said!r} of slot {slot}",
        )

    def closed(self, slot: int, *, timeout: float = 120) -> PodFact:
        """Wait until nothing more will come of a slot's log."""

        def over() -> PodFact | None:
            fact = self.fact(slot)
            return fact if fact is not None and fact.over and fact.log != "open" else None

        return wait_until(over, timeout=timeout, what=f"the end of slot {slot}'s log")

    def tell(self, slot: int) -> None:
        """Tell a pod that goes on until then to end."""
        name = f"numbers-{slot}"
        words = ("exec", "--namespace", self.namespace, name, "--", "touch", "/tmp/over")
        wait_until(lambda: not self.kubectl.run(*words).returncode, timeout=60, what=f"that {name} can be told to end")

    def gaps(self) -> list[Record]:
        """Its records of lines that could not be had."""
        return self.records("gap")

    def records(self, kind: str) -> list[Record]:
        """Its records of this kind."""
        found = sorted(self.run.records_dir.glob(f"{kind}-*.json"))
        return [msgspec.json.decode(path.read_bytes(), type=Record) for path in found]

    def whole(self, slot: int, *, lines: int, instance: int = 0) -> None:
        """Each rank's numbers are there once, in order, and nothing else is."""
        for rank in (2 * slot, 2 * slot + 1):
            found = self.numbers(slot, rank, instance=instance)
            lost, repeated = set(range(lines)) - set(found), len(found) - len(set(found))
            assert (len(lost), repeated, found == sorted(found)) == (0, 0, True), (slot, rank, sorted(lost)[:5])
        assert self.text(slot, "slot", instance=instance) == b""


@contextlib.contextmanager
def recording(
    bed: Bed, kubectl: Kubectl, proxy: Proxy, *, home: Path, namespace: str, slots: int
) -> Iterator[Recording]:
    """A recorder of this namespace's pods through the proxy, not yet started. Its login is a restricted account's."""
    home.mkdir()
    direct = accounts.create(bed.control, kubectl, recorder.ACCOUNT, namespace=namespace, rules=RULES)
    made = Recording(home, kubectl=kubectl, proxy=proxy, namespace=namespace, slots=slots)
    before.through(proxy.url, direct, made.kubeconfig)
    made.log_in()
    try:
        yield made
    finally:
        made.kill()


def resident(pid: int) -> int:
    """Memory of a process, KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])


def sockets(pid: int) -> int:
    """How many a process holds open."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(link.readlink()).startswith("socket:")
    return found


def threads(pid: int) -> int:
    """How many a process has."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def stamps(text: str) -> dict[str, str]:
    """The stamp of each line of a rank in what ``kubectl logs --timestamps`` gave."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {said: stamp for stamp, _, said in pairs}
