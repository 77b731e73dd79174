"""Records runs that Kubernetes (or another tool) starts, restarts and ends by itself.

``driver`` (record, launch, refresh) and ``control`` (cancel, suspend, resume) are the faces. Decides
nothing.
May import the modules of ``rankfall.supervisor`` below the drivers; never ``attended`` or ``attempt``.
Loads the Kubernetes client late.
"""
