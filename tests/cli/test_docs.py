from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from rankfall.cli.app import VERBS, load

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def commands() -> dict[str, click.Command]:
    """The verbs, and what is below those that are groups."""
    found: dict[str, click.Command] = {}
    for verb in VERBS:
        command = found[verb] = load(verb)
        if isinstance(command, click.Group):
            found |= {f"{verb} {name}": each for name, each in command.commands.items()}
    return found


def test_every_verb_has_its_section_and_a_real_example() -> None:
    for verb in VERBS:
        assert re.search(rf"^## {verb}\b", PAGE, re.MULTILINE), verb
        assert f"rankfall {verb}" in PAGE, verb


def test_the_page_names_no_flag_that_does_not_exist() -> None:
    real = {
        opt.replace("_", "-")
        for command in commands().values()
        for param in command.params
        for opt in (*param.opts, *param.secondary_opts)
    }
    foreign = {"--nproc_per_node", "--lr", "--bug"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+", PAGE)) - foreign
    assert named <= real


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
