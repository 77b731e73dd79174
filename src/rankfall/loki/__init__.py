"""Client of Loki that yields each line once: pure cursor, LogQL, HTTP client, settings.

Knows neither runs nor nodes; both collect.loki and node health read Loki through it.
Imports model and the HTTP parts of kube (sessions, tls, files, retry, secret, errors).
"""
