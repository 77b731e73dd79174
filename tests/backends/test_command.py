"""What the command is, and what is refused before anything exists."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rankfall.backends.command import Interpreter, check_hook, find_interpreter, read_command
from rankfall.backends.local.planning import choose_launcher
from rankfall.model import JobSpec, Refused, SpecError

TORCH = Interpreter(path="/opt/python", version=(3, 12, 1), torch="2.9")
PLAIN = Interpreter(path="/opt/python", version=(3, 12, 1))


def spec(*command: str, **fields: Any) -> JobSpec:
    return JobSpec(command=command, **fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "notes.txt").write_text("no program\n")
    (tmp_path / "folder").mkdir()
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    orphan = tmp_path / "orphan"
    orphan.write_text("#!/nowhere/python3\n")
    orphan.chmod(0o755)
    starts = {
        "windows": b"#!/bin/sh\r\necho\r\n",
        "envwindows": b"#! /usr/bin/env sh\r\n",
        "bare": b"exit 5\n",
        "void": b"",
    }
    for name, start in starts.items():
        (tmp_path / name).write_bytes(start)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (spec("train.py", "--lr", "1"), "script"),
        (spec("pkg.train", module=True), "module"),
        (spec("./tool"), "program"),
        (spec("sh", "-c", "true"), "program"),
        (spec(sys.executable, "-m", "torch.distributed.run", "train.py"), "torchrun"),
        (spec("notes.txt", launcher="torchrun"), "script"),
    ],
)
def test_kinds(folder: Path, job: JobSpec, kind: str) -> None:
    assert read_command(job, cwd=folder).kind == kind


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (spec("absent.py"), "script 'absent.py' does not exist"),
        (spec("notes.txt"), "'notes.txt' is not executable"),
        (spec("./notes.txt"), "'./notes.txt' is not executable"),
        (spec("./absent"), "'./absent' was not found in"),
        (spec("folder"), "'folder' is a folder, no program"),
        (spec("no-such-program-anywhere"), "was not found on PATH"),
        (spec("./orphan"), "its interpreter /nowhere/python3 does not exist"),
        (spec("./windows"), r"its lines end as on Windows"),
        (spec("./envwindows"), r"its interpreter would be 'sh\r'"),
        (spec("./bare"), "a text without a first line #!"),
        (spec("./void"), "a text without a first line #!"),
    ],
)
def test_what_cannot_start_is_refused_with_the_next_step(folder: Path, job: JobSpec, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_command(job, cwd=folder)
    assert words in caught.value.message
    assert caught.value.path == "$.command"
    assert caught.value.hint


@pytest.mark.parametrize(
    "start",
    [b"#!/bin/sh -e\r\n", b"#! /bin/sh\necho \r\n", b"\x7fELF\x02\x01\x01\x00", b"#!\t/usr/bin/env sh\n"],
)
def test_a_program_with_an_interpreter_or_of_a_format_of_its_own_is_not_refused(folder: Path, start: bytes) -> None:
    (folder / "made").write_bytes(start)
    (folder / "made").chmod(0o755)
    assert read_command(spec("./made"), cwd=folder).kind == "program"


def test_a_folder_is_no_script(folder: Path) -> None:
    (folder / "dir.py").mkdir()
    with pytest.raises(SpecError, match="is a folder"):
        read_command(spec("dir.py"), cwd=folder)


def test_the_jobs_own_path_is_searched(folder: Path) -> None:
    assert read_command(spec("tool", env={"PATH": "."}), cwd=folder).kind == "program"


@pytest.mark.parametrize("flags", [("-I",), ("-u", "-E"), ("-uS",)])
def test_inside_require_is_refused_where_the_hook_cannot_load(folder: Path, flags: tuple[str, ...]) -> None:
    job = spec(sys.executable, *flags, "train.py", inside="require")
    with pytest.raises(Refused, match="inside: require"):
        check_hook(job, read_command(job, cwd=folder), TORCH)


def test_inside_require_is_refused_for_an_old_python(folder: Path) -> None:
    job = spec("train.py", inside="require")
    old = Interpreter(path="/opt/python", version=(3, 7, 9))
    with pytest.raises(Refused, match=r"Python 3\.7\.9"):
        check_hook(job, read_command(job, cwd=folder), old)
    check_hook(job, read_command(job, cwd=folder), TORCH)
    plain = spec(sys.executable, "-u", "train.py", "-I", inside="require")
    check_hook(plain, read_command(plain, cwd=folder), TORCH)


@pytest.mark.parametrize(
    ("job", "python", "launcher", "words"),
    [
        (spec("train.py"), TORCH, "torchrun", "torchrun (torch 2.9 in /opt/python)"),
        (spec("train.py"), PLAIN, "plain", "no torch in /opt/python"),
        (spec("train.py", launcher="plain"), TORCH, "plain", "requested"),
        (spec("./tool"), TORCH, "plain", "once for each rank"),
        (spec("./tool", launcher="exec"), TORCH, "exec", "requested"),
        (spec("train.py", nnodes=1, nnodes_max=2), TORCH, "torchrun", "torch 2.9"),
        (spec(sys.executable, "-m", "torch.distributed.run", "train.py"), PLAIN, "torchrun", "the given"),
    ],
)
def test_the_launcher_and_why(folder: Path, job: JobSpec, python: Interpreter, launcher: str, words: str) -> None:
    chosen, note = choose_launcher(job, read_command(job, cwd=folder), python)
    assert chosen == launcher
    assert note.startswith("launcher: ")
    assert words in note


@pytest.mark.parametrize(
    "job",
    [spec("train.py", launcher="torchrun"), spec("train.py", nnodes=1, nnodes_max=2), spec("./tool", nnodes_max=3)],
)
def test_torchrun_without_torch_is_refused(folder: Path, job: JobSpec) -> None:
    with pytest.raises(SpecError, match="has no torch"):
        choose_launcher(job, read_command(job, cwd=folder), PLAIN)


def test_torchrun_once_for_each_rank_is_refused(folder: Path) -> None:
    job = spec(sys.executable, "-m", "torch.distributed.run", "train.py", launcher="plain")
    with pytest.raises(SpecError, match="once for each rank"):
        choose_launcher(job, read_command(job, cwd=folder), TORCH)


def test_the_own_python_is_asked_without_a_process_or_an_import() -> None:
    before = "torch" in sys.modules
    found = find_interpreter(spec("train.py"), cwd=Path.cwd())
    assert found.path == sys.executable
    assert found.version == sys.version_info[:3]
    assert ("torch" in sys.modules) == before


def test_another_python_is_asked_once(tmp_path: Path) -> None:
    python = tmp_path / "python-of-the-job"
    asked = tmp_path / "asked"
    python.write_text(f'#!/bin/sh\necho x >> {asked}\necho noise\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = spec("train.py", python=str(python))
    found = [find_interpreter(job, cwd=tmp_path) for _ in range(3)]
    assert found[0].version == sys.version_info[:3]
    assert found[0].path == str(python)
    assert asked.read_text() == "x\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent", None, "does not exist or is not executable"),
        ("dumb", "#!/bin/sh\nexit 0\n", "dumb does not answer as a Python: it printed nothing and exited with 0"),
        ("false", "#!/bin/sh\necho; exit 3\n", "a Python: it printed nothing and exited with 3"),
        ("echo", "#!/bin/sh\necho hello\n", "a Python: it printed other text and exited with 0"),
        ("loud", "#!/bin/sh\necho hello\necho no such thing >&2\n", "a Python: no such thing\n"),
        ("broken", "#!/nowhere/at/all\n", "does not start"),
    ],
)
def test_a_python_that_is_none_is_refused(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
        path.chmod(0o755)
    with pytest.raises(SpecError, match=words) as caught:
        find_interpreter(spec("train.py", python=str(path)), cwd=tmp_path)
    assert caught.value.path == "$.python"


def test_a_python_is_found_on_path_and_relative_to_the_job(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mypython").symlink_to(sys.executable)
    job = spec("train.py", python="mypython", env={"PATH": f"bin{os.pathsep}/usr/bin"})
    assert find_interpreter(job, cwd=tmp_path).path == str(tmp_path / "bin" / "mypython")
    assert find_interpreter(spec("t.py", python="bin/mypython"), cwd=tmp_path).version == sys.version_info[:3]
