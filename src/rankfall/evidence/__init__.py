"""Converts the bytes of a run directory, or of any files, into facts and evidence.

Entries: ``attempt.observer`` for a run, ``files.log_files`` for files. Writes nothing; draws no verdict.
"""
