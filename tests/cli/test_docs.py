"""Pages by hand show every verb in an example, and no page names a flag that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rankfall.cli.app import VERBS, load
from rankfall.cli.app import command as root

ROOT = Path(__file__).parents[2]
# Pages with examples for readers; the reference is generated.
EXAMPLES = ("local.md", "logs.md", "verdicts.md", "node-health.md", "agent.md", "controller.md")
PAGES = {path.name: path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
# Flags of other programs: the examples' scripts, kubectl, docker, pip, torchrun, py-spy, dmesg, the wrapper, the test bed.
FOREIGN = {
    "README.md": {"--lr", "--spec"},
    "architecture.md": {"--console", "--exit-code", "--grace", "--stream-dir", "--wait-for"},
    "cli.md": {"--lr"},
    "controller.md": {"--from-literal", "--type"},
    "kubernetes.md": {"--lr", "--node-rank", "--tee"},
    "local.md": {"--bug", "--lr", "--master-port", "--ntasks"},
    "node-health.md": {"--build-arg", "--from-literal", "--push", "--quick", "--server-side"},
    "security.md": {"--build-arg", "--require-hashes", "--token"},
    "slurm.md": {"--gpus-per-node", "--lr", "--no-kill", "--nodes", "--ntasks-per-node"},
    "testbed.md": {"--address", "--bed", "--dist", "--mount", "--net", "--nodes", "--pid", "--target"},
    "verdicts.md": {"--kill-on-bad-exit", "--label"},
}
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z_-]+")


def commands() -> dict[str, click.Command]:
    """The verbs, and what is below those that are groups."""
    found: dict[str, click.Command] = {}
    for verb in VERBS:
        one = found[verb] = load(verb)
        if isinstance(one, click.Group):
            found |= {f"{verb} {name}": each for name, each in one.commands.items()}
    return found


def flags(*given: click.Command) -> set[str]:
    return {
        opt.replace("_", "-")
        for one in given
        for param in one.params
        if isinstance(param, click.Option)
        for opt in (*param.opts, *param.secondary_opts)
    }


def typed(page: str) -> list[str]:
    """Commands of Rankfall on a page: lines of its blocks and code in its prose, without the word itself."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"^[$] (?:\w+=[$][(])?", "", line) for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose)
    return [re.split(r"[|>&#]| -- ", line[9:])[0] for line in lines if line.startswith("rankfall ")]


def test_every_verb_has_a_real_example() -> None:
    shown = {line.split()[0] for name in EXAMPLES for line in typed(PAGES[name]) if line.split()}
    assert set(VERBS) <= shown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_no_flag_that_does_not_exist(name: str) -> None:
    real = flags(root(), *commands().values())
    named = set(FLAG.findall(PAGES[name])) - {"--help"}
    foreign = FOREIGN.get(name, set())
    assert foreign <= named - real
    assert {flag.replace("_", "-") for flag in named - foreign} <= real


@pytest.mark.parametrize("name", PAGES)
def test_an_example_gives_a_command_only_its_own_flags(name: str) -> None:
    known = commands()
    for line in typed(PAGES[name]):
        words = line.split()
        one = known.get(" ".join(words[:2])) or known.get(words[0] if words else "")
        if one is not None:
            given = set(FLAG.findall(line)) - FOREIGN.get(name, set())
            assert {flag.replace("_", "-") for flag in given} <= flags(one) | {"--help"}, line


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_does(verb: str) -> None:
    for name, command in commands().items():
        if name.partition(" ")[0] != verb:
            continue
        assert command.help
        for param in command.params:
            if isinstance(param, click.Option):
                assert param.help, param.name


def test_the_one_line_of_help_agrees_with_the_verb() -> None:
    for verb, (_, line) in VERBS.items():
        assert (load(verb).help or "").split()[0] == line.split()[0], verb
