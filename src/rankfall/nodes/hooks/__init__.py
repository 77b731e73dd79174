"""Remediation hooks of the operator: the ladder of steps (pure), and one call of a hook. Off without hooks.

May import: ``nodes.rules``, ``nodes.checks``, ``kube``, ``model``.
"""
