"""Remediation hooks of the operator: ladder (pure) and calls.

May import: ``nodes.rules``, ``nodes.checks``, ``kube``, ``model``.
"""
