"""docs/api.md is what ``scripts/api.py`` makes of the docstrings, and each public name states arguments, errors and results."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rankfall
from rankfall.model import errors
from scripts import api

SECTIONS, ALIASES = api.sections()
THINGS = {name: thing for things in SECTIONS.values() for name, thing in things.items()}
FUNCTIONS = {name: thing for name, thing in THINGS.items() if inspect.isfunction(thing)} | {
    f"{name}.{method}": function
    for name, thing in THINGS.items()
    if inspect.isclass(thing)
    for method, function in api.functions(thing)
}
STRUCTS = {name: thing for name, thing in THINGS.items() if api.is_struct(thing)}


def test_i24_p9_the_published_page_is_that_of_the_docstrings() -> None:
    assert api.PAGE.read_text("utf-8") == api.page(), "make api"


def test_i24_p9_the_page_has_every_public_name_what_it_returns_and_all_errors() -> None:
    tree = {name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, rankfall.RankfallError)}
    returned = {"SyncRun", "Outcome", "StatusDocument", "SlotStatus", "RankStatus", "RunSummary", "Resized", "Line", "Copied", "Case", "Diagnosis"}
    headings = set(re.findall(r"^### (\w+)$", api.page(), re.MULTILINE))
    assert headings >= (set(rankfall.__all__) - {"__version__"}) | tree | returned
    assert headings == set(THINGS)
    assert {"RunState", "Confidence", "Action"} <= set(ALIASES)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_i24_p9_every_method_states_arguments_results_and_errors(name: str) -> None:
    function = FUNCTIONS[name]
    text = api.text_of(function)
    assert text.body
    if re.match(r"Calls :meth:`(\w+\.\w+)`", text.body):
        # A method without an event loop: the one that it calls states them.
        called = re.findall(r"`(\w+\.\w+)`", text.body)[0]
        assert called in FUNCTIONS
        theirs = inspect.signature(FUNCTIONS[called]).parameters
        assert set(inspect.signature(function).parameters) <= {*theirs, "filters"}
        return
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    assert list(text.items.get("Args", {})) == parameters
    if function.__annotations__["return"] != "None":
        assert text.prose or text.body.startswith("Returns "), "says no result"
    assert "Raises" in text.items or name == "Case.clock_of"


@pytest.mark.parametrize("name", STRUCTS)
def test_i24_p9_every_field_has_a_meaning(name: str) -> None:
    own = api.text_of(STRUCTS[name]).items.get("Attributes", {})
    fields = [field.name for field in msgspec.structs.fields(STRUCTS[name])]
    assert set(fields) <= {*own, *api.COMMON}
    assert set(own) <= {*fields, *(each for each, _ in api.properties(STRUCTS[name]))}, "states a field that is gone"


def test_i24_p9_links_of_the_page_lead_somewhere() -> None:
    page = api.page()
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)}
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page):
        if target and "://" not in target:
            assert (api.PAGE.parent / target).exists(), target
        elif anchor:
            assert anchor in anchors, anchor


def test_i24_p9_text_of_docstrings_cannot_break_the_page(tmp_path: Path) -> None:
    """Markup, a pipe, and a role of an unknown name, in one row."""

    class Odd(msgspec.Struct):
        """A thing <b>with* markup.

        Attributes:
            first, second: One of ``a|b`` or <c>, see :class:`Nowhere` and :meth:`Run.wait`;
                more of it.
        """

        first: str = "|"
        second: int = 0

    text = api.text_of(Odd)
    assert text.items["Attributes"]["first"] == text.items["Attributes"]["second"]
    links: dict[str, Any] = {"Run.wait": "Run.wait"}
    assert api._prose(text.body, links) == "A thing &lt;b>with\\* markup."
    for line in api._fields(Odd, text, links).splitlines():
        assert len(re.split(r"(?<!\\)\|", line)) == 6
    assert "&lt;c>, see `Nowhere` and [`Run.wait`](#runwait); more of it." in api._fields(Odd, text, links)
