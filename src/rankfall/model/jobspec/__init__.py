"""The job spec ``rankfall.job/1``: its sections, its sizes, and the checks that need the spec alone.

What a machine or a cluster must be asked for is checked by its backend. May import: ``rankfall.model`` only.
"""
