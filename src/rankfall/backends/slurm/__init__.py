"""The Slurm backend: each slot is a step of the allocation that this process runs in.

All nodes must share the run directory, the job's files and its Python.
"""
