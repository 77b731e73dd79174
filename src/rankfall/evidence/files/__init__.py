"""Reads log files that people name: a folder, files, a pipe.

Text is hostile: listing, opening and reading are bounded. May import ``evidence.readers``, ``rundir``,
``verdict.signatures`` and ``model``.
"""
