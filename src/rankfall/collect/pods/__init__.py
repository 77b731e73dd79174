"""Collects an attempt's pods.

Entry points: ``lazy_collector``, ``log_tailer`` and ``instance_folders``. Imports collect.stores, rundir, kube and
model.
"""
