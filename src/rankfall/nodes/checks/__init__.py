"""Checks of a node before its return.

``jobs`` is pure. May import: ``nodes.rules``, ``kube``, ``model``.
"""
