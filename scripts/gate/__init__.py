"""The gate: which stages ``make test`` and its relatives run, how a stage of tests runs, and what decides that it is green.

``stages`` is the table of stages and plans. ``trial`` runs one stage of tests and tries what failed once more, alone. ``contained`` runs a command and
finds what outlives it. ``outcomes`` is the pytest plugin that writes what each test did. ``scripts/check.py`` is the command. Standard library
only, but for pytest in ``outcomes``.
"""
