"""Readers of files that jobs leave: text, tracebacks, torchrun, Flyte, flight recorder, stacks, kernel log.

Input is hostile: every reader bounds size, time and depth, and names what it could not read.
Imports rundir.records, rundir.streams, kernellog, verdict.signatures and model; no other part of evidence.
"""
