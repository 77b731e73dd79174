"""Objects in, objects out: what goes over the wire for each method, and what is made of the answers."""

from __future__ import annotations

import asyncio

from kube.apiserver import answer, serving
from rankfall.kube.access import Login
from rankfall.kube.client import Kube
from rankfall.kube.resources import PODS
from rankfall.kube.secret import Secret


def test_get_with_a_token_over_tls(tmp_path):
    async def story():
        async with serving(tmp_path) as server, Kube(server.access(Login(token=Secret("t0ken-value")))) as kube:
            server.plays(answer(200, {"kind": "Pod", "metadata": {"name": "p"}}))
            found = await kube.get(PODS, "p")
            assert found["metadata"]["name"] == "p"
            [seen] = server.seen
            assert (seen.method, seen.path) == ("GET", "/api/v1/namespaces/here/pods/p")
            assert server.tokens() == ["Bearer t0ken-value"]

    asyncio.run(story())


def test_a_client_certificate(tmp_path):
    async def story():
        async with serving(tmp_path) as server:
            mine = server.authority.issue("bob", user="bob")
            login = Login(cert_file=str(mine.cert), key_file=str(mine.key))
            async with Kube(server.access(login)) as kube:
                await kube.get(PODS, "p")
            assert server.seen[0].user == "bob"

    asyncio.run(story())
