"""Certificates to show: a new one of the same authority, one that has run out, one of an authority that nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from testbed.pki import Authority, Pair

_RUN_OUT = timedelta(hours=-1)


class Certificates:
    """Makes them.

    Args:
        authority: that the clients trust.
        folder: for the foreign authority.
        hosts: names and addresses by which clients reach the proxy.
    """

    def __init__(self, authority: Authority, folder: Path, hosts: Sequence[str]) -> None:
        self._authority, self._folder, self._hosts = authority, folder, tuple(hosts)
        # Several proxies of one bed may start at once: none may write over the other's key.
        self._own = f"fault-proxy-{uuid4().hex[:12]}"
        self._count = 0

    def good(self) -> Pair:
        """New key, same authority; another one at each call, so that it can be rotated to."""
        self._count += 1
        return self._authority.issue(f"{self._own}-{self._count}", user="fault-proxy", hosts=self._hosts)

    def expired(self) -> Pair:
        """Ran out an hour ago."""
        return self._authority.issue(f"{self._own}-expired", user="fault-proxy", hosts=self._hosts, valid=_RUN_OUT)

    def foreign(self) -> Pair:
        """Of an authority of its own."""
        other = Authority(self._folder, f"{self._own}-foreign")
        return other.issue(f"{self._own}-of-foreign", user="fault-proxy", hosts=self._hosts)
