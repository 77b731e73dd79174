"""Node health: finds faulty nodes and decides what to do about them.

May import: ``kube``, ``loki``, the kernel-log reader, ``verdict.signatures``, ``model``; never code that starts jobs.
"""
