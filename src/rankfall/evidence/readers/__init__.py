"""Readers of files that jobs leave.

Input is hostile: every reader bounds size, time and depth, and names what it could not read.
"""
