"""Old name of ``rankfall.supervisor``, kept for one release.

A supervisor of the version before hands its run over by ``python -m rankfall.supervise``, and starts
``python -m rankfall.supervise.expiry`` where a run has a time to live. Nothing else may import this package.
"""
