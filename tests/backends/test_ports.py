"""A kept port: nobody gets it by chance, its owner gets it, and after the owner nobody."""

from __future__ import annotations

import socket
from datetime import timedelta

import pytest

from rankfall.backends.local.processes import Reservation
from support.patience import scaled


def server(port: int, *, reuse: bool, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    try:
        made.bind(("::" if family is socket.AF_INET6 else "127.0.0.1", port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_the_owner_listens_while_the_port_is_kept_and_a_second_one_is_refused() -> None:
    with Reservation() as kept, server(kept.port, reuse=True) as owner:
        with socket.create_connection(("127.0.0.1", kept.port), timeout=scaled(5)):
            owner.accept()[0].close()
        with pytest.raises(OSError, match="in use"):
            server(kept.port, reuse=True)


def test_who_does_not_ask_to_share_is_refused() -> None:
    with Reservation() as kept, pytest.raises(OSError, match="in use"):
        server(kept.port, reuse=False)


def test_nobody_who_asks_for_any_port_gets_a_kept_one() -> None:
    reservations = [Reservation() for _ in range(50)]
    kept = {one.port for one in reservations}
    others = []
    try:
        assert len(kept) == 50
        for _ in range(400):
            other = socket.socket()
            others.append(other)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] not in kept
    finally:
        for one in [*others, *reservations]:
            one.close()


def test_a_port_is_kept_again_by_number_and_free_after_close() -> None:
    with Reservation() as first:
        port = first.port
    with Reservation(port) as again:
        assert again.port == port
    server(port, reuse=False).close()


def test_a_port_with_a_listener_cannot_be_kept() -> None:
    with server(0, reuse=True) as owner, pytest.raises(OSError, match="in use"):
        Reservation(owner.getsockname()[1])


@pytest.mark.torch
def test_the_store_of_torch_listens_on_a_kept_port() -> None:
    from torch.distributed import TCPStore  # noqa: PLC0415 - loading torch takes seconds

    with Reservation() as kept:
        store = TCPStore(
            "127.0.0.1", kept.port, 1, is_master=True, timeout=timedelta(seconds=10), wait_for_workers=False
        )
        store.set("key", "value")
        assert store.get("key") == b"value"
        assert store.port == kept.port
