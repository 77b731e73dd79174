"""Cluster, user and credentials of requests.

Imports neither aiohttp nor ``kube.http``: aiohttp takes 20 of the agent's 50 MiB.
"""
