"""Watches one attempt of an attended run, to its diagnosis; entry point ``monitor``.

Decides nothing about later attempts. Never imports ``attended`` or ``unattended``.
"""
