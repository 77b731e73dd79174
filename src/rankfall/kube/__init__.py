"""Thin client of the Kubernetes API on aiohttp.

The client knows no jobs. Unreadable answers never mean "not found". This file imports nothing: the agent uses
``kube.auth`` without aiohttp (20 MiB per node).
"""
