"""Renders verdicts, tables and lines of output for a terminal.

Reads documents of ``model``; decides nothing. Text of a job is hostile: all output passes through ``escape``.
May import ``model`` and, in ``line_selection`` only, the run directory. Loads no backend and no client.
"""
