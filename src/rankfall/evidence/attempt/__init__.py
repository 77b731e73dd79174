"""Observes one attempt of a run from its directory.

Entries: ``observer.AttemptObserver``, and ``case.present_case`` for gangs of MIN:MAX nodes.
"""
