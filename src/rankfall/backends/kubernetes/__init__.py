"""Runs slots as pods of an Indexed Job, a JobSet or a TrainJob.

Imports go one way: this package, `copy`, `lifecycle`, `manifests`. Pod states come from the journal, never from
requests here.
"""
