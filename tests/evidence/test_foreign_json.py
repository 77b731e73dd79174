"""Readers of JSON that others wrote: damaged in every way, it is an answer of each reader, and never an exception that nobody expects."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from rankfall.collect.pods.instance_folders import RecordIntake
from rankfall.collect.pods.rank_discovery import END, read_ranks
from rankfall.collect.stores.log_bucket import decode_end
from rankfall.evidence.attempt.activity import read_steps
from rankfall.evidence.readers.torchrun import error_file_evidence
from rankfall.kube.auth.access import ExecPlugin
from rankfall.kube.auth.exec_plugin import InvalidExecCredential, parse_exec_credential
from rankfall.kube.exec.protocol import BadFrame, read_status
from rankfall.kube.http.responses import Refusal, refused
from rankfall.loki.client import page
from rankfall.model import RankfallError
from rankfall.model.node_health.kernel_reports import decode_line
from rankfall.nodes.agent.state_file import FILE, StateFile
from rankfall.rundir.cluster import clock_bounds, marks
from rankfall.rundir.layout import RunPaths
from rankfall.rundir.lease import holder
from rankfall.rundir.records import RecordFolder, read_end
from rankfall.supervisor.run_events import EVENTS_NAME, read_events
from rankfall.verdict.signatures.catalogue import default_catalogue

DAMAGED = {
    "deep": b'{"x":' + b"[" * 4_000,
    "deep and whole": b'{"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "deep where it counts": b'{"status":"success","type":"ADDED","kind":' + b"[" * 5_000,
    "digits": b'{"pid":' + b"9" * 5_000 + b"}",
    "only digits": b"9" * 5_000,
    "no UTF-8": b'{"kind":"\xff"}',
    "half a surrogate": b'{"kind":"\\ud800"}',
    "not a number": b'{"at":NaN}',
    "too large": b'{"at":1e999}',
    "nothing": b"",
    "another shape": b"[[],{},null]",
    "zeros": b"\x00" * 64,
    "time of an error": b'{"message":{"message":"a: b","extraInfo":{"py_callstack":"","timestamp":"'
    + b"9" * 5_000
    + b'"}}}',
}
"""What is wrong, and the text."""


def of_file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def records(data: bytes, folder: Path) -> object:
    of_file(folder / "error-a1-trainer-0-x.json", data)
    reader = RecordFolder(folder, run="r", attempt=1)
    assert len(reader.poll()) <= 1
    assert all(len(problem) < 600 for problem in reader.problems)
    return reader.poll()


def channel(data: bytes, folder: Path) -> object:
    intake = RecordIntake(
        folder, token="t" * 16, run="r", attempt=1, role="w", slot=0, uid="u", on_progress=lambda record: None
    )
    return intake.take(b"\x1erankfall/1 " + b"t" * 16 + b" " + base64.urlsafe_b64encode(data), None)


def message(data: bytes, folder: Path) -> object:
    intake = RecordIntake(
        folder, token="t" * 16, run="r", attempt=1, role="w", slot=0, uid="u", on_progress=lambda record: None
    )
    return intake.take_message(data.decode("utf-8", "replace"))


def plugin(data: bytes, folder: Path) -> object:
    known = ExecPlugin(command="aws", version="client.authentication.k8s.io/v1", interactive="Never")
    return parse_exec_credential(data, known, secrets=())


READERS: dict[str, tuple[Callable[[bytes, Path], object], tuple[type[Exception], ...]]] = {
    "records": (records, ()),
    "log channel": (channel, ()),
    "termination message": (message, ()),
    "end of a slot": (lambda data, at: read_end(of_file(at / "end.json", data).parent), (ValueError,)),
    "progress": (lambda data, at: read_steps(of_file(at / "progress" / "0.json", data).parents[1]), ()),
    "error file of torch": (
        lambda data, at: error_file_evidence(data, name="e", stream="s", catalogue=default_catalogue()),
        (),
    ),
    "ranks of a pod": (lambda data, at: marks.read_rank_map(of_file(at / marks.NAME, data).parent), ()),
    "answer of a pod": (lambda data, at: read_ranks(f"{data.decode('utf-8', 'replace')}\n{END}"), ()),
    "clocks": (lambda data, at: clock_bounds.read_clocks(of_file(clock_bounds.clock_path(at, 1), data) and at, 1), ()),
    "proofs of clocks": (
        lambda data, at: clock_bounds.ProofView(
            of_file(clock_bounds.proofs_path(at, 1), data) and at, attempt=1
        ).poll(),
        (),
    ),
    "stop": (lambda data, at: marks.read_stop(of_file(marks.stop_path(at, 1), data) and at, 1), ()),
    "owner of a log": (lambda data, at: marks.identity_of(of_file(at / marks.OWNER_NAME, data).parent), ()),
    "end of a stored log": (lambda data, at: decode_end(data), ()),
    "spec of a run": (lambda data, at: RunPaths(of_file(at / "spec.json", data).parent).spec, (RankfallError,)),
    "followed object": (lambda data, at: RunPaths(of_file(at / "foreign.json", data).parent).foreign, (RankfallError,)),
    "meta of a run": (lambda data, at: RunPaths(of_file(at / "meta.json", data).parent).created, ()),
    "lease of a run": (lambda data, at: holder(of_file(at / "lease", data)), ()),
    "events of a run": (lambda data, at: read_events(of_file(at / EVENTS_NAME, data + b"\n").parent), ()),
    "Loki": (lambda data, at: page(data, keys=("pod",), start=0, end=9), (RankfallError,)),
    "API server": (lambda data, at: str(refused(Refusal(400, {}, data), what="get it")), ()),
    "plug-in of credentials": (plugin, (InvalidExecCredential,)),
    "status of exec": (lambda data, at: read_status(data), (BadFrame,)),
    "agent of a node": (lambda data, at: decode_line(data.decode("utf-8", "replace")), ()),
    "state of an agent": (
        lambda data, at: StateFile(of_file(at / FILE, data).parent, say=lambda text: None).load(),
        (),
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("damage", DAMAGED)
def test_i18_p2_damage_is_an_answer_of_each_reader(reader: str, damage: str, tmp_path: Path) -> None:
    read, expected = READERS[reader]
    try:
        assert len(repr(read(DAMAGED[damage], tmp_path))) < 4_000
    except expected as refused_by:
        said = str(refused_by)
    else:
        return
    assert len(said) < 1_000
