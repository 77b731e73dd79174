"""Jobs in a cluster that Rankfall did not start: found, recorded and explained, never changed.

Nothing here creates, patches or deletes anything, and nothing needs more than `get`, `list` and `watch`. May
import the shared modules of `backends`, `kube`, `rundir`, `model`, and `collect.pods` for the states of a gang.
"""
