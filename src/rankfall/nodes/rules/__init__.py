"""Decisions about nodes. Pure: no clock, no requests.

May import: ``rankfall.model``, ``verdict.signatures``, the kernel-log record format. Never ``kube``, asyncio, os, time.
"""
