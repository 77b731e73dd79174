"""Records through an object store and a shared directory: written by the wrapper's own code, read into the run, each once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import obstore
import pytest

from rankfall.collect.stores import record_store
from rankfall.collect.stores.record_store import RecordStore, open_bucket, require_reader
from rankfall.model import JobSpec, SpecError
from rankfall.model.jobspec.check import check_spec
from rankfall.rundir.records import RecordFolder
from rankfall_inside import records
from rankfall_inside.delivery import record_store as deliver
from support.object_store import KEYS, put_many, s3_server

PLACE = {"run": "train-000001", "attempt": 1, "role": "worker", "slot": 0}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write(folder: Path, count: int = 1, kind: str = "error", **fields: Any) -> list[str]:
    """Records as the wrapper writes them; their names."""
    folder.mkdir(exist_ok=True)
    before = names_in(folder)
    for number in range(count):
        made = records.new(kind, writer="wrapper", fields={**PLACE, "rank": number, **fields})
        assert records.write(made, str(folder), sync=False)
    return sorted(names_in(folder) - before)


def delivered(folder: Path, url: str, environ: dict[str, str], limit: float = 30.0) -> list[str]:
    one = deliver.Delivery({**environ, deliver.VARIABLE: url}, str(folder), PLACE)
    one.start()
    return one.settle(limit, last=True)


def fetched(url: str, into: Path, **fields: Any) -> RecordStore:
    store = RecordStore(url, **({"run": "train-000001", "attempt": 1} | fields), into=into)
    store.fetch()
    return store


def read(folder: Path) -> list[str]:
    return [item.name for item in RecordFolder(folder, run="train-000001", attempt=1).poll()]


def test_errors_s35_s37_records_come_through_an_object_store_once_page_by_page(tmp_path, monkeypatch):
    url = "s3://records/team/jobs"
    # A look waits no longer on a machine that has other things to do.
    monkeypatch.setattr(record_store, "LIMIT_S", 40.0)
    with s3_server() as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        names = write(tmp_path / "slot", 3)
        write(tmp_path / "slot", 1, slot=7)  # another slot's, which sends its own
        assert delivered(tmp_path / "slot", url, environ) == []
        bucket = open_bucket(url)
        first = bytes(obstore.get(bucket, f"train-000001/errors/{names[0]}").bytes())
        # A second writer of the same name changes nothing.
        (tmp_path / "slot" / names[0]).write_text("{}")
        assert delivered(tmp_path / "slot", url, environ) == []
        assert obstore.get(bucket, f"train-000001/errors/{names[0]}").bytes() == first
        # More than a page of the listing: 1,000 names.
        put_many("records", (f"team/jobs/train-000001/errors/a{n}" for n in range(1010)), b"{")
        obstore.put(bucket, "train-000001/errors/gap-a1-worker-0-x.json", b"{")
        body = json.dumps({"id": "x", "kind": "error", "run": "other-000001", "attempt": 1}).encode()
        obstore.put(bucket, "train-000001/errors/error-a1-worker-0-other.json", body)
        obstore.put(bucket, "train-000001/errors/error-a1-worker-0-huge.json", b" " * ((1 << 20) + 1))
        obstore.put(bucket, "train-000001/errors/evil;name.json", body)
        into = tmp_path / "into"
        into.mkdir()
        # One of the three came through another channel before.
        other = records.new("error", writer="wrapper", fields=PLACE) | {"id": json.loads(first)["id"]}
        (into / "error-by-log.json").write_text(json.dumps(other))
        store = fetched(url, into)
        assert sorted(names_in(into)) == sorted([*names, "error-by-log.json"]), store.problems
        assert len(read(into)) == 3
        assert any("huge" in text for text in store.problems)
        assert any("is damaged" in text for text in store.problems)
        assert (
            "1011 objects in s3://records/team/jobs without the name of a record were not read; the first is 'a0'"
            in store.problems
        )
        assert len(store.problems) == 3
        problems = delivered(tmp_path / "slot", "s3://no-such-bucket/x", environ)
        assert "it answered 404" in problems[0]
    store = fetched(url, tmp_path / "later")
    assert store.problems[0].startswith("the records in s3://records/team/jobs: ")


def test_a_shared_directory_is_such_a_store_too(tmp_path):
    url = f"file://{tmp_path}/shared"
    names = write(tmp_path / "slot", 2)
    assert delivered(tmp_path / "slot", url, {}) == []
    assert sorted(names_in(tmp_path / "shared" / "train-000001" / "errors")) == names
    write(tmp_path / "slot", 1)
    assert delivered(tmp_path / "slot", url, {}) == []
    (tmp_path / "shared" / "train-000001" / "errors" / "error-a1-w-0-big.json").write_bytes(b" " * ((1 << 20) + 1))
    store = fetched(url, tmp_path / "into")
    assert len(read(tmp_path / "into")) == 3
    assert len(store.problems) == 1
    store.fetch()  # too soon after the one before: nothing is asked
    assert fetched(url, tmp_path / "other", attempt=2).problems == store.problems
    assert read(tmp_path / "other") == []
    assert fetched(f"file://{tmp_path}/nothing", tmp_path / "into").problems == ()


def test_a_look_at_a_slow_store_has_a_limit(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/shared"
    write(tmp_path / "slot", 2)
    delivered(tmp_path / "slot", url, {})
    monkeypatch.setattr(record_store, "LIMIT_S", -1.0)
    assert "took more than" in fetched(url, tmp_path / "into").problems[0]


@pytest.mark.parametrize(
    ("url", "environ", "words"),
    [
        ("s3://records/x", {}, "AWS_ACCESS_KEY_ID"),
        ("gs://records/x", {}, "standard library"),
        ("s3://records/x", {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "refused"),
        ("file:///proc/1/nothing", {}, "proc"),
    ],
)
def test_errors_s35_what_cannot_be_copied_is_said_and_nothing_else_happens(tmp_path, url, environ, words):
    write(tmp_path / "slot")
    (problem,) = delivered(tmp_path / "slot", url, environ)
    assert words in problem
    assert "secret" not in problem


def test_without_a_store_nothing_is_done(tmp_path):
    one = deliver.Delivery({}, str(tmp_path), PLACE)
    one.start()
    assert one.settle(0) == []


def spec(**fields: Any) -> JobSpec:
    return check_spec(JobSpec(command=("t.py",), **fields))


@pytest.mark.parametrize("url", ["file:///shared/errors", "s3://my-bucket", "s3://my-bucket/a/b=c/"])
def test_errors_s11_stores_that_can_be_written_are_taken(url):
    assert spec(record_store=url).record_store == url
    require_reader(url)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"record_store": "gs://b/x"}, "AWS_ENDPOINT_URL"),
        ({"record_store": "https://host/b"}, "AWS_ENDPOINT_URL"),
        ({"record_store": "s3://user:secret@b/x"}, "is not a store"),
        ({"record_store": "file://relative"}, "is not a store"),
        ({"record_store": "file:///a/../b"}, "is not a store"),
        ({"record_store": "file:///a", "inside": "off"}, "inside: off"),
        ({"record_store": "file:///a", "backend": "job"}, "no volume"),
    ],
)
def test_stores_that_cannot_work_are_refused_by_field(fields, words):
    with pytest.raises(SpecError, match=r"\$\.record_store") as error:
        spec(**fields)
    assert words in f"{error.value} {error.value.hint}"


def test_an_object_store_without_its_library_is_refused_early(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SpecError, match="not installed"):
        require_reader("s3://bucket/x")
    require_reader(None)
    require_reader("file:///x")
