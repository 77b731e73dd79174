"""Copies records and streams from a job's record store and log store into the run directory.

Stores are shared directories, volumes or S3 buckets, and may hold anything: names, sizes and links are
checked.
Imports collect.background, rundir, model and rankfall_inside.delivery.bucket; obstore only late.
"""
