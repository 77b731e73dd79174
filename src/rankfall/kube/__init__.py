"""Thin client of the Kubernetes API on aiohttp: credentials, REST calls, watches, exec and pod logs.

It knows the protocol and no job. An answer that it cannot read, a credential that it cannot use and a server
that it cannot reach are three different errors, and none of them means "not found". Faces: ``client.Kube``
and ``errors``. May import: ``rankfall.model``, ``rankfall_inside.redact``, the standard library, aiohttp.
This file imports nothing, because the agent uses ``kube.auth`` without aiohttp (20 MiB on every node).
"""
