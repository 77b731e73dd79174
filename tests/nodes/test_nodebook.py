"""What is known of Nodes while the watch and the answers to our own writes come in any order."""

from __future__ import annotations

from typing import Any

import pytest

from rankfall.kube.watch.watcher import Event
from rankfall.nodes.controller.node_cache import NodeCache
from rankfall.nodes.rules.policy import Policy

POLICY = Policy()


def node(version: int | str, *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "resourceVersion": str(version)},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def book(version: int | str = 1) -> NodeCache:
    found = NodeCache()
    found.take(Event(type="added", object=node(version)), policy=POLICY)
    return found


def seen(found: NodeCache, version: int | str, *, ready: bool = True) -> bool:
    """Whether the watch brought something that decisions rest on."""
    return found.take(Event(type="modified", object=node(version, ready=ready)), policy=POLICY).relevant


def test_what_was_before_our_own_write_changes_nothing_and_what_comes_after_it_counts():
    found = book(1)
    found.written(node(5), policy=POLICY)
    assert not seen(found, 3, ready=False)
    assert found.nodes["n1"].view.version == "5"
    assert not seen(found, 5)
    assert seen(found, 6, ready=False)


@pytest.mark.parametrize("versions", [(5,), (5, 6), (5, 6, 7)])
def test_a_watch_that_is_faster_than_the_answer_leaves_no_node_unseen(versions):
    found = book(1)
    for version in versions:
        seen(found, version)
    found.written(node(5), policy=POLICY)
    assert found.nodes["n1"].view.version == str(versions[-1])
    assert seen(found, 8, ready=False)


def test_a_watch_that_began_anew_and_never_shows_our_version_leaves_no_node_unseen():
    found = book(1)
    found.written(node(5), policy=POLICY)
    assert seen(found, 9, ready=False)
    assert found.nodes["n1"].view.version == "9"


def test_versions_that_are_no_numbers_make_nothing_wait():
    found = book("a")
    found.written(node("c"), policy=POLICY)
    assert seen(found, "d", ready=False)
    assert found.nodes["n1"].view.version == "d"


def test_a_node_that_is_not_known_is_not_made_by_an_answer():
    found = NodeCache()
    found.written(node(5), policy=POLICY)
    assert found.nodes == {}
