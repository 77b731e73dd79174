"""``docs/cli.md`` is what ``rankfall config commands`` prints, on every machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rankfall.cli.app import SETTINGS, VERBS, command, load
from rankfall.cli.commands import config as config_module
from rankfall.cli.commands.config import commands_page

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def every(name: str, one: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yields a command and all below it."""
    yield name, one
    if isinstance(one, click.Group):
        for key, below in one.commands.items():
            yield from every(f"{name} {key}", below)


COMMANDS = dict(found for verb in VERBS for found in every(verb, load(verb)))


def section(name: str) -> str:
    return commands_page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_the_published_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text("utf-8") == commands_page()


@pytest.mark.parametrize(("columns", "color"), [("20", False), ("300", True)])
def test_the_command_prints_the_page_for_every_terminal_and_home(
    *, columns: str, color: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "RANKFALL_HOME", "NODE_NAME", "RANKFALL_HEALTH_CONFIG", "RANKFALL_AGENT_STATE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("COLUMNS", columns)
    assert CliRunner().invoke(command(), ["config", "commands"], color=color).output == PAGE.read_text("utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_section_with_all_that_it_takes(name: str) -> None:
    text = section(name)
    assert f"\nrankfall {name}" in text
    for param in COMMANDS[name].params:
        if getattr(param, "hidden", False):
            continue
        row = rf"^\| .*`{re.escape(param.opts[-1])}`" if isinstance(param, click.Option) else "^Arguments: "
        assert re.search(row, text, re.MULTILINE), param.name


def test_the_page_has_no_other_commands() -> None:
    assert sorted(re.findall(r"^## (.*)$", commands_page(), re.MULTILINE)) == sorted(COMMANDS)


def test_rows_state_default_range_need_and_repetition() -> None:
    assert "| `--tail` `N` | Begin with the last N lines. Default: `20`. At least 0. |" in section("attach")
    assert "Default: `5.0`. From 0.2 to 300. |" in section("controller")
    assert "| `--publish`, `--no-publish` | Write the findings to the Node. Default: `--publish`. |" in section("agent")
    assert re.search(r"^\| `--reason` .* Required\. \|$", section("nodes taint"), re.MULTILINE)
    assert re.search(r"^\| `--retryable` .* Repeatable\. \|$", section("run"), re.MULTILINE)
    assert section("nodes reset").count("epeatable") == 2
    assert "| `-o`, `--output` `table\\|json\\|yaml` |" in section("ps")


def test_hidden_commands_and_options_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    group = click.Group("ps", help="Groups.")
    group.add_command(click.Command("seen", help="Seen.", params=[click.Option(["--secret"], hidden=True, help="x")]))
    group.add_command(click.Command("unseen", hidden=True, help="Unseen."))
    monkeypatch.setattr(config_module, "load", lambda verb: group if verb == "ps" else load(verb))
    page = commands_page()
    assert "\n## ps seen\n" in page
    assert "unseen" not in page
    assert "--secret" not in page


SHELL = re.compile(r"(?ms)^```(?:sh|console)\n(.*?)^```$")
DOCUMENTS = (*sorted(PAGE.parent.glob("*.md")), PAGE.parents[1] / "README.md", PAGE.parents[1] / "CONTRIBUTING.md")


def typed() -> Iterator[tuple[str, list[str]]]:
    """Yields the words of each command of the product in shell blocks of the documents."""
    for document in DOCUMENTS:
        for block in SHELL.finditer(document.read_text("utf-8")):
            for line in block[1].replace("\\\n", " ").splitlines():
                for part in re.split(r"\s(?:&&|\|)\s|;\s", line.strip().removeprefix("$ ")):
                    text = re.sub(r"^\w+=\$\(", "", part).strip().removesuffix(")")
                    if text.startswith("rankfall "):
                        yield f"{document.name}: {text}", shlex.split(text.partition(" > ")[0], comments=True)[1:]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in typed()])
def test_i31_every_command_of_the_documents_is_understood(words: list[str]) -> None:
    """Options and arguments only; tests of the README and of the quick start run theirs."""
    found, args = load(words[0]), words[1:]
    while isinstance(found, click.Group):
        found, args = found.commands[args[0]], args[1:]
    context = found.make_context(words[0], args, parent=click.Context(command(), **SETTINGS))
    assert context.command is found


def test_i31_the_documents_have_commands() -> None:
    assert len(list(typed())) >= 40
