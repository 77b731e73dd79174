"""Loki client that yields each line once.

Independent of runs and nodes. Imports model and HTTP parts of kube (sessions, tls, files, retry, secret, errors).
"""
