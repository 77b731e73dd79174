"""Delivers output and records of a slot: stream files, stdout, termination message, stores.

A slow or lost destination never blocks or ends the job; losses are counted and reported.
"""
