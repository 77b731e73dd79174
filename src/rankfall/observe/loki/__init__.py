"""Lines out of Loki, each once: the pure cursor, the query language, the client, and settings. Neither knows pods or nodes of ours.

Both a run's lines (when the API no longer has its pods) and whoever watches nodes read Loki by these.
"""
