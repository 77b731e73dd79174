"""Reads log files that users name.

Text is hostile: listing, opening and reading are bounded.
"""
