"""One attempt on Kubernetes, written down as it is seen: states of pods, lines of containers, records on the log channel.

Everything goes into the run directory first; all readers work on files, so a run on Kubernetes is read, diagnosed and shown as a local one is.
"""
