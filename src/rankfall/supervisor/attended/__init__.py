"""Drives runs that Rankfall restarts; entry point ``driver``.

Never imports ``unattended``.
"""
