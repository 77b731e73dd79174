"""Derives a verdict from evidence, and a decision from a verdict. Pure.

Hence a finished run can be diagnosed again. ``decide`` knows neither ``signatures`` nor ``diagnose``.
"""
