"""Records runs that Kubernetes starts, restarts and ends.

Decides nothing; entry points ``driver`` and ``control``. Never imports ``attended`` or ``attempt``.
"""
