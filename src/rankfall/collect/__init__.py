"""Collectors: bring what is outside into the run directory.

pods/ watches pods and tails their logs, loki/ takes lines out of Loki, stores/ copies records and streams
from stores.
A collector writes files and decides nothing; every reader works on those files.
Imports rundir, loki, kube, model and rankfall_inside.delivery.bucket; never evidence.
"""
