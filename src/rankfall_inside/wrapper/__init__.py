"""The wrapper: process 1 of a container or local slot; starts and observes the command.

Imports no json, typing, subprocess or socket at the top (tested), never the hook. Its failures never stop a job.
"""
