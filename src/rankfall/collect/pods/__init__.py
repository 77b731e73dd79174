"""Collector of an attempt's pods: watch, tail, split by rank, resume, gaps, context, clocks.

Faces: lazy_collector (what the supervisor starts), log_tailer and instance_folders (used by collect.loki).
Imports collect.stores, rundir, kube and model.
"""
