"""Takes the lines of an attempt's vanished pods out of Loki into the run directory, each line once.

Loaded late: it brings the HTTP client along.
Imports collect.pods (logs and folders of instances), rundir, loki and model.
"""
