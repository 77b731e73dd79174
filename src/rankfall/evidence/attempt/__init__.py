"""Observes one attempt of a run from its directory: records, streams, activity, evidence, case.

Face: observer.AttemptObserver; case.present_case for gangs of MIN:MAX nodes.
Imports evidence.facts, builders and readers, rundir, verdict and model; evidence.cluster late.
"""
