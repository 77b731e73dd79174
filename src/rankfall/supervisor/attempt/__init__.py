"""Watches one attempt of an attended run, from its first slot to its diagnosis.

``monitor`` is the face; the other modules are its parts. Decides nothing about later attempts.
May import the modules of ``rankfall.supervisor`` below the drivers; never ``attended`` or ``unattended``.
"""
