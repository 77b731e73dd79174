"""Runs slots as pods of an Indexed Job, a JobSet or a TrainJob.

`backend` is the face for supervisors; `manifests` compiles, `lifecycle` creates and removes objects, `copy`
moves files. Imports point one way: this package, then `copy`, `lifecycle`, `manifests`. What pods do is read
from the journal, never asked here.
"""
