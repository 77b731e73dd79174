"""Evidence of the platform: pods, Events, nodes and reasons, read from the files of rundir.cluster.

Reads files only and sends no request; reasons.csv is the table of reasons.
Imports rundir.cluster, evidence.facts, evidence.readers.text, verdict and model.
"""
