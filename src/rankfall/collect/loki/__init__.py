"""Copies the lines of an attempt's vanished pods from Loki.

Loaded late, because it loads the HTTP client. Imports collect.pods, rundir, loki and model.
"""
