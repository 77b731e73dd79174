"""Watches: the list of all objects that match, and every change from then on, over any number of connections.

The face is ``watcher.watch``. May import: the client and what lies below it. Knows no kind of object and no
job.
"""
