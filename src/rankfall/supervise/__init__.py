"""Old name of ``rankfall.supervisor``, available for one release.

A supervisor of the previous version hands over by ``python -m rankfall.supervise``, and starts ``python -m
rankfall.supervise.expiry`` for a run with a time to live. Nothing else may import this package.
"""
