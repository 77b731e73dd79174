"""What decides about nodes. Pure: records, Nodes and observations in, patches out; no clock, no requests.

Enters: rules of fault codes, kernel-line grammar, thresholds, budgets, one step of the controller, mapping of
Nodes. May import: ``rankfall.model``, ``verdict.signatures``, the kernel-log record format. Never ``kube``,
asyncio, os, time.
"""
