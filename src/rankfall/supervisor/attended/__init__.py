"""Drives runs that Rankfall restarts: attempts, decisions, back-off, take-over, end.

``driver`` is the face; it is used by ``rankfall.supervisor.supervise`` only.
May import ``attempt`` and the modules of ``rankfall.supervisor`` below the drivers; never ``unattended``.
"""
