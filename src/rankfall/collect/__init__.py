"""Collectors: copy external data into the run directory.

Collectors write files and decide nothing. Imports rundir, loki, kube, model and ``rankfall_inside.delivery.bucket``;
never evidence.
"""
