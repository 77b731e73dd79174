"""Names and addresses of beds: from the number alone, inside their bounds, and shared by no two."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import TestbedError
from testbed.layout import MAX_BEDS, MAX_NODES, Layout, cache_folder

beds = st.integers(0, MAX_BEDS - 1)
nodes = st.integers(1, MAX_NODES)


@given(beds, nodes)
def test_every_address_lies_in_the_beds_own_network(number, index):
    layout = Layout(number)
    parts = [layout.nodes_network, layout.services, layout.pods(index)]
    assert all(part.subnet_of(layout.network) for part in parts)
    assert not any(a.overlaps(b) for a in parts for b in parts if a is not b)
    for address in (layout.host_address, layout.control_address, layout.node_address(index)):
        assert address in layout.nodes_network
    assert layout.api_address in layout.services


@given(beds, nodes, nodes)
def test_no_two_nodes_share_an_address_or_a_name(number, one, other):
    layout = Layout(number)
    same = one == other
    assert (layout.node_address(one) == layout.node_address(other)) is same
    assert layout.pods(one).overlaps(layout.pods(other)) is same
    assert (layout.node_namespace(one) == layout.node_namespace(other)) is same


@given(beds, beds)
def test_no_two_beds_share_anything(one, other):
    a, b = Layout(one), Layout(other)
    same = one == other
    assert a.network.overlaps(b.network) is same
    assert (a.folder == b.folder) is same
    assert (a.mark == b.mark) is same
    # A bed's names are looked for by prefix: rf1- must not be found in rf11-.
    assert f"{a.name}-n1".startswith(f"{b.name}-") is same


@given(beds, nodes)
def test_names_of_links_fit_into_the_kernels_fifteen_characters(number, index):
    layout = Layout(number)
    assert len(f"{layout.name}-{layout.node_name(index)}v") <= 15
    assert len(f"{layout.name}-cpv") <= 15


@pytest.mark.parametrize("number", [-1, MAX_BEDS])
def test_a_number_out_of_range_is_refused(number):
    with pytest.raises(TestbedError, match="0 to 63"):
        Layout(number)


@pytest.mark.parametrize("index", [0, MAX_NODES + 1])
def test_a_node_out_of_range_is_refused(index):
    with pytest.raises(TestbedError, match="1 to 16"):
        Layout(0).node_address(index)


@pytest.mark.parametrize("folder", ["/tmp/x", "/run/x", "/var/x"])
def test_a_cache_that_the_nodes_cannot_see_is_refused(monkeypatch, folder):
    monkeypatch.setenv("TESTBED_CACHE", folder)
    with pytest.raises(TestbedError, match="TESTBED_CACHE"):
        cache_folder()


def test_the_cache_follows_the_users_cache_folder(monkeypatch):
    monkeypatch.delenv("TESTBED_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/somebody/.cache")
    assert str(cache_folder()) == "/home/somebody/.cache/rankfall/testbed"
