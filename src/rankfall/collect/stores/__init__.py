"""Copies records and streams from a job's stores into the run directory.

Names, sizes and links are checked. Imports collect.background, rundir, model and ``rankfall_inside.delivery.bucket``;
obstore only late.
"""
