"""Jobs in a cluster that Rankfall did not start: found, recorded and explained, never changed.

Nothing in here creates, patches or deletes anything, and nothing asks for more than ``get``, ``list`` and ``watch``.
"""
